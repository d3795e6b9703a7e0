"""Missing reasoning: which refusals ask for it, and which messages belong to a loop of tool calls."""

import pytest

from proxy.base.conversation import Conversation, Message, Reasoning, Text, ToolCallPart, ToolResultPart
from proxy.wires.crossing.reasoning import asks_for_reasoning, in_loops, is_plain, with_blank_reasoning

USER = Message("user", (Text("u"),))
SAID = Message("assistant", (Text("a"),))
CALLED = Message("assistant", (ToolCallPart("c", "f", "{}"),))
RESULT = Message("tool", (ToolResultPart("c", ()),))


@pytest.mark.parametrize(
    "said",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "Missing `reasoning_content` field in the assistant message at message index 1.",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
        "Expected `redacted_thinking` or `thinking`",
        "reasoning is required",
    ],
)
def test_a_refusal_asks_for_reasoning(said: str) -> None:
    """The proxy recognizes the messages with which known upstreams ask for missing reasoning."""
    assert asks_for_reasoning(said)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "Unknown parameter: 'messages[1].reasoning_content'.",
        "messages.1: property 'reasoning_content' is unsupported",
        "Invalid `signature` in `thinking` block",
        "thinking is not supported by this model",
        "prompt is too long",
        "the model's reasoning took too long; a tool_call_id is missing",
    ],
)
def test_another_refusal_does_not(said: str) -> None:
    """A refusal of a reasoning field, or another error, does not count as asking for reasoning."""
    assert not asks_for_reasoning(said)


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([], ""),
        ([USER, SAID], ".."),
        ([USER, CALLED, RESULT, SAID], "####"),
        ([USER, SAID, CALLED, RESULT], "####"),
        ([USER, SAID, USER, CALLED, RESULT], "..###"),
        ([USER, CALLED, RESULT, SAID, USER, SAID], "####.."),
        ([CALLED, RESULT, USER], "##."),
    ],
)
def test_a_loop_lasts_until_the_user_says_something_else(messages: list[Message], found: str) -> None:
    """Every message between two user messages belongs to a loop if a tool is called between them."""
    assert "".join("#" if one else "." for one in in_loops(messages)) == found


def test_reasoning_that_is_missing_is_a_blank() -> None:
    """The proxy puts a blank reasoning into each message of the model that has none."""
    thought = Message("assistant", (Reasoning("x"), Text("a")))
    user, called, result, kept = with_blank_reasoning(
        Conversation("m", (USER, CALLED, RESULT, thought))
    ).messages
    assert (user, result, kept) == (USER, RESULT, thought)
    assert called.parts == (Reasoning(" "), *CALLED.parts)


def test_only_text_is_for_everybody() -> None:
    """Reasoning is plain only if it is text and not signed, encrypted or redacted by a provider."""
    assert is_plain(Reasoning("x"))
    assert is_plain(Reasoning(summary=("x",)))
    assert not any(
        map(is_plain, [Reasoning("x", signature="s"), Reasoning(redacted="r"), Reasoning(encrypted="e")])
    )
    assert not is_plain(Reasoning())
