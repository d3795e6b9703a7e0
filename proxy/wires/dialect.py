"""The description of a dialect as data: its paths, stream framing, errors and credentials.

A :class:`Dialect` holds what all its paths share; an :class:`Endpoint` holds the facts of one path. The
server looks the endpoint of a request up once, in an
:class:`~proxy.wires.registry.table.EndpointTable`. Authentication, limits,
metering, telemetry and errors read that object and compare no path themselves.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct

NATIVE: Final = "native"
"""The member of a stored turn that holds the turn in its upstream's own form. If a turn has no such member,
or an upstream of another dialect wrote it, the turn is translated."""

Kind = Literal[
    "generate", "complete", "count", "infer", "stored", "models", "manage", "socket", "mcp", "other"
]
"""What a request asks for.

``generate``: an answer of a model, in which server tools take part. ``complete``: an answer without server
tools, which an upstream of another dialect may also give. ``count``: the number of tokens of such a request.
``infer``: any other output of a model. ``stored``: something that the upstream keeps, by its id.
``models``: the list of models. ``manage``: an operation that may change the upstream for all its users.
``socket``: a WebSocket, each message of which is one request for an answer.
``mcp``: server tools, for a client that runs a model itself.
``other``: anything else; the proxy knows nothing about it, and passes it to no upstream of a rooted dialect.
"""


class Credential(NamedTuple):
    """A header in which clients send a key: after the ``scheme``, or alone if ``scheme`` is empty."""

    header: str
    scheme: str


class Event(Protocol):
    """One event of a stream."""

    @property
    def raw(self) -> bytes:
        """The bytes in which the event came."""

    @property
    def data(self) -> bytes:
        """The payload of the event."""

    @property
    def is_end_mark(self) -> bool:
        """Whether the event is only the mark that the stream is over."""


E = TypeVar("E", bound=Event)


class EventParser(ABC, Generic[E]):
    """A parser of a stream's events. Every method raises :class:`~proxy.base.errors.FrameTooLarge`.

    ``data``, from ``at`` on, are the bytes not returned yet; they begin with an event. Code that knows where
    events end may skip some by moving ``at``.
    """

    def __init__(self, most_bytes: int = 16 * 1024 * 1024) -> None:
        """``most_bytes`` is the size limit of an event."""
        self.data = b""
        self.at = 0
        self.too_large = False
        self._end = 0
        self._pending = bytearray()
        self._max = most_bytes

    @property
    def tail(self) -> bytes:
        """The bytes after the last complete event."""
        return bytes(self._pending)

    @property
    def at_boundary(self) -> bool:
        """Whether the last event is complete and no other has begun."""
        return not self._pending and self.at >= len(self.data)

    def feed(self, chunk: bytes) -> list[E]:
        """Return the events that ``chunk`` completes."""
        self.take(chunk)
        events = []
        while (event := self.next()) is not None:
            events.append(event)
        return events

    @abstractmethod
    def take(self, chunk: bytes) -> None:
        """Buffer bytes. The caller then calls :meth:`next` until it returns ``None``."""

    @abstractmethod
    def next(self, most_bytes: int | None = None) -> E | None:
        """Return the next buffered event; ``None`` if no event is complete.

        An event of more than ``most_bytes`` stays in the buffer: the result is ``None``, and ``too_large`` is
        true until :meth:`skip` or a call without that bound takes it.
        """

    def skip(self) -> bytes:
        """Return the bytes of the event that is ``too_large``, and remove it without reading it."""
        raw = self.data[self.at : self._end]
        self.at, self.too_large = self._end, False
        return raw

    @abstractmethod
    def close(self) -> E | None:
        """Return the last event if the stream ended without the end of that event; else ``None``."""


class Boundary(Protocol):
    """A filter that forwards a stream up to its last event boundary, and knows how the stream ended.

    ``at_boundary``: only complete events came so far. ``overflowing``: an event is too large to buffer, so
    its pieces are forwarded as they come. ``done_seen``: the end mark came.
    """

    at_boundary: bool
    overflowing: bool
    done_seen: bool

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may be forwarded now."""

    def close(self) -> bytes:
        """Return the rest of a stream that ended properly, with an end mark if it had none."""


