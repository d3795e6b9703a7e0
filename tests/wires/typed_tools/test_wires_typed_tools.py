"""Tools of special types as functions: names, choices, odd arguments, and declarations that are refused."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from proxy.base.errors import RequestError
from proxy.wires.anthropic.typed_tools.table import DECLARED as MESSAGES_DECLARED
from proxy.wires.anthropic.typed_tools.table import TYPED_TOOLS as MESSAGES_TOOLS
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.responses.typed_tools.table import NAMED, TYPED_TOOLS, TypedTool
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.typed_tools.functions import UpstreamTypes
from proxy.wires.typed_tools.shapes import Shape

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
        ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
    return str(raised.value.param), str(raised.value)


FUNCTION: Item = {"type": "function", "name": "f", "parameters": CITY}


def space(*tools: Any, **members: Any) -> Item:
    """Return a namespace."""
    return {"type": "namespace", "name": "n", "tools": list(tools), **members}


HOSTILE: Mapping[str, tuple[Any, str]] = {
    "no name": ({"type": "namespace", "tools": []}, "tools[0].name"),
    "a number as name": (space(name=1), "tools[0].name"),
    "no tools": ({"type": "namespace", "name": "n"}, "tools[0].tools"),
    "a text as tools": ({"type": "namespace", "name": "n", "tools": "all"}, "tools[0].tools"),
    "a text as tool": (space("f"), "tools[0].tools[0]"),
    "a nested namespace": (space(space()), "tools[0].tools[0].type"),
    "one name twice": (space(FUNCTION, FUNCTION), "tools[0].tools[1].name"),
    "10,000 functions": (space(*({**FUNCTION, "name": f"f{n}"} for n in range(10_000))), "tools"),
    "an inner schema": (space({**FUNCTION, "parameters": 7}), "tools[0].tools[0].parameters"),
    "no name of a custom tool": ({"type": "custom"}, "tools[0].name"),
    "an odd syntax": (
        {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "yacc"}},
        "tools[0].format.syntax",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_declaration_that_cannot_be_read(case: str) -> None:
    """The refusal names the field, as the client wrote it."""
    tool, field = HOSTILE[case]
    assert error_of({"model": "m", "tools": [tool], "input": "hi"})[0] == field


def wrong_values(shapes: Mapping[str, Shape], path: str) -> Iterator[tuple[str, Item]]:
    """Yield each member of an object with a value of every wrong type: the field, and the object."""
    values: list[Any] = ["odd", 7, 7.5, True, {}, []]
    for name, shape in shapes.items():
        if isinstance(shape, dict):
            for field, inner in wrong_values(shape, f"{path}.{name}"):
                yield field, {name: inner}
        elif isinstance(shape, list) and isinstance(shape[0], dict):
            for field, inner in wrong_values(shape[0], f"{path}.{name}[1]"):
                yield field, {name: [{}, inner]}
        elif isinstance(shape, list):
            right: Any = {} if shape[0] is dict else "a"
            yield f"{path}.{name}[1]", {name: [right, True]}
        kind = shape if isinstance(shape, type) else type(shape)
        for value in values:
            if type(value) is not kind:
                yield f"{path}.{name}", {name: value}


def given(kind: str, members: Item) -> Item:
    """Return the second item of an input."""
    items = [{"role": "user", "content": "Hi"}, {"type": kind, "call_id": "c", "name": "c", **members}]
    return {"tools": [], "input": items}


IDS: Mapping[str, Shape] = {"id": str, "call_id": str}
WRONG: list[tuple[str, Item]] = [
    *(
        (field, {"tools": [{"type": tool.type, "name": "c", **members}]})
        for tool in TYPED_TOOLS
        for field, members in wrong_values(tool.declared, "tools[0]")
    ),
    *(
        (field, {"tools": [space({"type": kind, "name": "c", **members})]})
        for kind in ("function", "custom")
        for field, members in wrong_values(NAMED, "tools[0].tools[0]")
    ),
    *(
        (field, given(kind, members))
        for tool in TYPED_TOOLS
        for kind, shapes in ((tool.call, tool.called), (tool.output, tool.returned))
        for field, members in wrong_values({**IDS, **shapes}, "input[1]")
    ),
]


def test_a_member_of_the_wrong_type_is_refused_by_its_name() -> None:
    """Every member of every declaration, call and output: the refusal names it."""
    for field, body in WRONG:
        body = {"input": "hi", **body}
        assert error_of({"model": "m", **body})[0] == field, body


def test_a_member_that_is_null_is_not_there() -> None:
    """Clients write null for what they leave out."""
    for tool in TYPED_TOOLS:
        declared = {**dict.fromkeys(tool.declared), "type": tool.type, "name": "c"}
        called = {**dict.fromkeys(tool.called), "type": tool.call, "call_id": "c", "name": "c"}
        returned = {**dict.fromkeys(tool.returned), "type": tool.output, "call_id": "c"}
        made = ResponsesWire().as_functions(
            {"model": "m", "tools": [declared, {"type": "namespace", "name": "n", "tools": []}],
             "input": [called, returned]}, UpstreamTypes((), crosses=True),
        )  # fmt: skip
        assert made is not None
        kinds = [item["type"] for item in made.payload["input"]]
        assert kinds == ["function_call", "function_call_output"]


def of_messages(kind: str) -> Item:
    """Return the member that names a tool of Messages."""
    return {"name": MESSAGES_TOOLS[kind.rpartition("_")[0]].name}


@pytest.mark.parametrize("name", ["x", "", None, 7, "memory2", "str_replace_editor"])
@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "memory_20250818"])
def test_a_tool_of_messages_has_one_name(kind: str, name: Any) -> None:
    """Anthropic takes no other; the editor had another one before."""
    body = {"model": "m", "tools": [{"type": kind, "name": name}]}
    if (kind[0], name) == ("t", "str_replace_editor"):
        assert AnthropicWire().as_functions(body, UpstreamTypes((), crosses=True)) is not None
        return
    with pytest.raises(RequestError) as raised:
        AnthropicWire().as_functions(body, UpstreamTypes((), crosses=True))
    assert raised.value.param == "tools[0].name"
    assert of_messages(kind)["name"] in raised.value.message


@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "memory_20250818"])
def test_a_tool_of_messages_is_refused_by_its_field(kind: str) -> None:
    """The types of Messages, too."""
    for field, members in wrong_values(MESSAGES_DECLARED, "tools[1]"):
        tools = [{"name": "f", "input_schema": CITY}, {"type": kind, **of_messages(kind), **members}]
        with pytest.raises(RequestError) as raised:
            AnthropicWire().as_functions({"model": "m", "tools": tools}, UpstreamTypes((), crosses=True))
        assert raised.value.param == field
        assert field in raised.value.message


def test_an_error_names_the_place_that_the_client_wrote() -> None:
    """Namespaces and items that bring tools move what follows; errors about it count as the client did."""
    body = {
        "model": "m",
        "tools": [space(FUNCTION, {**FUNCTION, "name": "g"}), {**FUNCTION, "name": "late"}],
        "input": [{"type": "additional_tools", "tools": [{**FUNCTION, "name": "new"}]}, {"role": "user"}],
    }
    made = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
    assert made is not None
    for sent, declared in {
        "tools[0].name": "tools[0].tools[0].name",
        "tools[1].parameters.type": "tools[0].tools[1].parameters.type",
        "tools[2].strict": "tools[1].strict",
        "tools[3]": "input[0].tools[0]",
        "tools[4]": "tools[4]",
        "input[0].content": "input[1].content",
        "model": "model",
    }.items():
        error = RequestError(400, f"{sent} is odd.", param=sent)
        made.name_as_declared(error)
        assert (error.param, error.message, str(error)) == (declared, *[f"{declared} is odd."] * 2)


ODD_NAMES: Mapping[str, str] = {
    **dict.fromkeys((" ", "a b", "a.b", "é", "\n", "a\n", "a/../b", "\ud800"), "match pattern"),
    "x" * 129: "maximum length 128",
}


@pytest.mark.parametrize("odd", ODD_NAMES, ids=ascii)
def test_odd_names_are_refused_in_the_words_of_the_provider(odd: str) -> None:
    """The names of namespaces, of their tools and of custom tools, wherever they are declared."""
    custom = {"type": "custom", "name": odd}
    for field, body in (
        ("tools[1].name", {"tools": [FUNCTION, custom]}),
        ("tools[0].name", {"tools": [space(FUNCTION, name=odd)]}),
        ("tools[0].tools[1].name", {"tools": [space(FUNCTION, {**FUNCTION, "name": odd})]}),
        ("tools[0].tools[0].name", {"tools": [space(custom)]}),
        ("input[0].tools[0].name", {"input": [{"type": "additional_tools", "tools": [custom]}]}),
    ):
        param, said = error_of({"model": "m", **body})
        assert param == field
        assert f"'{field}'" in said
        assert ODD_NAMES[odd] in said


def test_a_name_that_the_upstream_gets_is_the_upstreams_to_refuse() -> None:
    """What passes unchanged is not checked here."""
    body = {"model": "m", "tools": [{"type": "shell"}, space(FUNCTION, name="a b"), named("c d", "custom")]}
    made = ResponsesWire().as_functions(body, UpstreamTypes(("namespace", "custom"), crosses=False))
    assert made is not None
    assert made.payload["tools"][1:] == body["tools"][1:]


KEPT_NAMES = ("a", "core__calculate", "x" * 65, "x" * 128)


@pytest.mark.parametrize("name", KEPT_NAMES)
def test_a_custom_tool_has_its_name_again(name: str) -> None:
    """The name of the function is one that all providers take; in calls, choices and history it is the
    client's."""
    call = {"type": "custom_tool_call", "call_id": "c", "name": name, "input": "x"}
    choice = {"type": "custom", "name": name}
    body = {"model": "m", "tools": [choice], "input": [call], "tool_choice": choice}
    made = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
    assert made is not None
    assert made.answer is not None
    (tool,), (item,) = made.payload["tools"], made.payload["input"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool["name"])
    assert tool["name"] == item["name"] == made.payload["tool_choice"]["name"]
    assert made.answer.resource({"output": [item]})["output"][0]["name"] == name


