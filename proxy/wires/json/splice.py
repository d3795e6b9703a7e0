"""JSON edited by its pieces: what is not changed keeps its bytes.

A client's request is sent on with its numbers, order and escapes as they were, so it is never
loaded and dumped as a whole.  These functions cut one level of an object or array into the raw
bytes of its values and join them again.  They expect text that a JSON parser has accepted; an
upstream's may also be such as only :mod:`proxy.wires.json.lenient` reads.

msgspec cuts, since its ``Raw`` keeps the bytes of a value.  It refuses what only lenient parsers read (half a
surrogate pair, NaN, invalid UTF-8), and it does not say where in the text a value stands.  Regular
expressions do both, several times as slowly: they cut what it refuses, and find the values to replace.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from proxy.errors import RequestError
from proxy.wires.json.lenient import loads
from proxy.wires.json.patterns import repeated

__all__ = [
    "elements",
    "extend_array",
    "extend_object",
    "join_array",
    "join_object",
    "load_strict",
    "members",
    "replace_values",
    "value_at",
]

_BLANK = rb"[ \t\r\n]*+"
_QUOTED = (
    # A search for a quote alone is several times as fast as one for a quote or a backslash.  Behind one or
    # three backslashes it belongs to the text, behind none or two it ends it (JSON in a text has three);
    # a text with a quote behind more of them is read again, escape by escape.
    rb'(?:"[^"]*+%b(?:(?<!\\)|(?<=[^\\]\\\\))"|"[^"\\]*+%b")'
    % (repeated(rb'(?:(?<=[^\\]\\)|(?<=[^\\]\\\\\\))"[^"]*+'), repeated(rb'\\.[^"\\]*+'))
)
_DEPTH = 8
"""Levels of a value that one regular expression reads: messages take four, tools with their schemas more."""


def _nested(depth: int) -> bytes:
    """A regular expression for a string, or for an object or array of no more levels than ``depth``."""
    value = _QUOTED
    for _ in range(depth):
        inside = repeated(value + rb"[^\"\[\]{}]*+")
        value = rb"(?:%b|[\[{][^\"\[\]{}]*+%b[\]}])" % (_QUOTED, inside)
    return value


_VALUE = re.compile(_nested(_DEPTH), re.DOTALL)
_TOKEN = re.compile(_QUOTED + rb"|[\[\]{}]", re.DOTALL)
_MEMBER = re.compile(
    rb"[ \t\r\n,]*+(%b)(%b:%b)(%b|[^\"\[\]{},\s]++)?" % (_QUOTED, _BLANK, _BLANK, _QUOTED), re.DOTALL
)
"""A member with what stands before it, and its value where that is neither an object nor an array."""
_ELEMENT = re.compile(rb"[ \t\r\n,]*+(?:(%b|[^\"\[\]{},\s]++)|(?=[\[{]))" % _nested(_DEPTH), re.DOTALL)
"""An element with what stands before it, or where it begins if it is too deep."""
_SPACE = re.compile(_BLANK)
_ARRAY_END = re.compile(_BLANK + rb"\]")
_EMPTY = re.compile(rb"[\[{]" + _BLANK + rb"[\]}]")
_OBJECT_END = re.compile(_BLANK + rb"}")
_READ_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_READ_ARRAY = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NOT_READ = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for text that is not quite JSON, or is nested too deeply for it."""
_OPENING = frozenset(b"{[")
_CLOSING = frozenset(b"}]")


def _skip_space(raw: bytes, position: int) -> int:
    match = _SPACE.match(raw, position)
    return match.end() if match else position


def _value_end(raw: bytes, start: int) -> int:
    """The end of the object or array at ``start``."""
    match = _VALUE.match(raw, start)
    return match.end() if match else _deep_end(raw, start)


def _deep_end(raw: bytes, start: int) -> int:
    """The same, however deep it is."""
    depth = 0
    if raw[start] in _OPENING:
        for token in _TOKEN.finditer(raw, start):
            byte = raw[token.start()]
            if byte in _OPENING:
                depth += 1
            elif byte in _CLOSING:
                depth -= 1
                if depth == 0:
                    return token.end()
    raise ValueError("not JSON")


def members(raw: bytes) -> dict[str, bytes]:
    """The members of the object ``raw``: decoded key → raw bytes of its value, in order."""
    try:
        return {key: bytes(value) for key, value in _READ_OBJECT(raw).items()}
    except _NOT_READ:
        return {key: raw[start:end] for key, (start, end) in _spans(raw, 0).items()}


def _spans(raw: bytes, position: int) -> dict[str, tuple[int, int]]:
    """Where the value of each member of the object at ``position`` begins and ends."""
    found: dict[str, tuple[int, int]] = {}
    position = _skip_space(raw, position) + 1
    while (member := _MEMBER.match(raw, position)) is not None:
        key, start = member[1], member.end(2)
        position = member.end() if member[3] is not None else _value_end(raw, start)
        name = loads(key) if b"\\" in key else key[1:-1].decode("utf-8", "replace")
        found[name] = (start, position)
    if _OBJECT_END.match(raw, position) is None:
        raise ValueError("not JSON")
    return found


