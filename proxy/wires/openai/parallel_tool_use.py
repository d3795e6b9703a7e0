"""Calls inside a call: OpenAI models sometimes invent a wrapper for several calls.

Seen with OpenAI: an undeclared function ``multi_tool_use.parallel`` (or ``parallel``) with ``{"tool_uses":
[{"recipient_name": "functions.NAME", "parameters": {…}}]}``.
"""

from collections.abc import Callable

import orjson

from proxy.base.events import ToolCall

_WRAPPERS = frozenset(
    {"parallel", "multi_tool_use.parallel", "multi_tool_use_parallel", "multi_tool_use__parallel"}
)
_MOST = 64
_PLACES = 1000


def is_wrapper(name: str) -> bool:
    """Return whether a hidden call of this name wraps several calls; declared tools never get here."""
    return name in _WRAPPERS


def expand(call: ToolCall) -> tuple[ToolCall, ...]:
    """Return the calls inside ``call``; none if its arguments do not have the wrapper's form."""
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return ()
    uses = arguments.get("tool_uses") if isinstance(arguments, dict) else None
    if not isinstance(uses, list) or not 0 < len(uses) <= _MOST:
        return ()
    parts = []
    for position, use in enumerate(uses):
        name = use.get("recipient_name") if isinstance(use, dict) else None
        if not isinstance(name, str):
            return ()
        parameters = use.get("parameters")
        text = orjson.dumps({} if parameters is None else parameters).decode()
        parts.append(
            # Each part has its own index, because (run, turn, index) identifies a call that runs at most
            # once.
            ToolCall(
                f"{call.call_id}.{position}",
                name.removeprefix("functions."),
                text,
                _PLACES * (call.index + 1) + position,
            )
        )
    return tuple(parts)


def mask_parts(arguments: str, mask: Callable[[str, str], str]) -> str:
    """Mask the arguments of each call inside a wrapper; return ``{}`` for any other form."""
    parts = expand(ToolCall("", "", arguments, 0))
    if not parts:
        return "{}"
    uses = [
        {
            "recipient_name": f"functions.{part.name}",
            "parameters": orjson.loads(mask(part.name, part.arguments)),
        }
        for part in parts
    ]
    return orjson.dumps({"tool_uses": uses}).decode()
