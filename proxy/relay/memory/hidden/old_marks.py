"""Read held turns of earlier versions, in which a string marks the place of each result that waits.

Such a turn lists in ``waiting`` what it waits for. Only these strings are read as marks, because a tool could
write a text that looks like one.
"""

from collections.abc import Collection
from typing import Any, Final

import orjson

from proxy.base.events import ToolCall
from proxy.records.result_for_model import Hole, ResultForModel, stored_result

_WAITING: Final = "waiting"
_MARK: Final = "toolrelay-waits-for:"


def with_holes(payload: bytes) -> bytes:
    """Return a held turn with holes in place of its marks; the same bytes if it has no marks."""
    if _MARK.encode() not in payload:
        return payload
    held = orjson.loads(payload)
    marks = {_MARK + name for name in str(held.pop(_WAITING, "")).split()}
    if "items" in held:
        held["items"] = [_read(item, marks, index) for index, item in enumerate(held["items"])]
    for index, call in enumerate(held.get("calls", ())):
        call["result"] = _read(call["result"], marks, index)
    return orjson.dumps(held)


def _read(stored: Any, marks: Collection[str], index: int) -> Any:
    """Return a result in the form of :func:`stored_result`, if it has marks; anything else unchanged."""
    if not isinstance(stored, str) or _MARK not in stored:
        return stored
    said = orjson.loads(stored)
    text = said.get("content", said.get("output"))
    if isinstance(text, list):  # Its images stand beside the text.
        text = next((part.get("text") for part in text if isinstance(part, dict)), None)
    parts = _parts(text, marks) if isinstance(text, str) else ()
    if not any(isinstance(part, Hole) for _, part in parts):
        return stored
    call_id = said.get("tool_call_id") or said.get("tool_use_id") or said.get("call_id") or ""
    name = said.get("name") or said.get("tool_name") or ""
    call = ToolCall(call_id, name, "", index, legacy=said.get("role") == "function")
    return stored_result(ResultForModel(call, parts))


def _parts(text: str, marks: Collection[str]) -> tuple[tuple[str | None, str | Hole], ...]:
    """Return the parts of a result's text: a mark, or the results of the calls inside a wrapper call."""
    if text in marks:
        return ((None, Hole(text.removeprefix(_MARK))),)
    try:
        inside = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ()
    if not (isinstance(inside, list) and all(map(_is_output, inside))):
        return ()
    return tuple(
        (
            str(one.get("recipient_name", "")).removeprefix("functions."),
            Hole(one["output"].removeprefix(_MARK)) if one["output"] in marks else one["output"],
        )
        for one in inside
    )


def _is_output(one: Any) -> bool:
    """Return whether this is the result of a call inside a wrapper call; a tool could write anything."""
    return isinstance(one, dict) and isinstance(one.get("output"), str)
