"""What the requests of dialects with a list of messages have in common."""

import gc
import json
from typing import Any

import pytest
from toy_dialect import ToyWire

from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "Noon."},
    {"role": "user", "content": "And now?"},
]
TURNS = [
    {"by": "user", "text": "What time is it?"},
    {"by": "model", "text": "Noon."},
    {"by": "user", "text": "And now?"},
]
DIALECTS: dict[str, tuple[Any, str, Any]] = {
    "chat": (ChatWire(), "messages", MESSAGES),
    "anthropic": (AnthropicWire(), "messages", MESSAGES),
    "ollama": (OllamaWire(), "messages", MESSAGES),
    "toy": (ToyWire(), "turns", TURNS),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_end_of_a_request_frees_its_memory(dialect: str) -> None:
    """No request or body refers to itself, so that large bodies do not wait for a garbage collection."""
    wire, member, said = DIALECTS[dialect]
    body = {"model": "m", member: said, "max_tokens": 9}
    gc.collect()
    gc.disable()
    try:
        request = wire.parse(body)
        editor = wire.editor(json.dumps(body).encode(), request)
        assert request.answers()
        assert request.answer_keys("caller", "shape", [(None, "text")])[0] != request.conversation_key(
            "caller", ["a"]
        )
        assert request.evidence() is not None
        editor.append_turn(json.dumps(said[1]).encode(), [])
        editor.recover("unknown field 'x'", None)
        del request, editor
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_dialects_do_not_share_digests() -> None:
    """The same conversation of the same caller has different keys in different dialects."""
    keys = set()
    for wire, member, said in DIALECTS.values():
        request = wire.parse({"model": "m", member: said, "max_tokens": 9})
        keys |= {
            request.answer_keys("caller", "shape", [(None, "text")])[0],
            request.conversation_key("caller", ["a"]),
        }
    assert len(keys) == 2 * len(DIALECTS)
