"""Ollama's chat: the stream the client sees.

The writer begins by handing on the upstream's bytes, and goes on like that to the end of a run in which no
server tool is called.  From the first server call on it composes: one answer with one last line, calls
numbered without a gap, no server call, the counts of all turns.  Nothing but whole lines with a message
leaves: clients choke on anything else.
"""

from collections.abc import Callable, Mapping
from typing import Any

from proxy.events import (
    Frame,
    TextDelta,
    ToolCall,
    ToolCallStarted,
    ToolProgress,
    ToolResult,
    TurnFailed,
    UsageReported,
    pauses,
)
from proxy.wires.chosen import NOTHING_SHOWN, ShownTools, ran
from proxy.wires.client_port import Trace, TurnEnd
from proxy.wires.dialects.ollama import error_line, line
from proxy.wires.ollama.calls import Call, keys_of
from proxy.wires.ollama.lines import (
    LineMaker,
    called_in,
    indexed,
    last_line,
    stop_reason,
    without_calls,
)
from proxy.wires.stream.fast_path import FastWriter
from proxy.wires.stream.held import HeldFrames, unchanged
from proxy.wires.stream.phases import COMPOSING, HIDDEN, HOLDING, NEXT, PASSING, TURN_ENDED
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_progress, trace_result
from proxy.wires.turn.usage import add_usage

__all__ = ["OllamaStreamWriter"]


