"""A dialect as data: what is said where, how a stream is cut, what an error and a key look like.

A :class:`Dialect` says what all its paths share, an :class:`Endpoint` what is true of one of them.  The
server looks the endpoint of a request up once (``proxy.wires.dialects.table``); authentication, limits,
metering, telemetry and errors read that object and compare no path themselves.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

__all__ = [
    "Boundary",
    "Credential",
    "Dialect",
    "Endpoint",
    "ErrorBody",
    "ErrorEvent",
    "Errors",
    "Event",
    "EventParser",
    "Framing",
    "Kind",
    "Quirks",
    "UsageFields",
]

Kind = Literal["generate", "count", "infer", "stored", "models", "other"]
"""What a request asks for.

``generate``: an answer of a model, in which server tools take part.  ``count``: how long such a request
is.  ``infer``: whatever else a model makes.  ``stored``: something that the upstream keeps, by its id.
``models``: which models there are.  ``other``: anything else, of which nothing is known here.
"""


class Credential(NamedTuple):
    """A header in which clients show a key: behind the ``scheme``, or alone where that is empty."""

    header: str
    scheme: str


class Event(Protocol):
    """One event of a stream."""

    @property
    def raw(self) -> bytes:
        """The bytes that carried it."""
        ...

    @property
    def data(self) -> bytes:
        """What it says."""
        ...

    @property
    def is_end_mark(self) -> bool:
        """Whether it says nothing but that the stream is over."""
        ...


class EventParser(Protocol):
    """Splits a stream into events.  Every method raises :class:`~proxy.errors.FrameTooLarge`."""

    def feed(self, chunk: bytes) -> Sequence[Event]:
        """The events that ``chunk`` completes."""
        ...

    def take(self, chunk: bytes) -> None:
        """Take bytes in; :meth:`next` is then called until there is no event left."""
        ...

    def next(self) -> Event | None:
        """The next event of those that were taken in."""
        ...


class Boundary(Protocol):
    """Forwards a stream up to its last event boundary, and knows how it ended.

    ``between``: all that came was whole events.  ``overflowing``: an event is let through in pieces, since
    it is too large to be held.  ``done_seen``: the end mark came.
    """

    between: bool
    overflowing: bool
    done_seen: bool

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may leave now."""
        ...

    def close(self) -> bytes:
        """What is left of a stream that ended properly, with an end mark if it had none."""
        ...


@dataclass(frozen=True, slots=True)
class Framing:
    """How a stream is cut into events.

    ``event_end`` is what nearly every event ends in.  ``end_mark`` is the event that ends a stream, empty
    where a dialect has none; ``end_text`` is the text in it that says so, and ``end_sign`` a byte of that
    text that few events have.  ``keep_alive`` is an event that every client passes over.
    """

    content_type: str
    event_end: bytes
    end_mark: bytes
    end_text: bytes
    end_sign: int
    keep_alive: bytes
    parser: Callable[[], EventParser]
    boundary: Callable[[], Boundary]


class ErrorBody(Protocol):
    """Makes the object that an HTTP error has as its body."""

    def __call__(
        self, message: str, *, type: str, param: str | None = None, code: str | None = None
    ) -> dict[str, Any]: ...


class ErrorEvent(Protocol):
    """Makes the event by which a stream says that it failed; an end mark comes after it."""

    def __call__(self, message: str, *, type: str, code: str | None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Errors:
    """What an error looks like.

    ``read`` takes an error's body and gives its message and its code; the message is empty where nothing
    in the body can be shown.
    """

    body: ErrorBody
    event: ErrorEvent
    read: Callable[[bytes], tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class UsageFields:
    """The names under which a dialect reports tokens: received, sent, and both."""

    received: str
    sent: str
    total: str


@dataclass(frozen=True, slots=True)
class Quirks:
    """What can only be told from the words of an error.

    ``refuses_tools`` says of a message whether the model takes no tools; ``unknown_response`` finds, in an
    error's body, that the upstream does not keep the response that a request goes on from.
    """

    refuses_tools: Callable[[str], bool]
    unknown_response: re.Pattern[bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """What all paths of a dialect share.

    ``wire`` is the name of the wire that an upstream has to speak to serve it (``upstreams.*.wires``).
    ``prefix`` stands before its paths where clients ask, and is part of an upstream's base URL.  ``path``
    is where a model answers with tools, empty where no path of the dialect does.  ``credentials`` are in
    the order in which they count, and the first is the one that goes upstream.  ``query`` are the names
    that a query may have on its inference paths; ``families`` the first segments of its paths, and
    ``takes_files`` those of them to which forms with files are sent.
    """

    name: str
    wire: str
    prefix: str
    path: str
    framing: Framing
    errors: Errors
    credentials: Sequence[Credential]
    usage: UsageFields
    quirks: Quirks
    query: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    takes_files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One thing that can be asked of an API, as method and path below its dialect's prefix.

    In ``path`` ``{id}`` stands for one segment and ``{rest}`` for anything.

    ``body``: what is done with the body.  ``routed`` is read strictly and goes to the upstream of its model;
    ``json`` is read strictly and goes to the first upstream; ``form`` is the same, but may also be a form
    with files, which is streamed; ``opaque`` is streamed unread.
    ``model``: whether the top of a JSON body names the model that answers (``named``), or may (``optional``).
    ``usage``: ``told`` in every answer, ``asked`` where a stream tells it only if the request asks for it,
    ``none`` where the answer costs nothing or was counted when it was first given.
    ``refers``: whether the body may name something stored.
    ``streams``: whether its event streams have an end mark and error events.
    ``same_model``: whether another upstream may take over only with the very same model.
    ``deployed``: whether Azure serves it below the name of a deployment.
    ``operation``: what the GenAI conventions of OpenTelemetry call it; empty for all else.
    ``action``: what is to be done with something stored.
    ``creates``: what an upstream keeps of the answer, so that later requests may name it.
    """

    dialect: Dialect
    method: str
    path: str
    kind: Kind = "other"
    body: Literal["routed", "json", "form", "opaque"] = "opaque"
    model: Literal["named", "optional", ""] = ""
    usage: Literal["told", "asked", "none"] = "told"
    refers: bool = False
    streams: bool = False
    same_model: bool = False
    deployed: bool = False
    operation: str = ""
    action: Literal["retrieve", "delete", "cancel", "input_items", ""] = ""
    creates: Literal["response", "conversation", ""] = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        """What a path has to be like, whole; its group ``id`` is what is stored."""
        text = re.escape(self.path).replace(r"\{id\}", "(?P<id>[^/]+)").replace(r"\{rest\}", ".*")
        # A slash behind an id adds nothing.
        return re.compile(text + ("/?" if self.path.endswith("{id}") else ""))

    def stored_id(self, below: str) -> str:
        """The id in a path that this endpoint answers; empty where there is none."""
        found = self.pattern.fullmatch(below)
        return (found.groupdict().get("id") or "") if found is not None else ""
