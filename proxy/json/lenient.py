"""Reads the JSON of an upstream's events, also text that is not quite JSON but that some clients accept.

It also joins characters that a server has cut in two, between two events of a stream. A character beyond
U+FFFF is two escapes in JSON, a surrogate pair (RFC 8259, section 7). Servers that cut text by UTF-16 units
write each half into an event of its own.
"""

import json
import re
from typing import Any, Final

import orjson

from proxy.base.errors import TooManyValues
from proxy.json.size import MOST_READ_VALUES, count_values

_MOST_WAITING: Final = 64
"""The most texts of a stream of which a half waits."""

_Path = tuple[object, ...]


class HalfPairs:
    """The first halves at the end of texts in the events of one stream, by the places of the texts.

    A half waits for the next event with a text at its place. One that is not followed by the other half
    becomes U+FFFD there.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[_Path, str] = {}

    def settle(self, payload: Any) -> Any:
        """Return an event's payload with whole characters; it may have half surrogate pairs before."""
        if not isinstance(payload, dict):
            return payload
        place = (payload.get("type"), payload.get("index"), payload.get("output_index"))
        return self._settle(payload, place)

    def _settle(self, value: Any, place: _Path) -> Any:
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, dict):
            return {self._whole(name): self._settle(item, (*place, name)) for name, item in value.items()}
        if isinstance(value, list):
            # The place of a call or a choice in its list says less than its index.
            return [
                self._settle(item, (*place, item.get("index", at) if isinstance(item, dict) else at))
                for at, item in enumerate(value)
            ]
        return value

    def _text(self, text: str, place: _Path) -> str:
        if not text:
            return text
        text = self.waiting.pop(place, "") + text
        if "\ud800" <= text[-1] <= "\udbff" and len(self.waiting) < _MOST_WAITING:
            self.waiting[place] = text[-1]
            text = text[:-1]
        return self._whole(text)

    @staticmethod
    def _whole(text: str) -> str:
        """Return the text with pairs joined, and U+FFFD for halves."""
        if text.isascii():
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


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
UNPLACED_CALL = (
    "The upstream sent a tool call in a place or a form in which the proxy cannot read it, though a client "
    "might."
)
_MAX_DEPTH = 200
_MOST_LENIENT = 4 * 1024 * 1024
"""The largest number of bytes for which the lenient reading is tried."""
_BEFORE_JSON = b" \t\r\n\0\xef\xbb\xbf\xfe\xff"
"""Blanks, byte order marks, and the zeros of UTF-16 and UTF-32, which some readers of whole bodies detect."""
_CALL = re.compile(rb"(?i)call|tool_use|\\u")
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_MOST_DIGITS = 20


def loads(data: bytes, what: str = "an event", halves: HalfPairs | None = None) -> Any:
    """Return an event's data as JSON; ``None`` if it is not JSON, or nested too deeply to be written.

    The lenient reading only accepts objects. It replaces invalid UTF-8 and half surrogate pairs, because a
    call must not hide behind one bad byte, and some servers cut an emoji in two. It also replaces NaN and
    infinities, which are not JSON: Python servers write them as log probabilities, and Python clients read
    them. With ``halves`` a half surrogate pair at the end of a text waits for the next event.

    Raises :class:`~proxy.base.errors.TooManyValues` with ``what`` as the name of the data.
    """
    if len(data) > MOST_READ_VALUES and count_values(data, MOST_READ_VALUES) > MOST_READ_VALUES:
        raise TooManyValues(what, MOST_READ_VALUES)
    has_half = False
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        if b"\0" in data or len(data) > _MOST_LENIENT or data.lstrip()[:1] != b"{":
            return None
        has_half = halves is not None and b"\\u" in data
        value = _lenient(data, keeps_halves=has_half)
    # What is that deep has as many ends as beginnings.
    if (
        len(data) > 2 * _MAX_DEPTH
        and data.count(b"{") + data.count(b"[") > _MAX_DEPTH
        and _depth(value) > _MAX_DEPTH
    ):
        return None
    return halves.settle(value) if halves is not None and (has_half or halves.waiting) else value


def _lenient(data: bytes, *, keeps_halves: bool) -> Any:
    """Return an object that orjson refuses; ``None`` if it cannot be read at all."""
    if keeps_halves:
        whole = data.decode("utf-8", "replace").encode()
    else:
        whole = _whole_characters(data)
        try:
            return orjson.loads(whole)
        except orjson.JSONDecodeError:
            pass
    try:
        return json.loads(whole.decode(), parse_constant=lambda _: None, parse_int=_integer)
    except (ValueError, RecursionError):
        return None


def may_hold_call(data: bytes) -> bool:
    """Return whether a client could find a tool call in text that the proxy could not read.

    The member names of a call contain one of these words on every wire. JSON can also spell a letter as an
    escape, and Go reads names in any case.
    """
    return b"{" in data and _CALL.search(data) is not None


def may_be_reply(body: bytes) -> bool:
    """Do the same for a whole body, which some readers also accept in UTF-16 and UTF-32."""
    start = body.lstrip(_BEFORE_JSON)[:1]
    return start in (b"{", b"[") and (b"\0" in body or may_hold_call(body))


def _whole_characters(data: bytes) -> bytes:
    """Return the text as valid UTF-8, with half characters and escapes of half surrogate pairs replaced.

    The text holds no NUL, so two NULs can stand for an escaped backslash: what follows it is not an escape.
    """
    text = data.decode("utf-8", "replace").encode().replace(b"\\\\", b"\0\0")
    if b"\\u" in text:
        text = _HALF_PAIR.sub(rb"\\ufffd", text)
    return text.replace(b"\0\0", b"\\\\")


def _depth(value: Any) -> int:
    """Return how deeply containers are nested in a JSON value."""
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
    """Return an integer as orjson reads it: one that does not fit into 64 bits becomes a float."""
    if len(text) <= _MOST_DIGITS and -(2**63) <= (number := int(text)) < 2**64:
        return number
    return float(text)
