"""Usage over several turns."""

from collections.abc import Mapping
from typing import Any

__all__ = ["add_usage"]


def add_usage(total: Mapping[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usage objects, field by field, nested details too.

    Each field is added by itself: some providers' totals count reasoning that no other field
    shows.  A field that is missing or no number on one side keeps the other's value.
    """
    summed = dict(total)
    for key, value in turn.items():
        known = summed.get(key)
        if isinstance(value, Mapping):
            summed[key] = add_usage(known if isinstance(known, Mapping) else {}, value)
        elif _is_number(value) and _is_number(known):
            summed[key] = known + value
        elif value is not None:
            summed[key] = value
    return summed


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
