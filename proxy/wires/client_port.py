"""What a dialect offers toward clients: it reads their requests and writes what they see.

A :class:`ClientPort` makes a :class:`ClientRequest` (what the client asked) and a :class:`StreamWriter`
(what the client sees).  The relay knows no dialect by name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from proxy.events import (
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    TurnEvent,
)
from proxy.wires.chosen import NOTHING_SHOWN, Chosen, ShownTools
from proxy.wires.dialect import Dialect
from proxy.wires.past.clock import ToldRule
from proxy.wires.past.evidence import Evidence

__all__ = [
    "Answer",
    "ApprovedCall",
    "CarriedTurn",
    "CarryingPort",
    "CarryingRequest",
    "CarryingWriter",
    "ClientPort",
    "ClientRequest",
    "ClientView",
    "ContinuingEncoder",
    "LoadsModels",
    "RefersToItems",
    "ReturnedCalls",
    "StreamWriter",
    "TextEncoder",
    "Trace",
    "TurnEncoder",
    "TurnEnd",
]


Trace = Literal["silent", "reasoning", "status", "events"]
"""How much of a server tool call the client is shown."""

TurnEnd = Literal["hidden", "final", "suspended"]
"""What a turn came to: more turns follow, it was the answer, or the client has to act."""


class ClientRequest(Protocol):
    """What a client asked for, as far as tools and routing care."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...

    @property
    def declared(self) -> Sequence[str]:
        """Names of the tools the client declared, in order, each once."""
        ...

    @property
    def chosen(self) -> Chosen:
        """The server tools that the body chooses."""
        ...

    @property
    def choices(self) -> int:
        """How many alternative answers were asked for (Chat's ``n``)."""
        ...

    @property
    def tools_forbidden(self) -> bool:
        """Whether ``tool_choice`` rules every call out."""
        ...

    @property
    def forced(self) -> frozenset[str] | None:
        """The only tools that ``tool_choice`` allows, or ``None`` where it names none."""
        ...

    @property
    def background(self) -> bool:
        """Whether the upstream is to answer later, with nobody listening."""
        ...

    @property
    def continues(self) -> str | None:
        """The id of the response that this request goes on from."""
        ...

    @property
    def conversation(self) -> str:
        """The id of the conversation at the upstream that this request adds to; empty for none."""
        ...

    @property
    def references(self) -> Sequence[str]:
        """The ids of items that the upstream keeps and the request refers to."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether what comes of the request may be stored for later requests."""
        ...

    @property
    def wants_json(self) -> bool:
        """Whether the answer is to be JSON, in which there is no place for words of the proxy's own."""
        ...

    @property
    def max_calls(self) -> int | None:
        """The client's own bound on tool calls, or ``None``."""
        ...

    @property
    def open_names(self) -> bool:
        """Whether the model may know tools that the request does not show (a stored prompt)."""
        ...

    @property
    def brings_ours(self) -> bool:
        """Whether the client sends back what we made and no upstream knows, calls that were shown to it."""
        ...

    @property
    def people(self) -> str:
        """The people whom the body names (``user``, ``safety_identifier``), in one form; empty for none."""
        ...

    @property
    def preview(self) -> str:
        """The beginning of the newest user text, for a person who watches; never stored."""
        ...

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Raise :class:`~proxy.errors.RequestError` for tool results that answer nothing.

        ``reserved`` tells the names that only the proxy may answer.
        """
        ...

    @property
    def returns_calls(self) -> bool:
        """Whether a client that goes on from here sends calls back with their results, not results alone."""
        ...

    def returned_calls(self) -> Sequence["ReturnedCalls"]:
        """The places where the client sends back calls of its own that it has answered."""
        ...

    def answers(self) -> Sequence["Answer"]:
        """The answers without open calls that the client sends back, in order."""
        ...

    def answer_key(
        self, caller: str, shape: str, text: str, upto: int | None = None, told: ToldRule = "clock"
    ) -> str:
        """A digest of caller, visible conversation (its first ``upto`` messages) and the answer to it.

        ``shape`` stands for what else must be the same: the model, the tools.  ``told`` says how the messages
        at the beginning that tell the model what it is are compared.
        """
        ...

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, told: ToldRule = "clock"
    ) -> str:
        """A digest of caller, visible conversation (its first ``upto`` messages) and a set of ids."""
        ...

    def loose_words(self, caller: str) -> Sequence[str]:
        """What must be the same wherever an answer stood: dialect, caller, people, model."""
        ...

    def evidence(self, upto: int | None = None, told: ToldRule = "clock") -> Evidence | None:
        """Where the answer behind the first ``upto`` messages stood; ``None`` where nothing was asked."""
        ...

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        """Whether what the client has at ``position`` is what it was shown of a turn, unchanged.

        ``held`` is what :meth:`~proxy.wires.upstream_port.BodyEditor.suspend` made, read.  ``is_shown``
        says of a text whether it is the one that was shown; a client may leave text beside calls out.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReturnedCalls:
    """An assistant message of the client's history that holds tool calls."""

    position: int
    call_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """An assistant message of the client's history that calls nothing."""

    position: int
    text: str


