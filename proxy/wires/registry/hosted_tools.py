"""The types of tools that providers run, of all dialects."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.wires.chosen import chooses
from proxy.wires.dialect import HostedTool
from proxy.wires.registry.table import BY_WIRE

_TOOLS: Final = tuple({tool.type: tool for dialect in BY_WIRE.values() for tool in dialect.tools}.values())
_UNKNOWN: Final = HostedTool("")


def hosted_tool(kind: str) -> HostedTool:
    """Return what is known of a type of tools: the longest beginning that fits."""
    known = [tool for tool in _TOOLS if kind.startswith(tool.type)]
    return max(known, key=lambda tool: len(tool.type), default=_UNKNOWN)


def acting_tool(payload: Mapping[str, Any]) -> str | None:
    """Return the type of the first tool of a request that may act at the provider; ``None`` if none may.

    A request with such a tool must not run twice. An unknown type may act. Elements that choose server
    tools are never sent to an upstream; the proxy runs these tools. Items of Responses may bring tools, too.
    """
    for tool in _declared(payload):
        if not isinstance(tool, dict) or chooses(tool):
            continue
        # In Messages, a client's own tool may have no type.
        kind = "function" if "input_schema" in tool else str(tool.get("type"))
        if not _is_repeatable(hosted_tool(kind), tool):
            return kind
    return None


def _declared(payload: Mapping[str, Any]) -> Iterator[Any]:
    items = payload.get("input")
    for holder in (payload, *(items if isinstance(items, list) else ())):
        tools = holder.get("tools") if isinstance(holder, dict) else None
        yield from tools if isinstance(tools, list) else ()


def _is_repeatable(known: HostedTool, tool: Mapping[str, Any]) -> bool:
    if known.placed_by is None or (place := tool.get(known.placed_by)) is None:
        return known.repeatable
    return isinstance(place, dict) and place.get("type") == "local"