@pytest.mark.parametrize("name", [" ", "a b", "é", "x" * 129])
def test_odd_names_in_the_history_stay_readable(name: str) -> None:
    """Another provider's model may have called them: they are names of functions that providers take."""
    call = {"type": "custom_tool_call", "call_id": "c", "name": name, "namespace": "n s", "input": "x"}
    body = {"model": "m", "tools": [{"type": "shell"}], "input": [call]}
    made = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
    assert made is not None
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", made.payload["input"][0]["name"])


CHOICES: Mapping[str, tuple[Any, str]] = {
    "a list as name": ({"type": "function", "name": ["f"]}, "tool_choice.name"),
    "an object as namespace": ({"type": "function", "name": "f", "namespace": {}}, "tool_choice.namespace"),
    "an unknown namespace": ({"type": "namespace", "name": "m"}, "tool_choice.name"),
    "one of several": (
        {"type": "allowed_tools", "tools": [{"type": "shell"}, {"type": "custom", "name": 7}]},
        "tool_choice.tools[1].name",
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_a_choice_that_cannot_be_read(case: str) -> None:
    """The refusal names the field of the choice."""
    choice, field = CHOICES[case]
    tools = [{"type": "shell"}, space(FUNCTION)]
    assert error_of({"model": "m", "tools": tools, "tool_choice": choice, "input": "hi"})[0] == field


def test_a_namespace_that_is_chosen_again_and_again_counts_once() -> None:
    """A hostile choice makes no longer list than the tools are."""
    tools = [space(*({**FUNCTION, "name": f"f{n}"} for n in range(1000)))]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "n"}] * 10_000}
    made = ResponsesWire().as_functions(
        {"model": "m", "tools": tools, "tool_choice": choice}, UpstreamTypes((), crosses=True)
    )
    assert made is not None
    assert len(made.payload["tool_choice"]["tools"]) == 1000


