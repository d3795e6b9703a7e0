"""Reads a completion as a conversation: the prompt is the user's message, after the system prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.base.conversation import Conversation, Message, Text
from proxy.base.errors import ModelMissing
from proxy.wires.crossing.fields import Fields
from proxy.wires.crossing.ledger import Written
from proxy.wires.ollama.fields import COMPLETION_FIELDS
from proxy.wires.ollama.from_client import read_images, read_settings
from proxy.wires.ollama.to_upstream import write_conversation
from proxy.wires.profile import Profile

__all__ = ["CompletionCodec"]


@dataclass(frozen=True, slots=True)
class CompletionCodec:
    """The :class:`~proxy.wires.crossing.codec.ConversationCodec` of completions."""

    fields = COMPLETION_FIELDS
    returns_reasoning = False

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        """See :meth:`proxy.wires.crossing.codec.ConversationCodec.read`."""
        asked = Fields(payload, COMPLETION_FIELDS)
        model = asked.text("model")
        if not model:
            raise ModelMissing()
        system, prompt = asked.text("system"), asked.text("prompt")
        said = [Text(prompt, at="prompt")] if prompt else []
        settings = read_settings(asked)
        user = Message("user", (*said, *read_images(asked)), at="prompt")
        # Clients send these fields even if they are empty.
        for name, nothing in (("suffix", ""), ("template", ""), ("raw", False), ("context", [])):
            asked.skip(name, nothing)
        return Conversation(
            model=model,
            messages=(user,),
            system=(Message("system", (Text(system, at="system"),), at="system"),) if system else (),
            **settings._asdict(),
            native=asked.rest(),
            names=asked.names,
        )

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        """Write a chat: see :meth:`proxy.wires.crossing.codec.ConversationCodec.write`."""
        return write_conversation(conversation, strict=strict)

    def repair_missing_reasoning(self, conversation: Conversation) -> Conversation:
        """See :meth:`proxy.wires.crossing.codec.ConversationCodec.repair_missing_reasoning`."""
        return conversation
