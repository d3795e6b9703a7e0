"""Marks that replace missing results in turns that are held until somebody decides about their calls.

A held turn is JSON in the client's own dialect, and may have strings with more JSON in them.  A mark is a
string in place of the result of a call.  Only approvals that the turn itself lists are filled in, because a
tool could write a text that looks like a mark.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = ["WAITING", "fill", "mark_of", "waiting_of"]

WAITING: Final = "waiting"
"""The member of a held turn that names the approvals that it waits for."""
_MARK: Final = "toolrelay-waits-for:"
_DEEPEST: Final = 200


def mark_of(approval_id: str) -> str:
    """Return the mark that replaces the result of a call which waits for this approval."""
    return _MARK + approval_id


def waiting_of(payload: bytes) -> tuple[str, ...]:
    """Return the approvals that a held turn waits for, in the order of its calls."""
    if _MARK.encode() not in payload:
        return ()
    said = orjson.loads(payload).get(WAITING)
    return tuple(said.split()) if isinstance(said, str) else ()


def fill(payload: bytes, results: Mapping[str, str], renewed: Mapping[str, str] | None = None) -> bytes:
    """Return a held turn with the results of these approvals filled in; it still waits for the others.

    ``renewed`` maps names that the turn waits for to those that replace them; their results are marks.
    """
    held = orjson.loads(payload)
    waiting = waiting_of(payload)
    again = renewed or {}
    left = list(dict.fromkeys(again.get(one, one) for one in waiting if one in again or one not in results))
    marks = {mark_of(one): results[one] for one in waiting if one in results}
    filled = _filled(held, marks, 0)
    filled.pop(WAITING, None)
    if left:
        filled[WAITING] = " ".join(left)
    return orjson.dumps(filled)


def _filled(value: Any, marks: Mapping[str, str], depth: int) -> Any:
    if isinstance(value, str):
        return _filled_text(value, marks, depth)
    if depth > _DEEPEST:
        return value
    if isinstance(value, dict):
        return {key: _filled(inner, marks, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, marks, depth + 1) for inner in value]
    return value


def _filled_text(text: str, marks: Mapping[str, str], depth: int) -> str:
    """Return a string with its marks filled in: a mark, JSON with marks in it, or any other text."""
    if _MARK not in text:
        return text
    if text in marks:
        return marks[text]
    try:
        inner = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.dumps(_filled(inner, marks, depth + 1)).decode() if depth <= _DEEPEST else text
