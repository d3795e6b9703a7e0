"""Parse the arguments that a model wrote into a plain JSON object, or refuse them with a clear message.

A model's text is untrusted. The standard library's ``json`` is used because its hooks see duplicate keys,
which faster parsers hide. If two parsers disagree about a duplicate, a check can be bypassed. No message
repeats any of the text (rule T3).
"""

import json
import math
from typing import Any, NoReturn

import orjson

from proxy.base.errors import ToolRelayError
from proxy.tools.contract.provider import ArgumentsInvalid

MAX_DEPTH = 64
"""The deepest nesting of arguments. All code behind the parser may recurse safely."""
_PLAIN_KINDS = frozenset({str, int, float, bool, type(None), dict, list})
_WRITTEN_ALIKE = frozenset({str, int, bool, type(None)})


class ArgumentsMalformed(ToolRelayError):
    """The arguments are not acceptable JSON; the message has the reason, never the arguments."""


def parse_arguments(text: str) -> dict[str, Any]:
    """Decode one call's arguments.

    Empty text and ``null`` mean no arguments; models write them for tools that take none.
    Raises :class:`ArgumentsMalformed` for text that is not strict JSON (also for duplicate keys, NaN,
    infinities, lone surrogates and nesting deeper than ``MAX_DEPTH``) and
    :class:`~proxy.tools.contract.provider.ArgumentsInvalid` for JSON that is not an object.
    """
    if not text.strip():
        return {}
    try:
        value = _STRICT.decode(text)
    except RecursionError:
        raise ArgumentsMalformed("the arguments are nested too deeply") from None
    except ArgumentsMalformed:
        raise
    except ValueError:
        # JSONDecodeError, and the interpreter's bound on the digits of an integer.
        raise ArgumentsMalformed("the arguments are not valid JSON") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentsInvalid(["the arguments must be a JSON object"])
    _check_depth_and_text(value)
    return value


def canonical_arguments(arguments: dict[str, Any]) -> bytes:
    """Return the same text for all spellings of a JSON value: keys sorted, no spaces, ASCII only."""
    if _is_written_alike(arguments):
        try:
            written = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # An integer of more than 64 bits, or half a surrogate pair.
            written = b"\xff"
        if written.isascii():
            return written
    return _CANONICAL.encode(arguments).encode("ascii")


def _is_written_alike(value: Any) -> bool:
    """Return whether orjson, which is ten times as fast, writes the ASCII texts of a value as ``json`` does.

    Both write floats, but not in the same way.
    """
    left = [value]
    for pair in left:  # It grows meanwhile.
        kind = type(pair)
        if kind is dict:
            left += pair.values()
        elif kind is list:
            left += pair
        elif kind not in _WRITTEN_ALIKE or (kind is str and not pair.isascii()):
            return False
    return True


def plain_kind(value: object) -> type:
    """Return the JSON type of a value; for an instance of a subclass, the JSON type that it derives from.

    Nearly all values have exactly such a type, so the loop over base types is rare.
    """
    kind = type(value)
    if kind in _PLAIN_KINDS:
        return kind
    for plain in (str, int, float, dict, list):
        if isinstance(value, plain):
            return plain
    return kind


def utf8_length(text: str) -> int:
    """Return the bytes of ``text`` in UTF-8 without a full copy of it; a lone surrogate counts as three."""
    if text.isascii():
        return len(text)
    step = 65536
    return sum(
        len(text[start : start + step].encode("utf-8", "surrogatepass"))
        for start in range(0, len(text), step)
    )


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; raise :class:`ArgumentsMalformed` for a duplicate key."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ArgumentsMalformed("the arguments name one key twice")
    return value


def _refuse_constant(_: str) -> NoReturn:
    """Refuse ``NaN``, ``Infinity`` and ``-Infinity``: Python reads them, but JSON does not have them."""
    raise ArgumentsMalformed("the arguments hold a number that JSON does not have")


def _finite_float(text: str) -> float:
    """Return a float; refuse one so large that Python reads it as infinity."""
    value = float(text)
    if not math.isfinite(value):
        raise ArgumentsMalformed("the arguments hold a number out of range")
    return value


def _check_depth_and_text(value: Any) -> None:
    """Refuse a value that nests too deeply or has lone surrogates; walk it without recursion."""
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        kind = type(item)  # Enough, since the parser creates no subclasses.
        if kind is str:
            _check_text(item)
        elif kind is dict or kind is list:
            if depth > MAX_DEPTH:
                raise ArgumentsMalformed("the arguments are nested too deeply")
            if kind is dict:
                for key in item:
                    _check_text(key)
                pending.extend((child, depth + 1) for child in item.values())
            else:
                pending.extend((child, depth + 1) for child in item)


def _check_text(text: str) -> None:
    """Refuse lone surrogates: they pass the JSON parser as escapes, and every later encoder fails on them."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ArgumentsMalformed("the arguments hold text that is not valid Unicode") from None


# Created once: ``json.loads`` and ``json.dumps`` create one for each call that has options.
_STRICT = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant, parse_float=_finite_float
)
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
