"""Reads integers of any size without rounding them.

orjson reads an integer that does not fit into 64 bits as a float. Such integers are real: amounts of tokens
with 18 decimals, ids of some databases.
"""

import json
import re
from typing import Any, Final

import orjson

_LARGE: Final = re.compile(rb"\d{20}")
_DIGITS: Final = 20
"""The most digits of an integer of 64 bits."""


def loads_exactly(raw: bytes) -> Any:
    """Return parsed JSON; an integer of more than 64 bits is an :class:`orjson.Fragment` of its digits.

    Raises ``ValueError`` or ``RecursionError``, if it cannot be parsed.
    """
    return json.loads(raw, parse_int=_integer)


def with_exact_integers(payload: dict[str, Any], raw: bytes) -> dict[str, Any]:
    """Return what ``raw`` was parsed to, parsed anew if it may have an integer that orjson rounds."""
    if _LARGE.search(raw) is None:
        return payload
    try:
        exact = loads_exactly(raw)
    except (ValueError, RecursionError):  # A lenient parser has read it.
        return payload
    return exact if isinstance(exact, dict) else payload


def _integer(text: str) -> Any:
    if len(text) < _DIGITS or (len(text) == _DIGITS and -(2**63) <= int(text) < 2**64):
        return int(text)
    return orjson.Fragment(text)
