"""Ollama's chat: reads the upstream's responses.

Source for the lines: Ollama's API reference, "Generate a chat completion".  The recorded streams of servers
show how they differ: calls without ids or with one index for all, calls and text on the last line, counts
that are left out, an error under a status of 200.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.errors import Unreadable
from proxy.base.events import (
    FinishReason,
    Frame,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    UsageReported,
    finished,
)
from proxy.json.exact import with_exact_integers
from proxy.json.lenient import (
    UNPLACED_CALL,
    loads,
    may_hold_call,
)
from proxy.wires.dialects.ollama import UNFINISHED
from proxy.wires.ollama.message import MessageBuilder, native_call, raw_calls
from proxy.wires.ollama.spelling import calls_are_plain
from proxy.wires.stream.ndjson import Line
from proxy.wires.stream.reader import LINES, StreamReader
from proxy.wires.turn.assembler import Fragment
from proxy.wires.turn.usage import usage_of
from proxy.wires.upstream_port import Mask

__all__ = ["OllamaTurnReader"]

_TEXTUAL: Final = frozenset({"model", "created_at", "message", "done", "remote_model", "remote_host"})
"""The members that a line of text may have; other members may not vary."""
_CALLS: Final = b'"tool_calls"'
_BROKEN: Final = {"type": "api_error", "code": "upstream_broken", "message": UNFINISHED}


class OllamaTurnReader(StreamReader[Line]):
    """A reader of one response of an Ollama upstream.  Odd JSON is let through and never raises."""

    _finds_by_name = True
    stream_format = LINES

    def __init__(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> None:
        super().__init__(declared, is_hidden, max_argument_bytes)
        self._message = MessageBuilder()
        self._count = 0
        self._started = False
        self._ended = False
        self._failed = False

    @property
    def text(self) -> str:
        return self._message.text

    def _finish(self) -> list[TurnEvent]:
        events = super()._finish()
        if not (self._ended or self._failed):
            # Ollama's own client takes a stream that just stops for a complete answer.
            events.append(TurnFailed(_BROKEN))
        return events

    def _take_reply(self, payload: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[TurnEvent]]:
        payload = with_exact_integers(payload, body)
        events = self._events(payload, body)
        self._ended = True
        return payload, events

    def message(self) -> bytes:
        return self._message.build({one.seq: self._repaired(one.call) for one in self._finished})

    def native(self, call: ToolCall, mask: Mask) -> str:
        seq = self._finished[call.index].seq
        _, name, arguments = self._calls.upstream_fields(seq)
        return native_call(self._message.fields_of(seq), mask(name, arguments or "{}"))

    def _read(self, event: Line, *, cut: bool = False) -> Frame:
        if self._ended:
            # Bytes after the last line belong to no turn.  Only what may be a call is dropped (rule W5).
            return Frame(b"" if may_hold_call(event.raw) else event.raw, is_end_mark=True)
        payload = loads(event.data, halves=self._halves) if event.data else None
        if not isinstance(payload, dict):
            # Half a line would make the error line after it unreadable.
            return Frame(b"") if cut else self._unread(event, cut=cut)
        if _CALLS in event.data:
            payload = with_exact_integers(payload, event.data)
        events = self._events(payload, event.data)
        self._ended = payload.get("done") is True and not self._failed
        return Frame(event.raw, payload, tuple(events), is_end_mark=self._ended)

    def _free_names(self, frame: Frame) -> tuple[Sequence[str], Sequence[str]] | None:
        payload = frame.payload or {}
        message, made = payload.get("message"), payload.get("created_at")
        if not isinstance(message, dict) or not payload.keys() <= _TEXTUAL or payload.get("done"):
            return None
        said = [name for name in ("content", "thinking") if message.get(name)]
        plain = message.keys() <= {"role", "content", "thinking"} and len(said) == 1
        if not plain or type(message[said[0]]) is not str or type(made) is not str:
            return None
        return said, ["created_at"]

    def _events(self, payload: dict[str, Any], raw: bytes) -> list[TurnEvent]:
        if not calls_are_plain(raw):
            self._stop(Unreadable(UNPLACED_CALL))
            return []
        if error := payload.get("error"):
            self._failed = True
            return [TurnFailed(error if isinstance(error, dict) else {"message": str(error)})]
        events: list[TurnEvent] = []
        if not self._started:
            self._started = True
            events.append(TurnStarted("", str(payload.get("model") or "")))
        message = payload.get("message")
        if isinstance(message, dict):
            events += self._said(message, raw)
        if payload.get("done") is True:
            events += self._end(payload)
        return events

    def _said(self, message: Mapping[str, Any], raw: bytes) -> list[TurnEvent]:
        """Read thoughts, text and calls of one line, in the order in which a model makes them."""
        self._message.add(message)
        events: list[TurnEvent] = []
        if isinstance(thinking := message.get("thinking"), str) and thinking:
            events.append(ReasoningDelta(thinking))
        if isinstance(content := message.get("content"), str) and content:
            events.append(TextDelta(content))
        calls = message.get("tool_calls")
        if calls and not isinstance(calls, list):
            self._stop(Unreadable(UNPLACED_CALL))
        elif calls:
            for call, fields in zip(calls, raw_calls(raw, calls), strict=True):
                function = call.get("function") if isinstance(call, dict) else None
                name = function.get("name") if isinstance(function, dict) else None
                if isinstance(name, str) and name.strip():
                    number, self._count = self._count, self._count + 1
                    self._message.call(number, fields)
                    events += self._call(number, name, call.get("id"), fields["function"].get("arguments"))
                else:
                    self._stop(Unreadable(UNPLACED_CALL))
        return events

    def _call(self, number: int, name: str, call_id: Any, given: bytes | None) -> list[TurnEvent]:
        known = call_id if isinstance(call_id, str) and call_id.strip() else None
        text = (given or b"").decode("utf-8", "replace")
        if text[:1] == '"':
            said = orjson.loads(text)
            text = said if isinstance(said, str) else text
        # Each call comes complete.  Its position identifies it: some servers give all calls one index.
        events = self._calls.add(Fragment(number, known, name))
        events += self._calls.set_name(number, name)
        return [*events, *self._calls.add(Fragment(number, arguments="" if text == "null" else text))]

    def _end(self, payload: Mapping[str, Any]) -> list[TurnEvent]:
        # Old servers give no reason.
        end = finished(str(payload.get("done_reason") or "stop"))
        if self._count and end.reason is FinishReason.STOP:
            end = TurnFinished(FinishReason.TOOL_CALLS)
        usage = usage_of(payload)
        return [end, *([UsageReported(usage)] if usage is not None else [])]
