"""Messages: encodes the turns of an upstream of another dialect as a server of the Messages API would.

Source: Anthropic's API reference, "Streaming messages".  Blocks do not overlap: a call that begins while
another one is open waits for its end.

The arguments of a call are sent when they are complete, because the API itself checks them before it sends
them: its clients parse them as JSON, and fail for anything else.  A tool with ``eager_input_streaming`` gets
them as they come, unchecked, because its client asked for that.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from proxy.base.chance import replayable
from proxy.base.conversation import Message, Refusal, Text, ToolCallPart
from proxy.base.events import (
    CitationAdded,
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.wires.anthropic.blocks import FINISH_WORDS, TRANSLATED_SIGNATURE
from proxy.wires.anthropic.citations import cited_blocks, web_citation
from proxy.wires.client_port import ContinuingEncoder, TextEncoder
from proxy.wires.dialects.anthropic import ANTHROPIC, PING
from proxy.wires.stream.sse import encode_event
from proxy.wires.turn.arguments import arguments_object
from proxy.wires.turn.assembler import is_object
from proxy.wires.turn.citations import LEFT_OUT

__all__ = ["AnthropicTurnEncoder", "turn_blocks"]

_DELTA = b"content_block_delta"
_TEXT_EVENT: Final = encode_event(
    b'{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"%b"}}', _DELTA
)
_THINKING_EVENT: Final = encode_event(
    b'{"type":"content_block_delta","index":%d,"delta":{"type":"thinking_delta","thinking":"%b"}}', _DELTA
)
"""The bytes that :meth:`AnthropicTurnEncoder.encode` makes of a text, without the index and the piece."""

Block = dict[str, Any]
EventObject = dict[str, Any]


@dataclass(slots=True)
class _Call:
    """A call, with what was sent of it so far."""

    call_id: str
    name: str
    is_eager: bool = False
    pieces: list[str] = field(default_factory=list)
    is_told: bool = False
    is_done: bool = False

    def eager(self) -> str:
        """Return arguments that can be sent before they are complete.

        Some servers write ``null``, or the object as a JSON string.  So a text that does not begin like an
        object waits for the end of the call, when its arguments are complete.
        """
        if not self.is_eager:
            return ""
        if self.is_told:
            return self.pieces[-1]
        said = "".join(self.pieces)
        self.is_told = said.lstrip().startswith("{")
        return said if self.is_told else ""

    def rest(self, *, cut: bool) -> str:
        """Return what is left to send when the call is complete; nothing of arguments that were ``cut``."""
        said = "".join(self.pieces)
        if self.is_told or not said:
            return ""
        if is_object(said):
            return said
        return "" if cut else orjson.dumps(arguments_object(said)).decode()

    def block(self, *, cut: bool) -> Block:
        """Return the complete block."""
        said = "".join(self.pieces)
        given = {} if cut and not is_object(said) else arguments_object(said)
        return {"type": "tool_use", "id": self.call_id, "name": self.name, "input": given}


class AnthropicTurnEncoder(ContinuingEncoder, TextEncoder):
    """An encoder of one turn.  ``eager`` are the tools whose arguments are sent as they come."""

    def __init__(self, model: str, eager: Collection[str] = ()) -> None:
        self._model = model
        self._eager = eager
        self._id = replayable("message_id", lambda: f"msg_{secrets.token_hex(12)}")
        self._begun = False
        self._failed = False
        self._content: list[Block] = []
        self._text: Block | None = None
        self._pieces: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._waiting: list[int] = []
        self._open_call: int | None = None
        self._later: list[TextDelta | ReasoningDelta | RefusalDelta | CitationAdded] = []
        self._early: list[CitationAdded] = []
        self._is_cited = False
        self.left_out: set[str] = set()
        self._reason = FinishReason.STOP
        self._has_refused = False
        self._usage: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0}

    def encode(self, frame: Frame) -> list[Frame]:
        """See :meth:`proxy.wires.client_port.TurnEncoder.encode`."""
        if len(frame.events) == 1 and type(only := frame.events[0]) is TextDelta:
            # Nearly every frame is one piece of the open text.
            block = self._text
            if block is not None and self.text_is_open(TextDelta):
                self._pieces.append(only.text)
                said = self._delta({"type": "text_delta", "text": only.text})
                raw = encode_event(orjson.dumps(said), _DELTA)
                return [Frame(raw, said, frame.events, undecided=frame.undecided)]
        frames: list[Frame] = []
        for event in frame.events:
            made = [self._frame(one, frame.undecided) for one in self._encode(event)]
            told: TurnEvent = event
            if isinstance(event, UsageReported):
                told = UsageReported(_in_messages_words(event.usage))
            elif isinstance(event, TurnFinished):
                told = self._told(event)
            if not isinstance(event, ToolCallStarted):
                # The event for a call's beginning goes with its own block, which may have to wait.
                last = made.pop() if made else Frame(b"", undecided=frame.undecided)
                made.append(replace(last, events=(*last.events, told)))
            frames += made
        is_comment = frame.payload is None and frame.raw and not frame.is_end_mark
        if not frames and (frame.undecided or is_comment):
            ping = PING if is_comment else b""
            frames.append(Frame(ping, undecided=frame.undecided))
        return frames

    def text_is_open(self, kind: type[TurnEvent]) -> bool:
        """See :meth:`proxy.wires.client_port.TextEncoder.text_is_open`."""
        block, name = self._text, "thinking" if kind is ReasoningDelta else "text"
        if block is None or self._open_call is not None or self._is_cited:
            return False
        return bool(block["type"] == name)

    def write_text(self, kind: type[TurnEvent], pieces: Sequence[bytes]) -> bytes:
        """See :meth:`proxy.wires.client_port.TextEncoder.write_text`."""
        event = _THINKING_EVENT if kind is ReasoningDelta else _TEXT_EVENT
        index = len(self._content)
        return b"".join([event % (index, piece) for piece in pieces])

    def report_text(self, event: TextDelta | ReasoningDelta | RefusalDelta, count: int) -> Frame:
        """See :meth:`proxy.wires.client_port.TextEncoder.report_text`."""
        name = "thinking" if isinstance(event, ReasoningDelta) else "text"
        self._has_refused = self._has_refused or isinstance(event, RefusalDelta)
        self._pieces.append(event.text)
        said = self._delta({"type": f"{name}_delta", name: event.text})
        return Frame(b"", said, (event,), count=count)

    def note_forwarded(self, frame: Frame, text: str) -> None:
        """See :meth:`proxy.wires.client_port.ContinuingEncoder.note_forwarded`."""
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
        """See :meth:`proxy.wires.client_port.TurnEncoder.close`."""
        if self._failed:
            return []
        events = [*self._start(), *self._closed_text()]
        for seq in list(self._calls):
            events += self._closed_call(seq)
        events += self._closed_text()
        if self._early:
            self.left_out.add(LEFT_OUT)
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": self._usage})
        end = self._frame({"type": "message_stop"})
        return [*map(self._frame, events), Frame(end.raw, end.payload, is_end_mark=True)]

    def encode_reply(self, frame: Frame) -> Frame:
        """See :meth:`proxy.wires.client_port.TurnEncoder.encode_reply`."""
        told: list[TurnEvent] = []
        cited = [event for event in frame.events if isinstance(event, CitationAdded) and event.url]
        for event in frame.events:
            if not (isinstance(event, CitationAdded) and event.url):
                for _ in self._encode(event):
                    pass
            if isinstance(event, UsageReported):
                event = UsageReported(_in_messages_words(event.usage))
            elif isinstance(event, TurnFinished):
                event = self._told(event)
            told.append(event)
        self.close()
        content = cited_blocks(self._content, cited) if cited else self._content
        if content is None:
            self.left_out.add(LEFT_OUT)
        message = {
            **self._message(),
            "content": self._content if content is None else content,
            "stop_reason": self._stop_reason(),
            "usage": self._usage,
        }
        return Frame(orjson.dumps(message), message, tuple(told))

    def _told(self, end: TurnFinished) -> TurnFinished:
        """Return the end of a turn; Messages says there, and nowhere else, that the model has refused.

        Source: Anthropic's documentation, "Handling stop reasons", ``refusal``.
        """
        refused = self._has_refused and end.reason is FinishReason.STOP and not self._calls
        return TurnFinished(FinishReason.CONTENT_FILTER) if refused else end

    def _stop_reason(self) -> str:
        is_call = bool(self._calls) and self._reason is FinishReason.STOP
        return FINISH_WORDS.write(FinishReason.TOOL_CALLS if is_call else self._reason)

    # The encoding of one event.

    def _encode(self, event: TurnEvent) -> Iterator[EventObject]:
        match event:
            case TurnStarted(model=model):
                self._model = model or self._model
                yield from self._start()
            case UsageReported(usage=usage):
                self._usage = dict(_in_messages_words(usage).native)
            case TurnFinished():
                self._reason = self._told(event).reason
            case TurnFailed(error=error):
                self._failed = True
                yield {"type": "error", "error": error}
            case ToolCallStarted(seq=seq, call_id=call_id, name=name):
                yield from self._start()
                self._calls[seq] = _Call(call_id, name, name in self._eager)
                if self._open_call is None:
                    yield from self._closed_text()
                    yield from self._opened_call(seq)
                else:
                    self._waiting.append(seq)
            case ToolCallDelta(seq=seq, arguments=arguments):
                call = self._calls[seq]
                call.pieces.append(arguments)
                if call.is_eager and arguments and self._open_call == seq and (said := call.eager()):
                    yield self._delta({"type": "input_json_delta", "partial_json": said})
            case ToolCallFinished(seq=seq, call=finished):
                if seq in self._calls and not self._calls[seq].is_told:
                    self._calls[seq].pieces = [finished.arguments]
                yield from self._closed_call(seq)
            case CitationAdded(url=""):
                self.left_out.add(LEFT_OUT)
            case TextDelta() | ReasoningDelta() | RefusalDelta() | CitationAdded() if (
                self._open_call is not None
            ):
                self._later.append(event)
            case TextDelta(text=text) | ReasoningDelta(text=text) | RefusalDelta(text=text):
                self._has_refused = self._has_refused or isinstance(event, RefusalDelta)
                yield from self._start()
                yield from self._said(text, thinking=isinstance(event, ReasoningDelta))
            case CitationAdded():
                yield from self._cite(event)

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    def _start(self) -> Iterator[EventObject]:
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self._message()}

    # Blocks, one after the other.

    def _delta(self, delta: dict[str, Any]) -> EventObject:
        return {"type": "content_block_delta", "index": len(self._content), "delta": delta}

    def _said(self, text: str, *, thinking: bool) -> Iterator[EventObject]:
        kind, name = ("thinking", "thinking") if thinking else ("text", "text")
        # Text after a citation has other sources, or none.
        goes_on = not self._is_cited or not text.strip()
        if self._text is None or self._text["type"] != kind or not goes_on:
            yield from self._closed_text()
            self._text = {"type": kind, name: "", **({"signature": ""} if thinking else {})}
            start = dict(self._text)
            yield {"type": "content_block_start", "index": len(self._content), "content_block": start}
        self._pieces.append(text)
        yield self._delta({"type": f"{kind}_delta", name: text})
        if self._early and not thinking:
            early, self._early = self._early, []
            for citation in early:
                yield from self._cite(citation)

    def _cite(self, citation: CitationAdded) -> Iterator[EventObject]:
        """Add a citation to the open block of text; a citation before any text waits for it."""
        if self._text is None or self._text["type"] != "text":
            self._early.append(citation)
            return
        said = web_citation(citation)
        self._is_cited = True
        listed = self._text.get("citations")
        if not isinstance(listed, list):
            listed = self._text["citations"] = []
        listed.append(said)
        yield self._delta({"type": "citations_delta", "citation": said})

    def _closed_text(self) -> Iterator[EventObject]:
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

    def _opened_call(self, seq: int) -> Iterator[EventObject]:
        """Begin a call's block, with the arguments so far."""
        self._open_call = seq
        call = self._calls[seq]
        block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
        yield {"type": "content_block_start", "index": len(self._content), "content_block": block}
        if call.pieces and (said := call.eager()):
            yield self._delta({"type": "input_json_delta", "partial_json": said})

    def _closed_call(self, seq: int) -> Iterator[EventObject]:
        """End a call's block, and begin the block of the next call that waits."""
        call = self._calls.get(seq)
        if call is None or call.is_done:
            return
        if self._open_call != seq:
            if self._open_call is not None:
                yield from self._closed_call(self._open_call)
            if self._open_call != seq:
                self._waiting.remove(seq)
                yield from self._opened_call(seq)
        call.is_done = True
        cut = not self._reason.is_complete
        if rest := call.rest(cut=cut):
            yield self._delta({"type": "input_json_delta", "partial_json": rest})
        yield self._stopped(call.block(cut=cut))
        self._open_call = None
        if self._waiting:
            yield from self._opened_call(self._waiting.pop(0))
            return
        later, self._later = self._later, []
        for said in later:
            if isinstance(said, CitationAdded):
                yield from self._cite(said)
            else:
                yield from self._said(said.text, thinking=isinstance(said, ReasoningDelta))

    def _frame(self, event: EventObject, undecided: int = 0) -> Frame:
        """Encode one event.  A frame that begins a call's block also has the event of the call."""
        if event["type"] == "error":
            error: Mapping[str, Any] = event["error"]
            raw = ANTHROPIC.errors.event(
                str(error.get("message") or "The upstream reported an error."),
                type=str(error.get("type") or "upstream_error"),
                code=str(error["code"]) if error.get("code") else None,
            )
            return Frame(raw, {"type": "error", "error": dict(error)}, undecided=undecided)
        raw = encode_event(orjson.dumps(event), event["type"].encode())
        block = event.get("content_block", {})
        calls = [(seq, call) for seq, call in self._calls.items() if call.call_id == block.get("id")]
        started = tuple(ToolCallStarted(seq, call.call_id, call.name) for seq, call in calls)
        return Frame(raw, event, started, undecided=undecided)


def _in_messages_words(usage: Usage) -> Usage:
    """Return the same tokens, with a usage object of this dialect, which counts cached tokens separately."""
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


def turn_blocks(message: Message) -> bytes:
    """Write an assistant message as a Messages client would send it back, without reasoning."""
    blocks: list[Block] = []
    for part in message.parts:
        if isinstance(part, Text | Refusal):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, ToolCallPart):
            blocks.append(_Call(part.call_id, part.name, pieces=[part.arguments]).block(cut=False))
    return orjson.dumps({"role": "assistant", "content": blocks})
