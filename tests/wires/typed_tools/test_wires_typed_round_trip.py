"""Each type of tool makes the whole way: declaration, function, call, item, history, message.

What a model wrote for a function comes back to it unchanged, whatever arguments fit the function's schema.
A type of the tables that is not declared here fails :func:`test_no_type_is_left_out`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from chat_script import DONE
from hypothesis import given
from hypothesis import strategies as st
from responses_check import events_of
from responses_script import closing, encode, item_events, opening

from proxy.base.events import ToolCall, ToolResult
from proxy.json.lenient import loads
from proxy.wires.anthropic.typed_tools.table import TYPED_TOOLS as OF_MESSAGES
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.hosted.forms import CallForm
from proxy.wires.responses.typed_tools.table import TYPED_TOOLS, TYPES
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.typed_tools.functions import AsFunctions, UpstreamTypes

Item = dict[str, Any]

NONE = UpstreamTypes((), crosses=True)
CITY: Item = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Item = {"type": "function", "name": "now", "parameters": CITY, "strict": False}
GRAMMAR: Item = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
DECLARED: Mapping[str, Item] = {
    "custom": {"type": "custom", "name": "say", "description": "Says.", "format": GRAMMAR},
    "local_shell": {"type": "local_shell"},
    "shell": {"type": "shell", "environment": {"type": "local"}},
    "apply_patch": {"type": "apply_patch"},
    "tool_search": {"type": "tool_search", "execution": "client", "parameters": CITY},
    "namespace": {"type": "namespace", "name": "weather", "description": "d", "tools": [FUNCTION]},
    "custom in a namespace": {
        "type": "namespace", "name": "n", "description": "", "tools": [{"type": "custom", "name": "ask"}]
    },
    "additional_tools": {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
}  # fmt: skip
OUTPUT_OF = {tool.call: tool.output for tool in TYPED_TOOLS}
OUTPUTS: Mapping[str, Item] = {
    "shell_call": {"output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    "apply_patch_call": {"status": "completed", "output": "done"},
    "tool_search_call": {"tools": [], "execution": "client"},
}


def fitting(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that fit a schema of the tables; an object that may have any members is not empty."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "string":
            return st.text(max_size=9)
        case "integer":
            return st.integers(-(2**53), 2**53)
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(fitting(schema["items"]), max_size=3)
    if (more := schema.get("additionalProperties")) is not None:
        return st.dictionaries(st.text(max_size=5), fitting(more), min_size=1, max_size=3)
    members = {name: fitting(inner) for name, inner in schema["properties"].items()}
    needed = schema.get("required", ())
    return st.fixed_dictionaries(
        {name: members[name] for name in needed},
        optional={name: one for name, one in members.items() if name not in needed},
    )


def is_patch(arguments: Any) -> bool:
    """Return whether an operation has a diff exactly if it needs one, which no schema says."""
    operation = arguments.get("operation")
    return operation is None or ("diff" in operation) == (operation["type"] != "delete_file")


def asking(declared: Item, *items: Item) -> AsFunctions:
    """Return a request that declares a tool as an upstream gets it that knows functions alone."""
    brings = declared["type"] == "additional_tools"
    tools: Item = {} if brings else {"tools": [declared]}
    given_items = [*([declared] if brings else []), {"role": "user", "content": "Hi"}, *items]
    made = ResponsesWire().as_functions({"model": "m", "input": given_items, **tools}, NONE)
    assert made is not None
    return made


def test_no_type_is_left_out() -> None:
    """Every type of Responses is declared above."""
    assert DECLARED.keys() >= TYPES


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", DECLARED)
@given(st.data())
def test_a_call_of_responses_comes_back_as_it_was(kind: str, stream: bool, data: st.DataObject) -> None:
    """The client's item, sent back with its output, is the call that the model wrote, and its result."""
    made = asking(DECLARED[kind])
    (function,) = made.payload["tools"]
    assert (function["type"], made.answer is not None) == ("function", True)
    assert made.answer is not None
    arguments = json.dumps(data.draw(fitting(function["parameters"]).filter(is_patch)))
    call: Item = {
        "id": "fc_1", "type": "function_call", "call_id": "call_1", "name": function["name"],
        "arguments": arguments, "status": "completed",
    }  # fmt: skip
    if stream:
        told = made.answer.stream(encode([*opening(), *item_events(call, 0), closing([call])]) + DONE)
        events = events_of(told)
        (item,) = events[-1]["response"]["output"]
        assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [item]
    else:
        (item,) = made.answer.resource({"output": [call]})["output"]
    assert item["type"] != "function_call" or "namespace" in item or kind == "additional_tools"
    output = {
        "type": OUTPUT_OF.get(item["type"], f"{item['type']}_output"),
        "call_id": "call_1",
        "output": "x",
    }
    again = asking(DECLARED[kind], item, {**output, **OUTPUTS.get(item["type"], {})})
    _, back, result = again.payload["input"]
    assert {**back, "arguments": loads(back["arguments"].encode())} == {
        **call,
        "arguments": loads(arguments.encode()),
    }
    assert (result["type"], result["call_id"]) == ("function_call_output", "call_1")
    assert again.payload["tools"] == made.payload["tools"]
    # A turn that the proxy holds is found again by what the client sends.
    assert loads(made.answer.returned(call["name"], arguments).encode()) == loads(back["arguments"].encode())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@given(text=st.text(max_size=30))
