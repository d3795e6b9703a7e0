"""Tools that are classes: the constructor takes the arguments, ``run`` does the work; rules T3, T6 and T8."""

import json
import threading
from typing import Annotated, Any, ClassVar

import pytest
from documents import snippets
from pydantic import BaseModel, Field, SecretStr

from proxy.base.errors import ConfigError
from proxy.tools import CallContext, Clock, Definition, Redaction, ToolFailure, ToolTester, tool
from proxy.tools.providers.function import FunctionProvider, declared

SHOW = Redaction(output=("*",))

SCHEMA: dict[str, Any] = {
    "properties": {"sides": {"title": "Kept", "type": "integer"}},
    "type": "object",
    "required": ["sides"],
    "additionalProperties": False,
}


@tool(
    type="function",
    name="roll_a_die",
    description="Roll a die.",
    parameters=SCHEMA,
    strict=True,
    safety={"threat_level": "low"},
    effect="read_only",
    redaction=SHOW,
)
class RollDie:
    """What people read; the model reads the description."""

    definition: ClassVar[Definition]
    made: ClassVar[list["RollDie"]] = []

    def __init__(self, payload: dict[str, Any]) -> None:
        if payload["sides"] == 3:
            raise ValueError("sides cannot be odd")
        if payload["sides"] == 5:
            raise ValueError("a die of 5 sides does not exist")
        self.sides = payload["sides"]
        self.rolls = 0
        self.made.append(self)

    async def run(self) -> dict[str, int]:
        """Count the rolls of this instance."""
        self.rolls += 1
        return {"sides": self.sides, "rolls": self.rolls}


async def test_each_call_has_an_instance_of_its_own() -> None:
    """The constructor gets the validated payload, once for each call, and nothing is made when it loads."""
    RollDie.made.clear()
    tester = ToolTester(RollDie)
    assert RollDie.made == []
    for sides in (6, 8):
        assert (await tester.acall(sides=sides)).json == {"sides": sides, "rolls": 1}
    first, second = RollDie.made
    assert first is not second
    assert tester.spec.safety == {"threat_level": "low"}


def test_definition_is_what_the_model_sees() -> None:
    """Rule T8: ``definition`` has the author's schema verbatim, and equals what is offered but for the id."""
    assert RollDie.definition == {
        "type": "function",
        "name": "roll_a_die",
        "description": "Roll a die.",
        "parameters": SCHEMA,
        "strict": True,
    }
    assert json.dumps(RollDie.definition["parameters"]) == json.dumps(SCHEMA)
    RollDie.definition["parameters"].clear()
    assert RollDie.definition["parameters"] == SCHEMA, "each reader has a copy"
    (spec,) = FunctionProvider("dice", [RollDie]).specs
    offered = spec.definition()
    assert offered.name == "dice__roll_a_die"
    assert (offered.description, offered.parameters, offered.strict) == ("Roll a die.", SCHEMA, True)


async def test_constructor_that_raises_answers_the_model() -> None:
    """Rule T3: a ``ValueError`` is ``invalid_arguments`` with the author's words, but none of the model's."""
    tester = ToolTester(RollDie)
    odd = await tester.acall(sides=3)
    assert (odd.error_code, odd.message) == ("invalid_arguments", "sides cannot be odd")
    quoted = await tester.acall(sides=5)
    assert (quoted.error_code, quoted.message) == ("invalid_arguments", "the arguments are not valid")
    assert (await tester.acall(sides="six")).error_code == "invalid_arguments"


class Order(BaseModel):
    """An order, which only its constructor can check."""

    number: str = Field(pattern="^A")


@tool(redaction=SHOW)
class FindOrder:
    """Find an order."""

    definition: ClassVar[Definition]

    def __init__(self, number: Annotated[str, Field(description="Like A-17")], pin: SecretStr) -> None:
        if number == "gone":
            raise ToolFailure("it is gone")
        if number == "broken":
            raise KeyError(number)
        if pin.get_secret_value() == "0000":
            raise ValueError("the PIN 0000 is not allowed")
        self.order = Order(number=number)

    def run(self) -> list[Any]:
        """Return the order's number, and whether a thread of its own runs this."""
        return [self.order.number, threading.current_thread() is not threading.main_thread()]


