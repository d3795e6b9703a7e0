"""Messages without streaming: writes the client's one object.

As on a stream, the upstream's bytes are forwarded unchanged unless a server tool was called, and calls that
have forms of their own stand before those of the client (:mod:`.writer`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.base.events import FinishReason, ToolCall, ToolResult
from proxy.wires.anthropic.blocks import FINISH_WORDS, Block, blocks_text
from proxy.wires.anthropic.crossing.encoder import new_message, text_block, thought_block
from proxy.wires.anthropic.dialect import error_body
from proxy.wires.anthropic.hosted.programs import ContainerInUse
from proxy.wires.anthropic.hosted.shown_programs import ProgramBlocks
from proxy.wires.client_port import ClientCall, ClientView
from proxy.wires.turn.reply import ReplyWriter


class AnthropicReplyWriter(ReplyWriter):
    """A writer of one message over all turns. The options are those of :class:`ReplyWriter`."""

    _error_body = staticmethod(error_body)
    _ID_PREFIX = "toolu_"

    def __init__(self, view: ClientView, *, container: ContainerInUse | None = None, **options: Any) -> None:
        super().__init__(view, **options)
        self._first: Mapping[str, Any] = {}
        self._programs = ProgramBlocks(view, container)
        self._blocks: list[Block] = self._programs.opening
        self._composing = bool(self._blocks)
        self._late: list[Block] = []
        self._begun: dict[str, Block | None] = {}

    @property
    def visible(self) -> str:
        return blocks_text(self._blocks)

    def _take(self, payload: Mapping[str, Any], calls: list[ToolCall]) -> None:
        self._first = self._first or payload
        left = iter(calls)
        content = payload.get("content")
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, dict):
                continue
            if block.get("type") != "tool_use" or not block.get("name"):
                self._blocks.append(block)
            elif (call := next(left, None)) is None or self._is_hidden(call.name):
                self._composing = True
            else:
                self._client_ids[call.call_id] = client_id = self._free_id(call)
                place = self._late if self._shown.forms else self._blocks
                place.append({**block, "id": client_id})

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        if (form := self._shown.forms.get(call.name)) is None:
            return super().tool_started(call, arguments)
        self._begun[call.call_id] = block = self._programs.begun(form, call, arguments)
        if block is not None:
            self._blocks.append(block)
        return b""

    def _drop_texts(self) -> None:
        self._blocks = [block for block in self._blocks if block.get("type") != "text"]

    def _show_result(self, call: ToolCall, result: ToolResult) -> None:
        if (form := self._shown.forms.get(call.name)) is None:
            super()._show_result(call, result)
            return
        self._count(form.usage(result))
        self._blocks += form.ended(self._begun.pop(call.call_id), call, result)

    @property
    def container(self) -> str:
        return self._programs.container.id

    def client_called(self, name: str, calls: Sequence[ClientCall]) -> bytes:
        self._late += self._programs.called(name, calls)
        return b""

    def _think(self, text: str) -> None:
        self._blocks.append(thought_block(text))

    def _say(self, text: str) -> None:
        self._blocks.append(text_block(text))

    def finish(self, reason: FinishReason | None) -> bytes:
        if not self._composing:
            return self._last.raw
        last = self._last.payload or {}
        given = last.get("stop_reason")
        final = FINISH_WORDS.write(reason, given if isinstance(given, str) else None)
        message = {
            **new_message(self._model),
            **last,
            **{key: self._first[key] for key in ("id", "model") if self._first.get(key)},
            "content": [*self._blocks, *self._late],
            "stop_reason": final,
            "usage": {"input_tokens": 0, "output_tokens": 0, **(self._usage or {})},
            **self._programs.ending(),
        }
        if final != given:
            message["stop_sequence"] = None
        if self._traces:
            message["x_toolrelay"] = self._traces
        return orjson.dumps(message)
