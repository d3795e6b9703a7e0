"""Messages: reads the upstream's responses.

Source for the events: Anthropic's API reference, "Streaming messages". The recorded streams of servers show
how they differ: blocks that overlap, a call without ``input``, usage in two halves, an error without its
name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import orjson

from proxy.base.errors import Unreadable
from proxy.base.events import (
    Frame,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    UsageReported,
    finished,
)
from proxy.json.exact import with_exact_integers
from proxy.json.lenient import UNPLACED_CALL, loads, may_hold_call
from proxy.json.objects import objects_in
from proxy.json.splice import value_at
from proxy.wires.anthropic.blocks import (
    Block,
    Citations,
    MessageBuilder,
    assistant_message,
    native_block,
    reply_blocks,
)
from proxy.wires.anthropic.dialect import event_type
from proxy.wires.repairing import CUT_OFF
from proxy.wires.stream.plain import PLAIN_ENDS, PlainTurn
from proxy.wires.stream.reader import StreamReader
from proxy.wires.stream.sse import SSEEvent
from proxy.wires.turn.assembler import Fragment, mint_call_id
from proxy.wires.turn.usage import merge_usage, messages_usage
from proxy.wires.upstream_port import Mask

_TEXTS: Final = {"text_delta": "text", "thinking_delta": "thinking"}
_NO_INPUT: Final = (None, "text", "thinking")
"""The types of blocks that have no input; ``None``: no block has begun."""
_SPLICED: Final = "The upstream began another message before the first one had ended."
_BROKEN: Final = {"type": "api_error", "code": "upstream_broken", "message": CUT_OFF}


class AnthropicTurnReader(StreamReader[SSEEvent]):
    """A reader of one response of a Messages upstream. Odd JSON is let through and never raises."""

    def __init__(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> None:
        super().__init__(declared, is_hidden, max_argument_bytes)
        self._message = MessageBuilder()
        self._numbers: dict[int, int] = {}
        self._given: dict[int, str] = {}
        self._running: set[int] = set()
        self._placed: dict[int, Any] = {}
        self._count = 0
        self._usage: dict[str, Any] = {}
        self._reply: bytes | None = None
        self._text = ""
        self._whole = False
        self._started = False
        self._id = ""
        self._ended = False
        self._last_word = False
        self._citations = Citations()

    @property
    def text(self) -> str:
        return self._message.text if self._reply is None else self._text

    def _finish(self) -> list[TurnEvent]:
        events: list[TurnEvent] = [*self._citations.end()]
        for number in list(self._given):
            events += self._give(number)
        events += super()._finish()
        if not (self._whole or self._last_word):
            # Several clients take a stream that just stops for a complete answer, and a call that was cut off
            # for a call without arguments.
            events.append(TurnFailed(_BROKEN))
        return events

    def _take_reply(self, payload: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[TurnEvent]]:
        self._whole = True
        payload = with_exact_integers(payload, body)
        events = self._error(payload)
        if not events:
            events += self._begin(payload)
            self._reply = _raw_content(body, payload)
            content = payload.get("content")
            for index, block in enumerate(content if isinstance(content, list) else ()):
                if isinstance(block, dict):
                    events += [*self._open(index, block), *self._citations.end()]
            self._text = self._message.text
            events += self._stop_reason(payload)
            self._check_placed(payload)
        return payload, events

    def message(self) -> bytes:
        calls = [self._repaired(finished.call) for finished in self._finished]
        if self._reply is not None:
            return assistant_message(reply_blocks(self._reply, calls))
        numbered = zip((finished.seq for finished in self._finished), calls, strict=True)
        return self._message.build(dict(numbered))

    def native(self, call: ToolCall, mask: Mask) -> str:
        seq = self._finished[call.index].seq
        _, name, arguments = self._calls.upstream_fields(seq)
        return native_block(self._message.fields_of(seq), mask(name, arguments or "{}"))

    def _read(self, event: SSEEvent, *, cut: bool = False) -> Frame:
        if self._ended:
            # Bytes after the last event belong to no turn. Only what may be a call is dropped (rule W5).
            raw = b"" if may_hold_call(event.raw) and not event.is_comment else event.raw
            return Frame(raw, is_end_mark=True)
        if event.is_end_mark:
            return Frame(event.raw)  # A gateway's end mark, from another dialect.
        payload = loads(event.data, halves=self._halves) if event.data else None
        if not isinstance(payload, dict):
            return self._unread(event, cut=cut)
        kind = event_type(event, payload)
        if kind == "content_block_start":
            payload = with_exact_integers(payload, event.data)
        self._ended = kind == "message_stop"
        self._last_word = self._last_word or self._ended or kind == "error"
        events = self._events(kind, payload)
        if b"tool_use" in event.data or b"\\u00" in event.data:
            self._check_placed(payload)
        return Frame(event.raw, payload, tuple(events), is_end_mark=self._ended)

    def _check_placed(self, payload: Mapping[str, Any]) -> None:
        """Stop if an event or a reply has a call that was not read as one (rule W5).

        The official SDKs take every ``tool_use`` block for a call, whatever its index, and those in
        ``message_start``, too. Source: ``accumulate_event`` of Anthropic's Python SDK.
        """
        placed, self._placed = self._placed, {}
        blocks = [block for block in objects_in(payload, ("input",)) if block.get("type") == "tool_use"]
        if any(id(block) not in placed for block in blocks):
            self._stop(Unreadable(UNPLACED_CALL))

    def _free_names(self, frame: Frame) -> tuple[Sequence[str], Sequence[str]] | None:
        payload = frame.payload or {}
        delta = payload.get("delta")
        if payload.keys() != {"type", "index", "delta"} or not isinstance(delta, dict):
            return None
        name = _TEXTS.get(str(delta.get("type")), "")
        return ([name], []) if delta.keys() == {"type", name} and type(delta[name]) is str else None

    def _events(self, kind: str, payload: dict[str, Any]) -> list[TurnEvent]:
        index = payload.get("index")
        if kind == "content_block_delta":
            delta = payload.get("delta")
            if not isinstance(delta, dict):
                return []
            if "partial_json" in delta and (
                type(index) is not int or self._message.kind_at(index) in _NO_INPUT
            ):
                # The arguments of a call that nobody knows.
                self._stop(Unreadable(UNPLACED_CALL))
                return []
            return self._delta(index, delta) if type(index) is int else []
        if kind == "content_block_start":
            block = payload.get("content_block")
            return self._open(index, block) if type(index) is int and isinstance(block, dict) else []
        if kind == "content_block_stop":
            if type(index) is int:
                self._running.discard(index)
            given = self._give(self._numbers[index]) if type(index) is int and index in self._numbers else []
            return [*self._citations.end(), *given]
        if kind == "message_start":
            message = payload.get("message")
            if not isinstance(message, dict):
                return []
            if self._started and message.get("id") not in (None, self._id):
                # The calls of two messages would be taken for calls of one.
                self._stop(Unreadable(_SPLICED))
                return []
            return self._begin(message)
        if kind == "message_delta":
            delta = payload.get("delta")
            return [*self._report(payload), *(self._stop_reason(delta) if isinstance(delta, dict) else ())]
        return self._error(payload) if kind == "error" else []

    @staticmethod
    def _error(payload: Mapping[str, Any]) -> list[TurnEvent]:
        error = payload.get("error")
        if not error and payload.get("type") != "error":
            return []
        return [TurnFailed(error if isinstance(error, dict) else {"message": str(error or "It failed.")})]

    def _begin(self, message: Mapping[str, Any]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        if not self._started and isinstance(message.get("id"), str):
            self._started, self._id = True, message["id"]
            events.append(TurnStarted(self._id, str(message.get("model") or "")))
        return [*events, *self._report(message)]

    def _report(self, holder: Mapping[str, Any]) -> list[TurnEvent]:
        """Report the usage so far; fields that a later event lacks keep their earlier values."""
        usage = holder.get("usage")
        if not isinstance(usage, dict):
            return []
        self._usage = merge_usage(self._usage, usage)
        return [UsageReported(messages_usage(self._usage))]

    def _stop_reason(self, holder: Mapping[str, Any]) -> list[TurnEvent]:
        reason = holder.get("stop_reason")
        if not reason:
            return []
        self._last_word = True
        return [finished(reason if isinstance(reason, str) else str(reason))]

    def _open(self, index: int, block: Block) -> list[TurnEvent]:
        """Begin a block."""
        kind, name = block.get("type"), block.get("name")
        self._numbers.pop(index, None)
        again = index in self._running
        self._running.add(index)
        if kind == "tool_use":
            named = isinstance(name, str) and name.strip()
            # What a second block at the index of an open one gets could belong to either.
            return self._open_call(index, str(name), block) if named and index >= 0 and not again else []
        self._message.start(index, block)
        events: list[TurnEvent] = [*self._citations.begin(block.get("citations"))] if kind == "text" else []
        if kind in ("text", "thinking") and isinstance(text := block.get(kind), str) and text:
            events.append(self._said(text) if kind == "text" else ReasoningDelta(text))
        return events

    def _said(self, text: str) -> TextDelta:
        """Return text of the answer, and count it for the positions of citations."""
        self._citations.length += len(text)
        return TextDelta(text)

    def _open_call(self, index: int, name: str, block: Block) -> list[TurnEvent]:
        number = self._numbers[index] = self._count
        self._placed[id(block)] = block
        self._count += 1
        self._message.start(index, block, number)
        given = block.get("input")
        if given and isinstance(given, dict):
            # Some servers send the arguments only here; others send them here and in pieces.
            self._given[number] = orjson.dumps(given).decode()
        call_id = block.get("id")
        known = call_id if isinstance(call_id, str) and call_id.strip() else mint_call_id("toolu_")
        # The name is complete, so set it. Otherwise the assembler waits: it may begin a longer name.
        events = self._calls.add(Fragment(number, known, name))
        return [*events, *self._calls.set_name(number, name)]

    def _give(self, number: int) -> list[TurnEvent]:
        """Add the arguments from a call's start, if no others came."""
        text = self._given.pop(number, None)
        return self._calls.add(Fragment(number, arguments=text)) if text is not None else []

    def _delta(self, index: int, delta: dict[str, Any]) -> list[TurnEvent]:
        kind = delta.get("type")
        self._message.add(index, delta)
        name = _TEXTS.get(str(kind), "")
        if name:
            text = delta.get(name)
            if not isinstance(text, str) or not text:
                return []
            return [self._said(text) if name == "text" else ReasoningDelta(text)]
        if kind == "citations_delta":
            self._citations.add(delta.get("citation"))
            return []
        text = delta.get("partial_json")
        number = self._numbers.get(index)
        if kind != "input_json_delta" or number is None or not isinstance(text, str) or not text:
            return []
        self._given.pop(number, None)
        return self._calls.add(Fragment(number, arguments=text))


