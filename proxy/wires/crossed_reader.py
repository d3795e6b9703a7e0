"""Encodes the events of an upstream as frames of the client's dialect: all, or from the first change on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from msgspec import structs

from proxy.base.errors import UpstreamError
from proxy.base.events import (
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    aborted,
)
from proxy.wires.client_port import TurnEncoder
from proxy.wires.upstream_port import ForwardingReader, TurnReader

_TEXTS: Final = (TextDelta, ReasoningDelta, RefusalDelta)


class CrossedReader(ForwardingReader):
    """A wrapper around the upstream's reader; its frames are in the client's dialect."""

    rewritten = False

    def __init__(self, reader: TurnReader, encoder: TurnEncoder, renamed: Mapping[str, str]) -> None:
        """``renamed`` maps the upstream's names of tools to the client's."""
        super().__init__(reader)
        self._encoder = encoder
        self._renamed = renamed
        self._is_whole = False
        self._failed = False
        self._closed = False

    @property
    def has_unread(self) -> bool:
        return self._reader.has_unread and not self._closed

    @property
    def left_out(self) -> Collection[str]:
        return self._encoder.left_out

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        return [] if self._closed else self.take(self._reader.feed(chunk, most=most, large=large))

    def take(self, frames: Sequence[Frame]) -> list[Frame]:
        """Return frames that were read, in the client's dialect; none once the turn has ended."""
        if self._closed:
            return []
        encoded = self._encoded(frames)
        for frame in frames:
            if frame.is_end_mark:
                self._is_whole = True
                return [*encoded, *self.end(self._reader.close())]
        return encoded

    def close(self) -> list[Frame]:
        return [] if self._closed else self.end(self._reader.close())

    def end(self, ends: Sequence[Frame]) -> list[Frame]:
        """Return the frames that end the turn, once its end mark came; later bytes do not belong to it.

        ``ends`` are the last frames that were read. A stream that broke off before the model gave its stop
        reason gets no end.
        """
        self._closed = True
        frames = self._encoded(ends)
        ended = self._is_whole or any(frame.is_end_mark for frame in ends)
        is_sound = ended and not self._failed and self._reader.fault is None
        return [*frames, *self._encoder.close()] if is_sound else frames

    def _encoded(self, frames: Sequence[Frame]) -> list[Frame]:
        encoded = []
        for frame in frames:
            if self._failed:
                break  # Some upstreams repeat the error in the events after it.
            for place, event in enumerate(frame.events):
                if type(event) is TurnFinished:
                    self._is_whole = True
                if (failure := _failure(event)) is not None:
                    # Nothing may come behind an error, not even from the same frame.
                    self._failed = True
                    frame = structs.replace(frame, events=(*frame.events[:place], failure))
                    break
            encoded += self._encoder.encode(self._named(frame) if self._renamed else frame)
        return encoded

    def _named(self, frame: Frame) -> Frame:
        """Return a frame in which calls have the client's names of the tools."""
        if not self._renamed or not frame.events:
            return frame
        return structs.replace(frame, events=tuple(_called(event, self._renamed) for event in frame.events))

    def read_reply(self, body: bytes) -> Frame:
        """See :meth:`proxy.wires.upstream_port.TurnReader.read_reply`.

        Raises :class:`~proxy.base.errors.UpstreamError` for an error that came as a reply.
        """
        return self.take_reply(self._reader.read_reply(body))

    def take_reply(self, frame: Frame) -> Frame:
        """Return a reply that was read, in the client's dialect; raises as :meth:`read_reply` does."""
        for event in frame.events:
            if (failure := _failure(event)) is not None:
                raise _upstream_error(failure)
        return self._encoder.encode_reply(self._named(frame))


class PassingReader(TurnReader, Protocol):
    """A reader whose frames are the upstream's own until it has changed one.

    Then it is ``rewritten``; ``passed`` is the number of frames, of those returned last, that came before.
    """

    passed: int


