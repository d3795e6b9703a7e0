"""Ollama's chat without streaming: the one object the client gets.

As on a stream, the upstream's bytes are handed on as they are unless a server tool was called.
"""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from proxy.events import Frame, ToolCall, ToolCallFinished, ToolProgress, ToolResult, UsageReported
from proxy.wires.chosen import NOTHING_SHOWN, ShownTools, ran
from proxy.wires.client_port import Trace, TurnEnd
from proxy.wires.dialects.ollama import error_body
from proxy.wires.ollama.calls import Call, keys_of
from proxy.wires.ollama.lines import LineMaker, indexed, last_line, stop_reason, without_calls
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_result
from proxy.wires.turn.usage import add_usage

__all__ = ["OllamaReplyWriter"]


class OllamaReplyWriter:
    """One answer over all turns of its run."""

    def __init__(
        self,
        *,
        model: str,
        is_hidden: Callable[[str], bool],
        trace: Trace = "silent",
        last_text_only: bool = False,
        used_ids: frozenset[str] = frozenset(),
        lines: type[LineMaker] = LineMaker,
        shown: ShownTools = NOTHING_SHOWN,
    ) -> None:
        self._lines = lines(model)
        self._is_hidden = is_hidden
        self._trace = trace
        self._chosen = shown
        self._last_text_only = last_text_only
        self._used_ids = used_ids
        self._composing = False
        self._last = Frame(b"")
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._shown_calls: list[Any] = []
        self._theirs: list[Call] = []
        self._usage: dict[str, Any] = {}
        self._told: list[dict[str, Any]] = []

    @property
    def composing(self) -> bool:
        return self._composing

    @property
    def visible(self) -> str:
        return "".join(self._texts)

    def client_ids(self) -> Mapping[str, str]:
        """See :meth:`proxy.wires.ollama.writer.OllamaStreamWriter.client_ids`."""
        keys = keys_of([call.says for call in self._theirs])
        return {call.call_id: key for call, key in zip(self._theirs, keys, strict=True)}

    def result(self) -> dict[str, Any] | None:
        return None

    def write(self, frame: Frame) -> bytes:
        """Take a whole reply; nothing leaves before :meth:`finish`."""
        payload = frame.payload or {}
        self._last = frame
        if isinstance(payload.get("model"), str) and payload["model"]:
            self._lines.model = payload["model"]
        for event in frame.events:
            if isinstance(event, UsageReported):
                self._usage = add_usage(self._usage, event.usage.native)
        said = self._lines.message_of(payload) or {}
        self._texts += [text for text in [said.get("content")] if isinstance(text, str) and text]
        self._thoughts += [text for text in [said.get("thinking")] if isinstance(text, str) and text]
        calls = [event.call for event in frame.events if isinstance(event, ToolCallFinished)]
        called = [Call(call.call_id, call.name, call.arguments) for call in calls]
        theirs = [call for call in called if not self._is_hidden(call.name)]
        self._composing = self._composing or len(theirs) < len(called)
        shown = without_calls(said, self._is_hidden)
        if len(theirs) == len(shown.get("tool_calls") or ()):
            ids = [one.call_id if one.call_id not in self._used_ids else mint_call_id() for one in theirs]
            self._shown_calls += indexed(shown, len(self._theirs), ids).get("tool_calls") or ()
            self._theirs += theirs
        return b""

    def turn_ended(self, end: TurnEnd) -> bytes:
        if end == "hidden":
            self._composing = True
            if self._last_text_only:
                self._texts.clear()
        return b""

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        if self._trace == "events":
            self._told.append(trace_call(call, arguments))
        return b""

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return b""

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        self._usage = add_usage(self._usage, ran(self._chosen, result))
        if self._trace == "events":
            self._told.append(trace_result(call, result))
        elif self._trace == "reasoning":
            self._thoughts.append(reasoning_line(call, result))
        elif self._trace == "status" and not self._last_text_only:
            self._texts.append(status_line(call, result) + "\n\n")
        return b""

    def note(self, text: str) -> bytes:
        if not self._last_text_only:
            self._texts.append(text)
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def finish(self, reason: str | None) -> bytes:
        if not self._composing:
            return self._last.raw
        said: dict[str, Any] = {"content": "".join(self._texts)}
        if self._thoughts:
            said["thinking"] = "".join(self._thoughts)
        if self._shown_calls:
            said["tool_calls"] = self._shown_calls
        word = reason if reason is not None else str((self._last.payload or {}).get("done_reason"))
        whole = last_line(self._lines, stop_reason(word), self._usage, **said)
        if self._told:
            whole["x_toolrelay"] = self._told
        return orjson.dumps(whole)

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        return orjson.dumps(error_body(message, type=type, code=code))