class OllamaStreamWriter(FastWriter):
    """One client's stream, over all turns of its run.

    ``hold_text`` keeps a turn back until its end: of several turns only the last may give JSON output.
    ``used_ids`` are call ids that the request's history holds.  ``lines`` makes and reads lines.
    """

    def __init__(
        self,
        *,
        model: str,
        is_hidden: Callable[[str], bool],
        trace: Trace = "silent",
        hold_text: bool = False,
        used_ids: frozenset[str] = frozenset(),
        lines: type[LineMaker] = LineMaker,
        shown: ShownTools = NOTHING_SHOWN,
    ) -> None:
        self._lines = lines(model)
        self._is_hidden = is_hidden
        self._trace = trace
        self._chosen = shown
        self._hold_text = hold_text
        self._used_ids = used_ids
        self._phase = HOLDING if hold_text else PASSING
        self._held = HeldFrames()
        self._over = False
        self._shown: list[str] = []
        self._theirs: list[Call] = []
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._turn_usage: Mapping[str, Any] = {}
        self._drop_text = False

    @property
    def composing(self) -> bool:
        return self._phase is COMPOSING

    @property
    def visible(self) -> str:
        return "".join(self._shown)

    def client_ids(self) -> Mapping[str, str]:
        """A client need not keep ids, so what it knows a call by is made of what the call says."""
        keys = keys_of([call.says for call in self._theirs])
        return {call.call_id: key for call, key in zip(self._theirs, keys, strict=True)}

    def result(self) -> dict[str, Any] | None:
        return None

    def passing(self) -> Callable[[bytes], bytes] | None:
        return unchanged if self._phase is PASSING else None

    def write(self, frame: Frame) -> bytes:
        if self._phase is COMPOSING:
            return self._held.put(frame) if self._hold_text else self._compose(frame)
        is_ours = any(
            isinstance(event, ToolCallStarted) and self._is_hidden(event.name) for event in frame.events
        )
        if is_ours or pauses(frame.events):
            self._phase = NEXT[self._phase, HIDDEN]
            if self._hold_text:
                return self._held.put(frame)
            return b"".join(map(self._compose, [*self._held.take(), frame]))
        return self._forward(frame) if self._phase is PASSING else self._held.put(frame)

    # The upstream's own bytes.

    def _forward(self, frame: Frame) -> bytes:
        """Hand on a frame as it is, remembering what a composed stream would have to go on with."""
        self._note(frame)
        if frame.payload is not None:
            # Of a call that has only begun there is no line yet.
            self._theirs += called_in(frame)
        self._over = self._over or frame.is_end_mark
        for event in frame.events:
            if isinstance(event, TextDelta):
                self._shown.append(event.text)
            elif isinstance(event, TurnFailed):
                return self._failed(frame, event.error)
        return frame.raw

    def _failed(self, frame: Frame, error: Mapping[str, Any]) -> bytes:
        """The upstream's own error, where it is one that clients can show: a text."""
        if self._over:
            return b""
        self._over = True
        if frame.payload is not None and isinstance(frame.payload.get("error"), str):
            return frame.raw
        message = str(error.get("message") or "The upstream reported an error.")
        return error_line(message, type="api_error", code=None)

    def _note(self, frame: Frame) -> None:
        """Remember the turn's usage and how it ended."""
        for event in frame.events:
            if isinstance(event, UsageReported):
                self._turn_usage = event.usage.native
        payload = frame.payload
        if payload is not None and payload.get("done") is True:
            self._reason = str(payload.get("done_reason") or "stop")
        if payload is not None and isinstance(payload.get("model"), str) and payload["model"]:
            self._lines.model = payload["model"]

    # The composed stream.

    def _compose(self, frame: Frame) -> bytes:
        """A frame as part of the composed stream: less what is hidden, and never the last line."""
        self._note(frame)
        payload = frame.payload
        message = self._lines.message_of(payload) if payload is not None else None
        if payload is None or message is None:
            return b""
        theirs = [call for call in called_in(frame) if not self._is_hidden(call.name)]
        shown = without_calls(message, self._is_hidden)
        if self._drop_text:
            shown["content"] = ""
        self._shown += [shown["content"]] if isinstance(shown.get("content"), str) else []
        changed = payload.get("done") is True or shown.get("tool_calls") != message.get("tool_calls")
        if not theirs and not changed and not self._drop_text:
            return frame.raw
        if not (theirs or shown.get("content") or shown.get("thinking")):
            return b""
        ids = [self._free_id(call.call_id) for call in theirs]
        if len(ids) == len(shown.get("tool_calls") or ()):
            shown = indexed(shown, len(self._theirs), ids)
        self._theirs += theirs
        return line(self._lines.payload(**shown))

    def _free_id(self, call_id: str) -> str:
        return call_id if call_id not in self._used_ids else mint_call_id()

    def _show(self, **said: Any) -> bytes:
        """A line of our own."""
        if text := said.get("content"):
            self._shown.append(text)
        return line(self._lines.payload(**said))

    # What the run tells.

    def turn_ended(self, end: TurnEnd) -> bytes:
        frames = self._held.take()
        self._phase = NEXT[self._phase, HIDDEN if end == "hidden" else TURN_ENDED]
        self._drop_text = end == "hidden" and self._hold_text
        out = b"".join(map(self._compose if self._phase is COMPOSING else self._forward, frames))
        self._drop_text = False
        if self._turn_usage:
            self._usage = add_usage(self._usage, self._turn_usage)
            self._turn_usage = {}
        return out

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        return self._told(trace_call(call, arguments))

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return self._told(trace_progress(call, progress))

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        self._usage = add_usage(self._usage, ran(self._chosen, result))
        if self._trace == "reasoning":
            return self._show(thinking=reasoning_line(call, result))
        if self._trace == "status" and not self._hold_text:
            return self._show(content=status_line(call, result) + "\n\n")
        return self._told(trace_result(call, result))

    def _told(self, trace: Mapping[str, Any]) -> bytes:
        """A line that says nothing, with the trace beside it: clients pass over what they do not know."""
        if self._trace != "events":
            return b""
        return line({**self._lines.payload(), "x_toolrelay": trace})

    def note(self, text: str) -> bytes:
        return b"" if self._hold_text else self._show(content=text)

    def keep_alive(self) -> bytes:
        """A line with an empty content: every client takes it, and nothing else that says nothing."""
        return line(self._lines.payload())

    def finish(self, reason: str | None) -> bytes:
        if self._over:
            return b""
        self._over = True
        word = reason if reason is not None else self._reason
        return line(last_line(self._lines, stop_reason(word), self._usage))

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """The line with the error; what was held back may name a server call, and is dropped."""
        self._held.take()
        if self._over:
            return b""
        self._over = True
        return error_line(message, type=type, code=code)