def test_a_call_of_chat_comes_back_as_it_was(stream: bool, text: str) -> None:
    """The input of a custom tool of Chat, also from what a stream said of it."""
    tool = {"type": "custom", "custom": {"name": "say", "format": {"type": "text"}}}
    question = {"role": "user", "content": "Hi"}
    made = ChatWire().as_functions({"model": "m", "messages": [question], "tools": [tool]}, NONE)
    assert made is not None
    assert made.answer is not None
    function = {"name": "say", "arguments": json.dumps({"input": text})}
    call: Item = {"id": "call_1", "type": "function", "function": function}
    if stream:
        choices = [
            {"index": 0, "delta": {"tool_calls": [{"index": 0, **call}]}, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
        ]
        told = made.answer.stream(
            b"".join(b"data: %b\n\n" % json.dumps({"choices": [one]}).encode() for one in choices)
        )
        first = json.loads(told.partition(b"\n\n")[0].removeprefix(b"data: "))
        (custom,) = first["choices"][0]["delta"]["tool_calls"]
        del custom["index"]
    else:
        reply = {"choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call]}}]}
        (custom,) = json.loads(made.answer.reply(json.dumps(reply).encode()))["choices"][0]["message"][
            "tool_calls"
        ]
    assert custom == {"id": "call_1", "type": "custom", "custom": {"name": "say", "input": text}}
    said = {"role": "assistant", "content": None, "tool_calls": [custom]}
    again = ChatWire().as_functions({"model": "m", "messages": [question, said], "tools": [tool]}, NONE)
    assert again is not None
    (back,) = again.payload["messages"][1]["tool_calls"]
    assert json.loads(back["function"].pop("arguments")) == {"input": text}
    assert {**back, "function": function} == call
    assert again.payload["tools"] == made.payload["tools"]


@pytest.mark.parametrize("family", OF_MESSAGES)
@given(st.data())
def test_a_call_of_messages_is_one_of_a_function(family: str, data: st.DataObject) -> None:
    """A call and its result are ordinary blocks: nothing of the conversation changes, in any version."""
    version = data.draw(st.sampled_from((OF_MESSAGES[family].type, f"{family}_20240101")))
    tool = {"type": version, "name": OF_MESSAGES[family].name}
    made = AnthropicWire().as_functions({"model": "m", "messages": [], "tools": [tool]}, NONE)
    assert made is not None
    (function,) = made.payload["tools"]
    assert (function["name"], "type" in function, made.answer) == (tool["name"], False, None)
    use = {
        "type": "tool_use",
        "id": "t",
        "name": tool["name"],
        "input": data.draw(fitting(function["input_schema"])),
    }
    said = [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    ]  # fmt: skip
    again = AnthropicWire().as_functions({"model": "m", "messages": said, "tools": [tool]}, NONE)
    assert again is not None
    assert again.payload == {"model": "m", "messages": said, "tools": [function]}


SPACES = st.dictionaries(
    st.sampled_from(["", "stocks", "a_b"]),
    st.sets(st.text("abc_", min_size=1), min_size=1, max_size=3),
    min_size=1,
)


def shown(form: CallForm, names: Sequence[str]) -> Sequence[Item]:
    """Return what the client is shown of a search that found tools of these names."""
    call = ToolCall("call_1", "core__search_tools", '{"query":"x"}', 0)
    begun = form.begun(call, {"query": "x"})
    result = ToolResult("call_1", ok=True, content=json.dumps({"tools": [{"name": name} for name in names]}))
    ended = form.ended(begun, call, result)
    # In Responses the item that began is there once more, as it ended.
    return ended if begun is None or ended[0].get("id") == begun["id"] else [begun, *ended]


@given(SPACES, st.data())
def test_a_search_of_responses_is_found_again(spaces: Mapping[str, set[str]], data: st.DataObject) -> None:
    """The tools that the shown items name are those that the search found, under the same names."""
    tools: list[Item] = [{"type": "tool_search"}]
    for space, names in spaces.items():
        inner = [{**FUNCTION, "name": name, "defer_loading": True} for name in sorted(names)]
        tools += [{"type": "namespace", "name": space, "description": "", "tools": inner}] if space else inner
    made = ResponsesWire().with_search({"model": "m", "input": "hi", "tools": tools}, NONE)
    assert made is not None
    assert made.search is not None
    found = data.draw(st.permutations(sorted(made.search.deferred)))
    items = shown(made.search.form, found)
    again = ResponsesWire().with_search({"model": "m", "input": items, "tools": tools}, NONE)
    assert again is not None
    assert again.search is not None
    assert sorted(again.search.loaded) == sorted(found)
    assert again.search.deferred.keys() == made.search.deferred.keys()
    assert again.payload["input"] == []


@pytest.mark.parametrize("kind", ["bm25", "regex"])
@given(st.sets(st.text("abc_", min_size=1), min_size=1, max_size=5), st.data())
def test_a_search_of_messages_is_found_again(kind: str, names: set[str], data: st.DataObject) -> None:
    """The references name the tools that the search found, in their order."""
    search = {"type": f"tool_search_tool_{kind}_20251119", "name": f"tool_search_tool_{kind}"}
    tools = [search, *({"name": name, "input_schema": CITY, "defer_loading": True} for name in sorted(names))]
    question = {"role": "user", "content": "Hi"}
    made = AnthropicWire().with_search({"model": "m", "messages": [question], "tools": tools}, NONE)
    assert made is not None
    assert made.search is not None
    found = data.draw(st.permutations(sorted(names)))
    said = {"role": "assistant", "content": shown(made.search.form, found)}
    again = AnthropicWire().with_search({"model": "m", "messages": [question, said], "tools": tools}, NONE)
    assert again is not None
    assert again.search is not None
    assert list(again.search.loaded) == found
    assert again.payload["messages"] == [question]
