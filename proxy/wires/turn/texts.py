"""Texts that stand behind each other and are one text."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

__all__ = ["joined_texts"]


def joined_texts(parts: Iterable[Any]) -> list[Any]:
    """The same parts, strings that follow each other as one; each piece is copied once."""
    joined: list[Any] = []
    for is_text, run in groupby(parts, key=lambda part: isinstance(part, str)):
        found = list(run)
        joined += ["".join(found)] if is_text else found
    return joined
