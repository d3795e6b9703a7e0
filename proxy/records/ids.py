"""Ids of rows in the record, which begin with the time."""

import os
import time
from collections.abc import Iterator
from typing import Final

_AT_ONCE: Final = 64
_RANDOM_BYTES: Final = 14
_DIGITS: Final = 2 * _RANDOM_BYTES
_PER_SECOND: Final = 4
_MOST: Final = 0xFFFF


def row_ids(prefix: str, at_once: int = _AT_ONCE) -> Iterator[str]:
    """Yield ids for ever: ``prefix``, four hexadecimal digits of the time, and 112 random bits as 28 digits.

    Ids of one moment begin alike, so a commit of many rows changes few pages of each index: with random ids
    each row changes its own. The digits count quarters of a second and begin anew every four and a half
    hours; with more of them, the first eight digits, which lists show, would often be the same. The bits of
    ``at_once`` ids are asked of the system together, because each call is expensive.
    """
    while True:
        digits = os.urandom(_RANDOM_BYTES * at_once).hex()
        for start in range(0, _DIGITS * at_once, _DIGITS):
            moment = int(time.time() * _PER_SECOND) & _MOST
            yield f"{prefix}{moment:04x}{digits[start : start + _DIGITS]}"