@dataclass(frozen=True, slots=True)
class CarriedTurn:
    """An encrypted turn that the client sends back, and its position among the client's messages."""

    position: int
    sealed: str


@runtime_checkable
class CarryingRequest(Protocol):
    """A request in a dialect whose clients can carry encrypted turns from one request to the next."""

    def carries(self) -> bool:
        """Whether the client sends back what it is given to carry."""
        ...

    def carried(self) -> Sequence[CarriedTurn]:
        """The encrypted turns that the client sends back, in order."""
        ...


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """A call that an earlier answer asked about, and that has run since.

    ``call`` has the name that models use, and ``approval_id`` is that of its approval.
    """

    approval_id: str
    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ClientView:
    """How a client sees its run.

    ``model`` is named where no upstream names one.  ``is_hidden`` tells the names of server tools: the client
    does not get their calls.  ``usage_was_added`` says that the proxy, not the client, asked the upstream for
    usage.  ``shown`` is what the client sees of the server tools that it chose, whatever the trace.
    ``approved`` are calls that ran before the model is asked.
    """

    model: str
    is_hidden: Callable[[str], bool]
    trace: Trace = "silent"
    usage_was_added: bool = False
    caller: str = ""
    shown: ShownTools = NOTHING_SHOWN
    approved: Sequence[ApprovedCall] = ()


class StreamWriter(Protocol):
    """What the client sees of a run: the only owner of ids, indices, finish reason and end mark.

    Every method returns the bytes to send now, whole events, possibly none.
    """

    @property
    def visible(self) -> str:
        """The text of the answer so far, as the client was given it."""
        ...

    @property
    def composing(self) -> bool:
        """Whether the stream is no longer the upstream's own bytes."""
        ...

    def write(self, frame: Frame) -> bytes: ...

    def turn_ended(self, end: TurnEnd) -> bytes:
        """A turn is over; what was held back is let go or dropped."""
        ...

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        """Show a server call, as far as the trace allows.  ``arguments`` are redacted."""
        ...

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        """Show how far a server call has come, as far as the trace allows."""
        ...

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes: ...

    def note(self, text: str) -> bytes:
        """A short word of the proxy's own to the user, as ordinary text."""
        ...

    def keep_alive(self) -> bytes: ...

    def client_ids(self) -> Mapping[str, str]:
        """Upstream call id → the id the client was given, of this turn's client calls."""
        ...

    def result(self) -> dict[str, Any] | None:
        """The response as the client was given it, where it is an object with an id that later requests go
        on from; ``None`` before the end, and on a wire that has none."""
        ...

    def finish(self, reason: str | None) -> bytes:
        """End the run: finish reason, usage if asked for, one end mark.

        ``reason`` of ``None`` keeps what the upstream said.
        """
        ...

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """End a stream that broke: the wire's error event, then the end mark."""
        ...


@runtime_checkable
class CarryingWriter(Protocol):
    """A writer in a dialect whose clients can carry encrypted turns."""

    def carry(self, sealed: str) -> bytes:
        """Give the client an encrypted turn to carry.  Only between the end of a turn with hidden calls and
        the end of the answer."""
        ...


