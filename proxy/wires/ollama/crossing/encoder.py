"""Ollama's chat: encodes the turns of an upstream of another dialect as an Ollama server would.

Source: Ollama's API reference, "Generate a chat completion". A call is sent when it is complete, in a line
of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

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
from proxy.wires.ollama.dialect import error_line, escape_line_breaks, line
from proxy.wires.ollama.lines import FINISH_WORDS, LineMaker, last_line
from proxy.wires.stream.encoding import EventEncoder
from proxy.wires.turn.arguments import arguments_object
from proxy.wires.turn.citations import LEFT_OUT

_TIMES: Final = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
"""Times that an Ollama server reports with its counts, in nanoseconds."""


def call_object(call_id: str, name: str, arguments: str, index: int) -> dict[str, Any]:
    """Return a call; its arguments are an object in this dialect."""
    function = {"index": index, "name": name, "arguments": arguments_object(arguments)}
    return {"id": call_id, "function": function}


class OllamaTurnEncoder(EventEncoder):
    """An encoder of one turn."""

    def __init__(self, model: str, lines: type[LineMaker] = LineMaker) -> None:
        """``lines`` is the class that makes the lines."""
        super().__init__()
        self._lines = lines(model)
        self._reason = FinishReason.STOP
        self._failed = False
        self._calls = 0
        self._usage: Mapping[str, Any] = {}

    def _comment(self) -> Frame:
        payload = self._lines.payload()
        return Frame(line(payload), payload)

    def text_is_open(self, kind: type[TurnEvent]) -> bool:
        """See :meth:`proxy.wires.client_port.TurnEncoder.text_is_open`. Each line is independent."""
        return True

    def write_text(self, kind: type[TurnEvent], pieces: Sequence[bytes]) -> bytes:
        before, after = self._lines.around("thinking" if kind is ReasoningDelta else "content")
        return escape_line_breaks(b"".join([before + piece + after for piece in pieces]))

    def report_text(self, event: TextDelta | ReasoningDelta | RefusalDelta, count: int) -> Frame:
        return Frame(b"", self._lines.payload(**self._said(event)), (event,), count=count)

    def note_forwarded(self, frame: Frame, text: str) -> None:
        model = (frame.payload or {}).get("model")
        if isinstance(model, str) and model:
            self._lines.model = model

    def close(self) -> list[Frame]:
        if self._failed:
            return []
        payload = self._last_line()
        return [Frame(line(payload), payload, is_end_mark=True)]

    def encode_reply(self, frame: Frame) -> Frame:
        said: dict[str, Any] = {}
        told: list[TurnEvent] = []
        for event in frame.events:
            told.append(self._take(event))
            for name, value in self._said(event).items():
                said[name] = said[name] + value if name in said else value
        payload = self._last_line(**said)
        return Frame(orjson.dumps(payload), payload, tuple(told))

    def _last_line(self, **said: Any) -> dict[str, Any]:
        """Return the end of the turn, with the total time of an Ollama server if one answered."""
        ending = last_line(self._lines, FINISH_WORDS.write(self._reason), self._usage, **said)
        if "total_duration" in self._usage:
            ending["total_duration"] = self._usage["total_duration"]
        return ending

    def _frames(self, event: TurnEvent, undecided: int) -> list[Frame]:
        return [self._frame(event, undecided)]

    def _frame(self, event: TurnEvent, undecided: int) -> Frame:
        told = self._take(event)
        if isinstance(event, TurnFailed):
            message = str(event.error.get("message") or "The upstream reported an error.")
            return Frame(
                error_line(message, type="upstream_error", code=None),
                {"error": message},
                (told,),
                undecided=undecided,
            )
        said = self._said(event)
        if not said:
            return Frame(b"", events=(told,), undecided=undecided)
        payload = self._lines.payload(**said)
        events: tuple[TurnEvent, ...] = (told,)
        if isinstance(event, ToolCallFinished):
            # The writer that hides the call looks for its beginning in this frame.
            call = event.call
            started = ToolCallStarted(event.seq, call.call_id, call.name)
            arguments = payload["message"]["tool_calls"][0]["function"]["arguments"]
            events = (started, ToolCallDelta(event.seq, orjson.dumps(arguments).decode()), told)
        return Frame(line(payload), payload, events, undecided=undecided)

    def _take(self, event: TurnEvent) -> TurnEvent:
        """Keep an event's facts for the last line, and return the event in the form of this dialect."""
        match event:
            case TurnStarted(model=model):
                self._lines.model = model or self._lines.model
            case TurnFinished(reason=reason):
                self._reason = reason
            case TurnFailed():
                self._failed = True
            case CitationAdded():
                self.left_out.add(LEFT_OUT)
            case UsageReported(usage=usage):
                counted = _in_ollama_words(usage)
                self._usage = counted.native
                return UsageReported(counted)
            case _:
                pass
        return event

    def _said(self, event: TurnEvent) -> dict[str, Any]:
        """Return the members of a message for one event; none if the client gets nothing of it."""
        match event:
            case TextDelta(text=text) | RefusalDelta(text=text):
                return {"content": text} if text else {}
            case ReasoningDelta(text=text):
                return {"thinking": text} if text else {}
            case ToolCallFinished(call=call) if self._reason.is_complete:
                # This dialect cannot express an incomplete call.
                return {"tool_calls": [self._called(call)]}
            case _:
                return {}

    def _called(self, call: ToolCall) -> dict[str, Any]:
        index, self._calls = self._calls, self._calls + 1
        return call_object(call.call_id, call.name, call.arguments, index)


def _in_ollama_words(usage: Usage) -> Usage:
    """Return the same tokens, with the counts of this dialect, and with times from an Ollama server."""
    times = {name: usage.native[name] for name in _TIMES if name in usage.native}
    native = {"prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens, **times}
    return Usage(usage.input_tokens, usage.output_tokens, usage.all_tokens, native, usage.cached_tokens)


def turn_message(message: Message) -> bytes:
    """Write an assistant message as a client would send it back, without reasoning."""
    said: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(part.text for part in message.parts if isinstance(part, Text | Refusal)),
    }
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    if calls:
        said["tool_calls"] = [
            call_object(part.call_id, part.name, part.arguments, place) for place, part in enumerate(calls)
        ]
    return orjson.dumps(said)
