"""The side of a dialect that faces clients: it reads their requests and writes their responses.

A :class:`ClientPort` makes a :class:`ClientRequest`, which holds the request, and a :class:`StreamWriter`,
which writes the response. The relay knows no dialect by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from proxy.base.events import (
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    TurnEvent,
)
from proxy.wires.approving.read import ApprovalForm
from proxy.wires.chosen import NOTHING_SHOWN, Chosen, ShownTools
from proxy.wires.dialect import Dialect
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Evidence, Place

Trace = Literal["silent", "reasoning", "status", "events"]
"""How much of a server tool's call the client sees."""
TurnEnd = Literal["hidden", "final", "suspended"]
"""How a turn ended: more turns follow, it was the answer, or the client has to act."""


class ClientRequest(Protocol):
    """The facts of a client's request that tools and routing need."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...

    @property
    def declared(self) -> Sequence[str]:
        """The names of the tools that the client declared, in order, each once."""
        ...

    @property
    def tool_count(self) -> int:
        """The number of entries in the client's list of tools, also of tools that the provider runs."""
        ...

    @property
    def chosen(self) -> Chosen:
        """The server tools that the body chooses."""
        ...

    @property
    def choices(self) -> int:
        """The number of alternative answers that the client asked for (Chat's ``n``)."""
        ...

    @property
    def tools_forbidden(self) -> bool:
        """Whether ``tool_choice`` forbids every call."""
        ...

    @property
    def forced(self) -> frozenset[str] | None:
        """The only tools that ``tool_choice`` allows; ``None`` if it names none."""
        ...

    @property
    def background(self) -> bool:
        """Whether the client asked the upstream to answer in the background."""
        ...

    @property
    def continues(self) -> str | None:
        """The id of the response that this request continues."""
        ...

    @property
    def conversation(self) -> str:
        """The id of the upstream's conversation to which this request adds; empty for none."""
        ...

    @property
    def references(self) -> Sequence[str]:
        """The ids of items that the upstream stores and the request refers to."""
        ...

    @property
    def may_store(self) -> bool:
        """Whether the proxy may store the answer for later requests."""
        ...

    @property
    def wants_json(self) -> bool:
        """Whether the answer must be JSON, which has no place for text of the proxy's own."""
        ...

    @property
    def max_calls(self) -> int | None:
        """The client's own limit on tool calls; ``None`` if it sets none."""
        ...

    @property
    def open_names(self) -> bool:
        """Whether the model may know tools that the request does not show (a stored prompt)."""
        ...

    @property
    def has_proxy_calls(self) -> bool:
        """Whether the request has calls that the proxy showed to the client and no upstream knows."""
        ...

    @property
    def people(self) -> str:
        """The people whom the body names (``user``, ``safety_identifier``), as one string; empty for none."""
        ...

    @property
    def system_texts(self) -> Sequence[str]:
        """The system prompt and the system messages as texts, in a canonical form."""
        ...

    @property
    def preview(self) -> str:
        """The beginning of the newest user text, for people who watch the run; never stored."""
        ...

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` for tool results without an open call.

        ``reserved`` returns whether only the proxy may answer calls of a name.
        """
        ...

    @property
    def returns_calls(self) -> bool:
        """Whether clients of this kind send calls back together with their results, not results alone."""
        ...

    def returned_calls(self) -> Sequence["ReturnedCalls"]:
        """Return the messages in which the client sends back its own calls that it has answered."""
        ...

    def answers(self) -> Sequence["Answer"]:
        """Return the answers without open calls that the client sends back, in order."""
        ...

    def answer_keys(
        self, caller: str, shape: str, answers: Sequence[tuple[int | None, str]], rule: SystemRule = "clock"
    ) -> Sequence[str]:
        """Return for each answer a digest of caller, visible conversation before it and its text.

        An answer comes with the number of messages before it; ``None`` means all. ``shape``
        stands for everything else that must be the same: the model, the tools. ``rule`` is how the system
        messages at the beginning are compared.
        """
        ...

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        """Return a digest of caller, visible conversation (its first ``upto`` messages) and call ids."""
        ...

    def identity_words(self, caller: str) -> Sequence[str]:
        """Return what must be the same wherever the answer is found: dialect, caller, people and model."""
        ...

    def places(self, ends: Sequence[int], rule: SystemRule = "clock") -> Iterator[Place | None]:
        """Yield for each end the place of the answer to so many messages; ``None`` without a question."""
        ...

    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        """Return the context of the answer to the first ``upto`` messages; ``None`` without a question."""
        ...

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        """Return whether the client's message at ``position`` is what it was shown of a turn, unchanged.

        ``held`` is the parsed result of :meth:`~proxy.wires.upstream_port.BodyEditor.suspend`. ``is_shown``
        returns whether the client was shown this text. A client may leave out text beside calls.
        """
        ...


class ReturnedCalls(Struct, frozen=True):
    """An assistant message of the client's history that holds tool calls."""

    position: int
    call_ids: frozenset[str]


class Answer(Struct, frozen=True):
    """An assistant message of the client's history without calls."""

    position: int
    text: str


class CarriedTurn(Struct, frozen=True):
    """An encrypted turn that the client sends back, and its position among the client's messages."""

    position: int
    sealed: str


class CarryingRequest(ABC):
    """A request in a dialect whose clients can carry encrypted turns from one request to the next."""

    __slots__ = ()

    @abstractmethod
    def carries(self) -> bool:
        """Return whether the client sends encrypted turns back."""

    @abstractmethod
    def carried(self) -> Sequence[CarriedTurn]:
        """Return the encrypted turns that the client sends back, in order."""


class ApprovedCallResult(Struct, frozen=True):
    """A call that an earlier answer asked the client to approve, and that has run since.

    ``call`` has the tool name that models use; ``approval_id`` is the id of its approval.
    """

    approval_id: str
    call: ToolCall
    result: ToolResult


class ClientView(Struct, frozen=True):
    """How a client sees its run.

    ``model`` is the name to use if no upstream names a model. ``is_hidden`` returns whether a name is a
    server tool's: the client does not get its calls. ``usage_was_added``: the proxy, not the client, asked
    the upstream for usage. ``shown``: what the client sees of the server tools that it chose, at any trace
    level. ``approved``: calls that ran before the model is asked.
    """

    model: str
    is_hidden: Callable[[str], bool]
    trace: Trace = "silent"
    usage_was_added: bool = False
    caller: str = ""
    shown: ShownTools = NOTHING_SHOWN
    approved: Sequence[ApprovedCallResult] = ()


class StreamWriter(Protocol):
    """The writer of what the client sees of a run. It alone sets ids, indices, finish reason and end mark.

    Every method returns the bytes to send now: whole events, possibly none.
    """

    @property
    def visible(self) -> str:
        """The text of the answer so far, as the client got it."""
        ...

    @property
    def composing(self) -> bool:
        """Whether the stream no longer consists of the upstream's own bytes."""
        ...

    def write(self, frame: Frame) -> bytes: ...
    def turn_ended(self, end: TurnEnd) -> bytes:
        """End a turn: send or drop the frames that were held back."""
        ...

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        """Show a server call, as far as the trace level allows. ``arguments`` are redacted."""
        ...

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        """Show the progress of a server call, as far as the trace level allows."""
        ...

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes: ...

    def note(self, text: str) -> bytes:
        """Write a short message from the proxy to the user, as ordinary text."""
        ...

    def keep_alive(self) -> bytes: ...

    def client_ids(self) -> Mapping[str, str]:
        """Return the client's ids of this turn's client calls, by the upstream's call ids."""
        ...

    def result(self) -> dict[str, Any] | None:
        """Return the response as the client got it, if it is an object with an id that later requests can
        continue; ``None`` before the end, and on a wire without such objects."""
        ...

    def finish(self, reason: FinishReason | None) -> bytes:
        """End the run: write the finish reason, usage if asked for, and one end mark.

        With ``reason=None`` the upstream's reason stays.
        """
        ...

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """End a broken stream: write the wire's error event, then the end mark."""
        ...


class CarryingWriter(ABC):
    """A writer in a dialect whose clients can carry encrypted turns."""

    __slots__ = ()

    @abstractmethod
    def carry(self, sealed: str) -> bytes:
        """Give the client an encrypted turn to carry.

        Call it only between the end of a turn with hidden calls and the end of the answer.
        """


class AsksByItems(ABC):
    """A writer whose dialect has items that ask for approvals."""

    __slots__ = ()

    @abstractmethod
    def approval_requested(self, item_id: str, label: str, name: str, arguments: str) -> bytes:
        """Ask about a waiting call: ``label`` is the client's name of the server, ``name`` the server's
        name of the tool, and ``arguments`` is JSON text."""


class TurnEncoder(ABC):
    """An encoder of one turn of an upstream of another dialect.

    It writes what a server of the client's dialect would send. A :class:`StreamWriter` of the client's
    dialect reads the encoded turn like one of its own upstreams.
    """

    left_out: set[str]
    """The names of the parts of the turn that this dialect cannot express, for the record of the run."""

    @abstractmethod
    def encode(self, frame: Frame) -> list[Frame]:
        """Encode the events of a frame as frames of the client's dialect.

        It writes no end of the stream, not even for a frame that is an end mark.
        """

    @abstractmethod
    def close(self) -> list[Frame]:
        """Return the frames that end a turn, with the end mark. All its calls must be complete."""

    @abstractmethod
    def encode_reply(self, frame: Frame) -> Frame:
        """Encode a response that was not streamed."""

    @abstractmethod
    def note_forwarded(self, frame: Frame, text: str) -> None:
        """Note that a frame of an upstream of this dialect reached the client unchanged.

        ``text`` is the text of the answer that was sent since the frame that was noted before. Between these
        two there were only frames of text. A whole reply is noted before it is encoded anew.
        """

    # Most encoders can write pieces of text without frames, while the turn has nothing but text.

    def text_is_open(self, kind: type[TurnEvent]) -> bool:
        """Return whether text of this kind would continue the last one, so that it needs no frame."""
        return False

    def write_text(self, kind: type[TurnEvent], pieces: Sequence[bytes]) -> bytes:
        """Write one event for each piece: the inside of a JSON string as orjson writes it, not empty.

        The bytes are the same that :meth:`encode` would make of these pieces. Before anything else is
        encoded, :meth:`report_text` must report this text.
        """
        raise NotImplementedError

    def report_text(self, event: TextDelta | ReasoningDelta | RefusalDelta, count: int) -> Frame:
        """Return a frame without bytes for ``count`` pieces that were written; ``event`` has their text."""
        raise NotImplementedError


class ClientPort(Protocol):
    """The side of a dialect that faces clients."""

    @property
    def dialect(self) -> Dialect:
        """The data of the dialect: path, framing, errors."""
        ...

    approvals: ApprovalForm | None = None
    """How its conversations hold questions about approvals; ``None`` if they do not."""

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        """Read a request. Raises :class:`~proxy.base.errors.RequestError`, which names the field."""
        ...

    def without_chosen(
        self, raw: bytes, request: ClientRequest, shown: ShownTools
    ) -> tuple[bytes, ClientRequest]:
        """Return the body without the elements that choose server tools, and the request that it then is.

        ``shown`` are the tools that the client gets; a ``tool_choice`` may name them by their server. Raises
        :class:`~proxy.base.errors.RequestError` for a ``tool_choice`` that names another.
        """
        ...

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter: ...
