"""Finds and fills in reasoning that must go back to the model with the calls that it led to.

Some providers refuse a turn with calls whose reasoning is missing:

* DeepSeek: ``The `reasoning_content` in the thinking mode must be passed back to the API.``
* Moonshot: ``thinking is enabled but reasoning_content is missing in assistant tool call message at index 2``
* Anthropic: ``Expected `thinking` or `redacted_thinking`, but found `tool_use` ``

The client may have lost it, or its dialect may have no place for it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from proxy.base.conversation import Conversation, Message, Reasoning, ToolCallPart

_MISSING: Final = re.compile(
    r"reasoning(_content)?\W+(is |was |are )?(missing|required)|missing\W+(\w+\W+)?reasoning(_content)?\b"
    r"|reasoning(_content)?\b.{0,80}\bmust be (passed|sent|provided|included|returned)"
    r"|expected\W+(redacted_)?thinking\b",
    re.IGNORECASE | re.DOTALL,
)

BLANK: Final = Reasoning(" ")
"""Reasoning without content. Moonshot treats an empty text as missing."""


def asks_for_reasoning(message: str) -> bool:
    """Return whether an upstream refuses a request because the reasoning of a turn is missing."""
    return _MISSING.search(message) is not None


def is_plain(part: Reasoning) -> bool:
    """Return whether reasoning is text that any model may read, not signed or encrypted by a provider."""
    return bool(part.text or part.summary) and not (part.signature or part.encrypted or part.redacted)


def in_loops(messages: Sequence[Message]) -> Sequence[bool]:
    """Return for each message whether a tool was called in its span from one user message to the next."""
    found: list[bool] = []
    begun = 0
    calls = False
    for place, message in enumerate(messages):
        if message.role == "user":
            found += [calls] * (place - begun)
            begun, calls = place, False
        calls = calls or _calls(message)
    return [*found, *[calls] * (len(messages) - begun)]


def with_blank_reasoning(conversation: Conversation) -> Conversation:
    """Give each turn of the model without reasoning a blank one; providers check only that there is some."""
    messages = tuple(
        message
        if message.role != "assistant" or any(isinstance(part, Reasoning) for part in message.parts)
        else replace(message, parts=(BLANK, *message.parts))
        for message in conversation.messages
    )
    return replace(conversation, messages=messages)


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCallPart) for part in message.parts)
