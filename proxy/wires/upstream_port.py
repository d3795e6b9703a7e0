"""What a dialect offers toward upstreams: it edits the request that they get and reads their response.

An :class:`UpstreamPort` makes a :class:`BodyEditor` (the request as it goes upstream, turn after turn) and a
:class:`TurnReader` (what the upstream says).  The relay knows no dialect by name.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

from proxy.errors import WireError
from proxy.events import Frame, ResultImage, ToolCall, ToolDefinition
from proxy.records import MessageRecord
from proxy.wires.client_port import ClientRequest
from proxy.wires.dialect import Dialect

__all__ = [
    "NO_TURN",
    "BodyEditor",
    "CachingEditor",
    "ChainedEditor",
    "Mask",
    "RewritingReader",
    "StateHabit",
    "SuspendedCall",
    "TellingEditor",
    "TranslatedEditor",
    "TranslatingReader",
    "TurnReader",
    "UpstreamPort",
]

NO_TURN: Final = b'{"messages":[],"calls":[],"items":[]}'
"""What a :class:`BodyEditor` of any dialect restores as nothing: the client's message is taken away."""


Mask = Callable[[str, str], str]
"""Takes a tool's name on the wire and the JSON text of arguments; gives that text with the private
fields masked, as it may stand in a file (rule R3)."""

StateHabit = Literal["auto", "chained", "stateless"]
"""Whether an upstream keeps responses to go on from; ``auto`` goes by what it says of itself."""


@dataclass(frozen=True, slots=True)
class SuspendedCall:
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
    def restored(self) -> tuple[int, int]:
        """How many turns that the client knows nothing of are in the next request, and the bytes they add."""
        ...

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        """Add an assistant message and the results of all its calls to the conversation."""
        ...

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
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

    def continuation(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """What a request after this run has to go on with; what :meth:`resume` takes."""
        ...

    def input_items(self) -> bytes:
        """The client's own input as a JSON array of items."""
        ...


@runtime_checkable
class CachingEditor(Protocol):
    """The editor of a dialect whose requests say what of them is to be kept in the prompt cache."""

    def mark_cache(self) -> None:
        """Say so in every request from now on, unless the body says it itself."""
        ...


@runtime_checkable
class TranslatedEditor(Protocol):
    """The editor of a dialect whose request may have been translated from another one."""

    def was_translated(self) -> None:
        """Leave out of every message of the model's what the upstream does not take there: none of them is
        the client's own."""
        ...


@runtime_checkable
class TellingEditor(Protocol):
    """The editor of a request whose client cannot send everything back that its upstream says."""

    def tells_more(self, message: bytes) -> bool:
        """Whether a turn with calls says what its client cannot send back with their results.

        ``message`` is what :meth:`TurnReader.message` gave.
        """
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

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        """Frames that ``chunk`` completes, up to a :attr:`fault`.

        With ``most`` no more is read than takes as long as so many ordinary events, and nothing from a
        large event on unless ``large`` is true; where some is left, :attr:`behind` is true, and the next
        piece may be ``b""``.
        """
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


@runtime_checkable
class TranslatingReader(TurnReader, Protocol):
    """A reader whose upstream speaks another dialect than the client."""

    @property
    def left_out(self) -> Collection[str]:
        """The parts of the answer so far that the client's dialect cannot express, by their names."""
        ...


@runtime_checkable
class RewritingReader(TurnReader, Protocol):
    """One that may say something else of a turn than the upstream does, which then does not keep it so."""

    @property
    def rewritten(self) -> bool:
        """Whether it does."""
        ...


class UpstreamPort(Protocol):
    """A dialect in which upstreams are asked."""

    @property
    def dialect(self) -> Dialect:
        """What of it is data: its path, framing, the words of refusals."""
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
