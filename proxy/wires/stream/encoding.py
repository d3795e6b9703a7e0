"""The common part of the encoders, which write the events of an upstream in another dialect."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from proxy.base.events import (
    CitationAdded,
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.wires.client_port import TurnEncoder
from proxy.wires.stream.sse import KEEP_ALIVE
from proxy.wires.turn.citations import LEFT_OUT

EventObject = dict[str, Any]
"""An event of the client's dialect, as JSON."""

TextEvent = TextDelta | ReasoningDelta | RefusalDelta


class EventEncoder(TurnEncoder):
    """An encoder that encodes a frame event by event."""

    _KEEP_ALIVE: ClassVar[bytes] = KEEP_ALIVE

    def __init__(self) -> None:
        self.left_out: set[str] = set()

    def encode(self, frame: Frame) -> list[Frame]:
        frames = [made for event in frame.events for made in self._frames(event, frame.undecided)]
        is_comment = frame.payload is None and frame.raw and not frame.is_end_mark
        if not frames and (frame.undecided or is_comment):
            # A comment from the upstream also keeps the client's connection alive.
            frames.append(replace(self._comment() if is_comment else Frame(b""), undecided=frame.undecided))
        return frames

    @abstractmethod
    def _frames(self, event: TurnEvent, undecided: int) -> list[Frame]:
        """Encode one event."""

    def _comment(self) -> Frame:
        """Return a frame that only keeps the connection alive."""
        return Frame(self._KEEP_ALIVE)


class EncodedCall(Struct, kw_only=True):
    """A call, with the pieces of its arguments so far."""

    pieces: list[str] = field(default_factory=list)
    is_done: bool = False

    def finish(self, arguments: str) -> None:
        """Take the arguments of the complete call."""
        self.pieces = [arguments]


C = TypeVar("C", bound=EncodedCall)


class ItemEncoder(EventEncoder, Generic[C]):
    """An encoder for a dialect in which texts and calls follow one another and do not overlap.

    A call that begins while another one is open waits for its end, and so does text.
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._calls: dict[int, C] = {}
        self._waiting: list[int] = []
        self._open_call: int | None = None
        self._later: list[TextEvent | CitationAdded] = []
        self._early: list[CitationAdded] = []
        self._reason = FinishReason.STOP
        self._failed = False
        self._usage: dict[str, Any] | None = None

    def _encode(self, event: TurnEvent) -> Iterator[EventObject]:
        """Yield the events of this dialect for ``event``."""
        match event:
            case TurnStarted(model=model):
                self._model = model or self._model
                yield from self._opening()
            case UsageReported(usage=usage):
                self._usage = dict(self._native_usage(usage).native)
            case TurnFinished():
                self._reason = self._finish(event).reason
            case TurnFailed(error=error):
                self._failed = True
                yield from self._error(error)
            case ToolCallStarted(seq=seq):
                yield from self._opening()
                self._calls[seq] = self._new_call(event)
                if self._open_call is None:
                    yield from self._closed_text()
                    yield from self._opened_call(seq)
                else:
                    self._waiting.append(seq)
            case ToolCallDelta(seq=seq, arguments=arguments):
                self._calls[seq].pieces.append(arguments)
                if arguments and self._open_call == seq:
                    yield from self._arguments(self._calls[seq], arguments)
            case ToolCallFinished(seq=seq, call=finished):
                if seq in self._calls:
                    self._calls[seq].finish(finished.arguments)
                yield from self._closed_call(seq)
            case CitationAdded(url=""):
                self.left_out.add(LEFT_OUT)
            case TextDelta() | ReasoningDelta() | RefusalDelta() | CitationAdded():
                if self._open_call is not None:
                    self._later.append(event)
                else:
                    yield from self._said(event)

    def _take(self, events: Iterable[TurnEvent]) -> None:
        """Take the events of a whole reply, which needs no events of this dialect."""
        for event in events:
            for _ in self._encode(event):
                pass

    def _translated(self, event: TurnEvent) -> TurnEvent:
        """Return ``event`` in the terms of this dialect."""
        if isinstance(event, UsageReported):
            return UsageReported(self._native_usage(event.usage))
        return self._finish(event) if isinstance(event, TurnFinished) else event

    def _finish(self, end: TurnFinished) -> TurnFinished:
        """Return the end of a turn in the terms of this dialect."""
        return end

    def _said(self, event: TextEvent | CitationAdded) -> Iterator[EventObject]:
        if isinstance(event, CitationAdded):
            yield from self._cite(event)
        else:
            yield from self._opening()
            yield from self._text_delta(event)

    def _closed_call(self, seq: int) -> Iterator[EventObject]:
        """Yield the end of a call, and the beginning of the next one that waits."""
        call = self._calls.get(seq)
        if call is None or call.is_done:
            return
        if self._open_call != seq:
            if self._open_call is not None:
                yield from self._closed_call(self._open_call)
            if self._open_call != seq:
                self._waiting.remove(seq)
                yield from self._opened_call(seq)
        call.is_done = True
        yield from self._end_of_call(call)
        self._open_call = None
        if self._waiting:
            yield from self._opened_call(self._waiting.pop(0))
            return
        later, self._later = self._later, []
        for event in later:
            yield from self._said(event)

    def _opened_call(self, seq: int) -> Iterator[EventObject]:
        """Yield the beginning of a call, with the arguments so far."""
        self._open_call = seq
        call = self._calls[seq]
        yield self._start_of_call(call)
        if call.pieces:
            yield from self._arguments(call, "".join(call.pieces))

    def _cited_early(self) -> Iterator[EventObject]:
        """Yield the citations that came before any text."""
        early, self._early = self._early, []
        for citation in early:
            yield from self._cite(citation)

    def _closed(self, status: str = "completed") -> Iterator[EventObject]:
        """Yield the end of everything in the turn; ``status`` is for a text that is still open."""
        yield from self._opening()
        yield from self._closed_text(status)
        for seq in list(self._calls):
            yield from self._closed_call(seq)
        yield from self._closed_text(status)
        if self._early:
            self.left_out.add(LEFT_OUT)

    # What the dialect writes.

    @abstractmethod
    def _native_usage(self, usage: Usage) -> Usage:
        """Return the same tokens, with a usage object of this dialect."""

    @abstractmethod
    def _opening(self) -> Iterator[EventObject]:
        """Yield the beginning of the answer, once."""

    @abstractmethod
    def _error(self, error: Mapping[str, Any]) -> Iterator[EventObject]:
        """Yield the end of an answer with an error."""

    @abstractmethod
    def _text_delta(self, event: TextEvent) -> Iterator[EventObject]:
        """Yield a piece of text, and the beginning of its item if none of its kind is open."""

    @abstractmethod
    def _cite(self, citation: CitationAdded) -> Iterator[EventObject]:
        """Yield a citation of the open text; one before any text waits for it."""

    @abstractmethod
    def _closed_text(self, status: str = "completed") -> Iterator[EventObject]:
        """Yield the end of the open text, if there is one."""

    @abstractmethod
    def _new_call(self, event: ToolCallStarted) -> C: ...

    @abstractmethod
    def _start_of_call(self, call: C) -> EventObject: ...

    @abstractmethod
    def _arguments(self, call: C, text: str) -> Iterator[EventObject]:
        """Yield a piece of an open call's arguments, if they are sent before they are complete."""

    @abstractmethod
    def _end_of_call(self, call: C) -> Iterator[EventObject]:
        """Yield what is left of a complete call, and its end."""
