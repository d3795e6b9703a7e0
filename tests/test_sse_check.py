"""The checker of streams: it accepts a good stream, and finds each fault."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sse_check import BadStream, check_chat_stream

Chunks = list[dict[str, Any]]


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **rest: Any) -> dict[str, Any]:
    """One chunk of a response; without a delta it has no choice."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": choices, **rest}


USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def good() -> Chunks:
    """A stream with text, two calls of the client's tools, and usage."""
    return [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Let me see."}),
        chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
                ]
            }
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
        chunk(
            {
                "tool_calls": [
                    {"index": 1, "id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ]
            }
        ),
        chunk({}, "tool_calls"),
        chunk(None, usage=USAGE),
    ]


def stream(chunks: Chunks) -> bytes:
    """The chunks as events, followed by the end mark."""
    return b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks) + b"data: [DONE]\n\n"


def test_a_good_stream_is_read() -> None:
    """The checker returns the text, calls, finish reason, usage and comments of a stream."""
    read = check_chat_stream(b": ping\n\n" + stream(good()), wants_usage=True)
    assert (read.text, read.finish, read.usage) == ("Let me see.", "tool_calls", USAGE)
    assert [(c.index, c.id, c.name, c.arguments) for c in read.calls] == [
        (0, "a", "f", "{}"),
        (1, "b", "f", "{}"),
    ]
    assert read.comments == ["ping"]


def test_an_error_ends_a_stream() -> None:
    """After an error, the checker does not ask for a finish reason or for usage."""
    error = {"message": "x", "type": "upstream_error", "param": None, "code": None}
    read = check_chat_stream(stream([*good()[:2], {"error": error}]), wants_usage=True)
    assert read.error == error


CHUNK_FAULTS: dict[str, Callable[[Chunks], object]] = {
    "two roles": lambda c: c[1]["choices"][0]["delta"].update(role="assistant"),
    "no role": lambda c: c.pop(0),
    "another id": lambda c: c[2].update(id="chatcmpl-2"),
    "blank id": lambda c: c[2].update(id=""),
    "another model": lambda c: c[2].update(model="n"),
    "another object": lambda c: c[2].update(object="chat.completion.done"),
    "another time": lambda c: c[2].update(created=2),
    "created missing": lambda c: c[2].pop("created"),
    "choice index": lambda c: c[2]["choices"][0].update(index=1),
    "no delta": lambda c: c[5]["choices"][0].pop("delta"),
    "content as list": lambda c: c[1]["choices"][0]["delta"].update(content=[]),
    "call index from 1": lambda c: c[2]["choices"][0]["delta"]["tool_calls"][0].update(index=1),
    "call without type": lambda c: c[2]["choices"][0]["delta"]["tool_calls"][0].pop("type"),
    "call without id": lambda c: c[2]["choices"][0]["delta"]["tool_calls"][0].pop("id"),
    "call without name": lambda c: c[2]["choices"][0]["delta"]["tool_calls"][0]["function"].pop("name"),
    "id repeated": lambda c: c[3]["choices"][0]["delta"]["tool_calls"][0].update(id="a"),
    "name repeated": lambda c: c[3]["choices"][0]["delta"]["tool_calls"][0]["function"].update(name="f"),
    "two calls of one id": lambda c: c[4]["choices"][0]["delta"]["tool_calls"][0].update(id="a"),
    "arguments cut off": lambda c: c.pop(3),
    "no finish": lambda c: c[5]["choices"][0].update(finish_reason=None),
    "two finishes": lambda c: c.insert(6, chunk({}, "tool_calls")),
    "text after the finish": lambda c: c.insert(6, chunk({"content": "x"})),
    "finish stop with calls": lambda c: c[5]["choices"][0].update(finish_reason="stop"),
    "unknown finish": lambda c: c[5]["choices"][0].update(finish_reason="error"),
    "usage in the middle": lambda c: c[1].update(usage=USAGE),
    "usage not last": lambda c: c.insert(0, c.pop()),
    "usage missing": lambda c: c.pop(),
    "error null": lambda c: c[1].update(error=None),
    "error not last": lambda c: c.insert(
        1, {"error": {"message": "x", "type": "t", "param": None, "code": None}}
    ),
    "error of another shape": lambda c: c.append({"error": {"message": "x"}}),
    "a trace": lambda c: c[1].update(x_toolrelay={}),
}


@pytest.mark.parametrize("fault", CHUNK_FAULTS)
def test_a_chunk_that_breaks_a_rule_is_found(fault: str) -> None:
    """The checker finds each fault in a chunk."""
    chunks = good()
    CHUNK_FAULTS[fault](chunks)
    with pytest.raises(BadStream):
        check_chat_stream(stream(chunks), wants_usage=True)


BYTE_FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "no end mark": lambda b: b.replace(b"data: [DONE]\n\n", b""),
    "two end marks": lambda b: b + b"data: [DONE]\n\n",
    "bytes after the end mark": lambda b: b + b": x\n\ndata: {}\n\n",
    "no blank line at the end": lambda b: b[:-1],
    "byte order mark": lambda b: b"\xef\xbb\xbf" + b,
    "bare event": lambda b: b"event: ping\n\n" + b,
    "id line": lambda b: b"id: 1\n" + b,
    "retry line": lambda b: b"retry: 1\n\n" + b,
    "no space after data": lambda b: b.replace(b"data: {", b"data:{", 1),
    "two events glued": lambda b: b.replace(b"}\n\ndata", b"}data", 1),
    "one line end only": lambda b: b.replace(b"}\n\n", b"}\n", 1),
    "not JSON": lambda b: b"data: {\n\n" + b,
}


@pytest.mark.parametrize("fault", BYTE_FAULTS)
def test_bytes_that_break_the_framing_are_found(fault: str) -> None:
    """The checker finds each fault of the framing."""
    with pytest.raises(BadStream):
        check_chat_stream(BYTE_FAULTS[fault](stream(good())), wants_usage=True)


def test_an_upstreams_own_chunks_may_be_odder() -> None:
    """In forwarded chunks the role may be repeated and the time may change, but not in later chunks."""
    chunks = [chunk(None, id="", model="", object="", created=0), *good()]
    chunks[2]["choices"][0]["delta"]["role"] = "assistant"
    chunks[2]["created"] = 2
    assert check_chat_stream(stream(chunks), wants_usage=True, forwarded=3).roles == 1
    with pytest.raises(BadStream):
        check_chat_stream(stream(chunks), wants_usage=True, forwarded=2)


def test_usage_that_nobody_asked_for_is_found() -> None:
    """The checker finds usage that the client did not ask for."""
    with pytest.raises(BadStream, match="nobody asked"):
        check_chat_stream(stream(good()), wants_usage=False)


def test_a_hidden_name_is_found() -> None:
    """The checker finds a hidden name anywhere in the bytes."""
    with pytest.raises(BadStream, match="core__x"):
        check_chat_stream(b": core__x\n\n" + stream(good()), wants_usage=True, hidden=("core__x",))
