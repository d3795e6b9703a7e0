"""Chat Completions: encodes the turns of an upstream of another dialect as a Chat server would.

Source for the chunk and the reply: OpenAI's API reference, "The chat completion chunk object" and "The chat
completion object".
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from proxy.base.chance import epoch_s
from proxy.base.conversation import Message, Refusal, Text, ToolCallPart
from proxy.base.events import (
    CitationAdded,
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
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
from proxy.wires.chat.message import FINISH_WORDS, call_object
from proxy.wires.openai.dialect import error_event
from proxy.wires.stream.encoding import EventEncoder
from proxy.wires.stream.sse import END_MARK, encode_event
from proxy.wires.stream.template import split_text
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.citations import LEFT_OUT, chat_annotation

_TEXT_FIELDS: dict[type[TurnEvent], str] = {
    TextDelta: "content",
    ReasoningDelta: "reasoning_content",
    RefusalDelta: "refusal",
}


class ChatTurnEncoder(EventEncoder):
    """An encoder of one turn. ``wants_usage``: the client asked for usage in its stream."""

    def __init__(self, model: str, *, wants_usage: bool = False) -> None:
        super().__init__()
        self._wants_usage = wants_usage
        self._head: dict[str, Any] = {
            "id": mint_call_id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": epoch_s(),
            "model": model,
        }
        self._around: dict[str, tuple[bytes, bytes]] = {}
        self._opened = False
        self._called = False
        self._custom: set[int] = set()
        self._silent: set[int] = set()
        self._usage: Usage | None = None
        self._reason: FinishReason | None = None
        self._said = 0
        self._sources: list[CitationAdded] = []

    def encode(self, frame: Frame) -> list[Frame]:
        events = frame.events
        if len(events) == 1 and self._opened and (name := _TEXT_FIELDS.get(type(events[0]))):
            # Nearly every frame is one piece of text.
            self._count(events[0])
            return [self._chunk({name: events[0].text}, None, events, frame.undecided)]  # type: ignore[union-attr]
        return super().encode(frame)

    def text_is_open(self, kind: type[TurnEvent]) -> bool:
        return self._opened

    def write_text(self, kind: type[TurnEvent], pieces: Sequence[bytes]) -> bytes:
        name = _TEXT_FIELDS[kind]
        if (around := self._around.get(name)) is None:
            around = self._around[name] = split_text(self._chunk({name: ""}, None, (), 0).raw, name)
        before, after = around
        return b"".join([before + piece + after for piece in pieces])

    def report_text(self, event: TextDelta | ReasoningDelta | RefusalDelta, count: int) -> Frame:
        self._count(event)
        told = self._chunk({_TEXT_FIELDS[type(event)]: event.text}, None, (event,), 0)
        return replace(told, raw=b"", count=count)

    def note_forwarded(self, frame: Frame, text: str) -> None:
        payload = frame.payload or {}
        self._said += len(text)
        self._around.clear()
        for key in ("id", "model", "system_fingerprint"):
            if payload.get(key) and isinstance(payload[key], str):
                self._head[key] = payload[key]
        if type(payload.get("created")) is int:
            self._head["created"] = payload["created"]
        # If the first chunk has no role, clients do without one.
        self._opened = self._opened or bool(payload.get("choices"))

    def close(self) -> list[Frame]:
        frames = [Frame(END_MARK, is_end_mark=True)]
        if self._usage is not None and self._wants_usage:
            # The run got it when it came; the writer looks for it in the chunk that has it.
            told = (UsageReported(self._usage),)
            used = {**self._head, "choices": [], "usage": dict(self._usage.native)}
            frames.insert(0, self._frame(used, told))
        if self._reason is not None:
            # Not earlier: the arguments of some calls are known only when the turn is over.
            frames.insert(0, self._chunk({}, _word(self._reason, called=self._called), (), 0))
        if self._sources:
            # All at once, as OpenAI sends them: openai-node keeps only those of the last chunk, and
            # openai-python's helper does not join lists whose elements have no index.
            noted = [{"index": n, **chat_annotation(one, self._said)} for n, one in enumerate(self._sources)]
            frames.insert(0, self._chunk({"annotations": noted}, None, (), 0))
        return frames

    def _frames(self, event: TurnEvent, undecided: int) -> list[Frame]:
        frames: list[Frame] = []
        match event:
            case TurnStarted(model=model):
                self._head["model"] = model or self._head["model"]
                self._around.clear()
                if self._opened:
                    return [Frame(b"", events=(event,), undecided=undecided)]
            case ToolCallFinished(seq=seq, call=call):
                if seq not in self._silent or not call.arguments:
                    return [Frame(b"", events=(event,), undecided=undecided)]
                # Some servers send the arguments only at the end of a call.
                delta, _ = self._delta(ToolCallDelta(seq, call.arguments))
                return [self._chunk(delta, None, (event,), undecided)]
            case UsageReported(usage=usage):
                self._usage = _in_chat_words(usage)
                return [Frame(b"", events=(UsageReported(self._usage),), undecided=undecided)]
            case TurnFinished(reason=reason):
                self._reason = reason
                if self._opened:
                    return [Frame(b"", events=(event,), undecided=undecided)]
            case CitationAdded(url=""):
                self.left_out.add(LEFT_OUT)
                return [Frame(b"", events=(event,), undecided=undecided)]
            case CitationAdded():
                self._sources.append(event)
                return [Frame(b"", events=(event,), undecided=undecided)]
            case TurnFailed(error=error):
                self._reason = None
                raw = error_event(
                    str(error.get("message") or "The upstream reported an error."),
                    type=str(error.get("type") or "upstream_error"),
                    code=str(error["code"]) if error.get("code") else None,
                )
                return [Frame(raw, {"error": dict(error)}, (event,), undecided=undecided)]
            case _:
                pass
        if not self._opened:
            self._opened = True
            told = (event,) if isinstance(event, TurnStarted | TurnFinished) else ()
            frames.append(self._chunk({"role": "assistant", "content": ""}, None, told, undecided))
        if not isinstance(event, TurnStarted | TurnFinished):
            delta, said = self._delta(event)
            frames.append(self._chunk(delta, None, (said,), undecided))
        return frames

    def _delta(self, event: TurnEvent) -> tuple[dict[str, Any], TurnEvent]:
        """Return the delta of one event, and the event in the form of this dialect."""
        match event:
            case ToolCallStarted(seq=seq, call_id=call_id, name=name, extra=extra):
                self._called = True
                self._silent.add(seq)
                if kind := _kind(extra):
                    self._custom.add(seq)
                opened = {"index": seq, **call_object(ToolCall(call_id, name, "", seq), kind)}
                return {"tool_calls": [opened]}, ToolCallStarted(seq, call_id, name, kind)
            case ToolCallDelta(seq=seq, arguments=arguments):
                if arguments:
                    self._silent.discard(seq)
                inner = {"custom": {"input": arguments}} if seq in self._custom else None
                piece = {"index": seq, **(inner or {"function": {"arguments": arguments}})}
                return {"tool_calls": [piece]}, ToolCallDelta(seq, arguments)
            case TextDelta(text=text) | ReasoningDelta(text=text) | RefusalDelta(text=text):
                self._count(event)
                return {_TEXT_FIELDS[type(event)]: text}, event
            case _:
                raise TypeError(f"no chunk says {type(event).__name__}")

    def _count(self, event: TurnEvent) -> None:
        """Count text of the answer, for the positions of citations."""
        if type(event) is TextDelta:
            self._said += len(event.text)

    def _chunk(
        self, delta: dict[str, Any], reason: str | None, events: tuple[TurnEvent, ...], undecided: int
    ) -> Frame:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        usage = {"usage": None} if self._wants_usage else {}
        return self._frame({**self._head, "choices": choices, **usage}, events, undecided)

    @staticmethod
    def _frame(payload: dict[str, Any], events: tuple[TurnEvent, ...] = (), undecided: int = 0) -> Frame:
        return Frame(encode_event(orjson.dumps(payload)), payload, events, undecided=undecided)

    def encode_reply(self, frame: Frame) -> Frame:
        message = _whole_message(frame.events)
        reason = FinishReason.STOP
        payload = {**self._head, "object": "chat.completion"}
        events: list[TurnEvent] = []
        for event in frame.events:
            match event:
                case TurnStarted(model=model):
                    payload["model"] = model or payload["model"]
                case TurnFinished(reason=said):
                    reason = said
                case UsageReported(usage=usage):
                    event = UsageReported(_in_chat_words(usage))
                    payload["usage"] = dict(event.usage.native)
                case ToolCallStarted(seq=seq, call_id=call_id, name=name, extra=extra):
                    event = ToolCallStarted(seq, call_id, name, _kind(extra))
                case _:
                    pass
            events.append(event)
        if any(isinstance(event, CitationAdded) and not event.url for event in events):
            self.left_out.add(LEFT_OUT)
        finish_reason = _word(reason, called="tool_calls" in message)
        payload["choices"] = [{"index": 0, "message": message, "finish_reason": finish_reason}]
        return Frame(orjson.dumps(payload), payload, tuple(events))


def _word(reason: FinishReason, *, called: bool) -> str:
    """Return Chat's word for a finish reason; some upstreams do not mention calls in it."""
    is_call = called and reason is FinishReason.STOP
    return FINISH_WORDS.write(FinishReason.TOOL_CALLS if is_call else reason)


