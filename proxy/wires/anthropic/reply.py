"""Messages without streaming: the one object the client gets.

As on a stream, the upstream's bytes are handed on as they are unless a server tool was called.
"""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from proxy.events import Frame, ToolCall, ToolCallFinished, ToolProgress, ToolResult, UsageReported
from proxy.wires.anthropic.blocks import Block, blocks_text, stop_reason
from proxy.wires.anthropic.shown import mint, new_message, text_block, thought_block
from proxy.wires.chosen import NOTHING_SHOWN, ShownTools, ran
from proxy.wires.client_port import Trace, TurnEnd
from proxy.wires.dialects.anthropic import error_body
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_result
from proxy.wires.turn.usage import add_usage

__all__ = ["AnthropicReplyWriter"]


class AnthropicReplyWriter:
    """One message over all turns of its run."""

    def __init__(
        self,
        *,
        model: str,
        is_hidden: Callable[[str], bool],
        trace: Trace = "silent",
        last_text_only: bool = False,
        used_ids: frozenset[str] = frozenset(),
        shown: ShownTools = NOTHING_SHOWN,
    ) -> None:
        self._model = model
        self._is_hidden = is_hidden
        self._trace = trace
        self._chosen = shown
        self._last_text_only = last_text_only
        self._used_ids = used_ids
        self._composing = False
        self._first: Mapping[str, Any] = {}
        self._last = Frame(b"")
        self._blocks: list[Block] = []
        self._usage: dict[str, Any] = {}
        self._client_ids: dict[str, str] = {}
        self._told: list[dict[str, Any]] = []

    @property
    def composing(self) -> bool:
        return self._composing

    @property
    def visible(self) -> str:
        return blocks_text(self._blocks)

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def result(self) -> dict[str, Any] | None:
        return None

    def write(self, frame: Frame) -> bytes:
        """Take a whole reply; nothing leaves before :meth:`finish`."""
        payload = frame.payload or {}
        self._last = frame
        self._first = self._first or payload
        for event in frame.events:
            if isinstance(event, UsageReported):
                self._usage = add_usage(self._usage, event.usage.native)
        calls = iter([event.call for event in frame.events if isinstance(event, ToolCallFinished)])
        content = payload.get("content")
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, dict):
                continue
            if block.get("type") != "tool_use" or not block.get("name"):
                self._blocks.append(block)
            elif (call := next(calls, None)) is None or self._is_hidden(call.name):
                self._composing = True
            else:
                self._client_ids[call.call_id] = client_id = self._free_id(call)
                self._blocks.append({**block, "id": client_id})
        return b""

    def _free_id(self, call: ToolCall) -> str:
        return call.call_id if call.call_id not in self._used_ids else mint("toolu_")

    def turn_ended(self, end: TurnEnd) -> bytes:
        if end == "hidden":
            self._composing = True
            if self._last_text_only:
                self._blocks = [block for block in self._blocks if block.get("type") != "text"]
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
            self._blocks.append(thought_block(reasoning_line(call, result)))
        elif self._trace == "status" and not self._last_text_only:
            self._blocks.append(text_block(status_line(call, result) + "\n\n"))
        return b""

    def note(self, text: str) -> bytes:
        if not self._last_text_only:
            self._blocks.append(text_block(text))
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def finish(self, reason: str | None) -> bytes:
        if not self._composing:
            return self._last.raw
        last = self._last.payload or {}
        said = last.get("stop_reason")
        final = stop_reason(reason, said if isinstance(said, str) else None)
        message = {
            **new_message(self._model),
            **last,
            **{key: self._first[key] for key in ("id", "model") if self._first.get(key)},
            "content": self._blocks,
            "stop_reason": final,
            "usage": {"input_tokens": 0, "output_tokens": 0, **self._usage},
        }
        if final != said:
            message["stop_sequence"] = None
        if self._told:
            message["x_toolrelay"] = self._told
        return orjson.dumps(message)

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        return orjson.dumps(error_body(message, type=type, code=code))
