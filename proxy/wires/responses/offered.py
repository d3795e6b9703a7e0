"""Tools as the Responses wire declares them: those of the proxy, and the names of a client's."""

from typing import Any

import orjson

from proxy.base.events import ToolDefinition

__all__ = ["called_by", "definition_of", "function_name"]


def definition_of(definition: ToolDefinition) -> bytes:
    """Return one element of ``tools``, flat as in this dialect. ``strict`` is always explicit."""
    written = definition.written.get("responses")
    if written is None:
        tool = {
            "type": "function",
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.parameters,
            "strict": definition.strict,
        }
        written = definition.written["responses"] = orjson.dumps(tool)
    return written


def function_name(raw: bytes) -> str:
    tool = orjson.loads(raw)
    name = tool.get("name") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return name if isinstance(name, str) else ""


def called_by(tool: Any) -> str | None:
    """Return the name by which a model calls a tool, from its declaration or from a choice."""
    callable_ = isinstance(tool, dict) and tool.get("type") in ("function", "custom")
    name = tool.get("name") if callable_ else None
    return name if isinstance(name, str) else None
