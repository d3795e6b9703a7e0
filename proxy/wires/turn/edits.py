"""What the proxy changes in a client's request, as a value; hidden turns can be put in and removed again."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from proxy.base.events import ResultImage, ToolCall, ToolDefinition, ToolDefinitions
from proxy.records.result_for_model import ResultForModel, UnfilledHole, read_result

LEAST_TOKENS: Final = 16
"""The number of tokens that a turn may always use, whatever the earlier turns of its run used."""


def tokens_left(bound: int, used: int, least: int = LEAST_TOKENS) -> bytes:
    """Return, as JSON text, the client's ``bound`` on output tokens minus the tokens ``used``.

    The result is at least ``least``, or ``bound`` if that is lower still.
    """
    return str(max(bound - used, min(least, bound))).encode()


Part = bytes | ResultForModel
"""A message as it is sent, or a result that no dialect can write yet, because its call waits."""

_TOO_LONG: Final = re.compile(
    r"context[_ ](length|window|size)|maximum context|too many tokens|(prompt|input) is too long",
    re.IGNORECASE,
)


class RestoredMessages(msgspec.Struct, frozen=True):
    """The messages that replace the client's messages from a position up to ``end``, or are inserted before
    it if ``end`` is that position.

    ``size`` is the number of bytes that this adds, without results that wait. ``needed`` messages
    stay in a conversation that is too long. ``image_bytes`` is the size of the proxy's images in them.
    """

    end: int
    messages: Sequence[Part]
    needed: bool
    size: int
    image_bytes: int = 0

    @classmethod
    def replacing(
        cls, messages: Sequence[bytes], position: int, end: int, restored: Sequence[Part], *, needed: bool
    ) -> "RestoredMessages":
        """Return the replacement of ``messages[position:end]`` by ``restored``."""
        added = sum(len(part) for part in restored if isinstance(part, bytes))
        size = added - sum(map(len, messages[position:end]))
        return cls(end, restored, needed, size)


class AppendedTurn(msgspec.Struct, frozen=True):
    """A turn of the model and the results of all its calls; ``written`` is what the conversation gets."""

    message: bytes
    results: Sequence[bytes]
    written: Sequence[bytes]


class Edits(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the client's body and the next request of its run.

    ``model`` is the upstream's name of the model; empty keeps the client's. ``added`` are tools after the
    client's own, ``replaced`` the server tools that stand for tools of the client; ``withheld`` are names of
    both that are left out. ``called`` are the server tools that may have fulfilled the tool choice (rule W9).
    ``restored`` are hidden turns by their positions, ``resumed`` is the continuation of a response of the
    proxy, and ``turns`` are this run's. ``used_tokens`` lowers the client's own limit on output tokens.
    ``fields_left_out`` are missing from the model's messages; ``fields_refused`` is the part that the
    upstream refused in this run. ``images_refused``: it takes no images, not only one that is bad.
    ``stateless``: the upstream does not have the response before.
    """

    model: str = ""
    asks_usage: bool = False
    added: ToolDefinitions = ToolDefinitions()
    replaced: Sequence[ToolDefinition] = ()
    withheld: Collection[str] = ()
    called: frozenset[str] = frozenset()
    forbids_calls: bool = False
    restored: Mapping[int, RestoredMessages] = {}
    resumed: bytes = b""
    turns: tuple[AppendedTurn, ...] = ()
    used_tokens: int = 0
    images_left_out: bool = False
    images_refused: bool = False
    fields_left_out: frozenset[str] = frozenset()
    fields_refused: frozenset[str] = frozenset()
    reasoning_left_out: bool = False
    cache_marks_left_out: bool = False
    stateless: bool = False

    @property
    def offered(self) -> frozenset[str]:
        """The names of the server tools in the request."""
        return self.added.names.union([tool.name for tool in self.replaced])

    def without_unneeded(self) -> "Edits | None":
        """Return the edits without the turns that the conversation can do without; ``None`` if none can."""
        needed = {at: turn for at, turn in self.restored.items() if turn.needed}
        return replace(self, restored=needed) if len(needed) < len(self.restored) else None


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


def is_too_long_error(message: str, code: str | None) -> bool:
    """Return whether an upstream's error says that the conversation is too long."""
    return _TOO_LONG.search(f"{code or ''} {message}") is not None
