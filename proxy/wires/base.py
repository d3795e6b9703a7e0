"""What every wire offers to the relay, which knows no wire by name.

A wire is five small objects: a :class:`ClientRequest` (what the client asked), a
:class:`BodyEditor` (the request as it goes upstream, turn after turn), a :class:`TurnReader` (what
the upstream says), a :class:`StreamWriter` (what the client sees), and the :class:`Wire` that makes
them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from proxy.errors import WireError
from proxy.events import Frame, ResultImage, ToolCall, ToolDefinition, ToolResult
from proxy.records import MessageRecord
from proxy.wires.dialect import Dialect

__all__ = [
    "Answer",
    "BodyEditor",
    "ChainedEditor",
    "ClientRequest",
    "HeldTurn",
    "Mask",
    "ReturnedCalls",
    "StateHabit",
    "StreamWriter",
    "Trace",
    "TurnEnd",
    "TurnReader",
    "Wire",
]

Mask = Callable[[str, str], str]
"""Takes a tool's name on the wire and the JSON text of arguments; gives that text with the private
fields masked, as it may stand in a file (rule R3)."""

StateHabit = Literal["auto", "chained", "stateless"]
"""Whether an upstream keeps responses to go on from; ``auto`` goes by what it says of itself."""

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
        """Whom the body names (``user``, ``safety_identifier``), in one form; empty for nobody."""
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

    def answer_key(self, caller: str, shape: str, text: str, upto: int | None = None) -> str:
        """A digest of caller, visible conversation (its first ``upto`` messages) and the answer to it.

        ``shape`` stands for what else must be the same: the model, the tools.
        """
        ...

    def conversation_key(self, caller: str, call_ids: Collection[str], upto: int | None = None) -> str:
        """A digest of caller, visible conversation (its first ``upto`` messages) and a set of ids."""
        ...

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        """Whether what the client has at ``position`` is what it was shown of a turn, unchanged.

        ``held`` is what :meth:`BodyEditor.suspend` made, read.  ``is_shown`` says of a text whether it
        is the one that was shown; a client may leave text beside calls out.
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
class HeldTurn:
    """A call of a suspended turn: the id upstream, the id the client knows, and our result if ours."""

    call_id: str
    client_id: str | None
    result: bytes | None


class BodyEditor(Protocol):
    """The request body as it goes upstream.  Everything that is not edited keeps its bytes."""

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        """Add tools after the client's own; put our schema where the client declared our name."""
        ...

    def withdraw(self) -> None:
        """Undo :meth:`offer` and :meth:`withhold`: the body as the client sent it."""
        ...

    def withhold(self, names: Collection[str]) -> None:
        """Leave these of the offered tools out of every request from now on, and out of the choice.

        A choice that forces one of them becomes ``auto``.  What is offered otherwise keeps its bytes.
        """
        ...

    def rename_model(self, model: str) -> None: ...

    def ask_usage(self) -> None:
        """Ask for a usage report in the stream, also where the client did not."""
        ...

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        """Put a held turn back in place of the assistant message at ``position`` of the request.

        ``payload`` is what :meth:`suspend` made.  One that is not ``needed`` may be left out again
        by :meth:`recover`.
        """
        ...

    @property
    def put_back(self) -> tuple[int, int]:
        """How many turns that the client knows nothing of are in the next request, and the bytes they add."""
        ...

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        """Add an assistant message and the results of all its calls to the conversation."""
        ...

    def suspend(self, message: bytes, calls: Sequence[HeldTurn], mask: Mask) -> bytes:
        """The hidden part of the conversation since the client's request, ready to be stored."""
        ...

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """One result as the upstream wants it.

        Images that the wire, or this upstream, does not take are said in words.
        """
        ...

    def leave_out_images(self) -> None:
        """Say images in words: this upstream was seen to refuse them."""
        ...

    @property
    def images_refused(self) -> bool:
        """Whether :meth:`recover` left images out and the refusal was not about one of them."""
        ...

    def leave_out_fields(self, names: Collection[str]) -> None:
        """Leave these out of the model's own messages: this upstream was seen to refuse them there."""
        ...

    @property
    def fields_refused(self) -> frozenset[str]:
        """What :meth:`recover` left out of the model's own messages."""
        ...

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """Stop forcing a call once these calls of server tools satisfied the choice (rule W9)."""
        ...

    def forbid_tools(self) -> bool:
        """Ask for an answer without calls; where the client forces a call of a tool of its own, for that
        call, without the server tools.  Returns whether they are left out.
        """
        ...

    def spend_tokens(self, used: int) -> None:
        """Lower the client's own bound on output tokens by what earlier turns used."""
        ...

    def render(self) -> bytes:
        """The body of the next upstream request."""
        ...

    def recover(self, message: str, code: str | None) -> bool:
        """Change what the upstream refused with these words; whether another try may go better."""
        ...

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        """The hidden messages so far, as rows (rule R2)."""
        ...


