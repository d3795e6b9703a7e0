"""Reads a completion as a conversation: the prompt is the user's message, after the system prompt."""

from collections.abc import Mapping
from typing import Any

from proxy.base.conversation import Conversation, Message, Text
from proxy.wires.crossing.fields import Fields
from proxy.wires.ollama.crossing.fields import COMPLETION_FIELDS
from proxy.wires.ollama.crossing.from_client import read_images, read_settings


def read_completion(payload: Mapping[str, Any]) -> Conversation:
    """Read a completion.  Raises :class:`RequestError`, which names a field of the wrong type."""
    asked = Fields(payload, COMPLETION_FIELDS)
    model = asked.model()
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
