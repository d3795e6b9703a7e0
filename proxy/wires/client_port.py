"""The side of a dialect that faces clients: it reads their requests and writes their responses.

A :class:`~proxy.wires.wire.Wire` makes a :class:`ClientRequest`, which holds the request, and a
:class:`StreamWriter`, which writes the response. The relay knows no dialect by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Final, Literal

import msgspec
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
from proxy.base.values import value_class
from proxy.wires.chosen import NOTHING_CHOSEN, NOTHING_SHOWN, Chosen, ShownTools
from proxy.wires.hosted.part_ids import PartIds
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Evidence, Place

Trace = Literal["silent", "reasoning", "status", "events"]
"""How much of a server tool's call the client sees."""
TurnEnd = Literal["hidden", "final", "suspended"]
"""How a turn ended: more turns follow, it was the answer, or the client has to act."""


@value_class
class ClientRequest(ABC):
    """The facts of a client's request that tools and routing need.

    ``declared`` are the names of the tools that the client declared, in order, each once. ``brought`` are
    those of tools that groups and messages bring; calls of them are the client's, too. ``tool_count`` is
    the number of entries in its list of tools, also of tools that the provider runs. ``chosen`` are the
    server tools that the body chooses. ``choices`` is the number of alternative answers that the client asked
    for (Chat's ``n``).

    ``tools_forbidden``: ``tool_choice`` forbids every call. ``forced`` are the only tools that it allows;
    ``None`` if it names none. ``max_calls`` is the client's own limit on tool calls. ``open_names``: the
    model may know tools that the request does not show, from a stored prompt or a namespace, so an unknown
    name is the client's.

    ``container`` is the id of the container in which programs shall run; empty for none.

    ``background``: the client asked the upstream to answer in the background. ``continues`` is the id of the
    response that this request continues. ``conversation`` is the id of the upstream's conversation to which
    it adds; empty for none. ``may_store``: the proxy may store the answer for later requests. ``wants_json``:
    the answer must be JSON, which has no place for text of the proxy's own. ``people`` are the people whom
    the body names (``user``, ``safety_identifier``), as one string; empty for none.
    """

    _: KW_ONLY
    model: str
    stream: bool
    declared: tuple[str, ...] = ()
    brought: frozenset[str] = frozenset()
    tool_count: int = 0
    chosen: Chosen = NOTHING_CHOSEN
    choices: int = 1
    tools_forbidden: bool = False
    forced: frozenset[str] | None = None
    max_calls: int | None = None
    open_names: bool = False
    background: bool = False
    continues: str | None = None
    conversation: str = ""
    may_store: bool = True
    wants_json: bool = False
    people: str = ""
    container: str = ""

    @property
    def references(self) -> Sequence[str]:
        """The ids of items that the upstream stores and the request refers to."""
        return ()

    @property
    def has_proxy_calls(self) -> bool:
        """Whether the request has calls that the proxy showed to the client and no upstream knows."""
        return False

    @property
    @abstractmethod
    def system_texts(self) -> Sequence[str]:
        """The system prompt and the system messages as texts, in a canonical form."""

    @property
    def preview(self) -> str:
        """The beginning of the newest user text, for people who watch the run; never stored."""
        return ""

    @property
    def returns_calls(self) -> bool:
        """Whether clients of this kind send calls back together with their results, not results alone."""
        return True

    @abstractmethod
    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` for tool results without an open call.

        ``reserved`` returns whether only the proxy may answer calls of a name.
        """

    @abstractmethod
    def returned_calls(self) -> Sequence["ReturnedCalls"]:
        """Return the messages in which the client sends back its own calls that it has answered."""

    @abstractmethod
    def answers(self) -> Sequence["Answer"]:
        """Return the answers without open calls that the client sends back, in order."""

    @abstractmethod
    def answer_keys(
        self, caller: str, shape: str, answers: Sequence[tuple[int | None, str]], rule: SystemRule = "clock"
    ) -> Sequence[str]:
        """Return for each answer a digest of caller, visible conversation before it and its text.

        An answer comes with the number of messages before it; ``None`` means all. ``shape``
        stands for everything else that must be the same: the model, the tools. ``rule`` is how the system
        messages at the beginning are compared.
        """

    @abstractmethod
    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        """Return a digest of caller, visible conversation (its first ``upto`` messages) and call ids."""

    @abstractmethod
    def identity_words(self, caller: str) -> Sequence[str]:
        """Return what must be the same wherever the answer is found: dialect, caller, people and model."""

    @abstractmethod
    def places(self, ends: Sequence[int], rule: SystemRule = "clock") -> Iterator[Place | None]:
        """Yield for each end the place of the answer to so many messages; ``None`` without a question."""

    @abstractmethod
    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        """Return the context of the answer to the first ``upto`` messages; ``None`` without a question."""

    @abstractmethod
    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        """Return whether the client's message at ``position`` is what it was shown of a turn, unchanged.

        ``held`` is the parsed result of :meth:`~proxy.wires.upstream_port.BodyEditor.suspend`. ``is_shown``
        returns whether the client was shown this text. A client may leave out text beside calls.
        """

    # In a dialect whose clients can carry encrypted turns from one request to the next.

    def carries(self) -> bool:
        """Return whether the client sends encrypted turns back."""
        return False

    def carried(self) -> "Sequence[CarriedTurn]":
        """Return the encrypted turns that the client sends back, in order."""
        return ()

    def part_ids(self) -> "Mapping[int, Sequence[str]]":
        """Return the ids of the parts that claim to show calls of the provider's tools, by the positions of
        their answers."""
        return {}


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


class ApprovedCallResult(Struct, frozen=True):
    """A call that an earlier answer asked the client to approve, and that has run since.

    ``call`` has the tool name that models use; ``approval_id`` is the id of its approval.
    """

    approval_id: str
    call: ToolCall
    result: ToolResult


class ClientCall(Struct, frozen=True):
    """A call that a program makes of its client: the id of the part that shows the program, and the call,
    with the id that the client answers."""

    part_id: str
    call: ToolCall


class EndedProgram(Struct, frozen=True):
    """A program that an earlier answer showed as running, by the id of the part there, and its result."""

    part_id: str
    result: ToolResult


class ProgramResults(Struct, frozen=True):
    """What a request brings for programs that wait: the results of their calls by id, as engines take them.

    ``pending`` are the ids of the calls that its last messages answer, none if it continues no program;
    ``places`` are the positions of the messages that show these programs, -1 for one that is missing.
    """

    results: Mapping[str, str] = msgspec.field(default_factory=dict)
    pending: frozenset[str] = frozenset()
    places: frozenset[int] = frozenset()


NO_PROGRAM_RESULTS: Final = ProgramResults()


class ClientView(Struct, frozen=True):
    """How a client sees its run.

    ``model`` is the name to use if no upstream names a model. ``is_hidden`` returns whether a name is a
    server tool's: the client does not get its calls. ``usage_was_added``: the proxy, not the client, asked
    the upstream for usage. ``shown``: what the client sees of the server tools that it chose, at any trace
    level. ``approved``: calls that ran before the model is asked. ``ended``: programs that ended before that.
    """

    model: str
    is_hidden: Callable[[str], bool]
    trace: Trace = "silent"
    usage_was_added: bool = False
    caller: str = ""
    shown: ShownTools = NOTHING_SHOWN
    approved: Sequence[ApprovedCallResult] = ()
    ended: Sequence[EndedProgram] = ()


class StreamWriter(ABC):
    """The writer of what the client sees of a run. It alone sets ids, indices, finish reason and end mark.

    Every method returns the bytes to send now: whole events, possibly none.
    """

    asks_by_items: ClassVar[bool] = False
    """Whether the dialect has items that ask for approvals."""

    part_ids: PartIds | None = None
    """The ids of the parts that show calls of the provider's tools; ``None`` if it shows none."""

    def repair(self, *, always: bool, begun: bool = False, single_turn: bool = False) -> bool:
        """Repair this stream from now on, if the writer can; return whether it can.

        Call it before the first frame is written. ``always``: compose from the first frame on, else from the
        first frame with a defect. ``begun``: earlier bytes of the stream were sent to the client already, and
        had no defect. ``single_turn``: no turn follows, so nothing must be held back for another.
        """
        return False

    @property
    @abstractmethod
    def visible(self) -> str:
        """The text of the answer so far, as the client got it."""

    @property
    @abstractmethod
    def composing(self) -> bool:
        """Whether the stream no longer consists of the upstream's own bytes."""

    @abstractmethod
    def write(self, frame: Frame) -> bytes: ...

    @abstractmethod
    def turn_ended(self, end: TurnEnd) -> bytes:
        """End a turn: send or drop the frames that were held back."""

    @abstractmethod
    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        """Show a server call, as far as the trace level allows. ``arguments`` are redacted."""

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        """Show the progress of a server call, as far as the trace level allows."""
        return b""

    @abstractmethod
    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes: ...

    @abstractmethod
    def note(self, text: str) -> bytes:
        """Write a short message from the proxy to the user, as ordinary text."""

    def keep_alive(self) -> bytes:
        return b""

    @abstractmethod
    def client_ids(self) -> Mapping[str, str]:
        """Return the client's ids of this turn's client calls, by the upstream's call ids."""

    def result(self) -> dict[str, Any] | None:
        """Return the response as the client got it, if it is an object with an id that later requests can
        continue; ``None`` before the end, and on a wire without such objects.

        It is for the record, so images beyond a bound are left out.
        """
        return None

    @abstractmethod
    def finish(self, reason: FinishReason | None) -> bytes:
        """End the run: write the finish reason, usage if asked for, and one end mark.

        With ``reason=None`` the upstream's reason stays.
        """

    @abstractmethod
    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """End a broken stream: write the wire's error event, then the end mark."""

    def carry(self, sealed: str) -> bytes:
        """Give the client an encrypted turn to carry, if its request :meth:`~ClientRequest.carries` turns.

        Call it only between the end of a turn with hidden calls and the end of the answer.
        """
        raise NotImplementedError

    @property
    def container(self) -> str:
        """The id of the container in which programs of this run run; empty in a dialect without any."""
        return ""

    def client_called(self, name: str, calls: Sequence[ClientCall]) -> bytes:
        """Show calls that programs of the tool ``name`` make of the client. Call it only between the end of
        a turn with hidden calls and the end of the answer."""
        raise NotImplementedError

    def approval_requested(self, item_id: str, label: str, name: str, arguments: str) -> bytes:
        """Ask about a waiting call, if the writer :attr:`asks_by_items`.

        ``label`` is the client's name of the server, ``name`` the server's name of the tool, and
        ``arguments`` is JSON text.
        """
        raise NotImplementedError


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
