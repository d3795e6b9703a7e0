"""Calls inside a call: the wrapper that OpenAI models sometimes invent.

Seen with OpenAI: an undeclared function ``multi_tool_use.parallel`` (or ``parallel``) with
``{"tool_uses": [{"recipient_name": "functions.NAME", "parameters": {…}}]}``.
"""

from collections.abc import Callable, Sequence

import orjson

from proxy.events import ToolCall, ToolResult

__all__ = ["expand", "is_wrapper", "join_results", "mask_parts"]

_WRAPPERS = frozenset({"parallel", "multi_tool_use.parallel", "multi_tool_use__parallel"})
_MOST = 64
_PLACES = 1000


def is_wrapper(name: str) -> bool:
    """Whether a hidden call of this name stands for several; a declared tool never gets here."""
    return name in _WRAPPERS


def expand(call: ToolCall) -> tuple[ToolCall, ...]:
    """The calls inside ``call``; none where its arguments are not of the wrapper's shape."""
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
            # A place of its own in the turn: at most once goes by (run, turn, place).
            ToolCall(
                f"{call.call_id}.{position}",
                name.removeprefix("functions."),
                text,
                _PLACES * (call.index + 1) + position,
            )
        )
    return tuple(parts)


def mask_parts(arguments: str, mask: Callable[[str, str], str]) -> str:
    """A wrapper's arguments with those of each call inside masked; ``{}`` where they have another shape."""
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


def join_results(answers: Sequence[tuple[ToolCall, ToolResult]]) -> str:
    """One result for the wrapper: what each call inside came to, in order."""
    return orjson.dumps(
        [{"recipient_name": f"functions.{call.name}", "output": result.content} for call, result in answers]
    ).decode()
