"""The wire of OpenAI Chat Completions."""

from typing import Any, cast

from proxy.wires.chat.approvals import CHAT_APPROVALS
from proxy.wires.chat.body import ChatBody, masked_turn
from proxy.wires.chat.crossing.encoder import ChatTurnEncoder, turn_message
from proxy.wires.chat.crossing.fields import CHAT_FIELDS
from proxy.wires.chat.crossing.from_client import read_conversation
from proxy.wires.chat.crossing.to_upstream import body_of
from proxy.wires.chat.dialect import CHAT
from proxy.wires.chat.hosted import OPTIONS, hosted_tools, spoken
from proxy.wires.chat.reader import ChatTurnReader, PlainChatTurn
from proxy.wires.chat.reply import ChatReplyWriter
from proxy.wires.chat.request import ChatRequest, parse_chat_request
from proxy.wires.chat.typed_tools.custom import as_functions
from proxy.wires.chat.writer import ChatStreamWriter
from proxy.wires.chosen import ShownTools
from proxy.wires.client_port import ClientRequest, ClientView, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.crossing.reasoning import with_blank_reasoning
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.turn.chosen import rewrite_choice
from proxy.wires.wire import Wire


class ChatWire(Wire):
    """The wire of OpenAI Chat Completions."""

    dialect = CHAT
    approvals = CHAT_APPROVALS
    as_functions = staticmethod(as_functions)
    hosted_tools = staticmethod(hosted_tools)
    spoken = staticmethod(spoken)
    codec = ConversationCodec(
        CHAT_FIELDS, read_conversation, body_of, repair_missing_reasoning=with_blank_reasoning
    )

    parse = staticmethod(parse_chat_request)
    reader = ChatTurnReader
    body_class = ChatBody
    only_with_tools = ("tool_choice", "parallel_tool_calls")
    write_turn = staticmethod(turn_message)
    masked_turn = staticmethod(masked_turn)

    def _rewrite_choice(self, parts: dict[str, bytes], request: ClientRequest, shown: ShownTools) -> None:
        rewrite_choice(parts, shown, request.chosen, named=_named, allowed=_allowed)
        if request.chosen.hosted:
            parts.pop(OPTIONS, None)

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        chat = cast(ChatRequest, request)
        return ChatTurnEncoder(chat.model, wants_usage=chat.wants_usage)

    def plain_turn(self, request: ClientRequest, *, usage_was_added: bool) -> PlainTurn | None:
        chat = cast(ChatRequest, request)
        # The writer holds JSON back, and removes usage that the client did not ask for.
        return None if chat.wants_json or (usage_was_added and not chat.wants_usage) else PlainChatTurn()

    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        chat = cast(ChatRequest, request)
        if not chat.stream:
            return ChatReplyWriter(view, last_text_only=chat.wants_json, used_ids=chat.used_ids())
        return ChatStreamWriter(
            view,
            wants_usage=chat.wants_usage,
            last_text_only=chat.wants_json,
            used_ids=chat.used_ids(),
            forces_call=chat.forced is not None,
        )


def _named(name: str) -> dict[str, Any]:
    """Return the choice of one function."""
    return {"type": "function", "function": {"name": name}}


def _allowed(mode: str, tools: list[Any]) -> dict[str, Any]:
    """Return the choice of some functions."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
