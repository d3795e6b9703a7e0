"""Responses without streaming: the one object the client gets.

As on a stream, the upstream's bytes are handed on unless a server tool was called, but for the
fields that repeat our own changes to the request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from proxy.events import Frame, ToolCall, ToolCallFinished, ToolProgress, ToolResult
from proxy.wires.chosen import NOTHING_SHOWN, ShownServer, ShownTools, ran
from proxy.wires.client_port import Trace, TurnEnd
from proxy.wires.dialects.openai import error_body
from proxy.wires.json.splice import replace_values, value_at
from proxy.wires.responses.client_tools import ClientTools
from proxy.wires.responses.items import mint_item_id
from proxy.wires.responses.own_items.shown import Event, list_events, message_events, traced_events
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.request import answer_text
from proxy.wires.responses.resource import complete_resource
from proxy.wires.turn.usage import add_usage

__all__ = ["ResponsesReplyWriter"]


class ResponsesReplyWriter:
    """One Response over all turns of its run."""

    def __init__(
        self,
        *,
        model: str,
        asked: Mapping[str, Any],
        echo: Mapping[str, bytes],
        tools: ClientTools,
        signer: ItemSigner,
        is_hidden: Callable[[str], bool],
        trace: Trace = "silent",
        last_text_only: bool = False,
        shown: ShownTools = NOTHING_SHOWN,
        lists: Sequence[ShownServer] = (),
    ) -> None:
        self._model = model
        self._asked = asked
        self._echo = echo
        self._tools = tools
        self._signer = signer
        self._is_hidden = is_hidden
        self._trace = trace
        self._last_text_only = last_text_only
        self._shown = shown
        self._composing = bool(lists)
        self._public_id = ""
        self._created_at = 0
        self._last = Frame(b"")
        self._output: list[Any] = []
        self._usage: dict[str, Any] | None = None
        self._client_ids: dict[str, str] = {}
        self._result: dict[str, Any] | None = None
        for server in lists:
            self._show(list_events(server))

    @property
    def composing(self) -> bool:
        return self._composing

    @property
    def visible(self) -> str:
        return answer_text(self._output)

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def result(self) -> dict[str, Any] | None:
        return self._result

    @property
    def answer(self) -> Mapping[str, Any]:
        """The whole response once it is finished; empty before."""
        return self._result or {}

    def write(self, frame: Frame) -> bytes:
        """Take a whole reply; nothing leaves before :meth:`finish`."""
        payload = frame.payload or {}
        self._last = frame
        self._public_id = self._public_id or str(payload.get("id") or "")
        created = payload.get("created_at")
        if not self._created_at and isinstance(created, int | float):
            self._created_at = int(created)
        calls = [event.call for event in frame.events if isinstance(event, ToolCallFinished)]
        self._client_ids = {call.call_id: call.call_id for call in calls if not self._is_hidden(call.name)}
        self._composing = self._composing or any(self._is_hidden(call.name) for call in calls)
        if isinstance(usage := payload.get("usage"), dict):
            self._usage = add_usage(self._usage or {}, usage)
        output = payload.get("output")
        for item in output if isinstance(output, list) else ():
            if not isinstance(item, dict):
                continue
            hidden = item.get("type") == "function_call" and self._is_hidden(str(item.get("name") or ""))
            if not hidden:
                self._output.append(item)
        return b""

    def turn_ended(self, end: TurnEnd) -> bytes:
        if end == "hidden":
            self._composing = True
            if self._last_text_only:
                self._output = [item for item in self._output if item.get("type") != "message"]
        return b""

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        return b""

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return b""

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        if told := ran(self._shown, result):
            self._usage = add_usage(self._usage or {}, told)
        served, texts = self._shown.called(call.name), not self._last_text_only
        self._show(traced_events(self._trace, call, result, self._signer, served=served, texts=texts))
        return b""

    def _show(self, events: Iterable[Event]) -> None:
        self._output += [event["item"] for event in events if event["type"] == "response.output_item.done"]

    def note(self, text: str) -> bytes:
        if not self._last_text_only:
            self._show(message_events(text))
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def finish(self, reason: str | None) -> bytes:
        payload = self._last.payload or {}
        if not self._composing:
            echo = dict(self._echo)
            self._result = {**payload, **{k: orjson.loads(v) for k, v in echo.items() if k in payload}}
            if "tools" in payload:
                self._result["tools"] = self._tools.of(payload)
                echo["tools"] = self._tools.raw(payload, value_at(self._last.raw, "tools") or b"[]")
            return replace_values(self._last.raw, echo)
        status = str(payload.get("status") or "completed")
        if reason in ("stop", "tool_calls") or status == "in_progress":
            status = "completed"
        if reason == "length" and status == "completed":
            status = "incomplete"
            payload = {**payload, "incomplete_details": {"reason": "max_output_tokens"}}
        self._result = complete_resource(
            {**payload, "status": status},
            self._asked,
            public_id=self._public_id or mint_item_id("response"),
            created_at=self._created_at,
            model=str(payload.get("model") or self._model),
            output=self._output,
            usage=self._usage,
            tools=self._tools.completed(payload),
        )
        return orjson.dumps(self._result)

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        return orjson.dumps(error_body(message, type=type, code=code))
