"""Puts hidden messages into a client's conversation so that they can be removed again."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.base.events import ResultImage, ToolCall
from proxy.records.result_for_model import ResultForModel, UnfilledHole, read_result

__all__ = [
    "Part",
    "RestoredMessages",
    "drop_unneeded",
    "is_too_long_error",
    "restored_size",
    "with_restored",
    "written",
    "written_result",
]

Part = bytes | ResultForModel
"""A message as it is sent, or a result that no dialect can write yet, because its call waits."""

_TOO_LONG: Final = re.compile(
    r"context[_ ](length|window|size)|maximum context|too many tokens|(prompt|input) is too long",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RestoredMessages:
    """The messages that replace the client's messages from a position up to ``end``, or are inserted before
    it if ``end`` is that position.

    ``size`` is the number of bytes that this adds; results that wait do not count. ``needed`` messages stay
    in a conversation that is too long.
    """

    end: int
    messages: Sequence[Part]
    needed: bool
    size: int

    @classmethod
    def replacing(
        cls, messages: Sequence[bytes], position: int, end: int, restored: Sequence[Part], *, needed: bool
    ) -> "RestoredMessages":
        """Return the replacement of ``messages[position:end]`` by ``restored``."""
        added = sum(len(part) for part in restored if isinstance(part, bytes))
        size = added - sum(map(len, messages[position:end]))
        return cls(end, restored, needed, size)


def with_restored(messages: Sequence[bytes], restored: Mapping[int, RestoredMessages]) -> list[Part]:
    """Return the client's messages with the hidden ones in their places."""
    whole: list[Part] = []
    done = 0
    for position in sorted(restored):
        replacement = restored[position]
        whole += messages[done:position]
        whole += replacement.messages
        done = replacement.end
    return [*whole, *messages[done:]]


def written(parts: Iterable[Part]) -> list[bytes]:
    """Return the messages for a model; raises UnfilledHole if one of them is a result that still waits."""
    messages: list[bytes] = []
    for part in parts:
        if not isinstance(part, bytes):
            raise UnfilledHole(f"{part.call.call_id} waits for {' '.join(part.waits_for)}")
        messages.append(part)
    return messages


def written_result(stored: Any, write: Callable[[ToolCall, str, Sequence[ResultImage]], bytes]) -> Part:
    """Return a result of a held turn, written by a dialect unless its call still waits."""
    result = read_result(stored)
    if isinstance(result, bytes) or result.waits_for:
        return result
    return write(result.call, result.text, result.images)


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
