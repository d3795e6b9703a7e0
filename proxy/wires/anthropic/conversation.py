"""Messages as one side of a request that is translated between dialects."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proxy.base.conversation import Conversation, ReasoningSettings
from proxy.wires.anthropic.fields import ANTHROPIC_FIELDS
from proxy.wires.anthropic.from_client import read_conversation
from proxy.wires.anthropic.to_upstream import write_conversation
from proxy.wires.crossing.ledger import Written
from proxy.wires.profile import Profile

__all__ = ["AnthropicCodec"]


@dataclass(frozen=True, slots=True)
class AnthropicCodec:
    """Messages' :class:`~proxy.wires.crossing.codec.ConversationCodec`."""

    fields = ANTHROPIC_FIELDS
    returns_reasoning = True

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        return read_conversation(payload)

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        return write_conversation(conversation, profile, strict=strict)

    def repair_missing_reasoning(self, conversation: Conversation) -> Conversation:
        """Turn thinking off: with it, each turn with calls must begin with a thought and its signature."""
        return replace(conversation, reasoning=ReasoningSettings("none"))
