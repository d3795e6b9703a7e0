"""Chat Completions: what the upstream says, read.

Source for the chunk: OpenAI's API reference, "The chat completion chunk object". What providers make of it is
seen in their recorded streams.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import orjson

from proxy.errors import WireError
from proxy.events import (
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    ToolCallFinished,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.wires.assembler import Fragment, ToolCallAssembler, is_object
from proxy.wires.chat.message import MessageBuilder, part_text, reply_message
from proxy.wires.sse import SSEEvent, SSEParser

__all__ = ["ChatTurnReader", "usage_of"]

_MALFORMED = {
    "message": "The upstream sent an event that is not valid JSON.",
    "type": "upstream_error",
    "code": "upstream_malformed",
}
_MAX_DEPTH = 200
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|u[dD][c-fC-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)
_LONE_SURROGATE = 6
_MOST_DIGITS = 20
_KNOWN_CALL_FIELDS = frozenset({"index", "id", "type", "function", "custom"})


class ChatTurnReader:
    """One response of a Chat upstream.  Odd JSON is looked at and let through, never a crash."""

    def __init__(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> None:
        self._parser = SSEParser()
        self._bound = max_argument_bytes
        self._calls = ToolCallAssembler(
            declared, is_hidden=is_hidden, kept_bytes=max(1024 * 1024, max_argument_bytes)
        )
        self._message = MessageBuilder()
        self._reply: Mapping[str, Any] | None = None
        self._finished: list[ToolCallFinished] = []
        self._started = False
        self._ended = False
        self._is_hidden = is_hidden

    @property
    def text(self) -> str:
        return self._message.text

    def feed(self, chunk: bytes) -> list[Frame]:
        return [self._read(event) for event in self._parser.feed(chunk)]

    def close(self) -> list[Frame]:
        frames = []
        if (event := self._parser.close()) is not None:
            frames.append(self._read(event, cut=True))
        frames.append(Frame(b"", events=tuple(self._finish())))
        return frames

    def read_reply(self, body: bytes) -> Frame:
        payload = _loads(body)
        if not isinstance(payload, dict):
            raise WireError("the upstream's reply is not a JSON object")
        events = [*self._events(payload, whole=True), *self._finish()]
        return Frame(body, payload, tuple(events))

    def message(self) -> bytes:
        calls = [self._repaired(finished.call) for finished in self._finished]
        extras = [self._calls.extra(finished.seq) for finished in self._finished]
        if self._reply is not None:
            return reply_message(self._reply, calls, extras)
        return self._message.build(calls, extras)

    def _repaired(self, call: ToolCall) -> ToolCall:
        """A hidden call whose arguments are no JSON object, or too long, goes back with ``{}``.

        The model has the error result to read; a client's call goes back as it came (rule W8).
        """
        fits = len(call.arguments.encode()) <= self._bound and is_object(call.arguments)
        return call if fits or not self._is_hidden(call.name) else replace(call, arguments="{}")

    def _finish(self) -> list[TurnEvent]:
        events = self._calls.finish()
        self._finished = [event for event in events if isinstance(event, ToolCallFinished)]
        return events

    def _read(self, event: SSEEvent, *, cut: bool = False) -> Frame:
        """One event as a frame.  ``cut`` says that the stream ended before the event did."""
        if self._ended or event.is_end_mark:
            # What comes after the end mark is not part of the turn.
            self._ended = True
            return Frame(event.raw, is_end_mark=True, undecided=self._calls.undecided)
        payload = _loads(event.data) if event.data else None
        events: list[TurnEvent] = []
        if isinstance(payload, dict):
            events = self._events(payload, whole=False)
        else:
            if event.data[:1] == b"{" and not cut:
                # A piece of the turn is lost, so that no call of it can be trusted.
                events = [TurnFailed(_MALFORMED)]
            payload = None
        return Frame(event.raw, payload, tuple(events), undecided=self._calls.undecided)

    def _events(self, payload: dict[str, Any], *, whole: bool) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        if error := payload.get("error"):
            events.append(TurnFailed(error if isinstance(error, dict) else {"message": str(error)}))
        if not self._started and payload.get("id") and isinstance(payload["id"], str):
            # Azure opens with a chunk whose id is blank.
            self._started = True
            events.append(TurnStarted(payload["id"], str(payload.get("model") or "")))
        choices = payload.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict) and not choice.get("index"):
                    self._choice(choice, events, whole)
        if (usage := usage_of(payload)) is not None:
            events.append(UsageReported(usage))
        return events

    def _choice(self, choice: dict[str, Any], events: list[TurnEvent], whole: bool) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            # A whole reply, or a gateway that streams messages instead of deltas.
            delta = choice.get("message")
        if isinstance(delta, dict):
            if whole:
                self._reply = delta
            self._delta(delta, events, whole)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            events.append(TurnFinished(reason))

    def _delta(self, delta: dict[str, Any], events: list[TurnEvent], whole: bool) -> None:
        self._message.add(delta)
        content = delta.get("content")
        if type(content) is str:
            if content:
                events.append(TextDelta(content))
        elif isinstance(content, list) and (text := "".join(map(part_text, content))):
            events.append(TextDelta(text))
        for key in ("reasoning_content", "reasoning"):
            if isinstance(thought := delta.get(key), str) and thought:
                events.append(ReasoningDelta(thought))
                break
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            events.append(RefusalDelta(refusal))
        calls = delta.get("tool_calls")
        if isinstance(calls, dict):
            calls = [calls]
        if isinstance(calls, list):
            for position, call in enumerate(calls):
                if isinstance(call, dict):
                    fragment = _fragment(call)
                    # In a whole message each element is a call of its own, whatever its index says.
                    events += self._calls.add(replace(fragment, index=position) if whole else fragment)
        if not calls and isinstance(call := delta.get("function_call"), dict):
            # Some gateways say the same call in both forms.
            events += self._calls.add(_legacy_fragment(call))


def _loads(data: bytes) -> Any:
    """The event's data as JSON; ``None`` where it is none, or nested deeper than JSON can be written.

    Invalid UTF-8 and half surrogate pairs are replaced for reading only: a call must not hide behind
    one bad byte, and some servers cut an emoji in two.  So are NaN and infinities, which JSON does
    not have: Python servers write them as log probabilities, and clients in Python read them.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        whole = _ESCAPES.sub(_whole_character, data.decode("utf-8", "replace").encode())
        try:
            value = orjson.loads(whole)
        except orjson.JSONDecodeError:
            try:
                value = json.loads(whole, parse_constant=lambda _: None, parse_int=_integer)
            except (ValueError, RecursionError):
                return None
    if data.count(b"{") + data.count(b"[") > _MAX_DEPTH and _depth(value) > _MAX_DEPTH:
        return None
    return value