@runtime_checkable
class ChainedEditor(Protocol):
    """The editor of a wire whose responses have ids that later requests go on from."""

    def resume(self, continuation: bytes) -> None:
        """Go on from a response of ours, whose id the upstream does not know."""
        ...

    def continuation(self, message: bytes, calls: Sequence[HeldTurn], mask: Mask) -> bytes:
        """What a request after this run has to go on with; what :meth:`resume` takes."""
        ...

    def input_items(self) -> bytes:
        """The client's own input as a JSON array of items."""
        ...


class TurnReader(Protocol):
    """One upstream response, read.

    ``fault`` is why it is read no further, ``None`` while it is: what it says from here on may hold a call
    that nobody here would see, and none of it may reach the client (rule W5).
    """

    @property
    def fault(self) -> WireError | None: ...

    @property
    def behind(self) -> bool:
        """Whether whole events were taken in that have not been read yet."""
        ...

    @property
    def large_next(self) -> bool:
        """Whether the next of those events takes so long to read that it is to be read in a thread."""
        ...

    def feed(
        self, chunk: bytes, *, together: bool = False, most: int = 0, large: bool = False
    ) -> list[Frame]:
        """Frames that ``chunk`` completes, up to a :attr:`fault`.

        With ``most`` no more is read than takes as long as so many ordinary events, and nothing from a
        large event on unless ``large`` is true; where some is left, :attr:`behind` is true, and the next
        piece may be ``b""``.

        ``together`` says that the writer hands frames on as they come.  Then events that differ in
        their text alone may be told together, once their bytes have gone out.
        """
        ...

    def skim(self, chunk: bytes) -> bool:
        """Take ``chunk`` unread, where it is whole events that differ from one before in their text
        alone.  Its bytes may go out as the writer has them pass; the next frames begin with one
        that tells what it said.

        ``False`` where that is not certain: then it has to be fed.
        """
        ...

    def catch_up(self) -> list[Frame]:
        """What was skimmed and not told yet, for a stream that will not be fed or closed any more."""
        ...

    def close(self) -> list[Frame]:
        """The end of a stream that ended properly: what is left, and the calls that are now whole.

        The last frame carries a :class:`~proxy.events.ToolCallFinished` for each named call.
        """
        ...

    def read_reply(self, body: bytes) -> Frame:
        """A response that was not streamed.

        Raises :class:`~proxy.errors.Unreadable` for one that may hold a call all the same, and
        :class:`~proxy.errors.WireError` for any other that is none.
        """
        ...

    def message(self) -> bytes:
        """The turn's assistant message as the upstream wants it back."""
        ...

    def native(self, call: ToolCall, mask: Mask) -> str:
        """A call of this turn as the upstream sent it: JSON, with fields that nobody here knows.

        Only its private arguments are masked.
        """
        ...

    @property
    def text(self) -> str:
        """The turn's text so far."""
        ...


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

    def passing(self) -> Callable[[bytes], bytes] | None:
        """What is done to whole events of text that leave without a frame, as long as no frame is written;
        ``None`` where frames have to be written."""
        ...

    def write(self, frame: Frame) -> bytes: ...

    def turn_ended(self, end: TurnEnd) -> bytes:
        """A turn is over; what was held back is let go or dropped."""
        ...

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        """Show a server call, as far as the trace allows.  ``arguments`` are redacted."""
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


class Wire(Protocol):
    """A dialect that clients and upstreams speak."""

    @property
    def dialect(self) -> Dialect:
        """What of it is data: its path, framing, errors, the words of refusals."""
        ...

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        """Read a request.  Raises :class:`~proxy.errors.RequestError` naming the field."""
        ...

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        """``state`` says how the upstream goes on from one turn to the next.

        Items of ours in the request are known again only where they were shown to this ``caller``.
        """
        ...

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader: ...

    def writer(
        self,
        request: ClientRequest,
        *,
        is_hidden: Callable[[str], bool],
        trace: Trace,
        model: str,
        usage_was_added: bool,
        caller: str = "",
    ) -> StreamWriter: ...
