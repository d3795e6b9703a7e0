"""The texts of a request by who brought them into its conversation; each dialect says who speaks where."""

from collections.abc import Iterator
from typing import Any

from proxy.base.conversation import Speaker, Spoken


def spoken_in(value: Any, speaker: Speaker) -> Iterator[Spoken]:
    """Yield all texts in a JSON value, in its order, as said by ``speaker``; data URLs are left out."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            if not one.startswith("data:"):
                yield speaker, one
        elif isinstance(one, list):
            left += reversed(one)
        elif isinstance(one, dict):
            left += reversed(one.values())
