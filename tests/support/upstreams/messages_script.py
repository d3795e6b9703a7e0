"""Short functions that build what a Messages upstream sends, and a strict reader of what a client gets.

This module does not use the package under test: its reader of streams is independent of the proxy's.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from raw_upstream import Step, chunked, whole

Block = dict[str, Any]
TYPES = {
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "ping", "error",
}  # fmt: skip


def user(*content: Block, text: str = "") -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text or list(content)}


def tool(name: str, **more: Any) -> dict[str, Any]:
    """Return a tool that a client declares."""
    return {"name": name, "description": "d", "input_schema": {"type": "object", "properties": {}}, **more}


def text(said: str, **more: Any) -> Block:
    """Return a block of text."""
    return {"type": "text", "text": said, **more}


def thinking(said: str, signature: str = "c2ln") -> Block:
    """Return a thinking block with a signature."""
    return {"type": "thinking", "thinking": said, "signature": signature}


def tool_use(call_id: str, name: str, arguments: Any = None, **more: Any) -> Block:
    """Return a block with a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments or {}, **more}


def event(payload: dict[str, Any]) -> bytes:
    """Return one event, named by its type."""
    data = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return f"event: {payload['type']}\ndata: {data}\n\n".encode()


STOP = event({"type": "message_stop"})
PING = event({"type": "ping"})


def start(id: str = "msg_1", **usage: Any) -> bytes:
    """Return the first event of a message."""
    counted = {"input_tokens": 10, "output_tokens": 1, **usage}
    message: dict[str, Any] = {
        "id": id, "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": counted,
    }  # fmt: skip
    return event({"type": "message_start", "message": message})


def block_events(index: int, block: Block, size: int = 5) -> list[bytes]:
    """Return the events of one block; its texts are cut into pieces of ``size`` characters."""
    kind = block["type"]
    deltas: list[dict[str, Any]] = []
    opened = dict(block)
    if kind == "text":
        opened["text"] = ""
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"], size)]
    elif kind == "thinking":
        opened.update(thinking="", signature="")
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"], size)]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind in ("tool_use", "server_tool_use"):
        opened["input"] = {}
        said = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
        if said != "{}":
            pieces = ["", *_pieces(said, size)]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        event({"type": "content_block_start", "index": index, "content_block": opened}),
        *[event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas],
        event({"type": "content_block_stop", "index": index}),
    ]


def _pieces(said: str, size: int) -> list[str]:
    return [said[at : at + size] for at in range(0, len(said), size)]


def ending(reason: str = "end_turn", output: int = 7, **more: Any) -> bytes:
    """Return the event that says why a message stops."""
    delta = {"stop_reason": reason, "stop_sequence": None}
    return event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}, **more})


def error_event(kind: str = "overloaded_error", message: str = "Overloaded") -> bytes:
    """Return an error within a stream."""
    return event({"type": "error", "error": {"type": kind, "message": message}})


def turn(*blocks: Block, reason: str = "", id: str = "msg_1", output: int = 7, **usage: Any) -> bytes:
    """Return the bytes of a whole streamed turn."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    said = [one for index, block in enumerate(blocks) for one in block_events(index, block)]
    last = ending(reason or ("tool_use" if calls else "end_turn"), output)
    return b"".join([start(id, **usage), PING, *said, last, STOP])


def stream(*blocks: Block, **more: Any) -> list[Step]:
    """Return the steps of a whole streamed turn."""
    return chunked(turn(*blocks, **more))


def reply(*blocks: Block, reason: str = "", id: str = "msg_1", **usage: Any) -> list[Step]:
    """Return the steps of a whole turn that is not streamed."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    message: dict[str, Any] = {
        "id": id, "type": "message", "role": "assistant", "model": "m", "content": list(blocks),
        "stop_reason": reason or ("tool_use" if calls else "end_turn"), "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 7, **usage},
    }  # fmt: skip
    return whole(json.dumps(message).encode())


@dataclass
class Read:
    """What a strict client makes of a stream: the message with its blocks, pings and an error."""

    message: dict[str, Any] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    pings: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    stopped: bool = False

    @property
    def text(self) -> str:
        """All text, joined."""
        return "".join(block["text"] for block in self.blocks if block["type"] == "text")

    @property
    def calls(self) -> list[Block]:
        """The calls that the client must answer."""
        return [block for block in self.blocks if block["type"] == "tool_use"]


def read_stream(data: bytes, *, overlaps: bool = False) -> Read:
    """Read a stream by the rules that all clients share; fails where one of them would fail.

    ``overlaps`` allows that several blocks are open at once, which one server does.
    """
    read = Read()
    open_blocks: dict[int, str] = {}
    assert data.endswith(b"\n\n"), "the last event has no blank line"
    for raw in data.decode().split("\n\n")[:-1]:
        lines = [line for line in raw.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        assert not read.stopped, "something follows the end"
        assert read.error is None, "something follows an error"
        fields = dict(line.split(": ", 1) for line in lines)
        payload = json.loads(fields["data"])
        assert fields["event"] == payload["type"]
        assert payload["type"] in TYPES
        _take(read, payload, open_blocks, overlaps=overlaps)
    assert read.stopped or read.error is not None, "the stream merely ends"
    return read


def _take(read: Read, payload: dict[str, Any], open_blocks: dict[int, str], *, overlaps: bool) -> None:
    kind = payload["type"]
    if kind == "ping":
        read.pings.append(payload)
    elif kind == "error":
        read.error = payload["error"]
        assert set(payload["error"]) >= {"type", "message"}
    elif kind == "message_start":
        assert not read.message, "two messages"
        read.message = payload["message"]
        assert read.message["content"] == []
        assert read.message["usage"]["input_tokens"] >= 0
    elif kind == "content_block_start":
        assert read.message
        assert payload["index"] == len(read.blocks), "places have no gaps"
        assert overlaps or not open_blocks, "a block begins within another"
        block = payload["content_block"]
        if block["type"] == "tool_use":
            assert block.get("input", {}) == {} or "input" in block
        read.blocks.append(dict(block))
        open_blocks[payload["index"]] = ""
    elif kind == "content_block_delta":
        assert payload["index"] in open_blocks, "a delta of no open block"
        _add(read.blocks[payload["index"]], payload, open_blocks)
    elif kind == "content_block_stop":
        said = open_blocks.pop(payload["index"])
        if said:
            read.blocks[payload["index"]]["input"] = _input(said)
    elif kind == "message_delta":
        assert not open_blocks, "a block is not stopped"
        read.message.update(payload["delta"])
        read.message["usage"] = {**read.message["usage"], **payload["usage"]}
    else:
        assert "stop_reason" in read.message
        assert read.message["stop_reason"] is not None
        read.stopped = True


def _input(said: str) -> Any:
    """Return the input of a call, or its text if the input was cut short."""
    try:
        return json.loads(said)
    except ValueError:
        return said


def _add(block: Block, payload: dict[str, Any], open_blocks: dict[int, str]) -> None:
    delta = payload["delta"]
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        case "input_json_delta":
            open_blocks[payload["index"]] += delta["partial_json"]
