"""The Responses side of a request that crosses from one dialect to another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.base.conversation import Conversation
from proxy.wires.crossing.ledger import Written
from proxy.wires.profile import Profile
from proxy.wires.responses.fields import RESPONSES_FIELDS
from proxy.wires.responses.from_client import read_conversation
from proxy.wires.responses.to_upstream import write_conversation

__all__ = ["ResponsesCodec", "read_conversation", "write_conversation"]


@dataclass(frozen=True, slots=True)
class ResponsesCodec:
    """The :class:`~proxy.wires.crossing.codec.ConversationCodec` of Responses."""

    fields = RESPONSES_FIELDS
    returns_reasoning = True

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        return read_conversation(payload)

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        return write_conversation(conversation, profile, strict=strict)

    def repair_missing_reasoning(self, conversation: Conversation) -> Conversation:
        """Return the conversation unchanged: no upstream of this dialect is known to require reasoning."""
        return conversation
