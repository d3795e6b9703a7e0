"""Turns a request for a compaction into a conversation that asks the model for a summary."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from proxy.base.conversation import (
    Conversation,
    Message,
    Output,
    Part,
    Reasoning,
    Text,
    ToolCallPart,
    ToolResultPart,
)
from proxy.wires.responses.crossing.from_client import read_conversation

_INSTRUCTION: Final = """\
Stop working on the task. Your only job now is to write a summary of the conversation above. The summary \
will replace the conversation: whoever continues it sees the summary and nothing else.

Write down, in this order:
1. What the user wants, with every requirement, preference and decision, in the user's own words.
2. What was done and found out so far, with exact names, numbers, paths, identifiers, code and results.
3. What is still open, and the next step.

Keep the language of the conversation. Do not answer the user, do not call tools, and do not comment on this \
request."""


def read_compaction(payload: Mapping[str, Any]) -> Conversation:
    """Read a request for a compaction. Raises as ``read_conversation`` does.

    Calls and their results become text, so that the upstream need not know the tools.
    """
    asked = read_conversation(payload)
    told = (replace(message, role=_role(message), parts=_in_words(message)) for message in asked.messages)
    messages = (*(message for message in told if message.parts), Message("user", (Text(_INSTRUCTION),)))
    return replace(
        asked,
        messages=messages,
        tools=(),
        tool_choice=None,
        parallel_tool_calls=None,
        max_tool_calls=None,
        output=Output(),
        stream=False,
    )


def _role(message: Message) -> Any:
    return "user" if message.role == "tool" else message.role


def _in_words(message: Message) -> tuple[Part, ...]:
    """Return the parts of a message, with calls and results as text and without reasoning."""
    return tuple(part for said in message.parts for part in _words(said))


def _words(part: Part) -> Iterator[Part]:
    match part:
        case Reasoning():
            return
        case ToolCallPart():
            yield Text(f"[Call of the tool {part.name}: {part.arguments}]", at=part.at)
        case ToolResultPart():
            yield Text(
                "[Result of the tool, which failed:]" if part.is_error else "[Result of the tool:]",
                at=part.at,
            )
            yield from part.parts
        case _:
            yield part
