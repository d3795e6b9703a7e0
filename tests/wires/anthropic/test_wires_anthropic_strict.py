"""Strict tools for Anthropic: ``strict`` is sent only with a schema that the provider takes then."""

import json
from typing import Any

import pytest

from proxy.base.conversation import Conversation, FunctionTool, Message, Text
from proxy.base.errors import RequestError
from proxy.base.events import ToolDefinition
from proxy.wires.anthropic.crossing.to_upstream import takes_strict
from proxy.wires.anthropic.wire import AnthropicWire


def schema(**fields: Any) -> dict[str, Any]:
    """A closed object with these fields, all required."""
    return {
        "type": "object", "properties": fields, "required": list(fields), "additionalProperties": False
    }  # fmt: skip


ASKED = (Message("user", (Text("hi"),)),)
NODE = {"anyOf": [schema(below={"$ref": "#/$defs/Node"}), {"type": "null"}]}
PAIR = {"$defs": {"A": schema(a={"type": "string"})}}
TAKEN = [
    schema(),
    schema(a={"type": "string", "format": "date"}, b={"enum": [1, 2]}, c={"type": ["string", "null"]}),
    schema(a={"type": "array", "items": {"type": "number"}, "minItems": 1}),
    {**schema(a={"$ref": "#/$defs/A"}, b={"$ref": "#/$defs/A"}), **PAIR},
]
REFUSED = [
    schema(a={"type": "integer", "minimum": 1}),
    schema(a={"type": "string", "maxLength": 3}),
    schema(a={"type": "string", "pattern": "^a$"}),
    schema(a={"type": "string", "format": "path"}),
    schema(a={"type": "array", "items": {}, "minItems": 2}),
    schema(a={"type": "object", "properties": {}}),
    schema(a={"oneOf": [{"type": "string"}]}),
    {**schema(a={"$ref": "#/$defs/Node"}), "$defs": {"Node": NODE}},
]


@pytest.mark.parametrize("shape", TAKEN)
def test_strict_reaches_the_provider(shape: dict[str, Any]) -> None:
    """A strict tool of the proxy, and one of a client of another dialect, is strict there, too."""
    assert takes_strict(shape)
    assert [tool.get("strict") for tool in (ours(shape), translated(shape))] == [True, True]


@pytest.mark.parametrize("shape", REFUSED)
def test_other_schemas_go_without(shape: dict[str, Any]) -> None:
    """A tool whose schema the provider refuses with ``strict`` is sent without, and a client is told."""
    assert not takes_strict(shape)
    assert not {"strict"} & {*ours(shape), *translated(shape)}
    asked = Conversation("m", ASKED, tools=(FunctionTool("f", "d", shape, True, at="tools[0]"),))
    assert [left.field for left in AnthropicWire.codec.write(asked).left_out] == ["tools[].strict"]
    with pytest.raises(RequestError, match="strict"):
        AnthropicWire.codec.write(asked, strict=True)


def ours(shape: dict[str, Any]) -> dict[str, Any]:
    """A strict tool of the proxy, as Anthropic gets it."""
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    editor = AnthropicWire().editor(json.dumps(ask).encode(), AnthropicWire().parse(ask))
    editor.offer([ToolDefinition("core__a", "d", shape, strict=True)], [])
    (tool,) = json.loads(editor.render())["tools"]
    return dict(tool)


def translated(shape: dict[str, Any]) -> dict[str, Any]:
    """A strict tool of a client of another dialect, as Anthropic gets it."""
    asked = Conversation("m", ASKED, tools=(FunctionTool("f", "d", shape, True, at="tools[0]"),))
    (tool,) = json.loads(AnthropicWire.codec.write(asked).body)["tools"]
    return dict(tool)
