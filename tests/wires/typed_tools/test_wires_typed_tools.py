"""Tools of special types as functions: names, choices, odd arguments, and declarations that are refused."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.errors import RequestError
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.responses.typed_tools.table import TYPED_TOOLS, TypedTool
from proxy.wires.responses.wire import ResponsesWire

Item = dict[str, Any]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
CITY: Item = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Item] = [
    {"type": "function", "name": "plain", "parameters": CITY, "strict": False},
    {
        "type": "namespace",
        "name": "weather",
        "description": "About the weather.",
        "tools": [
            {"type": "function", "name": "now", "description": "Now.", "parameters": CITY, "strict": False},
            {"type": "custom", "name": "query", "description": "Asks."},
        ],
    },
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": CITY},
    {"type": "custom", "name": "say"},
]


def error_of(body: Item) -> tuple[str, str]:
    """Return the field and the message of the refusal of a request."""
    with pytest.raises(RequestError) as raised:
        ResponsesWire().as_functions(body, (), crosses=True)
    return str(raised.value.param), str(raised.value)


FUNCTION: Item = {"type": "function", "name": "f", "parameters": CITY}
HOSTILE: Mapping[str, tuple[Any, str]] = {
    "no name": ({"type": "namespace", "tools": []}, "tools[0].name"),
    "a number as name": ({"type": "namespace", "name": 1, "tools": []}, "tools[0].name"),
    "no tools": ({"type": "namespace", "name": "n"}, "tools[0].tools"),
    "a text as tools": ({"type": "namespace", "name": "n", "tools": "all"}, "tools[0].tools"),
    "a text as tool": ({"type": "namespace", "name": "n", "tools": ["f"]}, "tools[0].tools[0]"),
    "a nested namespace": (
        {"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "m", "tools": []}]},
        "tools[0].tools[0].type",
    ),
    "one name twice": ({"type": "namespace", "name": "n", "tools": [FUNCTION] * 2}, "tools[0].tools[1].name"),
    "10,000 functions": (
        {"type": "namespace", "name": "n", "tools": [{**FUNCTION, "name": f"f{n}"} for n in range(10_000)]},
        "tools",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_declaration_that_cannot_be_read(case: str) -> None:
    """The refusal names the field, as the client wrote it."""
    tool, field = HOSTILE[case]
    assert error_of({"model": "m", "tools": [tool], "input": "hi"})[0] == field


def test_a_type_that_is_declared_twice() -> None:
    """Two shells, and a function beside a custom tool of its name, are refused at their place."""
    assert error_of({"model": "m", "tools": [{"type": "shell"}, {"type": "shell"}]})[0] == "tools[1]"
    tools = [{"type": "shell"}, FUNCTION, {"type": "custom", "name": "f"}]
    assert error_of({"model": "m", "tools": tools})[0] == "tools[2].name"


def named(name: str, kind: str = "function") -> Item:
    """Return the choice of one tool."""
    return {"type": kind, "name": name}


NAMES = st.text(min_size=1, max_size=80)


@given(st.dictionaries(NAMES, st.sets(NAMES, min_size=1, max_size=4), max_size=4), st.sets(NAMES, max_size=4))
def test_names_go_there_and_back(spaces: Mapping[str, set[str]], plain: set[str]) -> None:
    """No two tools get one name, each name is one that providers take, and a call has its own name again."""
    tools: list[Item] = [{**FUNCTION, "name": name} for name in sorted(plain)]
    for space, names in spaces.items():
        inner = [{**FUNCTION, "name": name} for name in sorted(names)]
        tools.append({"type": "namespace", "name": space, "description": "", "tools": inner})
    tools.append({"type": "apply_patch"})
    body = {"model": "m", "tools": tools, "input": "hi"}
    made = ResponsesWire().as_functions(body, (), crosses=True)
    again = ResponsesWire().as_functions(body, (), crosses=True)
    assert made is not None
    assert made.answer is not None
    assert again is not None
    assert made.payload == again.payload
    flat = [tool["name"] for tool in made.payload["tools"]]
    assert len(set(flat)) == len(flat) == 1 + len(plain) + sum(map(len, spaces.values()))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in flat[len(plain) :])
    assert not any(name.startswith("core__") for name in flat[len(plain) :])
    calls = [{"type": "function_call", "id": "fc_1", "name": name, "arguments": "{}"} for name in flat]
    items = made.answer.resource({"output": calls})["output"]
    told = [(item.get("namespace"), item.get("name")) for item in items]
    wanted: list[tuple[str | None, str]] = [(None, name) for name in sorted(plain)]
    wanted += [(space, name) for space, names in spaces.items() for name in sorted(names)]
    assert told == [*wanted, (None, None)]


@given(st.dictionaries(st.sampled_from(["command", "commands", "operation", "env", "input", "x"]), JSON))
@pytest.mark.parametrize("tool", TYPED_TOOLS, ids=lambda tool: tool.type)
def test_odd_arguments_become_an_item_that_stays_the_same(tool: TypedTool, arguments: Item) -> None:
    """Whatever a model writes, the item has the members of its type, and makes the way unchanged."""
    item = tool.members(arguments)
    assert tool.members(tool.arguments(item)) == item
    assert tool.opening(item).keys() == item.keys()
    assert all(event["type"].startswith("response.") for event in tool.events(item))


def test_half_a_call_runs_nothing() -> None:
    """A call that broke off has no commands, so that no client runs half of one."""
    made = ResponsesWire().as_functions({"model": "m", "tools": [{"type": "shell"}]}, (), crosses=True)
    assert made is not None
    assert made.answer is not None
    call = {"type": "function_call", "id": "fc_1", "name": "shell", "arguments": '{"commands":["rm -rf /'}
    for status in ("incomplete", "completed"):
        (item,) = made.answer.resource({"output": [{**call, "status": status}]})["output"]
        assert item["action"]["commands"] == []
        assert item["id"] == "sh_1"


def test_choices_name_the_functions() -> None:
    """A choice of a type, a namespace or one of its tools becomes one of functions."""

    def chosen(choice: Any) -> Any:
        made = ResponsesWire().as_functions(
            {"model": "m", "tools": TOOLS, "tool_choice": choice}, (), crosses=True
        )
        assert made is not None
        return made.payload["tool_choice"]

    weather = [{"type": "function", "name": "weather__now"}, {"type": "function", "name": "weather__query"}]
    assert chosen({"type": "shell"}) == {"type": "function", "name": "shell"}
    assert chosen({"type": "custom", "name": "say"}) == {"type": "function", "name": "say"}
    assert chosen({"type": "function", "name": "now"}) == weather[0]
    assert chosen({"type": "namespace", "name": "weather"})["tools"] == weather
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "weather"}]}
    assert chosen(allowed) == {**allowed, "tools": weather}
    assert chosen("auto") == "auto"
    # What no tool has goes on as it is, and is refused there.
    for unknown in ({"type": "namespace", "name": "sea"}, {"type": "function", "name": "none"}):
        assert chosen(unknown) == unknown
        assert chosen({**allowed, "tools": [unknown]}) == {**allowed, "tools": [unknown]}


def test_a_choice_of_one_name_in_two_places() -> None:
    """A choice with a namespace means its tool, and has the type under which the tool is offered."""
    inner = [FUNCTION, {"type": "custom", "name": "q"}]
    tools = [FUNCTION, {"type": "namespace", "name": "n", "tools": inner}]

    def chosen(choice: Item, *native: str) -> Any:
        body = {"model": "m", "tools": tools, "tool_choice": choice, "input": "hi"}
        made = ResponsesWire().as_functions(body, native, crosses=True)
        assert made is not None
        return made.payload["tool_choice"]

    assert chosen({"type": "function", "name": "f", "namespace": "n"}) == named("n__f")
    assert chosen({"type": "function", "name": "f"}) == named("f")
    assert chosen({"type": "custom", "name": "q"}) == named("n__q")
    assert chosen({"type": "custom", "name": "q"}, "custom") == named("n__q", "custom")
    of_n = chosen({"type": "namespace", "name": "n"}, "custom")["tools"]
    assert of_n == [named("n__f"), named("n__q", "custom")]


def test_a_search_loads_what_its_output_has() -> None:
    """Tools that wait for a search wait in an item, too; a namespace is described with its first tool."""
    search = TOOLS[5]
    waits = {**FUNCTION, "name": "waits", "defer_loading": True}
    space = {"type": "namespace", "name": "n", "description": "All about it.", "tools": [waits, FUNCTION]}
    item = {"type": "additional_tools", "role": "developer", "tools": [search, waits, space]}

    def offered(*items: Item) -> list[tuple[str, str]]:
        made = ResponsesWire().as_functions({"model": "m", "input": [item, *items]}, (), crosses=True)
        assert made is not None
        return [(tool["name"], tool.get("description", "").strip()) for tool in made.payload["tools"]]

    first = [("tool_search", "Finds tools."), ("n__f", "All about it.")]
    assert offered() == first
    found = {"type": "tool_search_output", "call_id": "c", "tools": [waits], "execution": "client"}
    call = {"type": "tool_search_call", "call_id": "c", "arguments": {}, "execution": "client"}
    assert offered(call, found) == [*first, ("waits", "")]


def test_a_reference_names_the_item_that_the_upstream_has() -> None:
    """Only ids of items that the upstream knows as calls of functions change."""
    ids = ["sh_1", "apc_1", "ctc_1", "tsc_1", "msg_1", "x"]
    items = [{"type": "item_reference", "id": one} for one in ids]
    body = {"model": "m", "tools": [{"type": "shell"}], "input": items}

    def referred(*native: str, mixes: bool) -> list[str]:
        made = ResponsesWire().as_functions(body, native, crosses=False, mixes=mixes)
        assert made is not None
        return [item["id"] for item in made.payload["input"]]

    assert referred("*", mixes=True) == ["fc_1", "fc_1", "ctc_1", "tsc_1", "msg_1", "x"]
    assert referred(mixes=False) == ["fc_1", "fc_1", "fc_1", "fc_1", "msg_1", "x"]


def test_an_output_answers_the_call_that_it_names() -> None:
    """The id of a call's item names the call only where there is no call_id."""
    calls = [
        {"type": "local_shell_call", "id": "a", "call_id": "b", "action": {"command": ["ls"]}},
        {"type": "local_shell_call", "id": "b", "call_id": "c", "action": {"command": ["pwd"]}},
    ]
    output = {"type": "local_shell_call_output", "output": ""}
    items = [*calls, {**output, "call_id": "b"}, {**output, "id": "b"}]
    body = {"model": "m", "tools": [{"type": "local_shell"}], "input": items}
    made = ResponsesWire().as_functions(body, (), crosses=True)
    assert made is not None
    assert [item["call_id"] for item in made.payload["input"][2:]] == ["b", "c"]