def test_items_within_items_bring_nothing() -> None:
    """However deep a hostile item is nested, it is read once."""
    item: Item = {"type": "additional_tools", "tools": []}
    for _ in range(300):
        item = {"type": "additional_tools", "tools": [item]}
    made = ResponsesWire().as_functions({"model": "m", "input": [item]}, UpstreamTypes((), crosses=True))
    assert made is not None


def test_a_type_that_is_declared_twice() -> None:
    """Two shells, and a function beside a custom tool of its name, are refused at their place."""
    assert error_of({"model": "m", "tools": [{"type": "shell"}, {"type": "shell"}]})[0] == "tools[1]"
    tools = [{"type": "shell"}, FUNCTION, {"type": "custom", "name": "f"}]
    assert error_of({"model": "m", "tools": tools})[0] == "tools[2].name"
    item = {"type": "additional_tools", "tools": [FUNCTION, FUNCTION]}
    assert error_of({"model": "m", "input": [item]})[0] == "input[0].tools[1].name"


def named(name: str, kind: str = "function") -> Item:
    """Return the choice of one tool."""
    return {"type": kind, "name": name}


NAMES = st.text("ab_-", min_size=1, max_size=6) | st.text("ab_-", min_size=1, max_size=128)
ANY_NAMES = st.text(min_size=1, max_size=80) | NAMES


