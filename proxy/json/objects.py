"""Finds the objects in a JSON value, wherever they are, to see what a reader has not read."""

from collections.abc import Collection
from typing import Any


def objects_in(value: Any, skipped: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return every object in a parsed JSON value, itself included, but none in members named ``skipped``."""
    found: list[dict[str, Any]] = []
    left = [value]
    for one in left:  # It grows meanwhile.
        if type(one) is dict:
            found += (one,)
            for key in one:
                if key not in skipped:
                    left += (one[key],)
        elif type(one) is list:
            left += one
    return found


def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, for ``object_pairs_hook`` of the ``json`` module.

    Raises ``ValueError`` for duplicate members, because parsers differ about which one counts, and for a name
    with a lone surrogate, because no error could show it: it has no UTF-8.
    """
    values = dict(pairs)
    "".join(values).encode()
    if len(values) != len(pairs):
        raise ValueError("duplicate member")
    return values
