"""Hostile tools, schemas and arguments: none of them hangs, ends the process or leaks a value."""

import itertools
import json
import time
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer, field_validator

from proxy.base.errors import ConfigError
from proxy.tools import Redaction, ToolFailure, ToolTester, tool
from proxy.tools.contract.redaction import MASK
from proxy.tools.contract.schemas.schema import MAX_SCHEMA_NODES, check_schema

READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction(output=("*",))}


class Liar(str):
    """A text that reports the length 1."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1


class Deadly:
    """A message that raises SystemExit when it is converted to text."""

    def __str__(self) -> str:
        raise SystemExit(4)


class DeadlyDict(dict[str, Any]):
    """A dict that raises SystemExit when its items are read."""

    def items(self) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (itertools.count(), "result_too_large"),
        ({"a": itertools.count()}, "execution_failed"),
        ([iter("ab")], "execution_failed"),
        (range(10**12), "execution_failed"),
        (DeadlyDict(a=1), "execution_failed"),
        (10**10_000, "execution_failed"),
    ],
    ids=["endless", "endless inside", "iterator inside", "range", "deadly", "huge number"],
)
def test_values_that_are_no_values(value: Any, code: str) -> None:
    """A result that cannot be converted to JSON is a failed call with an error code."""

    @tool(**READ)
    def give() -> object:
        """Give it."""
        return value

    assert ToolTester(give).call().error_code == code


def test_a_generator_is_a_list() -> None:
    """The result of a generator function is a list."""

    @tool(**READ)
    def give() -> Any:
        """Give two."""
        yield 1
        yield 2

    assert ToolTester(give).call().json == [1, 2]


def test_a_text_that_lies_is_cut_all_the_same() -> None:
    """Rule T7: the size limit counts the actual text, even if its type reports another length."""

    @tool(**READ)
    def give() -> str:
        """Give much."""
        return Liar("x" * 5_000_000)

    assert len(ToolTester(give).call().content) <= 32768


def test_a_deadly_message_is_a_failure() -> None:
    """If the message of a failure raises SystemExit, only the call fails."""

    @tool(**READ)
    def fail() -> str:
        """Fail."""
        raise ToolFailure(Deadly())  # type: ignore[arg-type]

    assert ToolTester(fail).call().message == "the tool failed"


@pytest.mark.parametrize("code", ["no_such_code", "pin-4711", ["timeout"], None])
def test_a_code_that_there_is_not(code: Any) -> None:
    """Rule T4: an unknown code of a failure is replaced, so that it carries no argument into the log."""

    @tool(effect="read_only", redaction=Redaction(private_arguments=("pin",)))
    def fail(pin: str) -> str:
        """Fail."""
        raise ToolFailure("the shop is closed", code=code)

    result = ToolTester(fail).call(pin="pin-4711")
    assert (result.error_code, result.message) == ("execution_failed", "the shop is closed")
    result.assert_hidden("pin-4711")


class Checked(BaseModel):
    """Arguments whose validator blocks or raises unusual exceptions."""

    code: str

    @field_validator("code")
    @classmethod
    def check(cls, value: str) -> str:
        """Block, or raise the exception that the value names."""
        if value == "slow-zq!x":
            time.sleep(0.15)
            return value
        raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "key": KeyError}[value[:-5]](value)


@tool(**READ)
def check(given: Checked) -> str:
    """Check."""
    return "fine"


@pytest.mark.parametrize(
    ("kind", "error"), [("exit", SystemExit), ("interrupt", KeyboardInterrupt), ("key", KeyError)]
)
def test_a_validator_that_raises_anything(kind: str, error: type[BaseException]) -> None:
    """Rules T1, T3: any exception of a validator fails only the call, and is in row and log unquoted."""
    result = ToolTester(check).call(code=f"{kind}-zq!x")
    assert (result.ok, result.message) == (False, "the tool could not check its arguments")
    assert isinstance(result.exception, error)
    result.assert_hidden("zq!x")
    for said in ("status='error'", "'event': 'tool_crashed'", f"'exception': '{error.__name__}'"):
        assert said in result.seen


def test_a_serializer_that_raises_anything() -> None:
    """Rule T1: a call runs even if the serializer of its arguments raises SystemExit."""

    class Odd(BaseModel):
        code: str

        @field_serializer("code")
        def shown(self, _: str) -> str:
            raise SystemExit(3)

    @tool(**READ)
    def odd(given: Odd) -> str:
        """Odd."""
        return given.code

    assert ToolTester(odd).call(code="x").content == "x"


def test_a_slow_validator_is_named() -> None:
    """Rule T7: the log reports a validator that blocks the event loop."""
    result = ToolTester(check).call(code="slow-zq!x")
    assert result.ok
    assert "'event': 'tool_blocked_event_loop'" in result.seen


def test_changed_arguments_hide_nothing() -> None:
    """Rule T4: a private argument stays masked even if the tool removes it from its arguments."""

    @tool(
        parameters={
            "type": "object",
            "properties": {"pin": {"type": "string"}, "list": {"type": "array"}},
            "additionalProperties": False,
        },
        effect="read_only",
        redaction=Redaction(private_arguments=("pin",)),
    )
    def fail(arguments: dict[str, Any]) -> str:
        """Fail."""
        arguments["list"].clear()
        raise ToolFailure(f"{arguments.pop('pin')} is wrong")

    result = ToolTester(fail).call(pin="pin-4711", list=[1])
    assert result.message == f"{MASK} is wrong"
    assert result.arguments_redacted == {"pin": MASK, "list": [1]}
    result.assert_hidden("pin-4711")


class Node(BaseModel):
    """A recursive model."""

    name: str
    children: list["Node"] = []


def test_a_recursive_model_is_bounded_by_its_arguments() -> None:
    """A recursive model is accepted, but arguments that nest it too deeply are refused."""

    @tool(**READ)
    def depth(node: Node) -> int:
        """How deep it goes."""
        at, found = node, 1
        while at.children:
            at, found = at.children[0], found + 1
        return found

    tester = ToolTester(depth)
    assert tester.call(name="x", children=[{"name": "y", "odd": 1}]).error_code == "invalid_arguments"
    for levels, ok in ((1, True), (20, True), (200, False)):
        node: dict[str, Any] = {"name": "x"}
        for _ in range(levels - 1):
            node = {"name": "x", "children": [node]}
        result = tester.call(**node)
        assert (result.ok, result.error_code) == (ok, None if ok else "invalid_json")


def _doubling(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "integer"}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


def test_references_that_multiply_are_refused() -> None:
    """Rule T8: a schema whose references multiply to too many parts stops the start."""
    check_schema(_doubling(8), "tool t__x")
    for levels in (20, 60):
        with pytest.raises(ConfigError, match=f"more than {MAX_SCHEMA_NODES} parts"):
            check_schema(_doubling(levels), "tool t__x")
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1500)}
    chain["d1500"] = {"type": "string"}
    long = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": chain}
    assert len(json.dumps(long)) < 65536
    with pytest.raises(ConfigError):
        check_schema(long, "tool t__x")
    for recursive in ({"$ref": "#"}, {"$ref": "#/properties/a"}, {"type": "array", "items": {"$ref": "#"}}):
        check_schema({"type": "object", "properties": {"a": recursive}}, "tool t__x")
