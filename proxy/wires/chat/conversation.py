"""Chat as one side of a request that is translated between dialects."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proxy.base.conversation import Conversation
from proxy.wires.chat.fields import CHAT_FIELDS
from proxy.wires.chat.from_client import read_conversation
from proxy.wires.chat.to_upstream import write_conversation
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.reasoning import with_blank_reasoning
from proxy.wires.profile import Profile

__all__ = ["ChatCodec", "read_conversation", "write_conversation"]


@dataclass(frozen=True, slots=True)
class ChatCodec:
    """Chat's :class:`~proxy.wires.crossing.codec.ConversationCodec`."""

    fields = CHAT_FIELDS
    returns_reasoning = False

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        return read_conversation(payload)

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        return write_conversation(conversation, profile, strict=strict)

    def repair_missing_reasoning(self, conversation: Conversation) -> Conversation:
        """Give each turn of the model some reasoning; providers check only that there is some."""
        return replace(conversation, messages=with_blank_reasoning(conversation.messages))