@given_any(
    st.dictionaries(NAMES, st.sets(NAMES, min_size=1, max_size=4), max_size=4), st.sets(ANY_NAMES, max_size=4)
)
def test_names_go_there_and_back(spaces: Mapping[str, set[str]], plain: set[str]) -> None:
    """No two tools get one name, each name is one that providers take, and a call has its own name again."""
    tools: list[Item] = [{**FUNCTION, "name": name} for name in sorted(plain)]
    for space, names in spaces.items():
        inner = [{**FUNCTION, "name": name} for name in sorted(names)]
        tools.append({"type": "namespace", "name": space, "description": "", "tools": inner})
    tools.append({"type": "apply_patch"})
    body = {"model": "m", "tools": tools, "input": "hi"}
    made = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
    again = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
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


@given_any(st.dictionaries(st.sampled_from(["command", "commands", "operation", "env", "input", "x"]), JSON))
@pytest.mark.parametrize("tool", TYPED_TOOLS, ids=lambda tool: tool.type)
def test_odd_arguments_become_an_item_that_stays_the_same(tool: TypedTool, arguments: Item) -> None:
    """Whatever a model writes, the item has the members of its type, and makes the way unchanged."""
    item = tool.members(arguments)
    assert tool.members(tool.arguments(item)) == item
    assert tool.opening(item).keys() == item.keys()
    assert all(event["type"].startswith("response.") for event in tool.events(item))


def test_half_a_call_runs_nothing() -> None:
    """A call that broke off has no commands, so that no client runs half of one."""
    made = ResponsesWire().as_functions(
        {"model": "m", "tools": [{"type": "shell"}]}, UpstreamTypes((), crosses=True)
    )
    assert made is not None
    assert made.answer is not None
    call = {"type": "function_call", "id": "fc_1", "name": "shell", "arguments": '{"commands":["rm -rf /'}
    for status in ("incomplete", "completed"):
        (item,) = made.answer.resource({"output": [{**call, "status": status}]})["output"]
        assert item["action"]["commands"] == []
        assert item["id"] == "sh_1"


def test_a_call_that_broke_off_stays_only_with_a_result() -> None:
    """A client may send back the item of a call that it did not run: no upstream takes one without result."""
    call = {"type": "shell_call", "call_id": "c", "action": {"commands": []}, "status": "incomplete"}
    output = {"type": "shell_call_output", "call_id": "c", "output": []}
    local = {"type": "local_shell_call", "call_id": "d", "action": {"command": []}, "status": "incomplete"}
    answer = {"type": "local_shell_call_output", "id": "d", "output": ""}
    by_item = [{**local, "id": "e"}, {**answer, "id": "e"}]
    for items, kept in (
        ([call], 0),
        ([call, output], 2),
        (by_item, 2),
        ([call, local, answer], 2),
        ([local, call, output], 2),
    ):
        body = {"model": "m", "tools": [{"type": "shell"}], "input": items}
        made = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
        assert made is not None
        assert len(made.payload["input"]) == kept


