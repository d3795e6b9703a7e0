"""Bounds of arguments in the policy: what they refuse, with which message, and how defaults count."""

import json
from collections.abc import Callable
from datetime import date
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from proxy.base.events import ToolCall
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import MAX_PATTERN, ArgumentBound, find_violation, must_be_given
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.plan import AdmittedCall, Refusal, admit, plan

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def test_bounds_that_refuse_other_values_are_not_equal() -> None:
    """Rule T2: bounds with 1 and with true are not equal, although 1 == True in Python."""
    assert ArgumentBound(enum=(1,)) != ArgumentBound(enum=(True,))
    assert ArgumentBound(enum=("a", 0)) != ArgumentBound(enum=("a", False))
    assert ArgumentBound(enum=(1,)) == ArgumentBound(enum=(1.0,))


@pytest.mark.parametrize(
    ("bound", "fits", "refused"),
    [
        (ArgumentBound(max=7), [7, -1, 6.5, 0], [8, 7.01, "7", True, None, [7], {}, 10**400]),
        (ArgumentBound(min=0), [0, 10**400], [-1, "0", False, None]),
        (ArgumentBound(min=1, max=2), [1, 1.5, 2], [0.5, 3]),
        (ArgumentBound(enum=("a", 1)), ["a", 1, 1.0], ["A", "1", True, None, ["a"]]),
        (ArgumentBound(enum=(True,)), [True], [1, "true"]),
        (ArgumentBound(max_length=2), ["", "ab", [1, 2]], ["abc", [1, 2, 3], 1, None, {}]),
        (ArgumentBound(pattern="a+"), ["a", "aaa"], ["", "ba", "ab", "a\n", "\na", ["a"], 1, None]),
        (ArgumentBound(pattern="a|b"), ["a", "b"], ["ab", "ax", "xb"]),
        (
            ArgumentBound(pattern=r"https://docs\.example\.com/.*"),
            ["https://docs.example.com/", "https://docs.example.com/a?b"],
            [
                "http://evil.example/?https://docs.example.com/",
                "https://docs.example.com.evil.example/",
                "https://docsXexample.com/",
                "https://docs.example.com@evil.example/",
            ],
        ),
    ],
)
def test_a_bound_says_of_what_kind_a_value_is_too(
    bound: ArgumentBound, fits: list[Any], refused: list[Any]
) -> None:
    """Rule T2: a bound accepts values within it, and refuses values outside it or of another type."""
    assert [value for value in fits if bound.violation(value)] == []
    assert [value for value in refused if not bound.violation(value)] == []


@pytest.mark.parametrize(
    ("path", "bound", "arguments", "words"),
    [
        ("days", ArgumentBound(max=1), {}, None),
        ("days", ArgumentBound(max=1, required=True), {}, "is required"),
        ("days", ArgumentBound(forbidden=True), {}, None),
        ("days", ArgumentBound(forbidden=True), {"days": None}, "may not be given"),
        ("a.b", ArgumentBound(max=1), {"a": {"b": 2}}, "must be 1 or less"),
        ("a.b", ArgumentBound(max=1), {"a": {}}, None),
        ("a.b", ArgumentBound(max=1), {"a": None}, None),
        ("a.b", ArgumentBound(max=1, required=True), {"a": None}, "is required"),
        ("a.b", ArgumentBound(max=1), {"a": "b=2"}, "cannot be judged"),
        ("a.b", ArgumentBound(max=1), {"a": [{"b": 2}]}, "cannot be judged"),
        ("a.*.b", ArgumentBound(max=1), {"a": [{"b": 1}, {"b": 2}]}, "must be 1 or less"),
        ("a.*.b", ArgumentBound(max=1), {"a": {"x": {"b": 2}}}, "must be 1 or less"),
        ("a.*.b", ArgumentBound(required=True), {"a": []}, "is required"),
        ("a.*.b", ArgumentBound(required=True), {"a": [{"b": 1}, {}]}, "is required"),
        ("a.*", ArgumentBound(max=1), {"a": 2}, "cannot be judged"),
        (
            "*",
            ArgumentBound(max_length=1),
            {"a": "b", "c": "dd"},
            "may have 1 characters or elements at most",
        ),
    ],
)
def test_paths(path: str, bound: ArgumentBound, arguments: dict[str, Any], words: str | None) -> None:
    """A path finds values at any depth; arguments that block the path are refused, not let through."""
    found = find_violation({path: bound}, arguments, {})
    assert found == (None if words is None else (path, words))


@pytest.mark.parametrize(
    "pattern",
    ["", "(", "a)|(b", "(?=a)", r"(a)\1", "((a{99}){99}){99}", "a" * (MAX_PATTERN + 1), "(?x)a # "],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str) -> None:
    """A pattern that is invalid, too large, or not supported by a linear-time engine is an error."""
    with pytest.raises(ValueError, match="pattern"):
        ArgumentBound(pattern=pattern)


def test_no_pattern_takes_long() -> None:
    """A pattern with catastrophic backtracking is matched quickly."""
    assert ArgumentBound(pattern="(a*)*b").violation("a" * 100_000) != ""


