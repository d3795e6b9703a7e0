"""OpenAI Chat Completions: request, response and stream."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from proxy.wires.base import BodyEditor, ClientRequest, StateHabit, StreamWriter, Trace, TurnReader
from proxy.wires.chat.body import ChatBody
from proxy.wires.chat.reader import ChatTurnReader
from proxy.wires.chat.reply import ChatReplyWriter
from proxy.wires.chat.request import ChatRequest, parse_chat_request
from proxy.wires.chat.writer import ChatStreamWriter
from proxy.wires.dialects.chat import CHAT

__all__ = ["ChatWire"]


class ChatWire:
    """The Chat wire."""

    dialect = CHAT

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        return parse_chat_request(payload)

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        return ChatBody(raw, cast(ChatRequest, request))

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        return ChatTurnReader(declared, is_hidden, max_argument_bytes)

    def writer(
        self,
        request: ClientRequest,
        *,
        is_hidden: Callable[[str], bool],
        trace: Trace,
        model: str,
        usage_was_added: bool,
        caller: str = "",
    ) -> StreamWriter:
        chat = cast(ChatRequest, request)
        if not chat.stream:
            return ChatReplyWriter(
                model=model,
                is_hidden=is_hidden,
                trace=trace,
                last_text_only=chat.wants_json,
                used_ids=chat.used_ids(),
            )
        return ChatStreamWriter(
            model=model,
            is_hidden=is_hidden,
            trace=trace,
            wants_usage=chat.wants_usage,
            filter_usage=usage_was_added and not chat.wants_usage,
            hold_text=chat.wants_json,
            used_ids=chat.used_ids(),
        )
