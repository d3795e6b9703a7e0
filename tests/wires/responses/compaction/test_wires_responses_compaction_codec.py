"""The request that asks the model to summarize a conversation."""

from typing import Any

from proxy.base.conversation import Text
from proxy.wires.responses.compaction.wire import ResponsesCompactionWire

CODEC = ResponsesCompactionWire.codec
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
INPUT: list[dict[str, Any]] = [
    {"role": "user", "content": "weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"at":"SF"}'},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
]


def said(payload: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return role and texts of each message."""
    messages = CODEC.read(payload).messages
    return [(one.role, [part.text for part in one.parts if isinstance(part, Text)]) for one in messages]


def test_calls_and_results_are_told_in_words() -> None:
    """Calls and results become text, so that the upstream needs no tools and calls none."""
    conversation = CODEC.read({"model": "m", "input": INPUT, "tools": [TOOL], "tool_choice": "required"})
    assert (conversation.tools, conversation.tool_choice, conversation.stream) == ((), None, False)
    assert said({"model": "m", "input": INPUT, "tools": [TOOL]})[:-1] == [
        ("user", ["weather?"]),
        ("assistant", ['[Call of the tool get_weather: {"at":"SF"}]']),
        ("user", ["[Result of the tool:]", "sunny"]),
        ("assistant", ["It is sunny."]),
    ]


def test_the_last_word_asks_for_a_summary() -> None:
    """The last message asks for a summary, and the instructions stay."""
    conversation = CODEC.read({"model": "m", "input": "hi", "instructions": "Be brief."})
    role, texts = said({"model": "m", "input": "hi"})[-1]
    assert role == "user"
    assert "write a summary" in texts[0]
    assert [part.text for part in conversation.system[0].parts if isinstance(part, Text)] == ["Be brief."]


def test_a_message_of_reasoning_alone_is_left_away() -> None:
    """A message with reasoning only is left out, because a summary cannot use it."""
    assert [role for role, _ in said({"model": "m", "input": INPUT[:2]})] == ["user", "user"]
