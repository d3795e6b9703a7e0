"""Puts hidden messages into a client's conversation so that they can be removed again."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["RestoredMessages", "drop_unneeded", "restored_size", "says_too_long", "with_restored"]

_TOO_LONG: Final = re.compile(
    r"context[_ ](length|window|size)|maximum context|too many tokens|(prompt|input) is too long",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RestoredMessages:
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
    def over(
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
        over = restored[position]
        whole += messages[done:position]
        whole += over.messages
        done = over.end
    return whole + list(messages[done:])


def restored_size(restored: Mapping[int, RestoredMessages]) -> tuple[int, int]:
    """Return how many turns are restored, and how many bytes that adds."""
    return len(restored), sum(over.size for over in restored.values())


def drop_unneeded(restored: dict[int, RestoredMessages]) -> bool:
    """Remove the messages that the conversation can do without. Return whether there were any."""
    unneeded = [position for position, over in restored.items() if not over.needed]
    for position in unneeded:
        del restored[position]
    return bool(unneeded)


def says_too_long(message: str, code: str | None) -> bool:
    """Return whether an upstream's error says that the conversation is too long."""
    return _TOO_LONG.search(f"{code or ''} {message}") is not None
