"""Chat Completions without streaming: writes the client's one object.

As on a stream, the upstream's bytes are forwarded unchanged unless a server tool was called.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.base.events import FinishReason, Frame, ToolCall, ToolCallFinished, ToolCallStarted
from proxy.wires.chat.message import call_object, part_text
from proxy.wires.client_port import ClientView
from proxy.wires.openai.dialect import error_body
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.citations import with_moved_indices
from proxy.wires.turn.reply import ReplyWriter

_REASONING = ("reasoning_content", "reasoning")


class ChatReplyWriter(ReplyWriter):
    """A writer of one ``chat.completion`` over all turns. The options are those of :class:`ReplyWriter`."""

    _error_body = staticmethod(error_body)
    _AFTER_STATUS = ""  # The texts become paragraphs.

    def __init__(self, view: ClientView, **options: Any) -> None:
        super().__init__(view, **options)
        self._first: Mapping[str, Any] = {}
        self._texts: list[str] = []
        self._reasoning: dict[str, list[str]] = {}
        self._annotations: list[Any] = []

    @property
    def visible(self) -> str:
        return _paragraphs(self._texts) if self._texts else ""

    def _take(self, payload: Mapping[str, Any], calls: list[ToolCall]) -> None:
        self._first = self._first or payload
        self._client_ids = {
            call.call_id: self._free_id(call) for call in calls if not self._is_hidden(call.name)
        }
        message = _message(payload)
        text = message.get("content")
        if isinstance(text, list):
            text = "".join(map(part_text, text))
        if isinstance(text, str) and text:
            self._texts.append(text)
        if isinstance(annotations := message.get("annotations"), list) and annotations:
            before = len(self.visible) - (len(text) if isinstance(text, str) else 0)
            self._annotations += with_moved_indices(annotations, before)
        for key in _REASONING:
            if isinstance(thought := message.get(key), str) and thought:
                self._reasoning.setdefault(key, []).append(thought)

    def _drop_texts(self) -> None:
        self._texts.clear()
        self._annotations.clear()

    def _think(self, text: str) -> None:
        self._reasoning.setdefault("reasoning_content", []).append(text)

    def _say(self, text: str) -> None:
        self._texts.append(text)

    def finish(self, reason: FinishReason | None) -> bytes:
        if not self._composing:
            return self._last.raw
        payload = dict(self._last.payload or {})
        choices = payload.get("choices")
        choice = (
            dict(choices[0]) if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        )
        said = choice.get("finish_reason")
        message = self._composed_message()
        final = reason.value if reason is not None else said or "stop"
        if final == "tool_calls" and "function_call" in message:
            final = "function_call"
        choice.pop("delta", None)  # Some gateways write one beside the message; it may have our calls.
        choice |= {"index": 0, "message": message, "finish_reason": final}
        payload["choices"] = [choice]
        payload["object"] = "chat.completion"
        for key, missing in (("id", ""), ("created", 0), ("model", self._model)):
            payload[key] = self._first.get(key) or payload.get(key) or missing
        payload["id"] = payload["id"] or mint_call_id("chatcmpl-")
        if self._usage:
            payload["usage"] = self._usage
        if self._traces:
            payload["x_toolrelay"] = self._traces
        return orjson.dumps(payload)

    def _composed_message(self) -> dict[str, Any]:
        """Return the last turn's message, with the texts of all turns and only the client's calls."""
        message = {
            key: value
            for key, value in _message(self._last.payload or {}).items()
            if key not in ("tool_calls", "function_call")
        }
        message["role"] = "assistant"
        message["content"] = _paragraphs(self._texts) if self._texts else None
        message |= {key: "".join(parts) for key, parts in self._reasoning.items()}
        if self._annotations:
            message["annotations"] = self._annotations
        mine = [call for call in _calls(self._last) if not self._is_hidden(call.name)]
        extras = {
            event.call_id: event.extra for event in self._last.events if isinstance(event, ToolCallStarted)
        }
        if mine and mine[0].legacy:
            message["function_call"] = {"name": mine[0].name, "arguments": mine[0].arguments}
        elif mine:
            message["tool_calls"] = [
                {**call_object(call, extras.get(call.call_id, {})), "id": self._client_ids[call.call_id]}
                for call in mine
            ]
        return message


def _calls(frame: Frame) -> list[ToolCall]:
    return [event.call for event in frame.events if isinstance(event, ToolCallFinished)]


def _message(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    return message if isinstance(message, dict) else {}


def _paragraphs(texts: list[str]) -> str:
    """Join the texts of several turns as on a stream."""
    joined = texts[0]
    for text in texts[1:]:
        joined += text if joined[-1:].isspace() or text[:1].isspace() else "\n\n" + text
    return joined
