"""JSON edited by its pieces: what is not changed keeps its bytes.

A client's request is sent on with its numbers, order and escapes as they were, so it is never
loaded and dumped as a whole.  These functions cut one level of an object or array into the raw
bytes of its values and join them again.  They expect text that a JSON parser has accepted.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from proxy.errors import RequestError

__all__ = ["elements", "join_array", "join_object", "load_strict", "members", "replace_values"]

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^,\]}\s]+")
_NESTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_OPENING = frozenset(b"{[")
_CLOSING = frozenset(b"}]")


def _skip_space(raw: bytes, position: int) -> int:
    match = _SPACE.match(raw, position)
    return match.end() if match else position


def _value_end(raw: bytes, start: int) -> int:
    first = raw[start]
    if first == 0x22:  # a quote
        match = _STRING.match(raw, start)
    elif first in _OPENING:
        depth = 0
        for token in _NESTED.finditer(raw, start):
            byte = raw[token.start()]
            if byte in _OPENING:
                depth += 1
            elif byte in _CLOSING:
                depth -= 1
                if depth == 0:
                    return token.end()
        match = None
    else:
        match = _SCALAR.match(raw, start)
    if match is None:
        raise ValueError("not JSON")
    return match.end()


def members(raw: bytes) -> dict[str, bytes]:
    """The members of the object ``raw``: decoded key → raw bytes of its value, in order."""
    return {key: raw[start:end] for key, (start, end) in _spans(raw, 0).items()}


def _spans(raw: bytes, position: int) -> dict[str, tuple[int, int]]:
    """Where the value of each member of the object at ``position`` begins and ends."""
    found: dict[str, tuple[int, int]] = {}
    position = _skip_space(raw, _skip_space(raw, position) + 1)
    while raw[position] != 0x7D:  # a closing brace
        key_end = _value_end(raw, position)
        key = orjson.loads(raw[position:key_end])
        start = _skip_space(raw, _skip_space(raw, key_end) + 1)
        end = _value_end(raw, start)
        found[key] = (start, end)
        position = _after_comma(raw, end)
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


def elements(raw: bytes) -> list[bytes]:
    """The raw bytes of each element of the array ``raw``."""
    found: list[bytes] = []
    position = _skip_space(raw, _skip_space(raw, 0) + 1)
    while raw[position] != 0x5D:  # a closing bracket
        end = _value_end(raw, position)
        found.append(raw[position:end])
        position = _after_comma(raw, end)
    return found


def _after_comma(raw: bytes, position: int) -> int:
    position = _skip_space(raw, position)
    return _skip_space(raw, position + 1) if raw[position] == 0x2C else position


def join_object(parts: Mapping[str, bytes]) -> bytes:
    """An object of raw values, in the mapping's order."""
    return b"{" + b",".join(orjson.dumps(key) + b":" + value for key, value in parts.items()) + b"}"


def join_array(parts: Iterable[bytes]) -> bytes:
    """An array of raw elements."""
    return b"[" + b",".join(parts) + b"]"


def load_strict(raw: bytes) -> dict[str, Any]:
    """A request body as an object that can be read in one way only.

    Raises :class:`RequestError` for text that is not JSON (RFC 8259, so no NaN and no lone
    surrogate), is not an object, is nested deeper than 250 levels or so, or names a key twice:
    two readers of such a body need not agree on what it says (rule E1).
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(400, "The request body must be a JSON object.", code="invalid_json")
    try:
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
        # What is read has to be written again somewhere, and orjson writes less deep than it reads.
        orjson.dumps(value)
    except (RecursionError, TypeError):
        raise RequestError(400, "The request body is nested too deeply.", code="invalid_json") from None
    return value


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RequestError(
                    400,
                    f"The key {json.dumps(key[:80])} stands twice in one object of the request body.",
                    param=key[:80],
                    code="duplicate_key",
                )
            seen.add(key)
    return found
