"""Edits JSON by its pieces: everything that does not change keeps its bytes.

The proxy sends a client's request on with its numbers, order and escapes unchanged, so it never loads and
dumps the whole body. These functions cut one level of an object or array into the raw bytes of its values,
and join them again. They expect text that a JSON parser has accepted. An upstream's text may also be what
only :mod:`proxy.json.lenient` reads.

msgspec does the cutting, since its ``Raw`` keeps the bytes of a value. It refuses what only lenient parsers
read (half a surrogate pair, NaN, invalid UTF-8), and it does not report the position of a value. Regular
expressions can do both, but take several times as long. So they cut what msgspec refuses, and find values
to replace.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from proxy.base.errors import RequestError
from proxy.json.lenient import loads
from proxy.json.patterns import repeated

_BLANK = rb"[ \t\r\n]*+"
_QUOTED = (
    # A search for a quote alone is several times as fast as one for a quote or a backslash. A quote after one
    # or three backslashes belongs to the text; after none or two it ends the text (JSON inside a text has
    # three). A text with a quote after more backslashes is read again, escape by escape.
    rb'(?:"[^"]*+%b(?:(?<!\\)|(?<=[^\\]\\\\))"|"[^"\\]*+%b")'
    % (repeated(rb'(?:(?<=[^\\]\\)|(?<=[^\\]\\\\\\))"[^"]*+'), repeated(rb'\\.[^"\\]*+'))
)
_DEPTH = 8
"""Levels of a value that one regular expression reads. Messages need four, tools with their schemas more."""


def _nested(depth: int) -> bytes:
    """Return a regular expression for a string, or for an object or array of at most ``depth`` levels."""
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
"""A member with the blanks and commas before it, and with its value unless that is an object or an array."""
_ELEMENT = re.compile(rb"[ \t\r\n,]*+(?:(%b|[^\"\[\]{},\s]++)|(?=[\[{]))" % _nested(_DEPTH), re.DOTALL)
"""An element with the blanks and commas before it, or only its start if it is nested too deeply."""
_SPACE = re.compile(_BLANK)
_ARRAY_END = re.compile(_BLANK + rb"\]")
_EMPTY = re.compile(rb"[\[{]" + _BLANK + rb"[\]}]")
_OBJECT_END = re.compile(_BLANK + rb"}")
_READ_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_READ_ARRAY = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NOT_READ = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for text that is not quite JSON, or that is nested too deeply for it."""
_OPENING = frozenset(b"{[")
_CLOSING = frozenset(b"}]")


def _skip_space(raw: bytes, position: int) -> int:
    match = _SPACE.match(raw, position)
    return match.end() if match else position


def _value_end(raw: bytes, start: int) -> int:
    """Return the end of the object or array at ``start``."""
    match = _VALUE.match(raw, start)
    return match.end() if match else _deep_end(raw, start)


def _deep_end(raw: bytes, start: int) -> int:
    """Return the end of the object or array at ``start``, whatever its depth."""
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
    """Return the members of the object ``raw``, in order: decoded key → raw bytes of its value."""
    try:
        return {key: bytes(value) for key, value in _READ_OBJECT(raw).items()}
    except _NOT_READ:
        return {key: raw[start:end] for key, (start, end) in _spans(raw, 0).items()}


def _spans(raw: bytes, position: int) -> dict[str, tuple[int, int]]:
    """Return the start and end of each member's value in the object at ``position``."""
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
    """Return ``raw`` with new values for members that it has. All other bytes stay the same.

    ``path`` leads from the outermost object to the object with these members. If it leads nowhere, return
    ``raw``.
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
    """Return the raw value at ``path`` from the outermost object; ``None`` if there is none."""
    start, end = 0, len(raw)
    for key in path:
        spans = _spans(raw, start) if raw[start : start + 1] == b"{" else {}
        if key not in spans:
            return None
        start, end = spans[key]
    return raw[start:end]


def elements(raw: bytes) -> list[bytes]:
    """Return the raw bytes of each element of the array ``raw``."""
    try:
        return [bytes(value) for value in _READ_ARRAY(raw)]
    except _NOT_READ:
        return _cut(raw)


def _cut(raw: bytes) -> list[bytes]:
    """Do what :func:`elements` does, for text that is not quite JSON."""
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
    """Return an object of raw values, in the mapping's order."""
    if len(parts) == 1:  # Such as the tools that are added to most requests.
        ((key, value),) = parts.items()
        return b"{%b:%b}" % (orjson.dumps(key), value)
    return b"{" + b",".join(orjson.dumps(key) + b":" + value for key, value in parts.items()) + b"}"


def join_array(parts: Iterable[bytes]) -> bytes:
    """Return an array of raw elements."""
    return b"[" + b",".join(parts) + b"]"


def extend_array(raw: bytes, parts: Sequence[bytes]) -> bytes:
    """Return the array ``raw`` with more raw elements at its end. No blanks may surround ``raw``."""
    if not parts:
        return raw
    between = b"" if _EMPTY.fullmatch(raw) else b","
    return b"%b%b%b]" % (raw[:-1], between, b",".join(parts))


def extend_object(raw: bytes, parts: Mapping[str, bytes]) -> bytes:
    """Return the object ``raw`` with more raw members at its end. It must not have members of these names."""
    raw = raw.strip(b" \t\r\n")
    if not parts:
        return raw
    between = b"" if _EMPTY.fullmatch(raw) else b","
    return b"%b%b%b" % (raw[:-1], between, join_object(parts)[1:])


def load_strict(raw: bytes) -> dict[str, Any]:
    """Parse a request body, and accept it only if every reader understands it alike.

    Raises :class:`RequestError` if the text is not JSON (RFC 8259, so no NaN and no lone surrogate), is not
    an object, has more than about 250 levels, or repeats a key. Two readers could understand such a body
    differently (rule E1). The caller bounds the length of the text and the number of its values
    (:mod:`proxy.json.size`).
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(400, "The request body must be a JSON object.", code="invalid_json")
    try:
        # The proxy must write what it reads, and orjson cannot write as deeply nested values as it can read.
        if _may_repeat_keys(raw, orjson.dumps(value)):
            json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except (RecursionError, TypeError):
        raise RequestError(400, "The request body is nested too deeply.", code="invalid_json") from None
    return value


def _may_repeat_keys(raw: bytes, written: bytes) -> bool:
    """Return whether ``raw`` may hold a key that is missing from ``written``, its value written anew.

    If both are the same, no key is missing. That is so for most clients that leave out the spaces. Dropping
    a repeated key removes two quotes. Only a quote that ``raw`` escapes as ``\\u0022`` adds one, and it
    removes a ``u``, which nothing adds again. So if both counts are the same, no key was dropped. Counting
    takes a tenth of the time of checking each key.
    """
    if raw == written:
        return False
    if raw.count(b'"') != written.count(b'"'):
        return True
    # A search for one byte is a hundred times as fast as one for two, and ``in`` is slower.
    return raw.find(b"\\") >= 0 and raw.find(b"\\u") >= 0 and raw.count(b"u") != written.count(b"u")


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
