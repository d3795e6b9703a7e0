"""Hidden messages laid over the ones a client sent, so that they can be taken off again."""

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
    """What stands in place of the messages from a position up to ``end``; before it, if none do.

    ``size`` says how many bytes more that is.
    """

    end: int
    messages: Sequence[bytes]
    needed: bool
    size: int

    @classmethod
    def over(
        cls, messages: Sequence[bytes], position: int, end: int, restored: Sequence[bytes], *, needed: bool
    ) -> "RestoredMessages":
        """The messages in place of some of these."""
        size = sum(map(len, restored)) - sum(map(len, messages[position:end]))
        return cls(end, restored, needed, size)


def with_restored(messages: Sequence[bytes], restored: Mapping[int, RestoredMessages]) -> list[bytes]:
    """The client's messages with the hidden ones in their place."""
    whole: list[bytes] = []
    done = 0
    for position in sorted(restored):
        over = restored[position]
        whole += messages[done:position]
        whole += over.messages
        done = over.end
    return whole + list(messages[done:])


def restored_size(restored: Mapping[int, RestoredMessages]) -> tuple[int, int]:
    """How many turns are put back, and how many bytes that adds."""
    return len(restored), sum(over.size for over in restored.values())


def drop_unneeded(restored: dict[int, RestoredMessages]) -> bool:
    """Take off what the conversation can do without; whether there was anything."""
    unneeded = [position for position, over in restored.items() if not over.needed]
    for position in unneeded:
        del restored[position]
    return bool(unneeded)


def says_too_long(message: str, code: str | None) -> bool:
    """Whether an upstream refuses a conversation for its length."""
    return _TOO_LONG.search(f"{code or ''} {message}") is not None