def _whole_character(match: re.Match[bytes]) -> bytes:
    """The JSON escape ``match``; the replacement character for half a surrogate pair."""
    escape = match[0]
    return rb"\ufffd" if len(escape) == _LONE_SURROGATE else escape


def _depth(value: Any) -> int:
    """How deeply containers are nested in a JSON value."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def _integer(text: str) -> int | float:
    """A whole number as orjson reads it: what 64 bits do not hold becomes a float."""
    if len(text) <= _MOST_DIGITS and -(2**63) <= (number := int(text)) < 2**64:
        return number
    return float(text)


def _text(value: Any) -> str | None:
    """A name or id; blank is absent, a number is its digits."""
    if isinstance(value, str):
        return value if value.strip() else None
    return str(value) if type(value) is int else None


def _index(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) < 12:
        return int(value)
    return None


def _arguments(value: Any) -> str:
    """Arguments as text, also where they came as a JSON value."""
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _fragment(call: Mapping[str, Any]) -> Fragment:
    """One element of ``delta.tool_calls``, its blanks taken out."""
    function = call.get("function")
    extra = {key: value for key, value in call.items() if key not in _KNOWN_CALL_FIELDS}
    if isinstance(custom := call.get("custom"), dict):
        function = {"name": custom.get("name"), "arguments": custom.get("input")}
        extra["type"] = "custom"
    if not isinstance(function, dict):
        function = {}
    if inner := {key: value for key, value in function.items() if key not in ("name", "arguments")}:
        extra["function"] = inner
    return Fragment(
        _index(call.get("index")),
        _text(call.get("id")),
        _text(function.get("name")),
        _arguments(function.get("arguments")),
        extra,
    )


def _legacy_fragment(call: Mapping[str, Any]) -> Fragment:
    arguments = _arguments(call.get("arguments"))
    return Fragment(None, None, _text(call.get("name")), arguments, {"type": "function_call"}, legacy=True)


def usage_of(payload: Mapping[str, Any]) -> Usage | None:
    """The usage a chunk or reply reports, wherever the provider puts it."""
    native = payload.get("usage")
    if not isinstance(native, dict):
        groq = payload.get("x_groq")
        native = groq.get("usage") if isinstance(groq, dict) else None
        if not isinstance(native, dict):
            return None
    return Usage(
        _count(native.get("prompt_tokens")),
        _count(native.get("completion_tokens")),
        _count(native.get("total_tokens")),
        native,
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