class Framing(Struct, frozen=True):
    """How a stream is cut into events.

    ``event_end``: the bytes that end nearly every event. ``event_sign``: bytes that stand exactly once in
    nearly every event. ``end_mark``: the event that ends a stream; empty if the dialect has none.
    ``end_text``: the text by which an event ends the stream. ``end_sign``: a byte of that text that few
    other events have. ``begins`` takes the first bytes of a body and returns whether it is such a stream;
    ``None`` if these bytes do not tell yet.
    """

    content_type: str
    event_end: bytes
    event_sign: bytes
    end_mark: bytes
    end_text: bytes
    end_sign: int
    parser: Callable[[], EventParser[Any]]
    boundary: Callable[[], Boundary]
    begins: Callable[[bytes], bool | None]


ErrorBody = Callable[..., dict[str, Any]]
"""Makes the body of an HTTP error from its message, ``type``, ``param``, ``code``, ``request_id``, which some
dialects put there, and ``doc_url``, the address of the page about the error: empty if there is none, and not
in a dialect without a field for it."""

ErrorEvent = Callable[..., bytes]
"""Makes the event for a stream that failed, from its message, ``type`` and ``code``; an end mark follows."""


class ErrorText(NamedTuple):
    """What the body of an error says; the message is empty if the body has none that can be shown.

    ``field`` is the field of the request that it is about, empty if it names none, or a place in a message.
    """

    message: str = ""
    code: str | None = None
    field: str = ""

    @property
    def refusal(self) -> str:
        """The message, with the field before it if only the field says what was refused."""
        return f"'{self.field}': {self.message}" if self.field not in self.message else self.message


class Errors(Struct, frozen=True):
    """The form of a dialect's errors.

    ``id_header``: the header in which clients of the dialect look for the request's id. ``read`` takes the
    body of an error. ``types``: the dialect's own type names for HTTP statuses, if it has any.
    """

    body: ErrorBody
    event: ErrorEvent
    read: Callable[[bytes], ErrorText]
    id_header: str = "x-request-id"
    types: Sequence[tuple[int, str]] = ()


class UsageFields(Struct, frozen=True):
    """The fields in which a dialect reports tokens: received, sent and their sum (empty if it reports none).

    ``member`` is the member of an event or a reply that holds these fields; empty if they are at its top.
    """

    received: str
    sent: str
    total: str
    member: str = "usage"


class ModelLists(Struct, frozen=True, eq=False):
    """How a dialect lists models: at ``path``, which is ``rooted`` if the dialect's paths are.

    ``query`` asks an upstream for all of them. ``read`` returns the models of a list, by name. ``entry``
    makes an entry from a name and an owner; ``whole`` makes a list of entries; ``page`` makes the part of it
    that a client's query asks for, and is ``None`` in a dialect without pages. ``names`` are the members of
    an entry that hold its name. ``show`` describes a model, from its owner, its entry and whether it takes
    tools. ``version`` is the version of the dialect. ``show`` and ``version`` matter only in a dialect that
    has paths for them.
    """

    path: str
    rooted: bool
    read: Callable[[Any], Mapping[str, dict[str, Any]]]
    entry: Callable[[str, str], dict[str, Any]]
    names: Sequence[str]
    whole: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
    page: Callable[[Sequence[dict[str, Any]], Mapping[str, str]], dict[str, Any]] | None = None
    query: str = ""
    show: Callable[[str, Mapping[str, Any], bool], dict[str, Any]] = lambda owner, entry, tools: dict(entry)
    version: str = ""


class Quirks(Struct, frozen=True):
    """Facts that only the text of an error tells.

    ``refuses_tools`` takes a message and returns whether it says that the model takes no tools.
    ``unknown_response`` matches the body of an error which says that the upstream does not have the response
    that a request continues.
    """

    refuses_tools: Callable[[str], bool]
    unknown_response: re.Pattern[bytes]


class RepairSigns(Struct, frozen=True):
    """Text by which the proxy sees that a stream that passes through is defective, without parsing it.

    ``sound``: text in the first event of every sound stream; empty if the first event does not tell.
    ``suspect``: text in every later event that may be defective; empty if there is no such text.
    """

    sound: bytes = b""
    suspect: bytes = b""


