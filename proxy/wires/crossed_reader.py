"""Reads an upstream of another dialect, and encodes its events as frames of the client's dialect."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from proxy.base.errors import UpstreamError
from proxy.base.events import (
    FinishReason,
    Frame,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    aborted,
)
from proxy.wires.client_port import TurnEncoder
from proxy.wires.upstream_port import ForwardingReader, TurnReader


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
