"""Hidden messages laid over the ones a client sent, so that they can be taken off again."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Rehydrated", "count_back", "drop_unneeded", "laid_over", "says_too_long"]

_TOO_LONG = re.compile(
    r"context[_ ](length|window|size)|maximum context|too many tokens|(prompt|input) is too long",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rehydrated:
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
    ) -> "Rehydrated":
        """What is put in place of some of these messages."""
        size = sum(map(len, restored)) - sum(map(len, messages[position:end]))
        return cls(end, restored, needed, size)


def laid_over(messages: Sequence[bytes], put_back: Mapping[int, Rehydrated]) -> list[bytes]:
    """The client's messages with the hidden ones in their place."""
    whole: list[bytes] = []
    done = 0
    for position in sorted(put_back):
        over = put_back[position]
        whole += messages[done:position]
        whole += over.messages
        done = over.end
    return whole + list(messages[done:])


def count_back(put_back: Mapping[int, Rehydrated]) -> tuple[int, int]:
    """How many turns are put back, and how many bytes that adds."""
    return len(put_back), sum(over.size for over in put_back.values())


def drop_unneeded(put_back: dict[int, Rehydrated]) -> bool:
    """Take off what the conversation can do without; whether there was anything."""
    unneeded = [position for position, over in put_back.items() if not over.needed]
    for position in unneeded:
        del put_back[position]
    return bool(unneeded)


def says_too_long(message: str, code: str | None) -> bool:
    """Whether an upstream refuses a conversation for its length."""
    return _TOO_LONG.search(f"{code or ''} {message}") is not None
