"""Puts hidden messages into a client's conversation so that they can be removed again."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

__all__ = ["RestoredMessages", "drop_unneeded", "is_too_long_error", "restored_size", "with_restored"]

_TOO_LONG: Final = re.compile(
    r"context[_ ](length|window|size)|maximum context|too many tokens|(prompt|input) is too long",
    re.IGNORECASE,
)


class RestoredMessages(Struct, frozen=True):
    """The messages that replace the client's messages from a position up to ``end``, or are inserted before
    it if ``end`` is that position.

    ``size`` is the number of bytes that this adds. ``needed`` messages stay in a conversation that is too
    long.
    """

    end: int
    messages: Sequence[bytes]
    needed: bool
    size: int

    @classmethod
    def replacing(
        cls, messages: Sequence[bytes], position: int, end: int, restored: Sequence[bytes], *, needed: bool
    ) -> "RestoredMessages":
        """Return the replacement of ``messages[position:end]`` by ``restored``."""
        size = sum(map(len, restored)) - sum(map(len, messages[position:end]))
        return cls(end, restored, needed, size)


def with_restored(messages: Sequence[bytes], restored: Mapping[int, RestoredMessages]) -> list[bytes]:
    """Return the client's messages with the hidden ones in their places."""
    whole: list[bytes] = []
    done = 0
    for position in sorted(restored):
        replacement = restored[position]
        whole += messages[done:position]
        whole += replacement.messages
        done = replacement.end
    return whole + list(messages[done:])


def restored_size(restored: Mapping[int, RestoredMessages]) -> tuple[int, int]:
    """Return how many turns are restored, and how many bytes that adds."""
    return len(restored), sum(replacement.size for replacement in restored.values())


def drop_unneeded(restored: dict[int, RestoredMessages]) -> bool:
    """Remove the messages that the conversation can do without. Return whether there were any."""
    unneeded = [position for position, replacement in restored.items() if not replacement.needed]
    for position in unneeded:
        del restored[position]
    return bool(unneeded)


def is_too_long_error(message: str, code: str | None) -> bool:
    """Return whether an upstream's error says that the conversation is too long."""
    return _TOO_LONG.search(f"{code or ''} {message}") is not None