class ContinuedReader(ForwardingReader):
    """A reader whose frames are the upstream's own up to the first that the ``reader`` in it has changed.

    From there on an encoder of the same dialect continues the response that the client already has in part.
    """

    left_out = ()
    _reader: PassingReader

    def __init__(self, reader: PassingReader, encoder: Callable[[], TurnEncoder]) -> None:
        super().__init__(reader)
        self._make_encoder = encoder
        self._crossed: CrossedReader | None = None
        self._marks: list[tuple[Frame, str]] = []
        self._texts: list[str] = []
        self._members: Collection[str] = ()
        self._last = Frame(b"")

    @property
    def has_unread(self) -> bool:
        return self._reader.has_unread if self._crossed is None else self._crossed.has_unread

    def feed(
        self, chunk: bytes, *, together: bool = False, most: int = 0, large: bool = False
    ) -> list[Frame]:
        return self._going_on(self._reader.feed(chunk, most=most, large=large))

    def _going_on(self, frames: list[Frame]) -> list[Frame]:
        """Return the upstream's own frames up to the first change, and the encoder's frames from then on."""
        if self._crossed is not None:
            return self._crossed.take(frames)
        passed = self._reader.passed
        for frame in frames[:passed]:
            self._note(frame)
        if not self._reader.rewritten:
            return frames
        return [*frames[:passed], *self._take_over().take(frames[passed:])]

    def _note(self, frame: Frame) -> None:
        """Record what part of the response the client has."""
        events, payload = frame.events, frame.payload
        is_text = len(events) == 1 and isinstance(events[0], _TEXTS)
        if payload is not None and not (is_text and payload.keys() == self._members):
            self._marks.append((frame, "".join(self._texts)))
            self._texts.clear()
            self._members = payload.keys() if is_text else ()
        self._last = frame
        self._texts += [event.text for event in events if type(event) is TextDelta]

    def _take_over(self) -> CrossedReader:
        """Continue with an encoder, after reporting to it what the client has."""
        encoder = self._make_encoder()
        for frame, text in self._marks:
            encoder.note_forwarded(frame, text)
        if not (self._marks and self._marks[-1][0] is self._last):
            encoder.note_forwarded(self._last, "".join(self._texts))
        elif self._texts:
            encoder.note_forwarded(Frame(b""), "".join(self._texts))
        self._marks.clear()
        self._crossed = CrossedReader(self._reader, encoder, {})
        return self._crossed

    def close(self) -> list[Frame]:
        if self._crossed is not None:
            return self._crossed.close()
        frames = self._reader.close()
        if not self._reader.rewritten:
            return frames
        # The turn ends here, so the encoder must also write its end now.
        passed = self._reader.passed
        for frame in frames[:passed]:
            self._note(frame)
        return [*frames[:passed], *self._take_over().end(frames[passed:])]

    def read_reply(self, body: bytes) -> Frame:
        frame = self._reader.read_reply(body)
        if not self._reader.rewritten:
            return frame
        self._marks.append((frame, ""))
        return self._take_over().take_reply(frame)

    @property
    def rewritten(self) -> bool:
        return self._reader.rewritten


def _called(event: TurnEvent, names: Mapping[str, str]) -> TurnEvent:
    """Return the event with the client's name of its tool, if ``names`` has one."""
    if isinstance(event, ToolCallStarted) and event.name in names:
        return structs.replace(event, name=names[event.name])
    if isinstance(event, ToolCallFinished) and event.call.name in names:
        return structs.replace(event, call=replace(event.call, name=names[event.call.name]))
    return event


def _failure(event: TurnEvent) -> TurnFailed | None:
    """Return the failure that an event reports: an error, or a finish reason that is none of the model's.

    Other dialects have no words for such a reason.
    """
    if type(event) is TurnFinished and event.reason is FinishReason.ERROR:
        return TurnFailed(aborted(event.word))
    return event if type(event) is TurnFailed else None


def _upstream_error(event: TurnFailed) -> UpstreamError:
    said: Any = event.error.get("message")
    code: Any = event.error.get("code")
    return UpstreamError(
        said if isinstance(said, str) and said else "The upstream answered with an error.",
        code=code if isinstance(code, str) else None,
    )
