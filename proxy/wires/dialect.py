"""A dialect as data: what is said where, how a stream is cut, what an error and a key look like.

A :class:`Dialect` says what all its paths share, an :class:`Endpoint` what is true of one of them.  The
server looks the endpoint of a request up once, in an :class:`EndpointTable`; authentication, limits,
metering, telemetry and errors read that object and compare no path themselves.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

__all__ = [
    "NATIVE",
    "Boundary",
    "Credential",
    "Dialect",
    "Endpoint",
    "EndpointTable",
    "ErrorBody",
    "ErrorEvent",
    "Errors",
    "Event",
    "EventParser",
    "Framing",
    "Kind",
    "ModelLists",
    "Quirks",
    "RepairSigns",
    "UsageFields",
]

NATIVE: Final = "native"
"""The member of what is kept of a turn that holds its upstream's own words.  What was kept without it, or by
an upstream of another dialect, is translated."""

Kind = Literal[
    "generate", "complete", "count", "infer", "stored", "models", "manage", "socket", "mcp", "other"
]
"""What a request asks for.

``generate``: an answer of a model, in which server tools take part.  ``complete``: one without server tools,
which an upstream of another dialect may give, too.  ``count``: how long such a request is.  ``infer``:
whatever else a model makes.  ``stored``: something that the upstream keeps, by its id.
``models``: which models there are.  ``manage``: what may change the upstream for everybody who uses it.
``socket``: a WebSocket, each message of which is one request for an answer.
``mcp``: server tools, for a client that runs a model itself.
``other``: anything else, of which nothing is known here.
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
        """The payload of the event."""
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

    def next(self, most_bytes: int | None = None) -> Event | None:
        """The next event of those that were taken in.

        One of more than ``most_bytes`` stays where it is, and :attr:`too_large` is true until it is taken.
        """
        ...

    @property
    def too_large(self) -> bool: ...

    def skip(self) -> bytes:
        """The bytes of the event that is :attr:`too_large`, which is taken without being read."""
        ...

    @property
    def between(self) -> bool:
        """Whether the last event is whole and none has begun since."""
        ...

    @property
    def tail(self) -> bytes:
        """The bytes after the last whole event."""
        ...

    def close(self) -> Event | None:
        """The last event, where its end is missing; ``None`` where there is none."""
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

    ``event_end`` is what nearly every event ends in, and ``event_sign`` what stands once in nearly every one.
    ``end_mark`` is the event that ends a stream, empty where a dialect has none; ``end_text`` is the text in
    it that says so, and ``end_sign`` a byte of that text that few events have.  ``begins`` says of the first
    bytes of a body whether it is such a stream, ``None`` while that is open.
    """

    content_type: str
    event_end: bytes
    event_sign: bytes
    end_mark: bytes
    end_text: bytes
    end_sign: int
    parser: Callable[[], EventParser]
    boundary: Callable[[], Boundary]
    begins: Callable[[bytes], bool | None]


class ErrorBody(Protocol):
    """Makes the object that an HTTP error has as its body.

    Some dialects say the ``request_id`` there.  ``doc_url`` is the address of the page about the error, empty
    where there is none; a dialect without a place for it leaves it out.
    """

    def __call__(
        self,
        message: str,
        *,
        type: str,
        param: str | None = None,
        code: str | None = None,
        request_id: str = "",
        doc_url: str = "",
    ) -> dict[str, Any]: ...


class ErrorEvent(Protocol):
    """Makes the event by which a stream says that it failed; an end mark comes after it."""

    def __call__(self, message: str, *, type: str, code: str | None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Errors:
    """What an error looks like.

    ``id_header`` is where clients of the dialect look for the request's id.  ``read`` takes an error's
    body and gives its message and its code; the message is empty where nothing in the body can be shown.
    ``types`` are the dialect's own words for what an HTTP status means, where it has some.
    """

    body: ErrorBody
    event: ErrorEvent
    read: Callable[[bytes], tuple[str, str | None]]
    id_header: str = "x-request-id"
    types: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class UsageFields:
    """The names under which a dialect reports tokens: received, sent, and both, empty where it has no sum.

    ``member`` is the member of an event or a reply that holds them, empty where they are its own members.
    """

    received: str
    sent: str
    total: str
    member: str = "usage"


@dataclass(frozen=True, slots=True, eq=False)
class ModelLists:
    """How a dialect lists models: at ``path``, which is ``rooted`` as its dialect is.

    ``read`` gives the models of a list by their names.  ``entry`` makes one of a name and of who serves it,
    and ``whole`` a list of entries; ``names`` are the members in which an entry has its name.  ``show`` says
    what is known of a model, by who serves it, its entry and whether it takes tools, and ``version`` which
    version of the dialect this is, each where a dialect has a path for it.
    """

    path: str
    rooted: bool
    read: Callable[[Any], Mapping[str, dict[str, Any]]]
    entry: Callable[[str, str], dict[str, Any]]
    names: Sequence[str]
    whole: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
    show: Callable[[str, Mapping[str, Any], bool], dict[str, Any]] = lambda owner, entry, tools: dict(entry)
    version: str = ""


@dataclass(frozen=True, slots=True)
class Quirks:
    """What can only be told from the words of an error.

    ``refuses_tools`` says of a message whether the model takes no tools; ``unknown_response`` finds, in an
    error's body, that the upstream does not keep the response that a request goes on from.
    """

    refuses_tools: Callable[[str], bool]
    unknown_response: re.Pattern[bytes]


@dataclass(frozen=True, slots=True)
class RepairSigns:
    """How a stream that passes through is seen to be defective, without reading it.

    ``sound``: text in the first event of every stream that is sound; empty where the first event does not
    tell.  ``suspect``: text in every later event that may be defective; empty where there is none.
    """

    sound: bytes = b""
    suspect: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """What all paths of a dialect share.

    ``wire`` is the name of the wire that an upstream has to speak to serve it (``upstreams.*.wires``).
    ``prefix`` stands before its paths where clients ask, and is part of an upstream's base URL.  The paths of
    a dialect that is ``rooted`` are written with its prefix, which is no part of the base URL.  ``path``
    is where a model answers with tools, empty where no path of the dialect does.  ``credentials`` are in
    the order in which they count, and the first is the one that goes upstream.  ``query`` are the names
    that a query may have on its inference paths; ``families`` the first segments of its paths, and
    ``takes_files`` those of them to which forms with files are sent.  ``headers`` are those that an
    upstream asks for and a client may have left out.  ``repair`` says how a defective stream is seen;
    ``None`` where no stream of the dialect is repaired.  ``tag`` is what may stand behind a model's name, or
    be left off, without a difference.
    ``answer_ids`` is what the id of an answer begins with.  ``last_event`` finds the event that ends a
    stream at the end of what came of it, where a stream may lack the end mark of the framing.
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
    models: ModelLists
    query: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    takes_files: frozenset[str] = frozenset()
    headers: Sequence[tuple[str, str]] = ()
    rooted: bool = False
    tag: str = ""
    repair: RepairSigns | None = None
    answer_ids: str = ""
    last_event: re.Pattern[bytes] | None = None

    def shown(self, below: str) -> str:
        """A path of the dialect as a client writes it."""
        return below if self.rooted else self.prefix + below

    def is_whole(self, stream: bytes) -> bool:
        """Whether a stream came to its end, so that nothing is missing but the end of the message."""
        if self.last_event is not None and self.last_event.search(stream):
            return True
        boundary = self.framing.boundary()
        boundary.feed(stream)
        return boundary.done_seen


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One thing that can be asked of an API, as method and path below its dialect's prefix.

    In ``path`` ``{id}`` stands for one segment and ``{rest}`` for anything.  An empty ``method`` stands for
    any.

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
    ``action``: what is to be done with something stored, or is asked about models.
    ``creates``: what an upstream keeps of the answer, so that later requests may name it.
    ``reader``: the wire that reads its requests, by its name; empty for its dialect's own.
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
    action: Literal[
        "retrieve", "delete", "cancel", "input_items", "list", "running", "show", "version", ""
    ] = ""
    creates: Literal["response", "conversation", ""] = ""
    reader: str = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        """What a path has to be like, whole; its group ``id`` is what it names."""
        text = re.escape(self.path).replace(r"\{id\}", "(?P<id>[^/]+)").replace(r"\{rest\}", "(?P<id>.*)")
        # A slash behind an id adds nothing.
        return re.compile(text + ("/?" if self.path.endswith("{id}") else ""))

    def stored_id(self, below: str) -> str:
        """What stands in a path of this endpoint's in place of ``{id}`` or ``{rest}``; empty for nothing."""
        found = self.pattern.fullmatch(below)
        return (found.groupdict().get("id") or "") if found is not None else ""

    def path_of(self, stored_id: str) -> str:
        """The path that names something stored; the id has to be checked before."""
        return self.path.replace("{id}", stored_id)

    @property
    def is_inference(self) -> bool:
        """Whether a model works on it, so that every client key may call it."""
        return self.kind in ("generate", "complete", "count", "infer", "socket")