def replace_values(raw: bytes, values: Mapping[str, bytes], *path: str) -> bytes:
    """``raw`` with new values for members that it has; every other byte stays as it is.

    ``path`` leads from the outermost object to the one whose members are meant; where it leads
    nowhere, ``raw`` is returned as it is.
    """
    spans = _spans(raw, 0)
    for key in path:
        if key not in spans or raw[spans[key][0]] != 0x7B:  # an opening brace
            return raw
        spans = _spans(raw, spans[key][0])
    edits = sorted((spans[key], value) for key, value in values.items() if key in spans)
    pieces: list[bytes] = []
    done = 0
    for (start, end), value in edits:
        pieces += [raw[done:start], value]
        done = end
    return b"".join([*pieces, raw[done:]])


def value_at(raw: bytes, *path: str) -> bytes | None:
    """The raw value that ``path`` leads to from the outermost object; ``None`` where it leads nowhere."""
    start, end = 0, len(raw)
    for key in path:
        spans = _spans(raw, start) if raw[start : start + 1] == b"{" else {}
        if key not in spans:
            return None
        start, end = spans[key]
    return raw[start:end]


def elements(raw: bytes) -> list[bytes]:
    """The raw bytes of each element of the array ``raw``."""
    try:
        return [bytes(value) for value in _READ_ARRAY(raw)]
    except _NOT_READ:
        return _cut(raw)


def _cut(raw: bytes) -> list[bytes]:
    """:func:`elements` of text that is not quite JSON."""
    found: list[bytes] = []
    position = _skip_space(raw, 0) + 1
    while (element := _ELEMENT.match(raw, position)) is not None:
        start, position = element.span(1)
        if start < 0:
            start = element.end()
            position = _deep_end(raw, start)
        found.append(raw[start:position])
    if _ARRAY_END.match(raw, position) is None:
        raise ValueError("not JSON")
    return found


def join_object(parts: Mapping[str, bytes]) -> bytes:
    """An object of raw values, in the mapping's order."""
    return b"{" + b",".join(orjson.dumps(key) + b":" + value for key, value in parts.items()) + b"}"


def join_array(parts: Iterable[bytes]) -> bytes:
    """An array of raw elements."""
    return b"[" + b",".join(parts) + b"]"


def extend_array(raw: bytes, parts: Sequence[bytes]) -> bytes:
    """The array ``raw``, with nothing around it, and more raw elements behind its own."""
    if not parts:
        return raw
    between = b"" if _EMPTY.fullmatch(raw) else b","
    return b"%b%b%b]" % (raw[:-1], between, b",".join(parts))


def extend_object(raw: bytes, parts: Mapping[str, bytes]) -> bytes:
    """The object ``raw`` and more members of raw values behind its own, of which none has their names."""
    raw = raw.strip(b" \t\r\n")
    if not parts:
        return raw
    between = b"" if _EMPTY.fullmatch(raw) else b","
    return b"%b%b%b" % (raw[:-1], between, join_object(parts)[1:])


def load_strict(raw: bytes) -> dict[str, Any]:
    """Parse a request body that can be read in one way only.

    Raises :class:`RequestError` if the text is not JSON (RFC 8259, so no NaN and no lone surrogate), is not
    an object, has more than some 250 levels, or names a key twice.  Two readers could understand such a body
    differently (rule E1).  The caller bounds the length of the text and the number of its values
    (:mod:`proxy.json_size`).
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(400, "The request body must be a JSON object.", code="invalid_json")
    try:
        # What is read has to be written again somewhere, and orjson writes less deep than it reads.
        if _may_repeat_keys(raw, orjson.dumps(value)):
            json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except (RecursionError, TypeError):
        raise RequestError(400, "The request body is nested too deeply.", code="invalid_json") from None
    return value


def _may_repeat_keys(raw: bytes, written: bytes) -> bool:
    """Whether a key of ``raw`` may be missing from ``written``, its value written anew.

    Nothing is missing where both are the same, as with most clients that leave out the spaces.  A key
    that was dropped takes two quotes along.  Only a quote that ``raw`` escapes as ``\\u0022`` adds one,
    and it takes a ``u`` away, which nothing gives back.  So where both counts are the same, no key was
    dropped.  Counting is a tenth of the work of looking at each key.
    """
    if raw == written:
        return False
    if raw.count(b'"') != written.count(b'"'):
        return True
    return b"\\u" in raw and raw.count(b"u") != written.count(b"u")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RequestError(
                    400,
                    f"The key {json.dumps(key[:80])} occurs twice in one object of the request body. Send it "
                    "once.",
                    param=key[:80],
                    code="duplicate_key",
                )
            seen.add(key)
    return found
