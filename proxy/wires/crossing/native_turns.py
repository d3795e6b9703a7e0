"""Turns of an upstream in its own words, beside the form in which its client will return.

A turn that is held for a client is kept in the client's dialect, by which it is found.  What only the
upstream's dialect can say of it, such as the signature of a thought or who may call a tool, is kept beside
that, with the dialect's name.  Where the next request goes to that dialect, the upstream gets it back;
any other one gets the client's form, translated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol, runtime_checkable

import orjson

from proxy.conversation import Conversation, Message, Native, Part, Reasoning, ToolCallPart
from proxy.wires.crossing.reasoning import is_plain
from proxy.wires.dialect import NATIVE, Dialect

__all__ = ["HasNativeTurns", "NativeTurns"]


@runtime_checkable
class HasNativeTurns(Protocol):
    """A dialect whose turns say what no other dialect can."""

    @property
    def dialect(self) -> Dialect: ...

    def read_turn(self, message: bytes) -> Message: ...

    def masked_turn(self, message: bytes, mask: Callable[[str, str], str]) -> bytes:
        """A turn as :meth:`~proxy.wires.upstream_port.TurnReader.message` gives it, with the private
        arguments of its calls masked (rule R3)."""
        ...


class NativeTurns:
    """The turns with calls of one request's upstream, told apart by the ids of these calls."""

    def __init__(self, upstream: object) -> None:
        """``upstream`` is the upstream's dialect; of one that does not tell more nothing is kept."""
        self._upstream = upstream if isinstance(upstream, HasNativeTurns) else None
        self._restored: dict[tuple[str, ...], bytes] = {}

    def beside(self, payload: bytes, turns: Sequence[bytes], mask: Callable[[str, str], str]) -> bytes:
        """The JSON object that is kept of a turn, with the upstream's own ``turns`` added."""
        if self._upstream is None:
            return payload
        kept = [
            self._upstream.masked_turn(turn, mask).decode()
            for turn in turns
            if _calls(self._upstream.read_turn(turn))
        ]
        if not kept:
            return payload
        said = orjson.dumps({NATIVE: {"dialect": self._upstream.dialect.name, "turns": kept}})
        # What an editor keeps is an object that is never empty.
        return payload[:-1] + b"," + said[1:]

    def tells_more(self, message: bytes, *, reasoning: bool) -> bool:
        """Whether a turn with calls says what a client of another dialect cannot send back: what its provider
        has signed or encrypted, what only its dialect has; with ``reasoning`` the text of that, too."""
        if self._upstream is None:
            return False
        turn = self._upstream.read_turn(message)
        more = _is_only_here(turn.native) or any(
            _tells_more(part, reasoning=reasoning) for part in turn.parts
        )
        return more and bool(_calls(turn))

    def take(self, payload: bytes) -> None:
        """Take what stands beside a turn that is put back, if it is of this upstream's dialect."""
        said = orjson.loads(payload).get(NATIVE)
        if self._upstream is None or said is None or said["dialect"] != self._upstream.dialect.name:
            return
        for turn in said["turns"]:
            raw = turn.encode()
            self._restored[_calls(self._upstream.read_turn(raw))] = raw

    def forget(self) -> bool:
        """Have all turns translated from now on; whether that changes anything."""
        known = bool(self._restored)
        self._restored.clear()
        return known

    def put_into(self, conversation: Conversation) -> Conversation:
        """A conversation in which the turns that were put back are the upstream's own."""
        if not self._restored or self._upstream is None:
            return conversation
        return replace(conversation, messages=tuple(self._told(conversation.messages)))

    def _told(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Some dialects say each part of a turn in a message of its own."""
        for role, said in groupby(messages, key=lambda message: message.role):
            turn = list(said)
            calls = tuple(call for message in turn for call in _calls(message))
            raw = self._restored.get(calls) if role == "assistant" else None
            if raw is None or self._upstream is None:
                yield from turn
            else:
                yield replace(self._upstream.read_turn(raw), at=turn[0].at)


def _calls(message: Message) -> tuple[str, ...]:
    """The ids of a turn's calls."""
    return tuple(part.call_id for part in message.parts if isinstance(part, ToolCallPart))


def _tells_more(part: Part, *, reasoning: bool) -> bool:
    if isinstance(part, ToolCallPart):
        # Such as the signature of the thought that led to it.
        return _is_only_here(part.native)
    return isinstance(part, Reasoning) and (reasoning or not is_plain(part))


def _is_only_here(natives: Sequence[Native]) -> bool:
    """Whether other dialects cannot say something of this, and would say something else without it."""
    return any(native.loss != "unneeded" for native in natives)
