"""Messages: the stream the client sees.

The writer begins by handing on the upstream's bytes, and goes on like that to the end of a run in which no
server tool is called.  From the first server call on it composes: one message from its start to its stop,
blocks numbered without a gap over all turns, no server call, the usage of all turns.
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
)
from proxy.wires.anthropic.blocks import Block, stop_reason
from proxy.wires.anthropic.shown import block_events, encode, mint, new_message, text_block, thought_block
from proxy.wires.chosen import NOTHING_SHOWN, ShownTools, ran
from proxy.wires.client_port import Trace, TurnEnd
from proxy.wires.dialects.anthropic import PING, STOP, error_event, ping_event
from proxy.wires.stream.fast_path import FastWriter
from proxy.wires.stream.held import HeldFrames, unchanged
from proxy.wires.stream.phases import COMPOSING, HIDDEN, HOLDING, NEXT, OPEN, PASSING, TURN_ENDED
from proxy.wires.stream.sse import is_comment
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_progress, trace_result
from proxy.wires.turn.usage import add_usage

__all__ = ["AnthropicStreamWriter"]


class AnthropicStreamWriter(FastWriter):
    """One client's stream, over all turns of its run.

    ``hold_text`` keeps a turn back until its end: of several turns only the last may give JSON output.
    ``used_ids`` are call ids that the request's history holds.
    """

    def __init__(
        self,
        *,
        model: str,
        is_hidden: Callable[[str], bool],
        trace: Trace = "silent",
        hold_text: bool = False,
        used_ids: frozenset[str] = frozenset(),
        shown: ShownTools = NOTHING_SHOWN,
    ) -> None:
        self._model = model
        self._is_hidden = is_hidden
        self._trace = trace
        self._chosen = shown
        self._hold_text = hold_text
        self._used_ids = used_ids
        self._phase = HOLDING if hold_text else PASSING
        self._held = HeldFrames()
        self._started = False
        self._over = False
        self._next = 0
        self._client_ids: dict[str, str] = {}
        self._shown: list[str] = []
        self._last: Mapping[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._turn_usage: Mapping[str, Any] = {}
        self._drop_text = False
        self._new_turn()

    def _new_turn(self) -> None:
        self._places: dict[int, int] = {}
        self._hidden: set[int] = set()

    @property
    def composing(self) -> bool:
        return self._phase is COMPOSING

    @property
    def visible(self) -> str:
        return "".join(self._shown)

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def result(self) -> dict[str, Any] | None:
        return None

    def passing(self) -> Callable[[bytes], bytes] | None:
        return unchanged if self._phase is PASSING else None

    def write(self, frame: Frame) -> bytes:
        if self._phase is COMPOSING:
            return self._held.put(frame) if self._hold_text else self._compose(frame)
        for event in frame.events:
            if isinstance(event, ToolCallStarted):
                if self._is_hidden(event.name):
                    return self._begin_composing(frame)
                # Where its id was repaired, the upstream's own bytes may reach the client only if the turn
                # calls no server tool, or the client would answer a call that nobody knows.
                if _block(frame).get("id") != event.call_id:
                    self._phase = NEXT[self._phase, OPEN]
        return self._forward(frame) if self._phase is PASSING else self._held.put(frame)

    def _begin_composing(self, frame: Frame) -> bytes:
        self._phase = NEXT[self._phase, HIDDEN]
        if self._hold_text:
            return self._held.put(frame)
        return b"".join(map(self._compose, [*self._held.take(), frame]))

    # The upstream's own bytes.

    def _forward(self, frame: Frame) -> bytes:
        """Hand on a frame as it is, remembering what a composed stream would have to go on with."""
        self._note(frame)
        payload = frame.payload or {}
        self._over = self._over or frame.is_end_mark
        kind = payload.get("type")
        if kind == "message_start":
            self._started = True
        elif kind == "content_block_start" and type(index := payload.get("index")) is int:
            self._places[index] = index
            self._next = max(self._next, index + 1)
        elif kind == "content_block_stop":
            self._places.pop(payload.get("index", -1), None)
        for event in frame.events:
            if isinstance(event, TextDelta):
                self._shown.append(event.text)
            elif isinstance(event, ToolCallStarted):
                self._client_ids[event.call_id] = event.call_id
            elif isinstance(event, TurnFailed):
                return self._failed(frame, event.error)
        return frame.raw

    def _failed(self, frame: Frame, error: Mapping[str, Any]) -> bytes:
        """The upstream's own error, under its name: without it some clients see only that a stream ends."""
        if self._over:
            return b""
        self._over = True
        if frame.raw.startswith((b"event: error\n", b"event:error\n", b"event: error\r\n")):
            return frame.raw
        code = next((word for name in ("code", "type") if isinstance(word := error.get(name), str)), None)
        message = str(error.get("message") or "The upstream reported an error.")
        return error_event(message, type="api_error", code=code)

    def _note(self, frame: Frame) -> None:
        """Remember the turn's usage and how it ended."""
        for event in frame.events:
            if isinstance(event, UsageReported):
                self._turn_usage = event.usage.native
        if frame.payload is not None and frame.payload.get("type") == "message_delta":
            self._last = frame.payload

    # The composed stream.

    def _compose(self, frame: Frame) -> bytes:
        """A frame as part of the composed stream: less what is hidden, at our places."""
        self._note(frame)
        payload = frame.payload
        if payload is None:
            return frame.raw if frame.raw[:1] == b":" and is_comment(frame.raw) else b""
        kind = payload.get("type")
        if kind == "message_start":
            return self._start(payload)
        if kind == "content_block_start":
            return self._open(frame, payload)
        if kind in ("content_block_delta", "content_block_stop"):
            return self._go_on(frame, payload, ends=kind == "content_block_stop")
        return frame.raw if kind == "ping" else b""

    def _start(self, payload: Mapping[str, Any] | None = None) -> bytes:
        """The start of the message, once."""
        if self._started:
            return b""
        self._started = True
        message = (payload or {}).get("message")
        known = message if isinstance(message, dict) else {}
        return encode({"type": "message_start", "message": {**new_message(self._model), **known}})

    def _open(self, frame: Frame, payload: dict[str, Any]) -> bytes:
        index, block = payload.get("index"), _block(frame)
        if type(index) is not int:
            return b""
        if self._hides(block):
            self._hidden.add(index)
            self._places.pop(index, None)
            return b""
        self._hidden.discard(index)
        for event in frame.events:
            if isinstance(event, ToolCallStarted):
                block = {**block, "id": self._free_id(event.call_id)}
            elif isinstance(event, TextDelta):
                self._shown.append(event.text)
        out = self._start()
        place = self._places[index] = self._next
        self._next += 1
        return out + encode({**payload, "index": place, "content_block": block})

    def _hides(self, block: Block) -> bool:
        """Whether a block is a call that the client must not see, or a text that would spoil its JSON."""
        if block.get("type") == "tool_use":
            return not block.get("name") or self._is_hidden(str(block["name"]))
        return self._drop_text and block.get("type") == "text"

    def _free_id(self, call_id: str) -> str:
        if call_id not in self._client_ids:
            self._client_ids[call_id] = call_id if call_id not in self._used_ids else mint("toolu_")
        return self._client_ids[call_id]

    def _go_on(self, frame: Frame, payload: dict[str, Any], *, ends: bool) -> bytes:
        index = payload.get("index")
        if index in self._hidden or index not in self._places:
            return b""
        place = self._places.pop(index) if ends else self._places[index]
        self._shown += [event.text for event in frame.events if isinstance(event, TextDelta)]
        return encode({**payload, "index": place})

    def _show(self, block: Block) -> bytes:
        """A block of our own at the next place."""
        out = self._start() + block_events(self._next, block)
        self._next += 1
        if block["type"] == "text":
            self._shown.append(block["text"])
        return out

    # What the run tells.

    def turn_ended(self, end: TurnEnd) -> bytes:
        frames = self._held.take()
        self._drop_text = end == "hidden" and self._hold_text
        out = b"".join(map(self._compose if self._phase is COMPOSING else self._forward, frames))
        self._drop_text = False
        self._phase = NEXT[self._phase, HIDDEN if end == "hidden" else TURN_ENDED]
        if self._phase is COMPOSING:
            # What the upstream left open ends with its turn.
            out += b"".join(
                encode({"type": "content_block_stop", "index": place}) for place in self._places.values()
            )
            self._new_turn()
        if self._turn_usage:
            self._usage = add_usage(self._usage, self._turn_usage)
            self._turn_usage = {}
        return out

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        return ping_event(x_toolrelay=trace_call(call, arguments)) if self._trace == "events" else b""

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return ping_event(x_toolrelay=trace_progress(call, progress)) if self._trace == "events" else b""

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        self._usage = add_usage(self._usage, ran(self._chosen, result))
        if self._trace == "events":
            return ping_event(x_toolrelay=trace_result(call, result))
        if self._trace == "reasoning":
            return self._show(thought_block(reasoning_line(call, result)))
        if self._trace == "status" and not self._hold_text:
            return self._show(text_block(status_line(call, result) + "\n\n"))
        return b""

    def note(self, text: str) -> bytes:
        return b"" if self._hold_text else self._show(text_block(text))

    def keep_alive(self) -> bytes:
        return PING

    def finish(self, reason: str | None) -> bytes:
        if self._phase is not COMPOSING:
            out = b"" if self._over else STOP
            self._over = True
            return out
        delta = self._last.get("delta")
        said = delta if isinstance(delta, dict) else {}
        final = stop_reason(reason, said.get("stop_reason"))
        told = said if final == said.get("stop_reason") else {}
        self._over = True
        ended = {
            **self._last,
            "type": "message_delta",
            "delta": {"stop_sequence": None, **told, "stop_reason": final},
            "usage": {"input_tokens": 0, "output_tokens": 0, **self._usage},
        }
        return self._start() + encode(ended) + STOP

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """The error event; what was held back may name a server call, and is dropped."""
        self._held.take()
        if self._over:
            return b""
        self._over = True
        return error_event(message, type=type, code=code)


def _block(frame: Frame) -> Block:
    block = (frame.payload or {}).get("content_block")
    return block if isinstance(block, dict) else {}
