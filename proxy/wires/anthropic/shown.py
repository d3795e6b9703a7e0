"""Makes the proxy's own events and blocks in a client's stream or reply."""

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.wires.anthropic.blocks import OUR_SIGNATURE, Block
from proxy.wires.stream.sse import encode_event
from proxy.wires.turn.assembler import mint_call_id

__all__ = ["block_events", "encode", "mint", "new_message", "text_block", "thought_block"]


def encode(payload: Mapping[str, Any]) -> bytes:
    """Encode an event under the name in its data."""
    return encode_event(orjson.dumps(payload), str(payload["type"]).encode())


def mint(prefix: str) -> str:
    """Return an id in the provider's form: ``msg_`` or ``toolu_`` and letters."""
    return prefix + mint_call_id().removeprefix("call_")


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def thought_block(text: str) -> Block:
    """Return a thought by the proxy, which recognizes it by its signature when the client sends it back."""
    return {"type": "thinking", "thinking": text, "signature": OUR_SIGNATURE}


def block_events(index: int, block: Block) -> bytes:
    """Encode a whole text or thought as events: its texts begin empty, and a signature comes last."""
    kind = block["type"]
    empty = {key: value if key == "type" else "" for key, value in block.items()}
    deltas = [{"type": f"{kind}_delta", kind: block[kind]}]
    if "signature" in block:
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]
    return b"".join(map(encode, events))


def new_message(model: str) -> dict[str, Any]:
    """Return an empty message."""
    return {
        "id": mint("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
