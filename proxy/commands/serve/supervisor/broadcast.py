"""Forwards questions of one worker to all others, through the supervisor.

For some names the supervisor remembers each worker's last answer. It is used if the worker does not answer in
time, and after the worker has ended. So a sum over all workers does not fall when one of them ends.
"""

import asyncio
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from proxy.net.channel import Channel

_LONGEST_S = 10.0
_MOST = 256
"""The most open questions; a further one gets no answers."""


@dataclass(slots=True)
class _Question:
    asker: Channel
    asker_id: int
    name: str
    ended: bytes
    """The merged last answers of members that ended before the question. For one that ends later,
    :meth:`Broadcast.remove_member` sends its own last answer."""
    waiting: set[Hashable] = field(default_factory=set)
    missing: int = 0
    timer: asyncio.TimerHandle | None = None


class Broadcast:
    """The open questions among the members that joined.

    Each answer is forwarded when it comes. When all have come, or time is up, the asker learns how many are
    missing. ``remembered`` has a function for each name whose answers are remembered. It merges the answers
    of ended members into one, and raises ``ValueError`` for an answer that it cannot read.
    """

    def __init__(self, remembered: Mapping[str, Callable[[Sequence[bytes]], bytes]] | None = None) -> None:
        self._remembered = remembered or {}
        self._last: dict[tuple[Hashable, str], bytes] = {}
        self._ended: dict[str, bytes] = {}
        self._members: dict[Hashable, Channel] = {}
        self._open: dict[int, _Question] = {}
        self._numbers = itertools.count(1)

    def add_member(self, member: Hashable, channel: Channel) -> None:
        """Add a member that can be asked."""
        self._members[member] = channel

    def remove_member(self, member: Hashable) -> None:
        """Remove a member that has ended, and drop its own questions."""
        channel = self._members.pop(member, None)
        for number, question in list(self._open.items()):
            if question.asker is channel:
                self._forget(number)
            elif member in question.waiting:
                self._settle(number, member, missing=self._missing(question, member))
        for name in self._remembered:
            self._bury(member, name)

    def on_message(self, member: Hashable, header: dict[str, Any], body: bytes) -> None:
        """Handle a member's message: a question, an answer or last words; ignore any other."""
        match header:
            case {"kind": "ask", "id": int(number), "name": str(name), "within_s": float() | int() as wait}:
                self._remember(member, name, body)
                self._ask(member, number, name, min(float(wait), _LONGEST_S))
            case {"kind": "answer", "id": int(number), "known": bool(known)}:
                question = self._open.get(number)
                if question is None or member not in question.waiting:
                    return
                if known:
                    self._remember(member, question.name, body)
                passed = known and question.asker.send("answer", body, id=question.asker_id)
                self._settle(number, member, missing=int(not passed))
            case {"kind": "last", "name": str(name)}:
                self._remember(member, name, body)

    def _ask(self, asker: Hashable, asker_id: int, name: str, within_s: float) -> None:
        channel = self._members.get(asker)
        if channel is None:
            return
        if len(self._open) >= _MOST:
            channel.send("answered", id=asker_id, missing=len(self._members) - 1)
            return
        number = next(self._numbers)
        question = self._open[number] = _Question(channel, asker_id, name, self._ended.get(name, b""))
        for member, other in self._members.items():
            if member == asker:
                continue
            if other.send("question", id=number, name=name):
                question.waiting.add(member)
            else:
                question.missing += self._missing(question, member)
        if question.waiting:
            question.timer = asyncio.get_running_loop().call_later(within_s, self._finish, number)
        else:
            self._finish(number)

    def _settle(self, number: int, member: Hashable, *, missing: int) -> None:
        question = self._open[number]
        if member in question.waiting:
            question.waiting.discard(member)
            question.missing += missing
            if not question.waiting:
                self._finish(number)

    def _finish(self, number: int) -> None:
        question = self._open[number]
        self._forget(number)
        missing = question.missing + sum([self._missing(question, member) for member in question.waiting])
        if not question.asker.send("answered", question.ended, id=question.asker_id, missing=missing):
            question.asker.send("answered", id=question.asker_id, missing=missing + 1)

    def _missing(self, question: _Question, member: Hashable) -> int:
        """Send the last known answer of a member in its place; return 1 if there is none, else 0."""
        body = self._last.get((member, question.name))
        return int(body is None or not question.asker.send("answer", body, id=question.asker_id))

    def _remember(self, member: Hashable, name: str, body: bytes) -> None:
        if name in self._remembered and member in self._members and body:
            self._last[member, name] = body

    def _bury(self, member: Hashable, name: str) -> None:
        """Merge a member's last answer into the combined answers of earlier ended members."""
        last = self._last.pop((member, name), None)
        if last is None:
            return
        before = self._ended.get(name)
        try:
            self._ended[name] = self._remembered[name]([last] if before is None else [before, last])
        except ValueError as error:
            log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.supervisor")
            log.warning("peer_answer_lost", name=name, reason=str(error))

    def _forget(self, number: int) -> None:
        timer = self._open.pop(number).timer
        if timer is not None:
            timer.cancel()
