"""Responses without streaming: the single object that the client gets.

As in a stream, the proxy passes the upstream's bytes on unless a server tool was called. It only replaces
the fields that repeat its own changes to the request.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.base.events import FinishReason, ToolCall, ToolResult
from proxy.json.splice import replace_values, value_at
from proxy.wires.client_port import ClientView
from proxy.wires.openai.dialect import error_body
from proxy.wires.responses.items import (
    message_item,
    mint_item_id,
    own_item_id,
    reasoning_item,
)
from proxy.wires.responses.own_items.hosted import OwnCalls
from proxy.wires.responses.own_items.images import with_bounded_images
from proxy.wires.responses.own_items.shown import Item, OwnItems, traced_item
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.request import answer_text
from proxy.wires.responses.resource import ClientTools, complete_resource, ended_as
from proxy.wires.turn.reply import ReplyWriter


class ResponsesReplyWriter(OwnItems, ReplyWriter):
    """Writes one Response for all turns of its run.

    ``asked`` is the client's request. ``echo`` are the fields that repeat what the client sent. ``first``
    are items that come before all others. ``options`` are those of :class:`ReplyWriter`.
    """

    _error_body = staticmethod(error_body)
    asks_by_items = True

    def __init__(
        self,
        view: ClientView,
        *,
        asked: Mapping[str, Any],
        echo: Mapping[str, bytes],
        tools: ClientTools,
        signer: ItemSigner,
        first: Sequence[Item] = (),
        **options: Any,
    ) -> None:
        super().__init__(view, **options)
        self._asked = asked
        self._echo = echo
        self._tools = tools
        self._signer = signer
        self._composing = bool(first)
        self._public_id = ""
        self._created_at = 0
        self._output: list[Any] = list(first)
        self._own_calls = OwnCalls(view.shown.forms)
        self._result: dict[str, Any] | None = None

    @property
    def visible(self) -> str:
        return answer_text(self._output)

    def result(self) -> dict[str, Any] | None:
        return with_bounded_images(self._result)

    @property
    def answer(self) -> Mapping[str, Any]:
        """The whole response after :meth:`finish`; empty before."""
        return self._result or {}

    def _take(self, payload: Mapping[str, Any], calls: list[ToolCall]) -> None:
        self._public_id = self._public_id or str(payload.get("id") or "")
        created = payload.get("created_at")
        if not self._created_at and isinstance(created, int | float):
            self._created_at = int(created)
        self._client_ids = {call.call_id: call.call_id for call in calls if not self._is_hidden(call.name)}
        output = payload.get("output")
        for item in output if isinstance(output, list) else ():
            if not isinstance(item, dict):
                continue
            hidden = item.get("type") == "function_call" and self._is_hidden(str(item.get("name") or ""))
            if not hidden:
                self._output.append(item)

    def _drop_texts(self) -> None:
        self._output = [item for item in self._output if item.get("type") != "message"]

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        item = self._own_calls.begin(call, arguments, 0)
        if item is not None and self._own_calls.is_whole(call):
            self._output.append(item)
        return b""

    def _show_result(self, call: ToolCall, result: ToolResult) -> None:
        if (ended := self._own_calls.end(call, result)) is not None:
            self._output += ended[1]
            return
        served, texts = self._shown.called(call.name), not self._last_text_only
        item = traced_item(self._trace, call, result, self._signer, served=served, texts=texts)
        if item is not None:
            self._output.append(item)

    def _think(self, text: str) -> None:
        self._output.append(reasoning_item(own_item_id("rs"), text))

    def _say(self, text: str) -> None:
        self._output.append(message_item(own_item_id("msg"), text, status="completed"))

    def _show(self, item: Item) -> bytes:
        self._output.append(item)
        return b""

    def finish(self, reason: FinishReason | None) -> bytes:
        payload = self._last.payload or {}
        if not self._composing:
            echo = dict(self._echo)
            self._result = {**payload, **{k: orjson.loads(v) for k, v in echo.items() if k in payload}}
            if "tools" in payload:
                self._result["tools"] = self._tools.listed(payload)
                echo["tools"] = self._tools.raw(payload, value_at(self._last.raw, "tools") or b"[]")
            return replace_values(self._last.raw, echo)
        self._result = complete_resource(
            ended_as(payload, reason),
            self._asked,
            public_id=self._public_id or mint_item_id("response"),
            created_at=self._created_at,
            model=str(payload.get("model") or self._model),
            output=self._output,
            usage=self._usage,
            tools=self._tools.completed(payload),
            used=self._own_calls.used,
        )
        return orjson.dumps(self._result)
