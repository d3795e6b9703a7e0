"""Messages: writes the client's stream.

The writer begins by forwarding the upstream's bytes, and does so to the end of a run without server calls.
From the first server call on it composes one message from its start to its stop. Its blocks are numbered
without gaps over all turns. It has no server calls, and the usage of all turns.

A call that has a form of its own is shown as ``server_tool_use`` with its result behind it, and then come the
calls of the client, as if the model had called one after the other. Anthropic runs the tool of such a turn
only once the client has answered; the proxy does so at once, and a result always follows its call. So the
calls of the client wait for the end of the turn if there may be such a call.

Source: Anthropic's page "Server tools": the result follows the ``server_tool_use`` block in the same turn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.base.events import FinishReason, Frame, TextDelta, ToolCall, ToolCallStarted, ToolResult
from proxy.wires.anthropic.blocks import FINISH_WORDS, Block
from proxy.wires.anthropic.crossing.encoder import (
    block_events,
    encode,
    new_message,
    text_block,
    thought_block,
)
from proxy.wires.anthropic.dialect import PING, STOP, error_event, ping_event
from proxy.wires.anthropic.hosted.programs import ContainerInUse
from proxy.wires.anthropic.hosted.shown_programs import ProgramBlocks
from proxy.wires.client_port import ClientCall, ClientView
from proxy.wires.stream.composing import ComposingWriter
from proxy.wires.stream.phases import COMPOSING, HIDDEN, OPEN, Sign
from proxy.wires.stream.sse import is_comment
from proxy.wires.turn.assembler import mint_call_id


class AnthropicStreamWriter(ComposingWriter):
    """A writer of one client's stream, over all turns. The options are those of :class:`ComposingWriter`."""

    def __init__(self, view: ClientView, *, container: ContainerInUse | None = None, **options: Any) -> None:
        super().__init__(view, **options)
        self._model = view.model
        self._programs = ProgramBlocks(view, container)
        self._opening = self._programs.opening
        if self._opening:
            self._phase = COMPOSING
        self._started = False
        self._next = 0
        self._client_ids: dict[str, str] = {}
        self._last: Mapping[str, Any] = {}
        self._begun: dict[str, Block | None] = {}
        self._late: dict[int, list[dict[str, Any]]] = {}
        self._new_turn()

    def _new_turn(self) -> None:
        self._places: dict[int, int] = {}
        self._hidden: set[int] = set()

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def _sign(self, frame: Frame) -> Sign | None:
        sign: Sign | None = None
        for event in frame.events:
            if isinstance(event, ToolCallStarted):
                if self._is_hidden(event.name):
                    return HIDDEN
                # If its id was repaired, the upstream's own bytes may reach the client only if the turn calls
                # no server tool; otherwise the client would answer a call with an unknown id.
                if _block(frame).get("id") != event.call_id or self._shown.forms:
                    sign = OPEN
        return sign

    # The upstream's own bytes.

    def _note_forwarded(self, frame: Frame) -> None:
        payload = frame.payload or {}
        kind, index = payload.get("type"), payload.get("index")
        if kind == "message_start":
            self._started = True
        elif kind == "content_block_start" and type(index) is int:
            self._places[index] = index
            self._next = max(self._next, index + 1)
        elif kind == "content_block_stop" and type(index) is int:
            self._places.pop(index, None)
        for event in frame.events:
            if isinstance(event, ToolCallStarted):
                self._client_ids[event.call_id] = event.call_id

    def _is_readable_error(self, frame: Frame) -> bool:
        """Return whether the event has its name: without it some clients see only that the stream ends."""
        return frame.raw.startswith((b"event: error\n", b"event:error\n", b"event: error\r\n"))

    def _error(self, message: str, *, type: str, code: str | None) -> bytes:
        return error_event(message, type=type, code=code)

    def _note(self, frame: Frame) -> None:
        """Remember the turn's usage and how the turn ended."""
        super()._note(frame)
        if frame.payload is not None and frame.payload.get("type") == "message_delta":
            self._last = frame.payload

    # The composed stream.

    def _compose(self, frame: Frame) -> bytes:
        """Write a frame as part of the composed stream: without hidden parts, at our indices."""
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
        """Write the start of the message, once."""
        if self._started:
            return b""
        self._started = True
        message = (payload or {}).get("message")
        known = message if isinstance(message, dict) else {}
        opening, self._opening = self._opening, []
        start = encode({"type": "message_start", "message": {**new_message(self._model), **known}})
        return start + b"".join(map(self._show, opening)) if opening else start

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
                if self._shown.forms:
                    self._late[index] = [{**payload, "content_block": block}]
                    return b""
            elif isinstance(event, TextDelta):
                self._texts.append(event.text)
        out = self._start()
        place = self._places[index] = self._next
        self._next += 1
        return out + encode({**payload, "index": place, "content_block": block})

    def _hides(self, block: Block) -> bool:
        """Return whether a block is a call to hide from the client, or a text that would break its JSON."""
        if block.get("type") == "tool_use":
            return not block.get("name") or self._is_hidden(str(block["name"]))
        return self._drop_text and block.get("type") == "text"

    def _free_id(self, call_id: str) -> str:
        if call_id not in self._client_ids:
            self._client_ids[call_id] = call_id if call_id not in self._used_ids else mint_call_id("toolu_")
        return self._client_ids[call_id]

    def _go_on(self, frame: Frame, payload: dict[str, Any], *, ends: bool) -> bytes:
        index = payload.get("index")
        if type(index) is not int:
            return b""
        if index in self._late and index not in self._places:
            self._late[index].append(payload)
            return b""
        if index in self._hidden or index not in self._places:
            return b""
        place = self._places.pop(index) if ends else self._places[index]
        self._texts += [event.text for event in frame.events if isinstance(event, TextDelta)]
        return encode({**payload, "index": place})

    def _show(self, block: Block) -> bytes:
        """Write a block of the proxy's own at the next index."""
        out = self._start() + block_events(self._next, block)
        self._next += 1
        if block["type"] == "text":
            self._texts.append(block["text"])
        return out

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        if (form := self._shown.forms.get(call.name)) is None:
            return super().tool_started(call, arguments)
        self._begun[call.call_id] = block = self._programs.begun(form, call, arguments)
        return b"" if block is None else self._show(block)

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        if (form := self._shown.forms.get(call.name)) is None:
            return super().tool_finished(call, result)
        self._count(form.usage(result))
        return b"".join(map(self._show, form.ended(self._begun.pop(call.call_id), call, result)))

    @property
    def container(self) -> str:
        return self._programs.container.id

    def client_called(self, name: str, calls: Sequence[ClientCall]) -> bytes:
        return b"".join(map(self._show, self._programs.called(name, calls)))

    def _say(self, text: str) -> bytes:
        return self._show(text_block(text))

    def _think(self, text: str) -> bytes:
        return self._show(thought_block(text))

    def _tell(self, trace: Mapping[str, Any]) -> bytes:
        return ping_event(x_toolrelay=trace)

    def _close_turn(self) -> bytes:
        places = self._places.values()
        out = b"".join(encode({"type": "content_block_stop", "index": place}) for place in places)
        self._new_turn()
        return out

    def _late_calls(self) -> bytes:
        """Write the calls of the client that waited for the calls with forms of their own."""
        out = b""
        for events in self._late.values():
            if events[-1].get("type") != "content_block_stop":
                events.append({"type": "content_block_stop"})
            out += b"".join(encode({**event, "index": self._next}) for event in events)
            self._next += 1
        return out

    # What the run reports.

    def keep_alive(self) -> bytes:
        return PING

    def finish(self, reason: FinishReason | None) -> bytes:
        if self._phase is not COMPOSING:
            out = b"" if self._over else STOP
            self._over = True
            return out
        delta = self._last.get("delta")
        known = delta if isinstance(delta, dict) else {}
        final = FINISH_WORDS.write(reason, known.get("stop_reason"))
        kept = known if final == known.get("stop_reason") else {}
        self._over = True
        ended = {
            **self._last,
            "type": "message_delta",
            "delta": {"stop_sequence": None, **kept, "stop_reason": final, **self._programs.ending()},
            "usage": {"input_tokens": 0, "output_tokens": 0, **self._usage},
        }
        return self._start() + self._late_calls() + encode(ended) + STOP


def _block(frame: Frame) -> Block:
    block = (frame.payload or {}).get("content_block")
    return block if isinstance(block, dict) else {}