@given(value=values, length=st.integers(0, 5))
def test_bounds_judge_anything(value: Any, length: int) -> None:
    """Rule T3: a bound judges any JSON without an exception, and its message quotes no refused text."""
    for bound in (
        ArgumentBound(max_length=length),
        ArgumentBound(min=0, max=1),
        ArgumentBound(enum=("zz",)),
        ArgumentBound(pattern="z+"),
    ):
        words = find_violation({"a.*": bound, "a": bound}, {"a": value, "b": value}, {})
        if isinstance(value, str) and len(value) > 3 and words is not None:
            assert value not in words[1]


class Deep(BaseModel):
    """Options with a default."""

    depth: int = 5


class Round(BaseModel):
    """One variant of a shape, with a default."""

    kind: Literal["round"]
    n: int = 7


class Flat(BaseModel):
    """The other variant of a shape, without a number."""

    kind: Literal["flat"]


class Search(BaseModel):
    """Arguments with every kind of optional field."""

    most: int = 2
    unit: str = Field(default="metric", alias="in")
    until: date | None = None
    options: Deep = Deep()
    maybe: Deep | None = None
    each: list[Deep] = []
    shape: Round | Flat | None = None
    made: list[int] = Field(default_factory=lambda: [9])


@tool(effect="read_only", redaction=Redaction())
def search(query: Search) -> str:
    """Search."""
    return str(query)


@tool(effect="read_only", redaction=Redaction(), strict=True)
def search_strictly(most: int | None = 2) -> str:
    """Search; strict mode offers no default, but a model may still leave the argument out."""
    return str(most)


@tool(
    effect="read_only",
    redaction=Redaction(),
    parameters={
        "type": "object",
        "properties": {
            "most": {"$ref": "#/$defs/Most"},
            "pair": {"type": "array", "prefixItems": [{"type": "object"}, {"$ref": "#/$defs/Opts"}]},
        },
        "additionalProperties": {"allOf": [{"$ref": "#/$defs/Opts"}]},
        "$defs": {
            "Most": {"type": "integer", "default": 2},
            "Opts": {"type": "object", "properties": {"depth": {"default": 5}}},
        },
    },
)
def search_by_schema(arguments: dict[str, Any]) -> str:
    """Search."""
    return str(arguments)


ONE = ArgumentBound(max=1)
DEFAULT = "must be given, since its default is not allowed: it "


@pytest.mark.parametrize(
    ("target", "path", "bound", "arguments", "words"),
    [
        (search, "most", ONE, {}, DEFAULT + "must be 1 or less"),
        (search, "most", ONE, {"most": 1}, ""),
        (search, "most", ONE, {"most": 2}, "must be 1 or less"),
        (search, "most", ArgumentBound(max=2), {}, ""),
        (search, "most", ArgumentBound(max=1, required=True), {}, "is required"),
        (search, "most", ArgumentBound(max=2, required=True), {}, "is required"),
        (search, "most", ArgumentBound(forbidden=True), {}, ""),
        (search, "in", ArgumentBound(enum=("imperial",)), {}, DEFAULT + "must be one of imperial"),
        (search, "in", ArgumentBound(pattern="m.*"), {}, ""),
        (search, "until", ArgumentBound(pattern="2027-.*"), {}, ""),
        (search, "until", ArgumentBound(pattern="2027-.*"), {"until": None}, "must match 2027-.*"),
        (search, "options.depth", ONE, {}, DEFAULT + "must be 1 or less"),
        (search, "options.depth", ONE, {"options": {}}, DEFAULT + "must be 1 or less"),
        (search, "options.depth", ONE, {"options": {"depth": 1}}, ""),
        (search, "options.depth", ArgumentBound(forbidden=True), {}, ""),
        (search, "options.*", ONE, {"options": {}}, DEFAULT + "must be 1 or less"),
        (search, "options.*", ArgumentBound(required=True), {"options": {}}, "is required"),
        (search, "maybe.depth", ONE, {}, ""),
        (search, "maybe.depth", ONE, {"maybe": None}, ""),
        (search, "maybe.depth", ONE, {"maybe": {}}, DEFAULT + "must be 1 or less"),
        (search, "each.*.depth", ONE, {"each": []}, ""),
        (search, "each.*.depth", ONE, {"each": [{"depth": 1}, {}]}, DEFAULT + "must be 1 or less"),
        (search, "shape.n", ONE, {"shape": {"kind": "round"}}, DEFAULT + "must be 1 or less"),
        (search, "shape.n", ONE, {"shape": {"kind": "flat"}}, ""),
        (search, "made", ArgumentBound(max_length=0), {}, ""),
        (search_strictly, "most", ONE, {}, DEFAULT + "must be 1 or less"),
        (search_strictly, "most", ArgumentBound(max=2), {}, ""),
        (search_by_schema, "most", ONE, {}, DEFAULT + "must be 1 or less"),
        (search_by_schema, "other.depth", ONE, {"other": {}}, DEFAULT + "must be 1 or less"),
        (search_by_schema, "pair.*.depth", ONE, {"pair": [{}, {}]}, DEFAULT + "must be 1 or less"),
    ],
)
def test_a_bound_judges_what_is_left_out_by_its_default(
    target: Any, path: str, bound: ArgumentBound, arguments: dict[str, Any], words: str
) -> None:
    """Rule T2: if the model leaves an argument out, the bound applies to the default in the schema."""
    spec = FunctionProvider("t", [target]).specs[0]
    policy = Policy(allow=("*",), arguments={"t__*": {path: bound}})
    admitted = admit(ToolCall("call_1", spec.name, json.dumps(arguments), 0), spec, policy, untrusted="")
    assert isinstance(admitted, AdmittedCall)
    outcome = plan(admitted, caller="key_1", key="inv_1")
    said = outcome.failure.message if isinstance(outcome, Refusal) else ""
    assert said == (f"policy does not allow these arguments: {path} {words}" if words else "")


