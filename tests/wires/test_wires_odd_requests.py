"""Requests with values of the wrong type: each dialect accepts them or raises a RequestError."""

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.errors import RequestError
from proxy.base.events import ToolDefinition
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire

SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "mine", "description": "d", "parameters": SCHEMA}
TOOL = ToolDefinition("now", "The time.", SCHEMA)
CHAT: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 1,
    "max_tokens": 50,
    "user": "u",
    "tool_choice": {"type": "function", "function": {"name": "mine"}},
    "response_format": {"type": "text"},
    "tools": [{"type": "function", "function": FUNCTION}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "mine", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "And now?"},
    ],
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "max_tokens": 50,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 20},
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "tools": [{"name": "mine", "description": "d", "input_schema": SCHEMA}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Wait.", "citations": [{"type": "x", "encrypted_index": "e"}]},
                {"type": "tool_use", "id": "toolu_1", "name": "mine", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "noon"}],
                }
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Noon."}]},
        {"role": "user", "content": "And now?"},
    ],
}
OLLAMA: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "options": {"num_predict": 50},
    "format": "",
    "tools": [{"type": "function", "function": FUNCTION}],
    "messages": [
        {"role": "user", "content": "hi", "images": ["aGk="]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "Hm.",
            "tool_calls": [{"function": {"name": "mine", "arguments": {}}}],
        },
        {"role": "tool", "tool_name": "mine", "content": "noon"},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "And now?"},
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "store": False,
    "max_output_tokens": 50,
    "max_tool_calls": 3,
    "include": ["reasoning.encrypted_content"],
    "text": {"format": {"type": "text"}},
    "tool_choice": {"type": "function", "name": "mine"},
    "tools": [{"type": "function", **FUNCTION}],
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
        {"type": "function_call", "call_id": "call_1", "name": "mine", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Noon.", "annotations": []}],
        },
        {"role": "user", "content": "And now?"},
    ],
}
WIRES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (ChatWire(), CHAT),
    "anthropic": (AnthropicWire(), MESSAGES),
    "ollama": (OllamaWire(), OLLAMA),
    "responses": (ResponsesWire(b"key"), RESPONSES),
}
HELD = {"messages": ['{"role":"assistant","content":[]}'], "calls": [], "items": []}
ODD: list[Any] = [
    *(None, True, False, 0, -1, 2.5, "", "x", "auto", [], [[]], [None], ["x"], {}, {"type": []}, {"a": {}}),
    *([{"type": []}], [{"type": {}}], {"type": "function"}, [{}]),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def replaced(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a copy of a body with another value in one place; without it if the place is no longer there."""
    changed = copy.deepcopy(body)
    holder: Any = changed
    try:
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
    except (KeyError, IndexError, TypeError):
        pass
    return changed


def use(wire: Any, body: dict[str, Any]) -> None:
    """Do with a request what a run does with it; only an error about the request may stop this."""
    with contextlib.suppress(RequestError):
        conversation = wire.codec.read(body)
        for upstream, _ in WIRES.values():
            with contextlib.suppress(RequestError):
                upstream.codec.write(conversation)
    with contextlib.suppress(RequestError):
        request = wire.parse(body)
        request.check_history(lambda name: name == "now")
        request.answer_keys("caller", "shape", [(None, "text")])[0]
        request.conversation_key("caller", ["a"], 2)
        request.evidence()
        for turn in [*request.answers(), *request.returned_calls()]:
            request.fits(turn.position, HELD, bool)
        edit(wire, request, json.dumps(body).encode())


def edit(wire: Any, request: Any, raw: bytes) -> None:
    """Edit the body in each way that a run may."""
    steps: list[Callable[[Any], Any]] = [
        lambda editor: editor.edit(asks_usage=True),
        lambda editor: editor.relax_tool_choice(["now"]),
        lambda editor: editor.edit(withheld=["now"]),
        lambda editor: editor.edit(used_tokens=20),
        lambda editor: editor.recover("property 'thinking' is unsupported", None),
        lambda editor: editor.forbid_tools(),
    ]
    for step in steps:
        editor = wire.editor(raw, request)
        editor.offer([TOOL], [])
        step(editor)
        assert isinstance(json.loads(editor.render()), dict)


@pytest.mark.parametrize("dialect", WIRES)
def test_one_odd_value_is_no_fault_of_the_proxy(dialect: str) -> None:
    """If any value of a request has the wrong type, the dialect raises a RequestError or accepts it."""
    wire, body = WIRES[dialect]
    use(wire, body)
    for path in places(body):
        for value in ODD:
            try:
                use(wire, replaced(body, path, value))
            except Exception as error:
                raise AssertionError(f"{path} = {value!r}: {error!r}") from error


@given(
    dialect=st.sampled_from(list(WIRES)),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from(ODD)), min_size=2, max_size=5),
)
def test_several_odd_values_are_no_fault_of_the_proxy(dialect: str, changes: list[tuple[int, Any]]) -> None:
    """The dialect raises nothing else if several values have the wrong type."""
    wire, body = WIRES[dialect]
    everywhere = list(places(body))
    changed = body
    for place, value in changes:
        changed = replaced(changed, everywhere[place % len(everywhere)], value)
    use(wire, changed)