def test_what_an_upstream_knows_stays() -> None:
    """A type that the upstream knows stays as it is; with server tools, calls that only items tell do not."""
    body = {"model": "m", "tools": TOOLS, "input": "hi"}
    wire = ResponsesWire()
    assert wire.as_functions(body, ("*",), crosses=False) is None
    mixed = wire.as_functions(body, ("*",), crosses=False, mixes=True)
    assert mixed is not None
    kinds = [tool["type"] for tool in mixed.payload["tools"]]
    assert kinds == ["function", "namespace", "function", "function", "function", "tool_search", "custom"]
    assert wire.as_functions({"model": "m", "tools": [FUNCTION], "input": "hi"}, (), crosses=True) is None


def test_the_tools_of_messages() -> None:
    """Messages' own tools become functions of the same name; other members of the declaration stay."""
    tools = [
        {"type": "bash_20250124", "name": "bash", "cache_control": {"type": "ephemeral"}},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    made = AnthropicWire().as_functions({"model": "m", "tools": tools}, (), crosses=True)
    assert made is not None
    assert made.answer is None
    bash, editor, memory, search = made.payload["tools"]
    assert bash["cache_control"]
    assert bash["input_schema"]["properties"].keys() == {"command", "restart"}
    assert editor.keys() == {"name", "description", "input_schema"}
    assert "rename" in memory["input_schema"]["properties"]["command"]["enum"]
    assert search == tools[3]
    assert AnthropicWire().as_functions({"model": "m", "tools": tools}, ("*",), crosses=False) is None
    kept = AnthropicWire().as_functions({"model": "m", "tools": tools}, ("bash",), crosses=True)
    assert kept is not None
    assert kept.payload["tools"][0] == tools[0]