@pytest.mark.parametrize(
    ("number", "pin", "code", "message"),
    [
        ("gone", "1", "execution_failed", "it is gone"),
        ("broken", "1", "execution_failed", "the tool failed; it may have taken effect all the same"),
        ("B-1", "1", "invalid_arguments", "number: String should match pattern '^A'"),
    ],
)
async def test_what_the_model_reads(number: str, pin: str, code: str, message: str) -> None:
    """Each exception of a constructor becomes an error that the model can read."""
    result = await ToolTester(FindOrder).acall(number=number, pin=pin)
    assert (result.ok, result.error_code, result.message) == (False, code, message)


async def test_secret_in_a_refusal_is_masked() -> None:
    """A secret argument that the constructor's message quotes reaches nobody."""
    result = await ToolTester(FindOrder).acall(number="A-1", pin="0000")
    assert result.error_code == "invalid_arguments"
    assert "0000" not in result.message
    result.assert_hidden("0000")


async def test_typed_constructor_makes_the_schema() -> None:
    """Rule T8: without ``parameters`` the schema is that of the constructor; a ``def run`` has a thread."""
    tester = ToolTester(FindOrder)
    assert tester.spec.name == "tested__find_order"
    assert FindOrder.definition["parameters"] == tester.spec.parameters
    assert FindOrder.definition["description"] == "Find an order."
    assert tester.spec.parameters["properties"]["number"]["description"] == "Like A-17"
    assert (await tester.acall(number="A-17", pin="1")).json == ["A-17", True]


async def test_constructor_gets_capabilities() -> None:
    """Rule T6: a constructor gets capabilities by their types; a payload without a type is the arguments."""

    @tool(redaction=SHOW, parameters=SCHEMA, description="Look.")
    class Look:
        def __init__(self, payload, *, clock: Clock, call: CallContext) -> None:  # type: ignore[no-untyped-def]
            self.seen = [payload, clock is not None, call.run_id]

        async def run(self) -> list[Any]:
            return self.seen

    tester = ToolTester(Look)
    assert tester.spec.capabilities == ("Clock",)
    assert (await tester.acall(sides=4)).json == [{"sides": 4}, True, "run_1"]


async def test_class_without_a_constructor_takes_no_arguments() -> None:
    """A class that declares nothing is a tool without arguments; a subclass of it is no tool."""

    @tool(redaction=SHOW)
    class SayHello:
        """Say hello."""

        definition: ClassVar[Definition]

        async def run(self) -> str:
            return "hello"

    class NotATool(SayHello):
        pass

    assert (await ToolTester(SayHello).acall()).content == "hello"
    assert SayHello.definition["parameters"]["properties"] == {}
    assert declared(NotATool) is None


def test_run_takes_no_arguments() -> None:
    """A class whose ``run`` takes arguments does not load, and the message says where they belong."""

    @tool(redaction=SHOW)
    class Roll:
        """Roll."""

        async def run(self, sides: int) -> int:
            return sides

    with pytest.raises(ConfigError, match=r"run has parameters besides self.*__init__"):
        FunctionProvider("t", [Roll])


def test_definition_of_a_tool_that_cannot_load() -> None:
    """Reading ``definition`` of a tool without a description says what is missing."""

    @tool(redaction=SHOW)
    class Act:
        definition: ClassVar[Definition]

        async def run(self) -> None: ...

    with pytest.raises(ConfigError, match="no description"):
        _ = Act.definition


def test_attribute_of_that_name_and_unknown_type_are_refused() -> None:
    """``@tool`` overwrites no attribute of a class, and there is one type of tool."""
    with pytest.raises(TypeError, match="attribute definition"):

        @tool(redaction=SHOW)
        class Act:
            definition = 1

    with pytest.raises(ValueError, match='type is "function"'):
        tool(type="custom", redaction=SHOW)  # type: ignore[call-overload]


async def test_example_of_the_reference() -> None:
    """The class in the reference of the tool API does what its text says."""
    (text,) = (one.text for one in snippets("python") if "class Convert:" in one.text)
    module: dict[str, Any] = {"__name__": "my_tools"}
    exec(compile(text, "my_tools.py", "exec"), module)  # noqa: S102
    tester = ToolTester(module["Convert"])
    assert (await tester.acall(euros=10, to="CHF")).json == {"amount": 9.5}
    negative = await tester.acall(euros=-1, to="CHF")
    assert (negative.error_code, negative.message) == ("invalid_arguments", "euros must not be negative")
    assert module["Convert"].definition["name"] == "convert"
