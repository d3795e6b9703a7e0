"""Ollama's chat as one side of a request that is translated between dialects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.base.conversation import Conversation
from proxy.wires.crossing.ledger import Written
from proxy.wires.ollama.fields import OLLAMA_FIELDS
from proxy.wires.ollama.from_client import read_conversation
from proxy.wires.ollama.to_upstream import write_conversation
from proxy.wires.profile import Profile

__all__ = ["OllamaCodec"]


@dataclass(frozen=True, slots=True)
class OllamaCodec:
    """Ollama's :class:`~proxy.wires.crossing.codec.ConversationCodec`."""

    fields = OLLAMA_FIELDS
    # Ollama's own client does so, but LangChain's does not.
    returns_reasoning = False

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        return read_conversation(payload)

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        return write_conversation(conversation, profile, strict=strict)

    def repair_missing_reasoning(self, conversation: Conversation) -> Conversation:
        """Return the same conversation: no upstream of this dialect is known to ask for reasoning."""
        return conversation
