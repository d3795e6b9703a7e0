"""The tools that an error names, in bodies of every dialect."""

import json
from typing import Any

import pytest

from proxy.base.events import ToolDefinition
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.turn.named_tools import named_tools

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
OURS = [ToolDefinition(name, "d", SCHEMA) for name in ("core__a", "core__a_b")]
SAID: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FUNCTION = {"type": "function", "function": {"name": "mine", "parameters": SCHEMA}}
ASKS: list[tuple[Any, dict[str, Any]]] = [
    (ChatWire(), {**SAID, "tools": [FUNCTION]}),
    (ChatWire(), {**SAID, "functions": [FUNCTION["function"]]}),
    (OllamaWire(), {**SAID, "tools": [FUNCTION]}),
    (AnthropicWire(), {**SAID, "max_tokens": 9, "tools": [{"name": "mine", "input_schema": SCHEMA}]}),
    (ResponsesWire(), {"model": "m", "input": "hi", "tools": [{"type": "function", "name": "mine"}]}),
]


@pytest.mark.parametrize(("wire", "ask"), ASKS)
def test_tools_are_found_by_name_and_by_place(wire: Any, ask: dict[str, Any]) -> None:
    """Offered tools are found, the client's are not, and a withdrawn offer has none."""
    editor = wire.editor(json.dumps(ask).encode(), wire.parse(ask))
    assert editor.body.tools_named(editor.edits, "Invalid schema for function 'core__a'") == frozenset()
    editor.offer(OURS, [])
    assert editor.body.tools_named(editor.edits, "Invalid schema for function 'core__a': x") == {"core__a"}
    assert editor.body.tools_named(editor.edits, "tools.2.custom.input_schema: x") == {"core__a_b"}
    assert editor.body.tools_named(editor.edits, "tools[0].parameters: x") == frozenset()
    assert editor.body.tools_named(editor.edits, "Invalid schema for function 'mine': x") == frozenset()
    editor.edit(withheld=["core__a"])
    assert editor.body.tools_named(editor.edits, "tools.1.custom.input_schema: x") == {"core__a_b"}
    editor.withdraw()
    assert editor.body.tools_named(editor.edits, "tools.1.custom.input_schema: core__a") == frozenset()


@pytest.mark.parametrize(
    "message",
    [
        "Unknown model core__a",
        "Invalid schema for function 'core__abc'",
        "Invalid schema for function 'core__a-b'",
        "tools.9.custom.input_schema: x",
        "The prompt is too long for this context window: core__a function",
        "Failed to call a function core__a: parameters did not match schema",
        "Expected at most 1 tools: 0",
    ],
)
def test_other_errors_name_no_tool(message: str) -> None:
    """A part of another name, a place that is not there, and another kind of error name none."""
    assert (
        named_tools(message, [b'{"name":"core__a"}'], ["core__a"], lambda tool: tool["name"]) == frozenset()
    )