class EndpointTable:
    """Finds the endpoint of a request.  Only this class compares paths with those of the dialects.  It does
    not change.

    ``endpoints`` are all known ones, and ``other`` stands for all other paths.  ``labels`` are the paths that
    metrics count one by one, ``families`` the first segments by which they count the others.
    """

    def __init__(self, endpoints: Iterable[Endpoint], other: Dialect) -> None:
        """The more particular of the ``endpoints`` stand before the more general; ``other`` is the dialect of
        what is none of them.

        Raises ValueError for two endpoints that nothing tells apart.
        """
        self.endpoints = known = tuple(endpoints)
        self._plain = {(one.method, one.path): one for one in known if "{" not in one.path}
        self._patterns = [(one.method, one.pattern, one) for one in known if "{" in one.path]
        if len({(one.method, one.path) for one in known}) < len(known):
            raise ValueError("two endpoints have the same method and path")
        self.other = Endpoint(other, "", "")
        dialects = {other, *(one.dialect for one in known)}
        self._prefixes = tuple(sorted({(f"{dialect.prefix}/", dialect.rooted) for dialect in dialects}))
        rooted = (one for one in known if one.dialect.rooted)
        self._roots = frozenset(one.path for one in rooted if one.path == one.dialect.prefix)
        self.families = frozenset[str]().union(*(dialect.families for dialect in dialects))
        plain = self._plain.values()
        self.labels = frozenset(one.path for one in plain if one.operation or one.kind in ("models", "mcp"))

    def find(self, method: str, below: str) -> Endpoint:
        """What a request asks for, by its method and its path as an endpoint has it.

        One of kind ``other`` where that is nothing known: it passes through.
        """
        found = self._plain.get((method, below)) or self._plain.get(("", below))
        if found is not None:
            return found
        for wanted, pattern, known in self._patterns:
            if wanted in (method, "") and pattern.fullmatch(below) is not None:
                return known
        return self.other

    def and_also(self, endpoints: Iterable[Endpoint]) -> "EndpointTable":
        """A table that has these endpoints beside its own."""
        return EndpointTable((*endpoints, *self.endpoints), self.other.dialect)

    def below(self, path: str) -> str | None:
        """The part of a path below the prefix of a dialect, the whole path where that dialect is rooted;
        ``None`` where it is below none."""
        if path in self._roots:
            return path
        for prefix, rooted in self._prefixes:
            if path.startswith(prefix):
                return path if rooted else path[len(prefix) - 1 :]
        return None