@pytest.mark.parametrize(
    ("target", "path", "bound", "needed"),
    [
        (search, "most", ONE, True),
        (search, "most", ArgumentBound(max=2), False),
        (search, "most", ArgumentBound(max=1, required=True), False),
        (search, "most", ArgumentBound(forbidden=True), False),
        (search, "until", ArgumentBound(pattern="2027-.*"), False),
        (search, "options.depth", ONE, True),
        (search, "maybe.depth", ONE, True),
        (search, "each.*.depth", ONE, True),
        (search, "shape.n", ONE, True),
        (search, "shape.kind", ArgumentBound(enum=("flat",)), False),
        (search_strictly, "most", ONE, True),
        (search_by_schema, "most", ONE, True),
        (search_by_schema, "other.depth", ONE, True),
    ],
)
def test_a_default_that_its_bound_refuses_is_known_beforehand(
    target: Any, path: str, bound: ArgumentBound, needed: bool
) -> None:
    """``must_be_given`` says whether a bound refuses the default, so that the argument must be given."""
    spec = FunctionProvider("t", [target]).specs[0]
    assert must_be_given(bound, path, spec.schema_with_defaults) is needed


RAN: list[int] = []


@tool(effect="external_side_effect", redaction=Redaction(private_arguments=("to",)))
def pay(to: str, amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return "done"


async def test_the_runner_refuses_what_is_out_of_bounds(
    make_runner: Any, log: Any, context: RunContext, call: Callable[..., ToolCall]
) -> None:
    """Rule T2: a call out of bounds is denied with a message without its values; its row is redacted."""
    RAN.clear()
    bounds = {"t__*": {"amount": ArgumentBound(max=100)}}
    runner = await make_runner([pay], policy=Policy(allow=("*",), arguments=bounds))
    refused = await runner.run(call("pay", '{"to":"secret-4711","amount":101}'), context)
    assert json.loads(refused.content) == {
        "ok": False,
        "error_code": "policy_denied",
        "message": "policy does not allow these arguments: amount must be 100 or less",
    }
    row = log.closed[-1]
    assert (row.status, row.error_code) == ("error", "policy_denied")
    assert row.decision == 'denied: policy.arguments."t__*".amount'
    assert row.arguments_redacted["amount"] == 101
    assert "secret-4711" not in repr(row)
    passed = await runner.run(call("pay", '{"to":"x","amount":100}', 1), context)
    assert passed.ok
    assert RAN == [100]


async def test_every_policy_bounds(
    make_runner: Any, context: RunContext, call: Callable[..., ToolCall]
) -> None:
    """Rule T2: a call must be within the bounds of all policies that apply."""
    RAN.clear()
    narrow = Policy(allow=("*",), arguments={"t__pay": {"to": ArgumentBound(enum=("me",))}})
    wide = Policy(allow=("*",), arguments={"t__pay": {"amount": ArgumentBound(max=100)}})
    runner = await make_runner([pay], policy=wide)
    for seq, (to, amount, ok) in enumerate([("you", 1, False), ("me", 101, False), ("me", 1, True)]):
        arguments = json.dumps({"to": to, "amount": amount})
        result = await runner.run(call("pay", arguments, seq), context, policy=narrow)
        assert result.ok is ok
    assert RAN == [1]


async def test_arguments_that_do_not_fit_the_tool_are_said_first(
    make_runner: Any, context: RunContext, call: Callable[..., ToolCall]
) -> None:
    """Rule T3: arguments that do not fit the tool's schema are invalid_arguments before bounds apply."""
    bounds = {"t__pay": {"amount": ArgumentBound(max=100)}}
    runner = await make_runner([pay], policy=Policy(allow=("*",), arguments=bounds))
    result = await runner.run(call("pay", '{"to":"x","amount":"101"}'), context)
    assert result.error_code == "invalid_arguments"


def test_a_bound_in_words() -> None:
    """The text of a bound describes all its parts for the operator."""
    bound = ArgumentBound(
        enum=("a", True, 2), min=1, max=1_000_000, max_length=3, pattern="a+", required=True
    )
    assert str(bound) == (
        "required, one of a, true, 2, 1 or more and 1000000 or less, "
        "3 characters or elements at most, matches a+"
    )
    assert str(ArgumentBound(forbidden=True)) == "forbidden"