def test_choices_name_the_functions() -> None:
    """A choice of a type, a namespace or one of its tools becomes one of functions."""

    def chosen(choice: Any) -> Any:
        made = ResponsesWire().as_functions(
            {"model": "m", "tools": TOOLS, "tool_choice": choice}, UpstreamTypes((), crosses=True)
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


def test_a_choice_of_one_name_in_two_places() -> None:
    """A choice with a namespace means its tool, and has the type under which the tool is offered."""
    inner = [FUNCTION, {"type": "custom", "name": "q"}]
    tools = [FUNCTION, {"type": "namespace", "name": "n", "tools": inner}]

    def chosen(choice: Item, *native: str) -> Any:
        body = {"model": "m", "tools": tools, "tool_choice": choice, "input": "hi"}
        made = ResponsesWire().as_functions(body, UpstreamTypes(native, crosses=True))
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
        made = ResponsesWire().as_functions(
            {"model": "m", "input": [item, *items]}, UpstreamTypes((), crosses=True)
        )
        assert made is not None
        return [(tool["name"], tool.get("description", "").strip()) for tool in made.payload["tools"]]

    first = [("tool_search", "Finds tools."), ("n__f", "All about it.")]
    assert offered() == first
    found = {"type": "tool_search_output", "call_id": "c", "tools": [waits], "execution": "client"}
    call = {"type": "tool_search_call", "call_id": "c", "arguments": {}, "execution": "client"}
    assert offered(call, found) == [*first, ("waits", "")]


WAITING: Mapping[str, tuple[Any, list[str]]] = {
    "alone": ({"type": "function", "name": "waits"}, ["waits"]),
    "in a namespace": ({"type": "function", "name": "g", "namespace": "n"}, ["n__g"]),
    "by its name alone": ({"type": "custom", "name": "h"}, ["n__h"]),
    "a namespace": ({"type": "namespace", "name": "n"}, ["n__g", "n__h"]),
    "one of some": (
        {"type": "allowed_tools", "mode": "auto", "tools": [named("waits"), named("present")]},
        ["waits", "present"],
    ),
}


@pytest.mark.parametrize("case", WAITING)
def test_a_tool_that_the_choice_names_does_not_wait_for_a_search(case: str) -> None:
    """A model can be forced to call only what it has, so a deferred tool that the choice names is offered."""
    choice, wanted = WAITING[case]
    later = {"defer_loading": True, "parameters": CITY}
    inner = [{**named("g"), **later}, {"type": "custom", "name": "h", "defer_loading": True}]
    tools = [
        {"type": "tool_search", "execution": "client"}, {**named("waits"), **later}, space(*inner),
        {**named("present"), "parameters": CITY}, {**named("other"), **later},
    ]  # fmt: skip
    body = {"model": "m", "tools": tools, "tool_choice": choice, "input": "hi"}
    made = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
    assert made is not None
    chosen = made.payload["tool_choice"]
    assert [tool["name"] for tool in chosen.get("tools", [chosen])] == wanted
    offered = {tool["name"]: tool for tool in made.payload["tools"]}
    assert offered.keys() == {"tool_search", "present", *wanted}
    assert not any("defer_loading" in tool for tool in offered.values())


def test_a_reference_names_the_item_that_the_upstream_has() -> None:
    """Only ids of items that the upstream knows as calls of functions change."""
    ids = ["sh_1", "apc_1", "ctc_1", "tsc_1", "msg_1", "x"]
    items = [{"type": "item_reference", "id": one} for one in ids]
    body = {"model": "m", "tools": [{"type": "shell"}], "input": items}

    def referred(*native: str, mixes: bool) -> list[str]:
        made = ResponsesWire().as_functions(body, UpstreamTypes(native, crosses=False, mixes=mixes))
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
    made = ResponsesWire().as_functions(body, UpstreamTypes((), crosses=True))
    assert made is not None
    assert [item["call_id"] for item in made.payload["input"][2:]] == ["b", "c"]


def test_what_an_upstream_knows_stays() -> None:
    """A type that the upstream knows stays as it is; with server tools, calls that only items tell do not."""
    body = {"model": "m", "tools": TOOLS, "input": "hi"}
    wire = ResponsesWire()
    assert wire.as_functions(body, UpstreamTypes(("*",), crosses=False)) is None
    mixed = wire.as_functions(body, UpstreamTypes(("*",), crosses=False, mixes=True))
    assert mixed is not None
    assert {tool["type"] for tool in mixed.payload["tools"]} == {"function", "custom"}
    search = next(tool for tool in TOOLS if tool["type"] == "tool_search")
    served = {
        **body,
        "tools": [{**tool, "execution": "server"} if tool is search else tool for tool in TOOLS],
    }
    mixed = wire.as_functions(served, UpstreamTypes(("*",), crosses=False, mixes=True))
    assert mixed is not None
    kinds = [tool["type"] for tool in mixed.payload["tools"]]
    assert kinds == ["function", "namespace", "function", "function", "function", "tool_search", "custom"]
    assert (
        wire.as_functions({"model": "m", "tools": [FUNCTION], "input": "hi"}, UpstreamTypes((), crosses=True))
        is None
    )


def test_the_tools_of_messages() -> None:
    """Messages' own tools become functions of the same name; other members of the declaration stay."""
    tools = [
        {"type": "bash_20250124", "name": "bash", "cache_control": {"type": "ephemeral"}},
        {
            "type": "text_editor_20250728",
            "name": "str_replace_based_edit_tool",
            "max_characters": 9,
            "strict": True,
        },
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    made = AnthropicWire().as_functions({"model": "m", "tools": tools}, UpstreamTypes((), crosses=True))
    assert made is not None
    assert made.answer is None
    bash, editor, memory, search = made.payload["tools"]
    assert bash["cache_control"]
    assert bash["input_schema"]["properties"].keys() == {"command", "restart"}
    assert editor.keys() == {"name", "description", "input_schema"}
    assert "rename" in memory["input_schema"]["properties"]["command"]["enum"]
    assert search == tools[3]
    assert (
        AnthropicWire().as_functions({"model": "m", "tools": tools}, UpstreamTypes(("*",), crosses=False))
        is None
    )
    kept = AnthropicWire().as_functions(
        {"model": "m", "tools": tools}, UpstreamTypes(("bash",), crosses=True)
    )
    assert kept is not None
    assert kept.payload["tools"][0] == tools[0]
