"""JSON of an upstream's events, read also where it is not quite JSON but some client would read it."""

import json
import re
from typing import Any

import orjson

from proxy.errors import TooManyValues
from proxy.json_size import MOST_READ_VALUES, count_values

__all__ = [
    "MALFORMED",
    "UNREADABLE_EVENT",
    "UNREADABLE_REPLY",
    "loads",
    "may_be_reply",
    "may_hold_call",
]

MALFORMED = {
    "message": "The upstream sent an event that is not valid JSON.",
    "type": "upstream_error",
    "code": "upstream_malformed",
}
UNREADABLE_EVENT = (
    "The upstream sent an event that may hold a tool call and cannot be read: it is not valid JSON, "
    "or nested too deeply."
)
UNREADABLE_REPLY = (
    "The upstream sent a reply that may hold a tool call and cannot be read: it is not a JSON object, "
    "or nested too deeply."
)
_MAX_DEPTH = 200
_MOST_LENIENT = 4 * 1024 * 1024
"""Bytes that are looked at once more in the hope that they are nearly JSON."""
_BEFORE_JSON = b" \t\r\n\0\xef\xbb\xbf\xfe\xff"
"""Blanks, byte order marks, and the zeros of UTF-16 and UTF-32, which readers of whole bodies detect."""
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_MOST_DIGITS = 20


def loads(data: bytes, what: str = "an event") -> Any:
    """An event's data as JSON; ``None`` where it is none, or nested deeper than JSON can be written.

    Of what is nearly JSON only an object is read.  Invalid UTF-8 and half surrogate pairs are replaced
    for reading: a call must not hide behind one bad byte, and some servers cut an emoji in two.  So are
    NaN and infinities, which JSON does not have: Python servers write them as log probabilities, and
    clients in Python read them.  Raises :class:`~proxy.errors.TooManyValues`, which names ``what`` it is.
    """
    if len(data) > MOST_READ_VALUES and count_values(data, MOST_READ_VALUES) > MOST_READ_VALUES:
        raise TooManyValues(what, MOST_READ_VALUES)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        if b"\0" in data or len(data) > _MOST_LENIENT or data.lstrip()[:1] != b"{":
            return None
        whole = _whole_characters(data)
        try:
            value = orjson.loads(whole)
        except orjson.JSONDecodeError:
            try:
                value = json.loads(whole.decode(), parse_constant=lambda _: None, parse_int=_integer)
            except (ValueError, RecursionError):
                return None
    if data.count(b"{") + data.count(b"[") > _MAX_DEPTH and _depth(value) > _MAX_DEPTH:
        return None
    return value


def may_hold_call(data: bytes) -> bool:
    """Whether a client could find a tool call in text that was not read here.

    Each wire has one of these words in the names that a call goes by, and JSON can spell a letter in one
    other way.
    """
    return b"{" in data and (b"call" in data or b"tool_use" in data or b"\\u" in data)


def may_be_reply(body: bytes) -> bool:
    """The same of a whole body, which some readers take in UTF-16 and UTF-32 as well."""
    start = body.lstrip(_BEFORE_JSON)[:1]
    return start in (b"{", b"[") and (b"\0" in body or may_hold_call(body))


def _whole_characters(data: bytes) -> bytes:
    """Text in UTF-8 with no half of a character in it, nor an escape of half a surrogate pair.

    It holds no NUL, so that two of them can stand for an escaped backslash: what is behind one is no escape.
    """
    text = data.decode("utf-8", "replace").encode().replace(b"\\\\", b"\0\0")
    if b"\\u" in text:
        text = _HALF_PAIR.sub(rb"\\ufffd", text)
    return text.replace(b"\0\0", b"\\\\")


def _depth(value: Any) -> int:
    """How deeply containers are nested in a JSON value."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def _integer(text: str) -> int | float:
    """A whole number as orjson reads it: what 64 bits do not hold becomes a float."""
    if len(text) <= _MOST_DIGITS and -(2**63) <= (number := int(text)) < 2**64:
        return number
    return float(text)
