"""Ollama's chat: reads the upstream's responses.

Source for the lines: Ollama's API reference, "Generate a chat completion". The recorded streams of servers
show how they differ: calls without ids or with one index for all, calls and text on the last line, counts
that are left out, an error under a status of 200.

Ollama's own client is written in Go, whose ``encoding/json`` matches the names of members in any case, and
merges members that come twice. So such a client can find a call where a parser of exact names, which takes
the last of two members, finds none. Source: Go's documentation of ``encoding/json``, ``Unmarshal``.

In the message of a turn text and thoughts are joined from their pieces. Calls go back complete, with every
field that came. Thoughts go back too, because the templates of several models are written for them.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.errors import Unreadable, WireError
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
from proxy.json.lenient import UNPLACED_CALL, loads, may_hold_call
from proxy.json.splice import elements, join_array, join_object, members, value_at
from proxy.wires.repairing import CUT_OFF
from proxy.wires.stream.ndjson import Line
from proxy.wires.stream.reader import LINES, StreamReader
from proxy.wires.turn.assembler import Fragment, is_object
from proxy.wires.turn.usage import usage_of
from proxy.wires.upstream_port import Mask

_TEXTUAL: Final = frozenset({"model", "created_at", "message", "done", "remote_model", "remote_host"})
"""The members that a line of text may have; other members may not vary."""
_CALLS: Final = b'"tool_calls"'
_BROKEN: Final = {"type": "api_error", "code": "upstream_broken", "message": CUT_OFF}


class OllamaTurnReader(StreamReader[Line]):
    """A reader of one response of an Ollama upstream. Odd JSON is let through and never raises."""

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
            # Bytes after the last line belong to no turn. Only what may be a call is dropped (rule W5).
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
        # Each call comes complete. Its position identifies it: some servers give all calls one index.
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


# ---------------------------------------------------------------- the names of members


_MAY_NAME_CALLS: Final = re.compile(rb"(?i)tool_call(?:s|\xc5\xbf)|\\u(?:00[4-7]|017f|212a)")
"""The name in any case, with Unicode's long s, which counts as an s, and letters as escapes."""
_NAMES: Final = frozenset({"message", "tool_calls", "function", "name", "arguments", "id", "error"})


class _Members(list[tuple[str, Any]]):
    """The members of an object in their order, also those that come twice."""


def calls_are_plain(line: bytes) -> bool:
    """Return whether each call of a line, or of a whole reply, is where it belongs and under exact names.

    Return ``False`` if this cannot be known.
    """
    if _MAY_NAME_CALLS.search(line) is None:
        return True
    try:
        said = json.loads(line.decode("utf-8", "replace"), object_pairs_hook=_Members)
    except (ValueError, RecursionError):
        return False
    message = next((value for name, value in said if name == "message"), None) if _is_object(said) else None
    left = [said]
    while left:
        one = left.pop()
        if isinstance(one, _Members):
            if not _has_plain_names(one) or (
                one is not message and any(name == "tool_calls" for name, _ in one)
            ):
                return False
            left += [value for name, value in one if name != "arguments"]
        elif isinstance(one, list):
            left += one
    return True


def _is_object(value: Any) -> bool:
    return isinstance(value, _Members)


def _has_plain_names(members: _Members) -> bool:
    names = [name for name, _ in members if name.casefold() in _NAMES]
    return len(set(names)) == len(names) and _NAMES.issuperset(names)


# ---------------------------------------------------------------- the message of a turn


_MAX_TURN_BYTES: Final = 64 * 1024 * 1024
_PIECE: Final = 64
_OWN: Final = frozenset({"role", "content", "thinking", "tool_calls"})

RawCall = Mapping[str, Mapping[str, bytes]]
"""The raw fields of a call (under ``call``) and of its function (under ``function``)."""


def raw_calls(line: bytes, listed: Sequence[Any]) -> list[RawCall]:
    """Return the calls of a line or a reply in their own bytes; written anew if that is not valid JSON."""
    try:
        orjson.loads(line)
        raw = value_at(line, "message", "tool_calls")
        parts = elements(raw) if raw is not None and raw[:1] == b"[" else []
    except (orjson.JSONDecodeError, ValueError):
        parts = []
    if len(parts) != len(listed):
        parts = [orjson.dumps(call) for call in listed]
    return [_fields(part, call) for part, call in zip(parts, listed, strict=True)]


def _fields(raw: bytes, call: Any) -> RawCall:
    if not isinstance(call, dict):
        return {"call": {}, "function": {}}
    fields = members(raw)
    function = members(fields["function"]) if isinstance(call.get("function"), dict) else {}
    return {"call": fields, "function": function}


def _written(fields: RawCall, call: ToolCall) -> bytes:
    """Return a call in the form that goes back, with the id, name and arguments of the assembled call."""
    arguments = call.arguments.encode() if is_object(call.arguments) else b"{}"
    function = {**fields["function"], "name": orjson.dumps(call.name), "arguments": arguments}
    whole = {"id": orjson.dumps(call.call_id), **fields["call"]}
    whole.update(id=orjson.dumps(call.call_id), function=join_object(function))
    return join_object(whole)


def native_call(fields: RawCall, arguments: str) -> str:
    """Return a call as it came, but with masked arguments; arguments that are no JSON object stay a text."""
    raw = arguments.encode() if is_object(arguments) else orjson.dumps(arguments)
    function = join_object({**fields["function"], "arguments": raw})
    return join_object({**fields["call"], "function": function}).decode()


class MessageBuilder:
    """A builder of one message from the messages of lines."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {"content": [], "thinking": []}
        self._more: dict[str, Any] = {}
        self._calls: dict[int, RawCall] = {}
        self._size = 0

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(self._texts["content"])

    def add(self, message: Mapping[str, Any]) -> None:
        """Take the members of a line's message other than calls.

        Raises :class:`WireError` for a turn larger than any model makes, as :meth:`call` does.
        """
        for key, said in message.items():
            if key in self._texts:
                if isinstance(said, str) and said:
                    self._count(len(said))
                    self._texts[key].append(said)
            elif key not in _OWN and said is not None:
                self._count(len(orjson.dumps(said)))
                self._more[key] = said

    def call(self, number: int, fields: RawCall) -> None:
        """Take a call."""
        self._count(sum(len(value) for part in fields.values() for value in part.values()))
        self._calls[number] = fields

    def _count(self, size: int) -> None:
        self._size += size + _PIECE
        if self._size > _MAX_TURN_BYTES:
            raise WireError(f"the message of one turn is larger than {_MAX_TURN_BYTES} bytes")

    def fields_of(self, call: int) -> RawCall:
        """Return the raw fields of a call."""
        return self._calls[call]

    def build(self, calls: Mapping[int, ToolCall]) -> bytes:
        """Return the message as JSON; ``calls`` are its complete calls by their numbers."""
        parts = {"role": b'"assistant"', "content": orjson.dumps(self.text)}
        if self._texts["thinking"]:
            parts["thinking"] = orjson.dumps("".join(self._texts["thinking"]))
        parts |= {key: orjson.dumps(said) for key, said in self._more.items()}
        if calls:
            written = [_written(self._calls[number], call) for number, call in calls.items()]
            parts["tool_calls"] = join_array(written)
        return join_object(parts)
