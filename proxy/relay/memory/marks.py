"""Marks in place of results that are not known yet, in turns that are held until somebody has decided.

A held turn is kept in the client's own dialect, and the result of a call in it stands somewhere inside, as a
string, in JSON that may be a string of other JSON.  The mark stands in its place, and nothing but what the
turn itself names as waiting is ever filled in: a tool may write what looks like a mark.
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
    """What stands in place of the result of a call that waits for an approval."""
    return _MARK + approval_id


def waiting_of(payload: bytes) -> tuple[str, ...]:
    """The approvals that a held turn waits for, in the order of its calls."""
    if _MARK.encode() not in payload:
        return ()
    said = orjson.loads(payload).get(WAITING)
    return tuple(said.split()) if isinstance(said, str) else ()


def fill(payload: bytes, results: Mapping[str, str]) -> bytes:
    """A held turn with what the calls of these approvals came to; it waits for the others still."""
    held = orjson.loads(payload)
    left = [one for one in waiting_of(payload) if one not in results]
    marks = {mark_of(one): text for one, text in results.items() if one in waiting_of(payload)}
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
    """A string, which may be a mark, JSON with marks in it, or anything else."""
    if _MARK not in text:
        return text
    if text in marks:
        return marks[text]
    try:
        inner = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.dumps(_filled(inner, marks, depth + 1)).decode() if depth <= _DEEPEST else text
