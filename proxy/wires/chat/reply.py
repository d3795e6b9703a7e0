"""Chat Completions without streaming: the one object the client gets.

As on a stream, the upstream's bytes are handed on as they are unless a server tool was called.
"""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from proxy.events import (
    Frame,
    ToolCall,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    ToolResult,
    UsageReported,
)
from proxy.wires.chat.message import call_object, part_text
from proxy.wires.chosen import NOTHING_SHOWN, ShownTools, ran
from proxy.wires.client_port import Trace, TurnEnd
from proxy.wires.dialects.openai import error_body
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_result
from proxy.wires.turn.usage import add_usage

__all__ = ["ChatReplyWriter"]

_REASONING = ("reasoning_content", "reasoning")


class ChatReplyWriter:
    """One ``chat.completion`` over all turns of its run."""

    def __init__(
        self,
        *,
        model: str,
        is_hidden: Callable[[str], bool],
        trace: Trace = "silent",
        last_text_only: bool = False,
        used_ids: frozenset[str] = frozenset(),
        shown: ShownTools = NOTHING_SHOWN,
    ) -> None:
        self._model = model
        self._is_hidden = is_hidden
        self._trace = trace
        self._chosen = shown
        self._last_text_only = last_text_only
        self._used_ids = used_ids
        self._composing = False
        self._first: dict[str, Any] = {}
        self._last: Frame = Frame(b"")
        self._texts: list[str] = []
        self._reasoning: dict[str, list[str]] = {}
        self._usages: list[Mapping[str, Any]] = []
        self._client_ids: dict[str, str] = {}
        self._shown: list[dict[str, Any]] = []

    @property
    def composing(self) -> bool:
        return self._composing

    @property
    def visible(self) -> str:
        return _paragraphs(self._texts) if self._texts else ""

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def result(self) -> dict[str, Any] | None:
        return None

    def write(self, frame: Frame) -> bytes:
        """Take a whole reply; nothing leaves before :meth:`finish`."""
        payload = frame.payload or {}
        self._last = frame
        self._first = self._first or payload
        calls = _calls(frame)
        if any(self._is_hidden(call.name) for call in calls):
            self._composing = True
        self._client_ids = {
            call.call_id: self._free_id(call) for call in calls if not self._is_hidden(call.name)
        }
        for event in frame.events:
            if isinstance(event, UsageReported):
                self._usages.append(event.usage.native)
        message = _message(payload)
        text = message.get("content")
        if isinstance(text, list):
            text = "".join(map(part_text, text))
        if isinstance(text, str) and text:
            self._texts.append(text)
        for key in _REASONING:
            if isinstance(thought := message.get(key), str) and thought:
                self._reasoning.setdefault(key, []).append(thought)
        return b""

    def _free_id(self, call: ToolCall) -> str:
        return call.call_id if call.call_id not in self._used_ids else mint_call_id()

    def turn_ended(self, end: TurnEnd) -> bytes:
        if end == "hidden":
            self._composing = True
            if self._last_text_only:
                self._texts.clear()
        return b""

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        if self._trace == "events":
            self._shown.append(trace_call(call, arguments))
        return b""

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return b""

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        if self._chosen:
            self._usages.append(ran(self._chosen, result))
        if self._trace == "events":
            self._shown.append(trace_result(call, result))
        elif self._trace == "reasoning":
            self._reasoning.setdefault("reasoning_content", []).append(reasoning_line(call, result))
        elif self._trace == "status" and not self._last_text_only:
            self._texts.append(status_line(call, result))
        return b""

    def note(self, text: str) -> bytes:
        if not self._last_text_only:
            self._texts.append(text)
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def finish(self, reason: str | None) -> bytes:
        if not self._composing:
            return self._last.raw
        payload = dict(self._last.payload or {})
        choices = payload.get("choices")
        choice = (
            dict(choices[0]) if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        )
        said = choice.get("finish_reason")
        message = self._composed_message()
        final = reason or said or "stop"
        if final == "tool_calls" and "function_call" in message:
            final = "function_call"
        choice.pop("delta", None)  # Some gateways write one, which may have our calls, beside the message.
        choice |= {"index": 0, "message": message, "finish_reason": final}
        payload["choices"] = [choice]
        payload["object"] = "chat.completion"
        for key, missing in (("id", ""), ("created", 0), ("model", self._model)):
            payload[key] = self._first.get(key) or payload.get(key) or missing
        payload["id"] = payload["id"] or "chatcmpl-" + mint_call_id().removeprefix("call_")
        usage: dict[str, Any] = {}
        for turn in self._usages:
            usage = add_usage(usage, turn)
        if usage:
            payload["usage"] = usage
        if self._shown:
            payload["x_toolrelay"] = self._shown
        return orjson.dumps(payload)

    def _composed_message(self) -> dict[str, Any]:
        """The last turn's message, with the texts of all turns and only the client's calls."""
        message = {
            key: value
            for key, value in _message(self._last.payload or {}).items()
            if key not in ("tool_calls", "function_call")
        }
        message["role"] = "assistant"
        message["content"] = _paragraphs(self._texts) if self._texts else None
        message |= {key: "".join(parts) for key, parts in self._reasoning.items()}
        mine = [call for call in _calls(self._last) if not self._is_hidden(call.name)]
        extras = _extras(self._last)
        if mine and mine[0].legacy:
            message["function_call"] = {"name": mine[0].name, "arguments": mine[0].arguments}
        elif mine:
            message["tool_calls"] = [
                {**call_object(call, extras.get(call.call_id, {})), "id": self._client_ids[call.call_id]}
                for call in mine
            ]
        return message

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        return orjson.dumps(error_body(message, type=type, code=code))


def _calls(frame: Frame) -> list[ToolCall]:
    return [event.call for event in frame.events if isinstance(event, ToolCallFinished)]


def _extras(frame: Frame) -> dict[str, Mapping[str, Any]]:
    """The unknown fields of each call of a reply, by call id."""
    return {event.call_id: event.extra for event in frame.events if isinstance(event, ToolCallStarted)}


def _message(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    return message if isinstance(message, dict) else {}


def _paragraphs(texts: list[str]) -> str:
    """Texts of several turns, joined as on a stream."""
    joined = texts[0]
    for text in texts[1:]:
        joined += text if joined[-1:].isspace() or text[:1].isspace() else "\n\n" + text
    return joined
