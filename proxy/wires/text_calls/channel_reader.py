"""The reader of a turn whose text may consist of channels: thoughts, calls, and words for the user.

A text that does not begin with a channel is read as of any other form. Otherwise the reader writes events of
its own from there on: text and thoughts at once, calls when the turn has ended.
"""

from collections.abc import Sequence
from typing import Any, Final

from proxy.base.events import (
    FinishReason,
    Frame,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
)
from proxy.wires.text_calls.call import TextCall
from proxy.wires.text_calls.channels import ChannelCall, Channels, Piece
from proxy.wires.text_calls.reader import LARGEST_CALL, TextCallReader
from proxy.wires.text_calls.source import NotACall

_CALLS: Final = (ToolCallStarted, ToolCallDelta, ToolCallFinished)
_MOST_HELD: Final = 64
"""The most frames without text that wait for the first text."""


class ChannelReader(TextCallReader):
    """Wraps a reader of the upstream's dialect, and splits its text by channels. See
    :class:`TextCallReader`."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._channels = Channels(LARGEST_CALL)
        self._may_call = self._reads
        self._undecided: list[Frame] = []
        self._text_calls: list[TextCall] = []
        self._visible: list[str] = []
        self._has_native = False
        self._ended = False

    @property
    def idle(self) -> bool:
        return self._channels.applies is False and super().idle

    def take(self, frames: Sequence[Frame]) -> list[Frame]:
        if self._channels.applies is False:
            return super().take(frames)
        self.passed = 0
        going: list[Frame] = []
        for place, frame in enumerate(frames):
            if self._channels.applies:
                going.append(self._split(frame))
                continue
            if self._look(frame, going):
                held, self._undecided = self._undecided, []
                rest = super().take([*held, *frames[place + 1 :]])
                self.passed += len(going)
                return [*going, *rest]
        if not self.rewritten:
            self.passed = len(going)
        return going

    def _look(self, frame: Frame, going: list[Frame]) -> bool:
        """Take a frame while it is unknown whether the text consists of channels. Return whether it is known
        to consist of none."""
        texts = [event.text for event in frame.events if type(event) is TextDelta]
        if frame.payload is None and not frame.events and not frame.is_end_mark:
            going.append(frame)  # A comment.
            return False
        self._undecided.append(frame)
        pieces: list[Piece] = []
        for text in texts:
            pieces += self._channels.feed(text)
        if self._channels.applies:
            self.rewritten, self.passed = True, len(going)
            held, self._undecided = self._undecided, []
            going += [self._split(frame, ()) for frame in held[:-1]]
            going.append(self._split(frame, pieces))
        elif self._channels.applies is None and _decides(frame):
            self._channels.applies = False
        elif not self._channels.pending and (len(self._undecided) > _MOST_HELD or _thinks(frame)):
            going += self._undecided
            self._undecided.clear()
        return self._channels.applies is False

    def close(self) -> list[Frame]:
        if self._channels.applies is None:
            self._channels.applies = False
            held, self._undecided = self._undecided, []
            frames = super().take(held)
            passed = self.passed
            rest = super().close()
            self.passed += passed
            return [*frames, *rest]
        self._reads = self._reads and not self._channels.applies
        return super().close()

    def _reply(self, frame: Frame) -> Frame:
        pieces: list[Piece] = []
        for event in frame.events:
            if type(event) is TextDelta:
                pieces += self._channels.feed(event.text)
        if not self._channels.applies:
            self._channels.applies = False
            return super()._reply(frame)
        self.rewritten = True
        split = self._split(frame, pieces)
        return Frame(b"", frame.payload, self._with_finished(split.events))

    def _split(self, frame: Frame, first: Sequence[Piece] | None = None) -> Frame:
        """Return a frame with events from its channels, and no bytes.

        ``first`` are the pieces of its text, if that was read already.
        """
        events: list[TurnEvent] = []
        for event in frame.events:
            if type(event) is TextDelta:
                pieces = self._channels.feed(event.text) if first is None else first
                first = None if first is None else ()
                events += self._events_in(pieces)
            elif isinstance(event, _CALLS):
                self._has_native = True
                events.append(event)
            elif type(event) is TurnFinished:
                events += self._end(event.reason)
                called = self._calls and event.reason.is_complete
                events.append(TurnFinished(FinishReason.TOOL_CALLS) if called else event)
            else:
                self._ended = self._ended or type(event) is TurnFailed
                events.append(event)
        if frame.is_end_mark:
            events += self._end(FinishReason.STOP)
        raw = frame.raw if frame.payload is None and not frame.is_end_mark else b""
        return Frame(raw, None, tuple(events), is_end_mark=frame.is_end_mark, undecided=frame.undecided)

    def _events_in(self, pieces: Sequence[Piece]) -> list[TurnEvent]:
        """Return pieces as events; a call waits for the end of the turn."""
        events: list[TurnEvent] = []
        for piece in pieces:
            if isinstance(piece, ChannelCall):
                if (call := self._read_call(piece)) is not None:
                    self._text_calls.append(call)
                    continue
                piece = TextDelta(piece.raw)
            if isinstance(piece, TextDelta):
                self._visible.append(piece.text)
            events.append(piece)
        return events

    def _read_call(self, piece: ChannelCall) -> TextCall | None:
        """Return a call of a declared tool; ``None`` for any other text."""
        if not self._may_call:
            return None
        try:
            return self._declared.call(piece.recipient, piece.body)
        except NotACall:
            return None

    def _end(self, reason: FinishReason) -> list[TurnEvent]:
        """Return the rest of the text and the calls, once."""
        if self._ended:
            return []
        self._ended = True
        events = self._events_in(self._channels.close(cut=not reason.is_complete))
        # Some servers send a call both ways.
        calls = [] if self._has_native or not reason.is_complete else self._text_calls
        self._note(len(calls), self._channels.notes)
        return [*events, *[event for call in calls for event in self._events_of(call)]]

    def _visible_texts(self) -> list[str]:
        return self._visible if self._channels.applies else super()._visible_texts()


def _decides(frame: Frame) -> bool:
    """Return whether no text can follow, or whether the turn has native calls."""
    return (
        frame.is_end_mark
        or frame.undecided > 0
        or any(isinstance(event, (*_CALLS, TurnFinished, TurnFailed)) for event in frame.events)
    )


def _thinks(frame: Frame) -> bool:
    return any(type(event) is ReasoningDelta for event in frame.events)
