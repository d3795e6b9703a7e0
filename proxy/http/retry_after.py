"""Reads how long a server asks its clients to wait."""

import re
import time
from email.utils import parsedate_to_datetime
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MOST: Final = 64
"""The most characters of a value that are read."""


def wait_in_seconds(value: str | None) -> float | None:
    """Return a ``Retry-After`` value in seconds from now: a number, or a date (RFC 9110, section 10.2.3).

    A date in the past means 0. Return ``None`` for anything else. Some servers send fractions of a second.
    """
    if value is None or len(value) > _MOST or not value.isascii():
        return None
    if _SECONDS.fullmatch(value.strip()):
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError, OSError):
        return None
