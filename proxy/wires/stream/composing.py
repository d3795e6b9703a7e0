"""The common part of the writers of several dialects whose stream can become the proxy's own."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from proxy.base.events import Frame, TextDelta, ToolCall, ToolProgress, ToolResult, TurnFailed, UsageReported
from proxy.wires.chosen import usage_of_call
from proxy.wires.client_port import ClientView, StreamWriter, TurnEnd
from proxy.wires.stream.fast_path import FastWriter
from proxy.wires.stream.held import HeldFrames, identity
from proxy.wires.stream.phases import COMPOSING, HIDDEN, HOLDING, NEXT, PASSING, TURN_ENDED, Sign
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_progress, trace_result
from proxy.wires.turn.usage import add_usage


class TracingWriter(StreamWriter, FastWriter):
    """The part of a writer that shows server calls and notes.

    ``last_text_only`` holds each turn until its end, because only the last of several turns may contribute
    JSON output. ``used_ids`` are call ids in the request's history.
    """

    _AFTER_STATUS: ClassVar[str] = "\n\n"
    """The text between the status line of a call and the text after it."""

    def __init__(
        self, view: ClientView, *, last_text_only: bool = False, used_ids: frozenset[str] = frozenset()
    ) -> None:
        self._is_hidden = view.is_hidden
        self._trace = view.trace
        self._shown = view.shown
        self._last_text_only = last_text_only
        self._used_ids = used_ids
        self._phase = HOLDING if last_text_only else PASSING
        self._held = HeldFrames()

    @property
    def composing(self) -> bool:
        return self._phase is COMPOSING

    @abstractmethod
    def _say(self, text: str) -> bytes:
        """Return a text of the proxy's own, as part of the answer."""

    @abstractmethod
    def _think(self, text: str) -> bytes:
        """Return a text of the proxy's own, as reasoning."""

    @abstractmethod
    def _tell(self, trace: Mapping[str, Any]) -> bytes:
        """Return an event of the trace, in a form that clients skip if they do not know it."""

    @abstractmethod
    def _count(self, usage: Mapping[str, Any]) -> None:
        """Add to the usage of all turns."""

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        return self._tell(trace_call(call, arguments)) if self._trace == "events" else b""

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return self._tell(trace_progress(call, progress)) if self._trace == "events" else b""

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        self._count(usage_of_call(self._shown, result))
        if self._trace == "events":
            return self._tell(trace_result(call, result))
        if self._trace == "reasoning":
            return self._think(reasoning_line(call, result))
        if self._trace == "status" and not self._last_text_only:
            return self._say(status_line(call, result) + self._AFTER_STATUS)
        return b""

    def note(self, text: str) -> bytes:
        return b"" if self._last_text_only else self._say(text)


class ComposingWriter(TracingWriter):
    """A writer that begins by passing on the upstream's bytes.

    If the run calls no server tool, it does so to the end. From the first server call on it composes the
    stream. The options are those of :class:`TracingWriter`.
    """

    def __init__(self, view: ClientView, **options: Any) -> None:
        super().__init__(view, **options)
        self._over = False
        self._texts: list[str] = []
        self._usage: dict[str, Any] = {}
        self._turn_usage: Mapping[str, Any] = {}
        self._drop_text = False

    @property
    def visible(self) -> str:
        return "".join(self._texts)

    def transform(self) -> Callable[[bytes], bytes] | None:
        return identity if self._phase is PASSING else None

    def write(self, frame: Frame) -> bytes:
        if self._phase is COMPOSING:
            return self._held.put(frame) if self._last_text_only else self._compose(frame)
        if (sign := self._sign(frame)) is HIDDEN:
            self._phase = NEXT[self._phase, HIDDEN]
            if self._last_text_only:
                return self._held.put(frame)
            return b"".join(map(self._compose, [*self._held.take(), frame]))
        if sign is not None:
            self._phase = NEXT[self._phase, sign]
        return self._forward(frame) if self._phase is PASSING else self._held.put(frame)

    @abstractmethod
    def _sign(self, frame: Frame) -> Sign | None:
        """Return what a frame reveals about its turn: ``HIDDEN``, ``OPEN``, or ``None``."""

    # The upstream's own bytes.

    def _forward(self, frame: Frame) -> bytes:
        """Pass a frame on unchanged, and note what a composed stream would need to continue it."""
        self._note(frame)
        self._note_forwarded(frame)
        self._over = self._over or frame.is_end_mark
        for event in frame.events:
            if isinstance(event, TextDelta):
                self._texts.append(event.text)
            elif isinstance(event, TurnFailed):
                return self._failed(frame, event.error)
        return frame.raw

    @abstractmethod
    def _note_forwarded(self, frame: Frame) -> None:
        """Note what the client gets from a frame that goes out unchanged."""

    def _failed(self, frame: Frame, error: Mapping[str, Any]) -> bytes:
        """Return the upstream's own error if clients can read it, else the same in the dialect's form."""
        if self._over:
            return b""
        self._over = True
        if self._is_readable_error(frame):
            return frame.raw
        code = next((word for name in ("code", "type") if isinstance(word := error.get(name), str)), None)
        message = str(error.get("message") or "The upstream reported an error.")
        return self._error(message, type="api_error", code=code)

    @abstractmethod
    def _is_readable_error(self, frame: Frame) -> bool:
        """Return whether clients of the dialect understand a frame of an error."""

    @abstractmethod
    def _error(self, message: str, *, type: str, code: str | None) -> bytes:
        """Return an error that ends a stream, in the form of the dialect."""

    def _note(self, frame: Frame) -> None:
        """Note the usage of the turn."""
        for event in frame.events:
            if isinstance(event, UsageReported):
                self._turn_usage = event.usage.native

    # The composed stream.

    @abstractmethod
    def _compose(self, frame: Frame) -> bytes:
        """Return a frame as part of the composed stream, without what is hidden."""

    # Events of the run.

    def turn_ended(self, end: TurnEnd) -> bytes:
        frames = self._held.take()
        self._phase = NEXT[self._phase, HIDDEN if end == "hidden" else TURN_ENDED]
        self._drop_text = end == "hidden" and self._last_text_only
        out = b"".join(map(self._compose if self._phase is COMPOSING else self._forward, frames))
        self._drop_text = False
        if self._phase is COMPOSING:
            out += self._close_turn()
        if self._turn_usage:
            self._count(self._turn_usage)
            self._turn_usage = {}
        return out

    def _count(self, usage: Mapping[str, Any]) -> None:
        self._usage = add_usage(self._usage, usage)

    def _close_turn(self) -> bytes:
        """Close what the upstream left open in a turn of the composed stream."""
        return b""

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """Return the dialect's error. Drop what was held back, because it may name a server call."""
        self._held.take()
        if self._over:
            return b""
        self._over = True
        return self._error(message, type=type, code=code)