class PlainMessage(PlainTurn):
    """The plain text of one turn of a Messages upstream that came as one object."""

    __slots__ = ()

    _CALL: ClassVar[bytes] = b"tool_use"

    def _note_reply(self, payload: dict[str, Any]) -> bool:
        content, reason, usage = payload.get("content"), payload.get("stop_reason"), payload.get("usage")
        if type(content) is not list or type(reason) is not str or AnthropicTurnReader._error(payload):
            return False
        for block in content:
            if type(block) is not dict or block.get("type") != "text" or block.get("citations"):
                return False
            if type(text := block.get("text")) is not str:
                return False
            self._texts.append(text)
        if isinstance(payload.get("id"), str):
            self.id, self.model = payload["id"], str(payload.get("model") or "")
        if isinstance(usage, dict):
            self.usage = messages_usage(merge_usage({}, usage))
        self.finish = finished(reason) if reason else None
        return self.finish is not None and self.finish.reason in PLAIN_ENDS


def _raw_content(body: bytes, payload: Mapping[str, Any]) -> bytes:
    """Return the content of a reply as it came, or written anew if only a lenient parser can read it."""
    try:
        orjson.loads(body)
        raw = value_at(body, "content")
    except (orjson.JSONDecodeError, ValueError):
        raw = None
    content = payload.get("content")
    if raw is None or not isinstance(content, list):
        return orjson.dumps(content if isinstance(content, list) else [])
    return raw
