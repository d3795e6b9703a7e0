"""Texts that follow each other are one, and what that costs grows with their length alone."""

import itertools
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.events import Frame, ReasoningDelta
from proxy.wires.anthropic import AnthropicWire
from proxy.wires.anthropic.encoder import AnthropicTurnEncoder
from proxy.wires.client_port import ClientPort
from proxy.wires.ollama import OllamaWire
from proxy.wires.responses import ResponsesWire
from proxy.wires.turn.texts import joined_texts

MANY = 19_000
MOST_S = 4.0
"""Far more than any of these takes, and far less than each took when all that came before was copied."""


@given(st.lists(st.one_of(st.text(max_size=3), st.integers())))
def test_strings_that_follow_each_other_are_joined(parts: list[str | int]) -> None:
    """Nothing is lost or moved, and no two strings are neighbours."""
    joined = joined_texts(parts)
    assert not any(isinstance(a, str) and isinstance(b, str) for a, b in itertools.pairwise(joined))
    assert "".join(part for part in joined if isinstance(part, str)) == "".join(
        part for part in parts if isinstance(part, str)
    )
    assert [part for part in joined if isinstance(part, int)] == [
        part for part in parts if isinstance(part, int)
    ]


def text(kind: str) -> dict[str, Any]:
    """A part of a content."""
    return {"type": kind, "text": "x" * 300}


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (
            AnthropicWire(),
            {"max_tokens": 5, "messages": [{"role": "user", "content": [text("text")] * MANY}]},
        ),
        (ResponsesWire(), {"input": [{"role": "assistant", "content": [text("output_text")] * 2 * MANY}]}),
        (
            OllamaWire(),
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": {}}}] * MANY,
                    },
                    *[{"role": "tool", "tool_name": "f", "content": "x"}] * MANY,
                ]
            },
        ),
    ],
    ids=["anthropic", "responses", "ollama"],
)
def test_a_long_request_is_compared_soon(wire: ClientPort, body: dict[str, Any]) -> None:
    """Nobody else is served meanwhile."""
    began = process_time()
    request = wire.parse({"model": "m", **body})
    request.check_history(lambda name: False)
    request.answer_key("caller", "shape", "answer")
    assert process_time() - began < MOST_S


def test_a_long_thought_is_written_soon() -> None:
    """Each piece costs the same, wherever it stands."""
    encoder = AnthropicTurnEncoder("m")
    frame = Frame(b"x", {}, (ReasoningDelta("hello world "),))
    began = process_time()
    for _ in range(70_000):
        encoder.encode(frame)
    assert process_time() - began < MOST_S