class RequestFields(Struct, frozen=True):
    """Members of a request by which it says what it refers to, where it goes and how it is counted.

    ``turns``: the messages or items. ``texts``: all members with texts of the conversation. ``tools``: lists
    of tools. ``tool_holders``: lists whose entries may have tools. ``usage``: the member, and its field, that
    ask for usage in a stream. ``models``: the paths at which further models may be named: one, or a list of
    names and of objects with a ``model``. ``choosing``: members by which a provider chooses models that the
    request does not name.

    Each of these is empty if the dialect has none: ``continues``: the id of the stored response that the
    request continues. ``conversation``: a conversation that the provider keeps. ``stored_prompt``: a prompt
    that the provider keeps, if it is an object. ``background``: a switch for answers that come later.
    """

    turns: str = "messages"
    texts: Sequence[str] = ("messages",)
    tools: Sequence[str] = ("tools",)
    continues: str = ""
    conversation: str = ""
    stored_prompt: str = ""
    background: str = ""
    tool_holders: Sequence[str] = ()
    usage: tuple[str, ...] = ()
    models: Sequence[tuple[str, ...]] = ()
    choosing: Sequence[str] = ()

    @property
    def usage_asked(self) -> dict[str, Any]:
        """The members that ask for usage in a stream."""
        return {self.usage[0]: {self.usage[1]: True}}

    @property
    def deciding(self) -> frozenset[str]:
        """The names of the members that decide, and of the field in ``usage``."""
        one = (self.continues, self.conversation, self.stored_prompt, self.background)
        models = (path[0] for path in self.models)
        return frozenset(filter(None, (*one, *self.tool_holders, *self.usage, *self.choosing, *models)))


OPAQUE: Final = frozenset(
    {
        *(
            "type",
            "role",
            "id",
            "name",
            "detail",
            "format",
            "filename",
            "url",
            "data",
            "file_id",
            "file_data",
        ),
        *("signature", "encrypted_content", "cache_control", "ttl"),
    }
)
"""Strings in the conversations of all dialects that are no text of anybody."""


class HostedTool(NamedTuple):
    """A kind of tools that a provider may run, or that a client runs without a schema of its own.

    ``type``: the beginning of the type. ``repeatable``: whether a request with such a tool may run twice: the
    client runs the tool, or it only reads. ``placed_by``: the member that says who runs it: the client if it
    is absent or of the type ``local``; else the tool is not repeatable. ``chooses_model``: whether the tool
    asks a model, which the provider chooses unless the tool names it; ``asks_models``: whether it may ask
    models that nobody names, except in a tool whose whole type is in ``asks_none``.
    """

    type: str
    repeatable: bool = False
    chooses_model: bool = False
    asks_models: bool = False
    asks_none: frozenset[str] = frozenset()
    placed_by: str | None = None


class TurnFields(Struct, frozen=True):
    """Members of the messages and items of a model's turn.

    ``ids``: ids of calls and items. ``volatile``: what differs if a model gives the same answer again.
    ``reasoning``: types of blocks and items of reasoning. ``lists``: lists of calls or of blocks.
    ``opaque``: strings that are no text of anybody. ``free``: objects whose member names are a tool's own.
    ``values``: objects whose member names are the client's own, and whose strings are texts. ``json_texts``:
    strings that hold JSON.
    """

    ids: frozenset[str] = frozenset()
    volatile: frozenset[str] = frozenset()
    reasoning: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    opaque: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    json_texts: frozenset[str] = frozenset()


class TextPiece(Struct, frozen=True):
    """A member of the events of a stream in which a text comes piece by piece.

    ``path`` leads to it; ``*`` is each element of a list, told from the others by its ``index``. ``types``:
    the types of the events that have it; empty for all. ``place``: the members of the event that say which
    text it is. ``in_json``: whether the text is JSON.
    """

    path: tuple[str, ...]
    types: frozenset[str] = frozenset()
    place: tuple[str, ...] = ()
    in_json: bool = False


