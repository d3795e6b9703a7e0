"""Short functions that build what an Ollama upstream sends, and a strict reader of what a client gets.

This module does not use the package under test: its reader of streams is independent of the proxy's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raw_upstream import Step, chunked, whole

LINES = "application/x-ndjson"
Call = dict[str, Any]


def user(text: str, **more: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text, **more}


def assistant(text: str = "", *calls: Call, **more: Any) -> dict[str, Any]:
    """Return a message of the model."""
    made = {"tool_calls": list(calls)} if calls else {}
    return {"role": "assistant", "content": text, **made, **more}


def tool(name: str) -> dict[str, Any]:
    """Return a tool that a client declares."""
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


def call(name: str, arguments: Any = None, id: str = "", index: int | None = 0) -> Call:
    """Return a call."""
    function: Call = {"name": name, "arguments": {} if arguments is None else arguments}
    if index is not None:
        function = {"index": index, **function}
    return {**({"id": id} if id else {}), "function": function}


def _line(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def said(content: str = "", *calls: Call, **more: Any) -> bytes:
    """Return one line of a stream; ``more`` are members of its message."""
    made = "2026-11-21T10:00:00.123456789Z"
    message = assistant(content, *calls, **more)
    return _line({"model": "m", "created_at": made, "message": message, "done": False})


def done(reason: str = "stop", content: str = "", *calls: Call, **counts: Any) -> bytes:
    """Return the last line of a stream."""
    counted = {"total_duration": 9, "prompt_eval_count": 10, "eval_count": 7, **counts}
    last = {
        "model": "m", "created_at": "2026-11-21T10:00:01Z", "message": assistant(content, *calls),
        "done": True, "done_reason": reason, **counted,
    }  # fmt: skip
    return _line({key: value for key, value in last.items() if value is not None})


def error(message: str = "out of memory") -> bytes:
    """Return a line with an error."""
    return _line({"error": message})


def turn(text: str = "", *calls: Call, thinking: str = "", reason: str = "stop", **counts: Any) -> bytes:
    """Return the bytes of a whole stream: reasoning and text in pieces, each call in its own line."""
    lines = [said("", thinking=piece) for piece in _pieces(thinking)]
    lines += [said(piece) for piece in _pieces(text)]
    lines += [said("", one) for one in calls]
    return b"".join([*lines, done(reason, **counts)])


def _pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def stream(text: str = "", *calls: Call, **more: Any) -> list[Step]:
    """Return the steps of a whole streamed turn."""
    return chunked(turn(text, *calls, **more), content_type=LINES)


def reply(text: str = "", *calls: Call, reason: str = "stop", **counts: Any) -> list[Step]:
    """Return the steps of a whole turn that is not streamed."""
    return whole(done(reason, text, *calls, **counts).strip())


@dataclass
class Read:
    """What a strict client makes of an answer."""

    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    traces: list[Any] = field(default_factory=list)
    empty: int = 0
    error: str = ""

    def called(self) -> list[tuple[str, Any]]:
        """Return name and arguments of each call."""
        return [(one["function"]["name"], one["function"]["arguments"]) for one in self.calls]


def read_stream(data: bytes, *, native: bool = False) -> Read:
    """Read a stream by the rules that all clients share; fails where one of them would fail.

    ``native`` says that the lines come from an upstream, whose calls need neither indices nor ids.
    """
    read = Read()
    assert data.endswith(b"\n"), "the last line has no end"
    for raw in data[:-1].split(b"\n"):
        assert raw.strip(), "a blank line"
        payload = json.loads(raw)
        assert not read.last, "something follows the last line"
        assert not read.error, "something follows an error"
        if "error" in payload:
            assert isinstance(payload["error"], str)
            read.error = payload["error"]
            continue
        _take(read, payload)
    assert read.last or read.error, "the stream merely ends"
    if not native:
        _check_calls(read.calls)
    return read


def read_reply(data: bytes) -> Read:
    """Read an answer that was not streamed."""
    read, payload = Read(), json.loads(data)
    assert payload["done"] is True
    _take(read, payload)
    _check_calls(read.calls)
    traces = payload.get("x_toolrelay")
    read.traces = traces if isinstance(traces, list) else read.traces
    return read


def _take(read: Read, payload: dict[str, Any]) -> None:
    assert isinstance(payload["model"], str)
    assert isinstance(payload["created_at"], str)
    assert type(payload["done"]) is bool
    message = payload["message"]
    assert message["role"] == "assistant"
    assert isinstance(message["content"], str)
    read.text += message["content"]
    read.thinking += message.get("thinking") or ""
    calls: Sequence[Call] = message.get("tool_calls") or ()
    for one in calls:
        assert isinstance(one["function"]["arguments"], dict)
    read.calls += calls
    if "x_toolrelay" in payload:
        read.traces.append(payload["x_toolrelay"])
    elif not (message["content"] or message.get("thinking") or calls or payload["done"]):
        read.empty += 1
    if payload["done"]:
        read.last = payload


def _check_calls(calls: Sequence[Call]) -> None:
    assert all(one["id"] for one in calls), "a call without an id"
    places = [one["function"]["index"] for one in calls]
    assert places == list(range(len(calls))), "indices have gaps"
