"""Hidden messages laid over the ones a client sent, so that they can be taken off again."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["PutBack", "drop_unneeded", "laid_over", "says_too_long"]

_TOO_LONG = re.compile(
    r"context[_ ](length|window|size)|maximum context|too many tokens|(prompt|input) is too long",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class PutBack:
    """What stands in place of the messages from a position up to ``end``; before it, if none do."""

    end: int
    messages: Sequence[bytes]
    needed: bool


def laid_over(messages: Sequence[bytes], put_back: Mapping[int, PutBack]) -> list[bytes]:
    """The client's messages with the hidden ones in their place."""
    whole: list[bytes] = []
    done = 0
    for position in sorted(put_back):
        over = put_back[position]
        whole += messages[done:position]
        whole += over.messages
        done = over.end
    return whole + list(messages[done:])


def drop_unneeded(put_back: dict[int, PutBack]) -> bool:
    """Take off what the conversation can do without; whether there was anything."""
    unneeded = [position for position, over in put_back.items() if not over.needed]
    for position in unneeded:
        del put_back[position]
    return bool(unneeded)


def says_too_long(message: str, code: str | None) -> bool:
    """Whether an upstream refuses a conversation for its length."""
    return _TOO_LONG.search(f"{code or ''} {message}") is not None
