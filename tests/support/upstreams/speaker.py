"""One dialect behind a face that all of them share: what its clients ask and read, and what its upstreams
answer and get.

Nothing here uses the package under test.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raw_upstream import FIN, Step, chunk, chunked, head, whole
from running_proxy import Answer

__all__ = ["Call", "Got", "Message", "Object", "Seen", "Speaker", "Turn"]

Object = dict[str, Any]


class Call(NamedTuple):
    """A call of a tool; ``arguments`` as they are once they are parsed."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """What a model says in one turn, and the tokens that it took and gave."""

    text: str = ""
    calls: Sequence[Call] = ()
    used: tuple[int, int] = (3, 2)


@dataclass
class Seen:
    """What a client understands of an answer; ``finish`` is ``stop``, ``calls``, ``length`` or empty."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str = ""
    used: tuple[int, int] | None = None
    error: str = ""
    texts: Sequence[str] = ()

    @property
    def returned(self) -> list["Message"]:
        """The same as a client sends it back: texts that came one by one stay so."""
        *before, last = self.texts or [self.text]
        return [
            *[Message("assistant", text) for text in before],
            Message("assistant", last, tuple(self.calls)),
        ]


class Message(NamedTuple):
    """One message of a conversation; a result says which call it is of."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""


@dataclass
class Got:
    """What an upstream was asked: ``body`` as it came, and what all dialects share of it."""

    body: Object
    system: str
    messages: list[Message]
    tools: dict[str, Object]

    @property
    def results(self) -> dict[str, str]:
        """The results of calls, by their ids."""
        return {one.call_id: one.text for one in self.messages if one.role == "tool"}

    @property
    def calls(self) -> list[Call]:
        """All calls of the conversation."""
        return [call for one in self.messages for call in one.calls]


class Speaker(ABC):
    """One dialect."""

    name: str
    path: str
    content_type = "text/event-stream"

    # What clients ask and read.

    @abstractmethod
    def ask(
        self, said: Sequence[Message], *, stream: bool = True, tools: Sequence[str] = (), system: str = ""
    ) -> Object:
        """A request with this conversation and functions of these names."""

    @abstractmethod
    def read_stream(self, body: bytes, hidden: tuple[str, ...]) -> Seen:
        """A stream, held to the rules of the dialect's clients; ``hidden`` stands nowhere in it."""

    @abstractmethod
    def read_reply(self, body: Object) -> Seen:
        """An answer that is one object."""

    @abstractmethod
    def error(self, body: Object) -> str:
        """The message of an error in the dialect's own shape."""

    def seen(self, answer: Answer, *, stream: bool = True, hidden: tuple[str, ...] = ()) -> Seen:
        """What a client of the dialect understands of a good answer."""
        assert answer.status == 200, answer.body
        assert answer.clean
        kind = (answer.header("content-type") or "").partition(";")[0]
        if stream:
            assert kind == self.content_type
            return self.read_stream(answer.body, hidden)
        assert kind == "application/json"
        assert not [text for text in hidden if text in answer.body.decode()]
        return self.read_reply(answer.json)

    # What upstreams answer and get.

    @abstractmethod
    def events(self, turn: Turn) -> list[bytes]:
        """A whole streamed turn, event by event."""

    @abstractmethod
    def reply(self, turn: Turn) -> Object:
        """The same as one object."""

    @abstractmethod
    def begun(self, text: str) -> list[bytes]:
        """The first events of a turn, up to one that has said ``text``."""

    @abstractmethod
    def refusal(self, message: str) -> Object:
        """The body of an error before a stream."""

    @abstractmethod
    def got(self, body: Object) -> Got:
        """A request as the upstream reads it, which must be well formed."""

    def script(self, turn: Turn, *, stream: bool = True) -> list[Step]:
        """A turn as an upstream sends it."""
        if not stream:
            return whole(json.dumps(self.reply(turn)).encode())
        return chunked(*self.events(turn), content_type=self.content_type)

    def broken(self, text: str) -> list[Step]:
        """A stream whose connection is closed within."""
        opening = head(f"Content-Type: {self.content_type}", "Transfer-Encoding: chunked")
        return [opening, *[chunk(event) for event in self.begun(text)], FIN]

    @abstractmethod
    def failing(self, text: str, message: str) -> list[Step]:
        """A stream that says ``text`` and ends in an error of the upstream's."""

    def refused(self, status: str, message: str) -> list[Step]:
        """An error before a stream."""
        return whole(json.dumps(self.refusal(message)).encode(), status=status)
