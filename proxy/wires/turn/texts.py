"""Joins texts that follow each other."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any


def joined_texts(parts: Iterable[Any]) -> list[Any]:
    """Return the same parts, with adjacent strings joined. Each string is copied once."""
    joined: list[Any] = []
    for is_text, run in groupby(parts, key=lambda part: isinstance(part, str)):
        found = list(run)
        joined += ["".join(found)] if is_text else found
    return joined
