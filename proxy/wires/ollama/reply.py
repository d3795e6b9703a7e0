"""Ollama's chat without streaming: writes the client's one object.

As on a stream, the upstream's bytes are forwarded unchanged unless a server tool was called.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.base.events import FinishReason, ToolCall
from proxy.wires.client_port import ClientView
from proxy.wires.ollama.dialect import error_body
from proxy.wires.ollama.lines import FINISH_WORDS, LineMaker, between, indexed, last_line, without_calls
from proxy.wires.ollama.request import Call, keys_of
from proxy.wires.turn.reply import ReplyWriter


class OllamaReplyWriter(ReplyWriter):
    """A writer of one answer over all turns of its run.

    ``lines`` is the class that makes and reads lines; the other options are those of :class:`ReplyWriter`.
    """

    _error_body = staticmethod(error_body)

    def __init__(self, view: ClientView, *, lines: type[LineMaker] = LineMaker, **options: Any) -> None:
        super().__init__(view, **options)
        self._lines = lines(view.model)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._shown_calls: list[Any] = []
        self._theirs: list[Call] = []

    @property
    def visible(self) -> str:
        return "".join(self._texts)

    def client_ids(self) -> Mapping[str, str]:
        keys = keys_of([call.identity for call in self._theirs])
        return {call.call_id: key for call, key in zip(self._theirs, keys, strict=True)}

    def _take(self, payload: Mapping[str, Any], calls: list[ToolCall]) -> None:
        if isinstance(payload.get("model"), str) and payload["model"]:
            self._lines.model = payload["model"]
        said = self._lines.message_of(payload) or {}
        if isinstance(text := said.get("content"), str) and text:
            self._texts += [between(self._texts[-1] if self._texts else "", text), text]
        self._thoughts += [text for text in [said.get("thinking")] if isinstance(text, str) and text]
        theirs = [call for call in calls if not self._is_hidden(call.name)]
        shown = without_calls(said, self._is_hidden)
        if len(theirs) == len(shown.get("tool_calls") or ()):
            ids = [self._free_id(call) for call in theirs]
            self._shown_calls += indexed(shown, len(self._theirs), ids).get("tool_calls") or ()
            self._theirs += [Call(call.call_id, call.name, call.arguments) for call in theirs]

    def _drop_texts(self) -> None:
        self._texts.clear()

    def _think(self, text: str) -> None:
        self._thoughts.append(text)

    def _say(self, text: str) -> None:
        self._texts.append(text)

    def finish(self, reason: FinishReason | None) -> bytes:
        if not self._composing:
            return self._last.raw
        said: dict[str, Any] = {"content": "".join(self._texts)}
        if self._thoughts:
            said["thinking"] = "".join(self._thoughts)
        if self._shown_calls:
            said["tool_calls"] = self._shown_calls
        word = FINISH_WORDS.write(reason, str((self._last.payload or {}).get("done_reason") or "stop"))
        whole = last_line(self._lines, word, self._usage or {}, **said)
        if self._traces:
            whole["x_toolrelay"] = self._traces
        return orjson.dumps(whole)
