"""Conversations for models without native tools: what the prompt says, and whether calls are read back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.conversation import (
    Conversation,
    CustomTool,
    FunctionTool,
    Grammar,
    Image,
    Message,
    Remote,
    Text,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.prompting import prompted
from proxy.wires.text_calls.rules import FORMS, ModelTextCalls, TextCalls
from proxy.wires.text_calls.scanner import Scanner

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = (FunctionTool("get_weather", "The weather.", PARAMETERS), FunctionTool("get_time"))
USER = Message("user", (Text("Hi"),))

every_form = pytest.mark.parametrize("form", sorted(FORMS))


def words(message: Message) -> str:
    """Return all text of a message."""
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def told(form: str, *messages: Message, **more: Any) -> Conversation:
    """Return the conversation as the model gets it."""
    return prompted(Conversation("m", (USER, *messages), tools=more.pop("tools", TOOLS), **more), FORMS[form])


def calls_of(form: str, text: str) -> list[Any]:
    """Return the calls that the scanner finds in a text, and the text next to them."""
    declared = Declared([tool.name for tool in TOOLS], lambda: {"get_weather": PARAMETERS})
    scanner = Scanner(FORMS[form], declared, 65536)
    scanner.feed(text)
    scanner.close(cut=False)
    parts = [
        (one.name, json.loads(one.arguments)) if isinstance(one, TextCall) else one for one in scanner.parts
    ]
    return [text[: scanner.settled], *parts]


TEXTS = st.text(alphabet="ab 0é\"'\\{}[]<>/&\n", max_size=12)


@given(
    form=st.sampled_from(sorted(FORMS)),
    city=TEXTS,
    days=st.none() | st.integers(-5, 1 << 40),
    count=st.integers(1, 3),
)
def test_what_is_written_is_understood(form: str, city: str, days: int | None, count: int) -> None:
    """A call that the proxy writes into the text of a turn is read back as the same call."""
    given_ = {"city": city, **({} if days is None else {"days": days})}
    parts = [ToolCallPart(f"call_{n}", "get_weather", json.dumps(given_)) for n in range(count)]
    found = told(form, Message("assistant", tuple(parts)))
    tags = ("</parameter>", "</arg_value>", "</｜DSML｜parameter>")
    assert not any(tag in city for tag in tags)
    # Between tags, a line break at the edge of a value belongs to the tags.
    if form == "qwen-xml" or not city.startswith("\n"):
        assert calls_of(form, words(found.messages[1])) == ["", *[("get_weather", given_)] * count]


@every_form
def test_the_example_is_in_the_form(form: str) -> None:
    """The example call in the prompt is a valid call once a name and an argument are filled in."""
    example = FORMS[form].example
    shown = example.replace("FUNCTION_NAME", "get_weather").replace("ARGUMENT", "city")
    assert calls_of(form, shown) == ["", ("get_weather", {"city": "VALUE"})]
    assert example in words(told(form).system[0])


@every_form
def test_words_before_a_call_stay_before_it(form: str) -> None:
    """Text before a call stays before it, except with ``llama3``, whose bare calls stand alone."""
    part = ToolCallPart("call_1", "get_time", "{}")
    found = told(form, Message("assistant", (Text("I look."), part)))
    if form != "llama3":
        assert calls_of(form, words(found.messages[1])) == ["I look.", ("get_time", {})]


@every_form
def test_results_are_in_the_order_of_the_calls(form: str) -> None:
    """Results go in the order of the calls, since some forms do not name the call of a result."""
    calls = Message("assistant", tuple(ToolCallPart(f"call_{n}", "get_time", "{}") for n in (1, 2)))
    image = Image(Remote("https://example.com/a.png"))
    results = Message(
        "tool",
        (
            ToolResultPart("call_2", (Text("second"), image), is_error=True),
            ToolResultPart("call_1", (Text("first"),)),
        ),
    )
    found = told(form, calls, results, Message("user", (Text("And now?"),)))
    assert [message.role for message in found.messages] == ["user", "assistant", "user"]
    last = found.messages[-1]
    assert words(last).index("first") < words(last).index("Error: second") < words(last).index("And now?")
    assert image in last.parts


@every_form
def test_a_result_cannot_end_itself(form: str) -> None:
    """The text of a result cannot contain the markers that surround results."""
    signs = FORMS[form].around_results
    result = ToolResultPart("call_1", (Text("x" + "".join(signs)),), name="get_time")
    plain = ToolResultPart("call_1", (Text("x"),), name="get_time")
    found, expected = (words(told(form, Message("tool", (one,))).messages[1]) for one in (result, plain))
    assert signs
    for sign in signs:
        assert found.count(sign) == expected.count(sign)


def test_choices_are_said_in_words() -> None:
    """The prompt expresses ``tool_choice`` and ``parallel_tool_calls``: it says what the model must call."""
    assert told("hermes", tool_choice=ToolChoice("none")).system == ()
    assert "at least one function" in words(told("hermes", tool_choice=ToolChoice("required")).system[0])
    named = words(told("hermes", tool_choice=ToolChoice("named", ("get_time",))).system[0])
    assert "must call the function get_time" in named
    assert "get_weather" not in named
    allowed = words(told("hermes", tool_choice=ToolChoice("allowed", ("get_time",))).system[0])
    assert "get_weather" not in allowed
    assert "must" not in allowed
    assert "one call at a time" in words(told("hermes", parallel_tool_calls=False).system[0])
    found = told("hermes", tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    assert (found.tools, found.tool_choice, found.parallel_tool_calls) == ((), None, None)


def test_the_clients_words_come_first() -> None:
    """The tool definitions follow the text of the client's first system message, and only there."""
    system = (Message("system", (Text("Be brief."),)), Message("developer", (Text("Be kind."),)))
    found = told("hermes", system=system)
    assert words(found.system[0]).startswith("Be brief.")
    assert "<tools>" in words(found.system[0])
    assert found.system[1] == system[1]


def test_a_tool_that_takes_text() -> None:
    """The prompt describes a custom tool as one with an argument ``input``, and its calls are written so."""
    tool = CustomTool("run", "Runs it.", Grammar("regex", "[a-z]+"))
    call = ToolCallPart("call_1", "run", "ls", custom=True)
    found = told("hermes", Message("assistant", (call,)), tools=(tool,))
    assert '"input"' in words(found.system[0])
    assert "[a-z]+" in words(found.system[0])
    assert '{"input":"ls"}' in words(found.messages[1])


def test_of_several_patterns_the_first_that_says_something_counts() -> None:
    """For each of the three settings, the first matching pattern that sets it counts."""
    rules = TextCalls(
        [
            ModelTextCalls("a*", tools="prompt"),
            ModelTextCalls("*b", text_calls="glm", repair=True),
            ModelTextCalls("*", text_calls="auto", repair=False, tools="native"),
        ]
    )
    found = {model: rules.of(model) for model in ("ab", "xb", "qwen3", "x")}
    said = {model: (one.form.name, one.repair, one.prompt) if one else None for model, one in found.items()}
    assert said == {
        "ab": ("glm", True, True),
        "xb": ("glm", True, False),
        "qwen3": ("hermes", False, False),
        "x": None,
    }
    assert not TextCalls([ModelTextCalls("*", text_calls="off"), ModelTextCalls("*")])
