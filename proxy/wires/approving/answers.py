"""Decides what counts as an answer about an approval, and removes the approval function from a request.

Only the JSON value ``true`` approves. Libraries also answer for a person whom they never asked: with an
error text, an empty string, or ``"true"`` as a text. All of these refuse.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from proxy.json.objects import unambiguous
from proxy.json.splice import elements, join_array
from proxy.wires.approving.shown import APPROVE

NO_ANSWER: Final = "The client gave no clear answer."
"""The reason of a refusal for which the client gave none."""
_MOST_BYTES: Final = 256 * 1024
_CHOICES: Final = ("tool_choice", "parallel_tool_calls")


def answer_of(content: object) -> tuple[bool, str, Any, Any]:
    """Return what the result of a call answers: whether it approves, the reason, the arguments that replace
    the model's, and the grant to give.

    The content must be one JSON object without duplicate members, as a text or as the only part of a list.
    """
    answer = loaded(text_of(content))
    if not isinstance(answer, dict) or answer.get("approve") is not True:
        reason = answer.get("reason") if isinstance(answer, dict) and answer.get("approve") is False else None
        return False, reason if isinstance(reason, str) else "" if reason is None else NO_ANSWER, None, None
    if not answer.keys() <= {"approve", "reason", "arguments", "grant"}:
        return False, NO_ANSWER, None, None
    reason, arguments, grant = answer.get("reason"), answer.get("arguments"), answer.get("grant")
    if not isinstance(reason, str | None) or not isinstance(arguments, dict | None):
        return False, NO_ANSWER, None, None
    if not isinstance(grant, dict | None):
        return False, NO_ANSWER, None, None
    return True, reason or "", arguments, grant


def text_of(content: object) -> str:
    """Return a text, or the text of the only part of a list; ``""`` for anything else."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return content if isinstance(content, str) and len(content) <= _MOST_BYTES else ""


def loaded(text: object) -> Any:
    """Return JSON text as values; ``None`` if it is not JSON or repeats a member."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text, object_pairs_hook=unambiguous)
    except (ValueError, RecursionError):
        return None


def function_name(tool: object) -> object:
    """Return the name of the function in a tool, or in the choice of one, in any dialect."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    return inner.get("name") if isinstance(inner, dict) else tool.get("name")


def leave_out_function(parts: dict[str, bytes], payload: Mapping[str, Any]) -> bool:
    """Remove the function from the members of a body. Return whether the client declared it."""
    tools = payload.get("tools")
    if not isinstance(tools, list) or not any(function_name(tool) == APPROVE for tool in tools):
        return False
    raws = zip(tools, elements(parts["tools"]), strict=True)
    left = [raw for tool, raw in raws if function_name(tool) != APPROVE]
    parts["tools"] = join_array(left)
    choice = payload.get("tool_choice")
    chosen = _without(choice, lambda tool: function_name(tool) == APPROVE)
    if chosen is None:
        parts.pop("tool_choice", None)
    elif chosen != choice:
        parts["tool_choice"] = orjson.dumps(chosen)
    if not left:
        for name in ("tools", *_CHOICES):
            parts.pop(name, None)
    return True


def _without(choice: Any, is_ours: Callable[[object], bool]) -> Any:
    """Return a choice of tools without the function; ``None`` if nothing is left."""
    if not isinstance(choice, dict):
        return choice
    if is_ours(choice):
        return None
    kept: dict[str, Any] = {}
    for key, value in choice.items():
        if isinstance(value, list):
            value = [item for item in value if not is_ours(item)]
            if not value and choice[key]:
                return None
        elif isinstance(value, dict):
            value = _without(value, is_ours)
            if value is None:
                return None
        kept[key] = value
    return kept
