"""Messages: encodes the turns of an upstream of another dialect as a server of the Messages API would.

Source: Anthropic's API reference, "Streaming messages". Blocks do not overlap: a call that begins while
another one is open waits for its end.

The arguments of a call are sent when they are complete, because the API itself checks them before it sends
them: its clients parse them as JSON, and fail for anything else. A tool with ``eager_input_streaming`` gets
them as they come, unchecked, because its client asked for that.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.base.chance import replayable
from proxy.base.conversation import Message, Refusal, Text, ToolCallPart
from proxy.base.events import (
    CitationAdded,
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallStarted,
    TurnEvent,
    TurnFinished,
    Usage,
)
from proxy.wires.anthropic.blocks import (
    FINISH_WORDS,
    OUR_SIGNATURE,
    TRANSLATED_SIGNATURE,
    Block,
    cited_blocks,
    web_citation,
)
from proxy.wires.anthropic.dialect import ANTHROPIC, PING
from proxy.wires.stream.encoding import EncodedCall, EventObject, ItemEncoder, TextEvent
from proxy.wires.stream.sse import encode_event
from proxy.wires.turn.arguments import arguments_object
from proxy.wires.turn.assembler import is_object, mint_call_id
from proxy.wires.turn.citations import LEFT_OUT

_DELTA = b"content_block_delta"
_TEXT_EVENT: Final = encode_event(
    b'{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"%b"}}', _DELTA
)
_THINKING_EVENT: Final = encode_event(
    b'{"type":"content_block_delta","index":%d,"delta":{"type":"thinking_delta","thinking":"%b"}}', _DELTA
)
"""The bytes that :meth:`AnthropicTurnEncoder.encode` makes of a text, without the index and the piece."""


class _Call(EncodedCall):
    """A call; ``is_sent`` means that its arguments are sent as they come, and some were."""

    call_id: str
    name: str
    is_eager: bool = False
    is_sent: bool = False

    def finish(self, arguments: str) -> None:
        """Take the arguments of the complete call, unless the client has most of them."""
        if not self.is_sent:
            self.pieces = [arguments]

    def eager(self) -> str:
        """Return arguments that can be sent before they are complete.

        Some servers write ``null``, or the object as a JSON string. So a text that does not begin like an
        object waits for the end of the call, when its arguments are complete.
        """
        if not self.is_eager:
            return ""
        if self.is_sent:
            return self.pieces[-1]
        text = "".join(self.pieces)
        self.is_sent = text.lstrip().startswith("{")
        return text if self.is_sent else ""

    def rest(self, *, cut: bool) -> str:
        """Return what is left to send when the call is complete; nothing of arguments that were ``cut``."""
        text = "".join(self.pieces)
        if self.is_sent or not text:
            return ""
        if is_object(text):
            return text
        return "" if cut else orjson.dumps(arguments_object(text)).decode()

    def block(self, *, cut: bool) -> Block:
        """Return the complete block."""
        text = "".join(self.pieces)
        given = {} if cut and not is_object(text) else arguments_object(text)
        return {"type": "tool_use", "id": self.call_id, "name": self.name, "input": given}


class AnthropicTurnEncoder(ItemEncoder[_Call]):
    """An encoder of one turn. ``eager`` are the tools whose arguments are sent as they come."""

    _KEEP_ALIVE = PING

    def __init__(self, model: str, eager: Collection[str] = ()) -> None:
        super().__init__(model)
        self._eager = eager
        self._id = replayable("message_id", lambda: f"msg_{secrets.token_hex(12)}")
        self._begun = False
        self._content: list[Block] = []
        self._text: Block | None = None
        self._pieces: list[str] = []
        self._is_cited = False
        self._has_refused = False
        self._usage: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0}

    def encode(self, frame: Frame) -> list[Frame]:
        if len(frame.events) == 1 and type(only := frame.events[0]) is TextDelta:
            # Nearly every frame is one piece of the open text.
            block = self._text
            if block is not None and self.text_is_open(TextDelta):
                self._pieces.append(only.text)
                delta = self._delta({"type": "text_delta", "text": only.text})
                raw = encode_event(orjson.dumps(delta), _DELTA)
                return [Frame(raw, delta, frame.events, undecided=frame.undecided)]
        return super().encode(frame)

    def _frames(self, event: TurnEvent, undecided: int) -> list[Frame]:
        made = [self._frame(encoded, undecided) for encoded in self._encode(event)]
        if not isinstance(event, ToolCallStarted):
            # The event for a call's beginning goes with its own block, which may have to wait.
            last = made.pop() if made else Frame(b"", undecided=undecided)
            made.append(replace(last, events=(*last.events, self._translated(event))))
        return made

    def text_is_open(self, kind: type[TurnEvent]) -> bool:
        block, name = self._text, "thinking" if kind is ReasoningDelta else "text"
        if block is None or self._open_call is not None or self._is_cited:
            return False
        return bool(block["type"] == name)

    def write_text(self, kind: type[TurnEvent], pieces: Sequence[bytes]) -> bytes:
        event = _THINKING_EVENT if kind is ReasoningDelta else _TEXT_EVENT
        index = len(self._content)
        return b"".join([event % (index, piece) for piece in pieces])

    def report_text(self, event: TextDelta | ReasoningDelta | RefusalDelta, count: int) -> Frame:
        name = "thinking" if isinstance(event, ReasoningDelta) else "text"
        self._has_refused = self._has_refused or isinstance(event, RefusalDelta)
        self._pieces.append(event.text)
        delta = self._delta({"type": f"{name}_delta", name: event.text})
        return Frame(b"", delta, (event,), count=count)

    def note_forwarded(self, frame: Frame, text: str) -> None:
        payload = frame.payload or {}
        if self._text is not None and self._text["type"] == "text":
            self._pieces.append(text)
        match payload.get("type"):
            case "message_start" | "message":
                message = payload.get("message", payload)
                self._begun = payload["type"] == "message_start"
                self._id = str(message.get("id") or self._id)
                self._model = str(message.get("model") or self._model)
            case "content_block_start" if isinstance(block := payload.get("content_block"), dict):
                # The text in a block's start is part of the text that was sent.
                self._text = {**block, "text": ""} if block.get("type") == "text" else dict(block)
            case "content_block_stop" if self._text is not None:
                self._content.append(self._whole(self._text))
                self._text = None

    def close(self) -> list[Frame]:
        if self._failed:
            return []
        events = list(self._closed())
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": self._usage})
        end = self._frame({"type": "message_stop"})
        return [*map(self._frame, events), Frame(end.raw, end.payload, is_end_mark=True)]

    def encode_reply(self, frame: Frame) -> Frame:
        cited = [event for event in frame.events if isinstance(event, CitationAdded) and event.url]
        self._take(event for event in frame.events if event not in cited)
        translated = tuple(map(self._translated, frame.events))
        self.close()
        content = cited_blocks(self._content, cited) if cited else self._content
        if content is None:
            self.left_out.add(LEFT_OUT)
        message = {
            **new_message(self._model, self._id),
            "content": self._content if content is None else content,
            "stop_reason": self._stop_reason(),
            "usage": self._usage,
        }
        return Frame(orjson.dumps(message), message, translated)

    def _finish(self, end: TurnFinished) -> TurnFinished:
        """Return the end of a turn; Messages says there, and nowhere else, that the model has refused.

        Source: Anthropic's documentation, "Handling stop reasons", ``refusal``.
        """
        refused = self._has_refused and end.reason is FinishReason.STOP and not self._calls
        return TurnFinished(FinishReason.CONTENT_FILTER) if refused else end

    def _stop_reason(self) -> str:
        is_call = bool(self._calls) and self._reason is FinishReason.STOP
        return FINISH_WORDS.write(FinishReason.TOOL_CALLS if is_call else self._reason)

    def _native_usage(self, usage: Usage) -> Usage:
        """Return the same tokens, with a usage object of this dialect: it counts cached tokens separately."""
        native: dict[str, Any] = {
            "input_tokens": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
            "cache_creation_input_tokens": usage.cache_write_tokens,
            # Some servers report more cached tokens than input tokens.
            "cache_read_input_tokens": min(usage.cached_tokens, usage.input_tokens),
            "output_tokens": usage.output_tokens,
        }
        if usage.reasoning_tokens:
            native["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
        return replace(usage, total_tokens=usage.all_tokens, native=native)

    def _error(self, error: Mapping[str, Any]) -> Iterator[EventObject]:
        yield {"type": "error", "error": error}

    def _opening(self) -> Iterator[EventObject]:
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": new_message(self._model, self._id)}

    # Blocks, one after the other.

    def _delta(self, delta: dict[str, Any]) -> EventObject:
        return {"type": "content_block_delta", "index": len(self._content), "delta": delta}

    def _text_delta(self, event: TextEvent) -> Iterator[EventObject]:
        self._has_refused = self._has_refused or isinstance(event, RefusalDelta)
        kind, text = "thinking" if isinstance(event, ReasoningDelta) else "text", event.text
        # Text after a citation has other sources, or none.
        goes_on = not self._is_cited or not text.strip()
        if self._text is None or self._text["type"] != kind or not goes_on:
            yield from self._closed_text()
            self._text = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            start = dict(self._text)
            yield {"type": "content_block_start", "index": len(self._content), "content_block": start}
        self._pieces.append(text)
        yield self._delta({"type": f"{kind}_delta", kind: text})
        if self._early and kind == "text":
            yield from self._cited_early()

    def _cite(self, citation: CitationAdded) -> Iterator[EventObject]:
        if self._text is None or self._text["type"] != "text":
            self._early.append(citation)
            return
        cited = web_citation(citation)
        self._is_cited = True
        listed = self._text.get("citations")
        if not isinstance(listed, list):
            listed = self._text["citations"] = []
        listed.append(cited)
        yield self._delta({"type": "citations_delta", "citation": cited})

    def _closed_text(self, status: str = "completed") -> Iterator[EventObject]:
        block, self._text, self._is_cited = self._text, None, False
        if block is None:
            return
        if block["type"] == "thinking":
            block = {**block, "signature": TRANSLATED_SIGNATURE}
            yield self._delta({"type": "signature_delta", "signature": TRANSLATED_SIGNATURE})
        yield self._stopped(self._whole(block))

    def _whole(self, block: Block) -> Block:
        """Return the block of text that ends, with its whole text."""
        text, self._pieces = "".join(self._pieces), []
        return {**block, block["type"]: text} if text else block

    def _stopped(self, block: Block) -> EventObject:
        self._content.append(block)
        return {"type": "content_block_stop", "index": len(self._content) - 1}

    def _new_call(self, event: ToolCallStarted) -> _Call:
        return _Call(event.call_id, event.name, event.name in self._eager)

    def _start_of_call(self, call: _Call) -> EventObject:
        block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
        return {"type": "content_block_start", "index": len(self._content), "content_block": block}

    def _arguments(self, call: _Call, text: str) -> Iterator[EventObject]:
        if ready := call.eager():
            yield self._delta({"type": "input_json_delta", "partial_json": ready})

    def _end_of_call(self, call: _Call) -> Iterator[EventObject]:
        cut = not self._reason.is_complete
        if rest := call.rest(cut=cut):
            yield self._delta({"type": "input_json_delta", "partial_json": rest})
        yield self._stopped(call.block(cut=cut))

    def _frame(self, event: EventObject, undecided: int = 0) -> Frame:
        """Encode one event. A frame that begins a call's block also has the event of the call."""
        if event["type"] == "error":
            error: Mapping[str, Any] = event["error"]
            raw = ANTHROPIC.errors.event(
                str(error.get("message") or "The upstream reported an error."),
                type=str(error.get("type") or "upstream_error"),
                code=str(error["code"]) if error.get("code") else None,
            )
            return Frame(raw, {"type": "error", "error": dict(error)}, undecided=undecided)
        raw = encode(event)
        block = event.get("content_block", {})
        calls = [(seq, call) for seq, call in self._calls.items() if call.call_id == block.get("id")]
        started = tuple(ToolCallStarted(seq, call.call_id, call.name) for seq, call in calls)
        return Frame(raw, event, started, undecided=undecided)