def _kind(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return Chat's extra fields of a call: whether its tool is a custom one.

    Other extra fields from the upstream belong to its own dialect.
    """
    return {"type": "custom"} if extra.get("type") == "custom" else {}


def _in_chat_words(usage: Usage) -> Usage:
    """Return the same tokens, with a usage object of this dialect."""
    native: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.all_tokens,
    }
    if usage.cached_tokens:
        native["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        native["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return replace(usage, total_tokens=usage.all_tokens, native=native)


def turn_message(message: Message) -> bytes:
    """Write an assistant message as a Chat client would send it back, without reasoning."""
    text = "".join(part.text for part in message.parts if isinstance(part, Text))
    refusal = "".join(part.text for part in message.parts if isinstance(part, Refusal))
    calls = [
        call_object(
            ToolCall(part.call_id, part.name, part.arguments, place),
            {"type": "custom"} if part.custom else {},
        )
        for place, part in enumerate(p for p in message.parts if isinstance(p, ToolCallPart))
    ]
    said: dict[str, Any] = {"role": "assistant", "content": text or None}
    if refusal:
        said["refusal"] = refusal
    return orjson.dumps({**said, "tool_calls": calls} if calls else said)


def _whole_message(events: Sequence[TurnEvent]) -> dict[str, Any]:
    """Return the assistant message that results from the events of a whole turn."""
    texts: dict[str, list[str]] = {}
    kinds: dict[int, Mapping[str, Any]] = {}
    calls = []
    sources = []
    for event in events:
        match event:
            case TextDelta(text=text) | ReasoningDelta(text=text) | RefusalDelta(text=text):
                texts.setdefault(_TEXT_FIELDS[type(event)], []).append(text)
            case CitationAdded() if event.url:
                sources.append(event)
            case ToolCallStarted(seq=seq, extra=extra):
                kinds[seq] = _kind(extra)
            case ToolCallFinished(seq=seq, call=call):
                calls.append(call_object(call, kinds.get(seq, {})))
            case _:
                continue
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    message |= {name: "".join(pieces) for name, pieces in texts.items()}
    if sources:
        said = len(message["content"] or "")
        message["annotations"] = [chat_annotation(source, said) for source in sources]
    return {**message, "tool_calls": calls} if calls else message
