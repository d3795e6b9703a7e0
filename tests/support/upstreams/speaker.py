"""One interface for all dialects: what clients ask and read, and what upstreams get and answer.

This module does not use the package under test.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raw_upstream import FIN, Step, chunk, chunked, head, whole
from running_proxy import Answer

Object = dict[str, Any]


class Call(NamedTuple):
    """A call of a tool with parsed arguments."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """The text and the calls of one turn of a model; ``used`` are its input and output tokens.

    ``thought`` is reasoning that stands before them, in the dialects that have it. ``id`` ends the ids of
    the answer and its items.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    used: tuple[int, int] = (3, 2)
    thought: str = ""
    id: str = "1"


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
        """The messages that a client sends back; texts that came as separate messages stay separate."""
        *before, last = self.texts or [self.text]
        return [
            *[Message("assistant", text) for text in before],
            Message("assistant", last, tuple(self.calls)),
        ]


class Message(NamedTuple):
    """One message of a conversation; a result has the id of its call."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""


@dataclass
class Got:
    """A request as an upstream got it: its body, and the parts that all dialects have."""

    body: Object
    system: str
    messages: list[Message]
    tools: dict[str, Object]

    @property
    def results(self) -> dict[str, str]:
        """The results of calls by their ids."""
        return {one.call_id: one.text for one in self.messages if one.role == "tool"}

    @property
    def calls(self) -> list[Call]:
        """All calls of the conversation."""
        return [call for one in self.messages for call in one.calls]


class Speaker(ABC):
    """One dialect; ``model`` is a real model of the provider that stands for it."""

    name: str
    path: str
    model: str
    content_type = "text/event-stream"

    # What clients send and read.

    @abstractmethod
    def ask(
        self, said: Sequence[Message], *, stream: bool = True, tools: Sequence[str] = (), system: str = ""
    ) -> Object:
        """Return a request with this conversation and with functions of these names."""

    @abstractmethod
    def read_stream(self, body: bytes, hidden: tuple[str, ...]) -> Seen:
        """Read a stream, check the rules of the dialect, and that no text of ``hidden`` is in it."""

    @abstractmethod
    def read_reply(self, body: Object) -> Seen:
        """Read an answer that is not streamed."""

    @abstractmethod
    def error(self, body: Object) -> str:
        """Return the message of an error, and check that the error has the dialect's shape."""

    def seen(self, answer: Answer, *, stream: bool = True, hidden: tuple[str, ...] = ()) -> Seen:
        """Return what a client of the dialect understands of a successful answer."""
        assert answer.status == 200, answer.body
        assert answer.clean
        kind = (answer.header("content-type") or "").partition(";")[0]
        if stream:
            assert kind == self.content_type
            return self.read_stream(answer.body, hidden)
        assert kind == "application/json"
        assert not [text for text in hidden if text in answer.body.decode()]
        return self.read_reply(answer.json)

    # What upstreams answer and receive.

    @abstractmethod
    def events(self, turn: Turn) -> list[bytes]:
        """Return a whole streamed turn as a list of events."""

    @abstractmethod
    def reply(self, turn: Turn) -> Object:
        """Return the same turn as one object, for an answer that is not streamed."""

    @abstractmethod
    def begun(self, text: str) -> list[bytes]:
        """Return the first events of a turn, up to the one that completes ``text``."""

    @abstractmethod
    def refusal(self, message: str) -> Object:
        """Return the body of an error that comes instead of an answer."""

    @abstractmethod
    def got(self, body: Object) -> Got:
        """Read a request as the upstream does, and check that it is well formed."""

    def script(self, turn: Turn, *, stream: bool = True) -> list[Step]:
        """Return the steps with which an upstream sends a turn."""
        if not stream:
            return whole(json.dumps(self.reply(turn)).encode())
        return chunked(*self.events(turn), content_type=self.content_type)

    def broken(self, text: str) -> list[Step]:
        """Return the steps of a stream whose connection closes before the turn ends."""
        opening = head(f"Content-Type: {self.content_type}", "Transfer-Encoding: chunked")
        return [opening, *[chunk(event) for event in self.begun(text)], FIN]

    @abstractmethod
    def failing(self, text: str, message: str) -> list[Step]:
        """Return the steps of a stream that says ``text`` and then has an error of the upstream."""

    def refused(self, status: str, message: str) -> list[Step]:
        """Return the steps of an error that comes instead of an answer."""
        return whole(json.dumps(self.refusal(message)).encode(), status=status)
