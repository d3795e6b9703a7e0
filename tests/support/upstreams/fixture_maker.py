"""Fixtures that a test writes for itself."""

import json
from pathlib import Path
from typing import Any

from proxy.upstreams.recorded.format import meta_text, response_text


def chat_reply(text: str, **message: Any) -> dict[str, Any]:
    """A whole answer of Chat Completions."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return {
        "id": "chatcmpl-recorded1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-mini",
        "choices": [choice],
        "usage": usage,
    }


def message_reply(text: str) -> dict[str, Any]:
    """A whole answer of Anthropic's Messages."""
    return {
        "id": "msg_recorded1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }


def ollama_reply(text: str) -> dict[str, Any]:
    """A whole answer of Ollama's chat."""
    return {
        "model": "qwen3:8b",
        "created_at": "2026-11-21T14:05:00Z",
        "message": {"role": "assistant", "content": text},
        "done": True,
        "done_reason": "stop",
    }


def chat_stream(*texts: str) -> bytes:
    """A stream of Chat Completions with these pieces of text."""
    deltas = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    chunks: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [
        {
            "id": "chatcmpl-recorded1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "gpt-4o-mini",
            "choices": [chunk],
        }
        for chunk in chunks
    ]
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def write_fixture(
    folder: Path,
    request: dict[str, Any],
    answer: dict[str, Any] | bytes,
    *,
    turn: int = 1,
    wire: str = "chat",
    match: str = "",
    status: int = 200,
    pieces: list[tuple[float, int]] | None = None,
) -> Path:
    """Write one turn of a fixture; ``match`` is the text of its table in ``meta.toml``."""
    place = folder / f"turn-{turn}"
    place.mkdir(parents=True)
    (folder / "meta.toml").write_text(meta_text(folder.name, "hand-written", wire) + match)
    (place / "request.json").write_text(json.dumps(request))
    streamed = isinstance(answer, bytes)
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    (place / ("response.sse" if streamed else "response.json")).write_bytes(body)
    kind = "text/event-stream" if streamed else "application/json"
    (place / "response.toml").write_text(response_text(status, [("Content-Type", kind)], pieces or []))
    return folder
