"""From what a tool returned to the text that the model reads, bounded in every direction."""

import json
import math
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from proxy.errors import ToolErrorCode, ToolFailure
from proxy.tools.arguments import MAX_DEPTH, utf8_length

__all__ = ["Output", "failure_text", "hard_limit", "safe_words", "to_output"]

_MAX_MESSAGE = 1000
_SMALLEST_HARD_LIMIT = 1 << 20


class Output:
    """A tool's output: its text for the model and, for JSON, the value that redaction looks into."""

    __slots__ = ("size", "text", "truncated", "value")

    def __init__(self, text: str, value: Any, size: int, truncated: bool) -> None:
        self.text = text
        self.value = value
        self.size = size
        self.truncated = truncated


def hard_limit(max_bytes: int) -> int:
    """Bytes past which a JSON result is refused instead of cut: it is never even written out."""
    return max(_SMALLEST_HARD_LIMIT, 8 * max_bytes)


def to_output(value: Any, max_bytes: int) -> Output:
    """The text of a result: a ``str`` as it is, everything else as JSON, cut to ``max_bytes``.

    Raises :class:`~proxy.errors.ToolFailure` with ``result_too_large`` past :func:`hard_limit` and
    with ``execution_failed`` for what JSON cannot say: NaN, cycles, foreign objects.
    """
    if isinstance(value, str):
        size = utf8_length(value)
        text, truncated = _cut(value, size, max_bytes)
        return Output(text, text, size, truncated)
    limit = hard_limit(max_bytes)
    if _measure(value, limit):
        try:
            value = to_jsonable_python(value, by_alias=True, inf_nan_mode="constants")
        except (PydanticSerializationError, ValueError, RecursionError):
            raise ToolFailure("the tool returned something that is not JSON") from None
        _measure(value, limit)
    try:
        encoded = orjson.dumps(value)
        text = encoded.decode()
    except (TypeError, RecursionError):
        # Whole numbers past 64 bits, which orjson does not write and JSON has.
        try:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            raise ToolFailure("the tool returned something that is not JSON") from None
    size = utf8_length(text)
    text, truncated = _cut(text, size, max_bytes)
    return Output(text, value, size, truncated)


def failure_text(code: ToolErrorCode, message: str) -> str:
    """What the model reads about a failure (rule T3); ``message`` as :func:`safe_words` gives it."""
    return orjson.dumps({"ok": False, "error_code": code, "message": message}).decode()


def safe_words(message: str) -> str:
    """A failure's message as any wire can carry it, bounded."""
    return _encodable(str(message)[:_MAX_MESSAGE])


def _measure(value: Any, limit: int) -> bool:
    """Walk a value without writing it out, and refuse it if it is too large, too deep or not finite.

    Returns whether it holds anything that is not plain JSON.  Cycles show as too deep a nesting.
    """
    size = 0
    foreign = False
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        size += 2
        if depth > MAX_DEPTH:
            raise ToolFailure("the tool returned a value that is nested too deeply")
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise ToolFailure("the tool returned a number that JSON does not have")
        elif isinstance(item, dict):
            size += 2 * len(item)
            if size <= limit:
                for key, child in item.items():
                    foreign = foreign or not isinstance(key, str)
                    size += len(key) if isinstance(key, str) else 8
                    pending.append((child, depth + 1))
        elif isinstance(item, list):
            size += len(item)
            if size <= limit:
                pending.extend((child, depth + 1) for child in item)
        elif item is not None and not isinstance(item, int):
            foreign = True
        if size > limit:
            raise ToolFailure("the tool returned more than can be handled", code="result_too_large")
    return foreign


def _cut(text: str, size: int, max_bytes: int) -> tuple[str, bool]:
    """Head and tail of a text that is too long, with a note between them for the model."""
    if size <= max_bytes:
        return _encodable(text), False
    note = f"\n[toolrelay: the result was {size} bytes; its middle was left out here]\n"
    room = max(max_bytes - len(note), 0)
    head_bytes, tail_bytes = room - room // 3, room // 3
    # No character is less than a byte: slicing by characters first keeps the copies small.
    head = _encodable(text[:head_bytes]).encode()[:head_bytes].decode(errors="ignore")
    tail = _encodable(text[len(text) - tail_bytes :]).encode() if tail_bytes else b""
    return head + note + tail[len(tail) - tail_bytes :].decode(errors="ignore"), True


def _encodable(text: str) -> str:
    """``text`` with lone surrogates replaced, which no wire can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
