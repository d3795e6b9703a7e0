"""Consecutive texts are joined, in time and memory that grow only linearly with their length."""

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.events import Frame, ReasoningDelta
from proxy.wires.anthropic.crossing.encoder import AnthropicTurnEncoder
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.turn.texts import joined_texts
from proxy.wires.wire import Wire

MANY = 19_000
"""The number of parts of a long request."""


@given(st.lists(st.one_of(st.text(max_size=3), st.integers())))
def test_strings_that_follow_each_other_are_joined(parts: list[str | int]) -> None:
    """Joining loses and moves nothing, and leaves no two strings next to each other."""
    joined = joined_texts(parts)
    assert not any(isinstance(a, str) and isinstance(b, str) for a, b in itertools.pairwise(joined))
    assert "".join(part for part in joined if isinstance(part, str)) == "".join(
        part for part in parts if isinstance(part, str)
    )
    assert [part for part in joined if isinstance(part, int)] == [
        part for part in parts if isinstance(part, int)
    ]


def text(kind: str) -> dict[str, Any]:
    """Return a part of a content."""
    return {"type": kind, "text": "x" * 300}


def anthropic_body(many: int) -> dict[str, Any]:
    """Return a message with many parts."""
    return {"max_tokens": 5, "messages": [{"role": "user", "content": [text("text")] * many}]}


def responses_body(many: int) -> dict[str, Any]:
    """Return a request that sends back an answer with many parts."""
    return {"input": [{"role": "assistant", "content": [text("output_text")] * 2 * many}]}


def ollama_body(many: int) -> dict[str, Any]:
    """Return a history with many calls and a result for each."""
    calls = [{"function": {"name": "f", "arguments": {}}}] * many
    results = [{"role": "tool", "tool_name": "f", "content": "x"}] * many
    return {"messages": [{"role": "assistant", "tool_calls": calls}, *results]}


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("wire", "body_of"),
    [(AnthropicWire(), anthropic_body), (ResponsesWire(), responses_body), (OllamaWire(), ollama_body)],
    ids=["anthropic", "responses", "ollama"],
)
def test_a_long_request_is_compared_soon(wire: Wire, body_of: Callable[[int], dict[str, Any]]) -> None:
    """The time for a long request does not grow with the square of its length."""

    def taken(many: int) -> float:
        body = body_of(many)
        gc.disable()  # It would scan everything that earlier tests have left in this process.
        try:
            began = process_time()
            request = wire.parse({"model": "m", **body})
            request.check_history(lambda name: False)
            request.answer_keys("caller", "shape", [(None, "answer")])
            return process_time() - began
        finally:
            gc.enable()

    assert min(taken(MANY) for _ in range(3)) < 32 * max(taken(MANY // 8) for _ in range(3))


def test_a_long_thought_is_written_soon() -> None:
    """The encoder writes a piece of a long thought without copying the text before it."""
    encoder = AnthropicTurnEncoder("m")
    frame = Frame(b"x", {}, (ReasoningDelta("hello world "),))
    for _ in range(2000):
        encoder.encode(frame)
    grown = []
    tracemalloc.start()
    try:
        for _ in range(20):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            encoder.encode(frame)
            grown.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    # Python now and then reallocates the list of pieces, so only the minimum counts.
    assert min(grown) < len("hello world ") * 2000 / 2