def turn_blocks(message: Message) -> bytes:
    """Write an assistant message as a Messages client would send it back, without reasoning."""
    blocks: list[Block] = []
    for part in message.parts:
        if isinstance(part, Text | Refusal):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, ToolCallPart):
            blocks.append(_Call(part.call_id, part.name, pieces=[part.arguments]).block(cut=False))
    return orjson.dumps({"role": "assistant", "content": blocks})


# ---------------------------------------------------------------- the proxy's own events and blocks


def encode(payload: Mapping[str, Any]) -> bytes:
    """Encode an event under the name in its data."""
    return encode_event(orjson.dumps(payload), str(payload["type"]).encode())


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def thought_block(text: str) -> Block:
    """Return a thought by the proxy, which recognizes it by its signature when the client sends it back."""
    return {"type": "thinking", "thinking": text, "signature": OUR_SIGNATURE}


def block_events(index: int, block: Block) -> bytes:
    """Encode a whole block as events: its texts and its input begin empty, and a signature comes last."""
    kind = block["type"]
    if kind not in ("text", "thinking"):
        return _whole_block_events(index, block)
    empty = {key: value if key == "type" else "" for key, value in block.items()}
    deltas = [{"type": f"{kind}_delta", kind: block[kind]}]
    if "signature" in block:
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]
    return b"".join(map(encode, events))


def _whole_block_events(index: int, block: Block) -> bytes:
    """Encode a call of a server tool, whose input is streamed, or a result, which has no deltas."""
    events: list[dict[str, Any]] = [{"type": "content_block_start", "index": index, "content_block": block}]
    if "input" in block:
        events[0]["content_block"] = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
    return b"".join(map(encode, [*events, {"type": "content_block_stop", "index": index}]))


def new_message(model: str, message_id: str = "") -> dict[str, Any]:
    """Return an empty message, with a new id if it has none."""
    return {
        "id": message_id or mint_call_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
