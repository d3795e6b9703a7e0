"""Short functions that build what a Chat upstream sends, and a strict reader of what a client gets.

This module does not use the package under test: its reader of streams is independent of the proxy's.
"""

import json
from typing import Any

from raw_upstream import Step, chunked, event, whole

DONE = b"data: [DONE]\n\n"


def sse(payload: Any) -> bytes:
    """Return one server-sent event whose data is JSON."""
    return event(json.dumps(payload, separators=(",", ":")))


def chunk_of(
    delta: dict[str, Any], reason: str | None = None, *, id: str = "chatcmpl-1", **more: Any
) -> bytes:
    """Return one chunk with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return sse(
        {"id": id, "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice], **more}
    )


def role(**more: Any) -> bytes:
    """Return the first chunk, which has the role."""
    return chunk_of({"role": "assistant", "content": ""}, **more)


def content(*texts: str, **more: Any) -> bytes:
    """Return one chunk for each text."""
    return b"".join(chunk_of({"content": text}, **more) for text in texts)


def call(
    call_id: str | None, name: str | None, arguments: str | None = "{}", index: int | None = 0, **more: Any
) -> bytes:
    """Return a chunk with a fragment of a call; members that are ``None`` are left out."""
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    fragment: dict[str, Any] = {"index": index, "id": call_id, "type": "function", "function": function}
    return chunk_of({"tool_calls": [{k: v for k, v in fragment.items() if v is not None}]}, **more)


def finish(reason: str = "stop", **more: Any) -> bytes:
    """Return the chunk with the finish reason."""
    return chunk_of({}, reason, **more)


def usage(prompt: int, completion: int, *, id: str = "chatcmpl-1", **details: Any) -> bytes:
    """Return the chunk with the usage."""
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    payload = {"id": id, "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": []}
    return sse({**payload, "usage": {**counted, **details}})


def stream(*events: bytes, done: bool = True, status: str = "200 OK") -> list[Step]:
    """Return the steps of a whole streamed turn."""
    return chunked(*events, *([DONE] if done else []), status=status)


def reply(
    text: str | None = None,
    *calls: tuple[str, str, str],
    reason: str | None = None,
    used: tuple[int, int] | None = None,
    **message: Any,
) -> list[Step]:
    """Return the steps of a whole turn that is not streamed; ``calls`` are (id, name, arguments)."""
    said: dict[str, Any] = {"role": "assistant", "content": text, **message}
    if calls:
        said["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
        ]
    choice = {
        "index": 0,
        "message": said,
        "finish_reason": reason or ("tool_calls" if calls else "stop"),
        "logprobs": None,
    }
    payload: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [choice],
    }
    if used:
        payload["usage"] = {
            "prompt_tokens": used[0],
            "completion_tokens": used[1],
            "total_tokens": sum(used),
        }
    return whole(json.dumps(payload).encode())


def events_of(body: bytes) -> list[str]:
    """Return the data of every event without comments. Fails where a strict client would fail."""
    assert body.endswith(b"\n\n"), "the last event has no blank line"
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            assert "\n" not in block
            continue
        assert block.startswith("data: "), f"not a data line: {block[:80]!r}"
        assert "\n" not in block
        found.append(block.removeprefix("data: "))
    return found


def payloads_of(body: bytes) -> list[dict[str, Any]]:
    """Return the chunks of a composed stream, and check the rules that every such stream follows.

    The stream has one end mark, which comes last, one id, one role, which comes first, call indices without
    gaps, and one finish reason unless it failed. Usage is in the last chunk, if there is any.
    """
    *events, last = events_of(body)
    assert last == "[DONE]"
    assert "[DONE]" not in events
    chunks = [json.loads(data) for data in events]
    failed = [c for c in chunks if "error" in c]
    # Azure's first chunk has neither id nor choices; the proxy passes it on before it composes chunks.
    normal = [c for c in chunks if "error" not in c and (c["id"] or c["choices"])]
    assert len({c["id"] for c in normal}) <= 1
    assert all(c["object"] == "chat.completion.chunk" for c in normal)
    deltas = [choice["delta"] for c in normal for choice in c["choices"]]
    assert sum("role" in delta for delta in deltas) <= 1
    if deltas:
        assert deltas[0].get("role") == "assistant"
    indices = [f["index"] for delta in deltas for f in delta.get("tool_calls", ()) if "id" in f]
    assert indices == list(range(len(indices)))
    reasons = [r for c in normal for choice in c["choices"] if (r := choice["finish_reason"])]
    assert len(reasons) == (0 if failed else 1)
    with_usage = [position for position, c in enumerate(chunks) if c.get("usage")]
    assert with_usage in ([], [len(chunks) - 1])
    return chunks


def text_of(chunks: list[dict[str, Any]]) -> str:
    """Return the text that a client would show."""
    return "".join(choice["delta"].get("content") or "" for c in chunks for choice in c.get("choices", ()))