class Dialect(Struct, frozen=True, eq=False):
    """The facts that all paths of a dialect share.

    ``wire``: the name of the wire that an upstream must speak to serve the dialect (``upstreams.*.wires``).
    ``prefix``: the prefix of its paths for clients, which an upstream's base URL includes. The paths of a
    ``rooted`` dialect include the prefix themselves; the base URL then does not. ``path``: the path at which
    a model answers with tools; empty if the dialect has none. ``credentials``: by priority; the first one is
    sent to upstreams. ``query``: the names of query parameters that its inference paths may have.
    ``families``: the first segments of its paths; ``takes_files``: those that take forms with files.
    ``headers``: headers that an upstream requires and a client may have left out. ``repair``: how the proxy
    sees a defective stream; ``None`` if it repairs no stream of the dialect. ``tag``: the end of a model's
    name that may be left out without a difference. ``answer_ids``: the prefix of an answer's id.
    ``last_event``: matches the event that ends a stream, at the end of what came; for a dialect whose streams
    may lack the end mark of the framing. ``refused_schemas``: the keys of
    :data:`~proxy.schemas.portable.REFUSED_BY` that every provider of the dialect refuses in the schemas of
    tools. ``fields``, ``turns`` and ``tools``: what is known of its requests, of the turns in them, and of
    the types of tools; the longest type that fits counts. ``pieces``: where its streams have texts in pieces.
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
    refused_schemas: frozenset[str] = frozenset()
    fields: RequestFields = RequestFields()
    turns: TurnFields = TurnFields()
    tools: Sequence[HostedTool] = ()
    pieces: Sequence[TextPiece] = ()

    def shown(self, below: str) -> str:
        """Return a path of the dialect as a client writes it."""
        return below if self.rooted else self.prefix + below

    def is_whole(self, stream: bytes) -> bool:
        """Return whether a stream holds a complete answer, even if the end of the message is missing."""
        if self.last_event is not None and self.last_event.search(stream):
            return True
        boundary = self.framing.boundary()
        boundary.feed(stream)
        return boundary.done_seen


class Endpoint(Struct, frozen=True, eq=False):
    """One operation of an API: a method and a path below its dialect's prefix.

    In ``path`` ``{id}`` stands for one segment and ``{rest}`` for anything. An empty ``method`` stands for
    any.

    ``body``: how the proxy handles the body. ``routed``: parsed strictly and sent to the upstream of its
    model. ``json``: the same, but the first upstream gets it if it names no model or one that none serves.
    ``form``: as ``json``, or a form with files, which is streamed. ``opaque``: streamed without being parsed.
    ``model``: whether a JSON body names the model at its top level (``named``), or may do so (``optional``).
    ``usage``: ``always`` if every answer reports it; ``on_request`` if a stream reports it only on request;
    ``none`` if the answer costs nothing or was counted when it was first given.
    ``refers``: whether the body may name something stored.
    ``streams``: whether its event streams have an end mark and error events.
    ``same_model``: whether another upstream may take over only with the very same model.
    ``deployed``: whether Azure serves it below the name of a deployment.
    ``operation``: its name in OpenTelemetry's GenAI conventions; empty if they have none.
    ``action``: the operation on something stored or on models.
    ``creates``: what the upstream keeps of the answer, so that later requests may name it.
    ``reader``: the name of the wire that reads its requests; empty for its dialect's own.
    """

    dialect: Dialect
    method: str
    path: str
    kind: Kind = "other"
    body: Literal["routed", "json", "form", "opaque"] = "opaque"
    model: Literal["named", "optional", ""] = ""
    usage: Literal["always", "on_request", "none"] = "always"
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
        """The pattern of the whole path; its group ``id`` is what stands for ``{id}`` or ``{rest}``."""
        text = re.escape(self.path).replace(r"\{id\}", "(?P<id>[^/]+)").replace(r"\{rest\}", "(?P<id>.*)")
        # A slash after an id has no meaning.
        return re.compile(text + ("/?" if self.path.endswith("{id}") else ""))

    def stored_id(self, below: str) -> str:
        """Return the part of a path that stands for ``{id}`` or ``{rest}``; empty if there is none."""
        found = self.pattern.fullmatch(below)
        return (found.groupdict().get("id") or "") if found is not None else ""

    def path_of(self, stored_id: str) -> str:
        """Return the path for something stored. The caller must have checked the id."""
        return self.path.replace("{id}", stored_id)

    @property
    def is_inference(self) -> bool:
        """Whether a model computes the answer, so that every client key may call it."""
        return self.kind in ("generate", "complete", "count", "infer", "socket")