class TurnEncoder(Protocol):
    """Encodes one turn of an upstream of another dialect, as a server of the client's dialect would send it.

    A :class:`StreamWriter` of the client's dialect reads the encoded turn like one of its own upstreams.
    """

    @property
    def left_out(self) -> Collection[str]:
        """What the upstream said and this dialect has no form for, in words for the record of the run."""
        ...

    def encode(self, frame: Frame) -> list[Frame]:
        """Encode the events of a frame as frames of the client's dialect.

        It writes no end of the stream, not even for a frame that is an end mark.
        """
        ...

    def close(self) -> list[Frame]:
        """The end of a turn that ended properly and whose calls are whole, with the end mark."""
        ...

    def encode_reply(self, frame: Frame) -> Frame:
        """A response that was not streamed."""
        ...


@runtime_checkable
class ContinuingEncoder(TurnEncoder, Protocol):
    """One that can go on with a response of which the client has the upstream's own beginning."""

    def went_out(self, frame: Frame, text: str) -> None:
        """Note that a frame of an upstream of this dialect reached the client as it came.

        ``text`` is the text of the answer that went out since the frame that was noted before.  Between two
        of these frames there were none but of text.  A whole reply is noted before it is encoded anew.
        """
        ...


@runtime_checkable
class TextEncoder(TurnEncoder, Protocol):
    """An encoder that can also write pieces of text without frames, while the turn has nothing but text.

    Before anything else is encoded, :meth:`tell_text` must report the text that :meth:`write_text` wrote.
    The bytes are the same that :meth:`TurnEncoder.encode` would make of these pieces.
    """

    def text_is_open(self, kind: type[TurnEvent]) -> bool:
        """Whether a piece of a text of this kind would go on with what was said last."""
        ...

    def write_text(self, kind: type[TurnEvent], pieces: Sequence[bytes]) -> bytes:
        """An event for each piece, which is the inside of a JSON string as orjson writes it and not empty."""
        ...

    def tell_text(self, event: TextDelta | ReasoningDelta | RefusalDelta, count: int) -> Frame:
        """The frame without bytes of ``count`` pieces that were written: ``event`` has their text."""
        ...


class ClientPort(Protocol):
    """A dialect in which clients ask."""

    @property
    def dialect(self) -> Dialect:
        """The data of the dialect: path, framing, errors."""
        ...

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        """Read a request.  Raises :class:`~proxy.errors.RequestError` naming the field."""
        ...

    def without_chosen(
        self, raw: bytes, request: ClientRequest, shown: ShownTools
    ) -> tuple[bytes, ClientRequest]:
        """The body of a request less what in it chooses server tools, and the request that it is then.

        ``shown`` are the tools that it gets, which a ``tool_choice`` may name by their server.  Raises
        :class:`~proxy.errors.RequestError` for one that names another.
        """
        ...

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter: ...


@runtime_checkable
class CarryingPort(Protocol):
    """A dialect whose clients can carry encrypted turns from one request to the next."""

    def without_carried(self, raw: bytes) -> bytes:
        """The body of a request without the encrypted turns that the client sends back.

        No upstream can read them.  The same bytes if there are none.
        """
        ...


@runtime_checkable
class LoadsModels(Protocol):
    """A dialect whose requests may ask a model nothing, and only have it loaded."""

    def load_answer(self, payload: Mapping[str, Any]) -> bytes | None:
        """What such a request is answered with where models are always loaded, as JSON; ``None`` for one
        that asks the model something.

        Raises :class:`~proxy.errors.RequestError` for a field that is wrong.
        """
        ...


@runtime_checkable
class RefersToItems(Protocol):
    """A dialect whose requests may name items of earlier responses, in place of saying them again."""

    def referred(self, request: ClientRequest) -> Mapping[str, str]:
        """The items that a request names, by their ids, each with the id of the response of ours that it
        belongs to; empty where it belongs to none."""
        ...

    def with_items(self, raw: bytes, request: ClientRequest, responses: Sequence[bytes]) -> bytes:
        """The body of a request that says the items of these responses, JSON as the clients got them, in
        place of their names."""
        ...
