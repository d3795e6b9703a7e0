"""Turns of upstreams of other dialects, encoded as Chat streams and replies."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sse_check import check_chat_stream
from turn_encoding import EVENTS, cut, encoded, read_again, recorded_turns, told

from proxy.base.events import Frame, TextDelta, ToolCallStarted, TurnFailed
from proxy.wires.chat.crossing.encoder import ChatTurnEncoder
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire

TURNS = recorded_turns({"responses": ResponsesWire()})
STREAM = [Frame(b"x", {}, (event,)) for event in EVENTS]


@pytest.mark.parametrize("frames", [turn[1] for turn in TURNS], ids=[turn[0] for turn in TURNS])
def test_a_recorded_stream_says_the_same(frames: Sequence[Frame]) -> None:
    """Rule W1: the Chat form of every recorded stream of another dialect has the same content."""
    said = told(event for frame in frames for event in frame.events)
    chat = encoded(ChatTurnEncoder("m", wants_usage=True), frames)
    # The run uses the events of these frames, the client their bytes.
    assert told(event for frame in chat for event in frame.events) == said
    raw = [frame.raw for frame in chat]
    assert told(read_again(ChatWire(), raw)) == said
    check_chat_stream(b"".join(raw), wants_usage=True)


@given(st.sets(st.integers(1, 4000)))
def test_however_its_bytes_are_cut(cuts: set[int]) -> None:
    """Rule W6: the encoded stream has the same content, however its bytes are cut."""
    frames = encoded(ChatTurnEncoder("m", wants_usage=True), STREAM)
    raw = b"".join(frame.raw for frame in frames)
    assert told(read_again(ChatWire(), cut(raw, cuts))) == told(EVENTS)


def test_a_stream_looks_like_one_of_a_chat_server() -> None:
    """The stream has one id, the role first, a finish reason, a usage chunk and one end mark."""
    frames = encoded(ChatTurnEncoder("m", wants_usage=True), STREAM)
    raw = b"".join(frame.raw for frame in frames)
    assert frames[-1].is_end_mark
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")
    assert raw.count(b"[DONE]") == 1
    chunks = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["model"] for chunk in chunks} == {"model-1"}
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == "tool_calls"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert b"secret" not in raw


def test_usage_is_told_only_to_who_asked_for_it() -> None:
    """A client that did not ask for usage gets none, but the run counts it."""
    frames = encoded(ChatTurnEncoder("m"), STREAM)
    assert not any(b"usage" in frame.raw for frame in frames)
    assert told(event for frame in frames for event in frame.events)["usage"] == [(7, 5, 3)]


def test_what_is_undecided_stays_so() -> None:
    """Rule W5: every frame made from a frame with an undecided call is marked undecided, too."""
    encoder = ChatTurnEncoder("m")
    frames = encoder.encode(Frame(b"x", {}, (TextDelta("a"),), undecided=1))
    assert [frame.undecided for frame in frames] == [1, 1]
    (nothing,) = encoder.encode(Frame(b"x", {}, (), undecided=1))
    assert (nothing.raw, nothing.undecided) == (b"", 1)
    assert encoder.encode(Frame(b"x", {}, ())) == []


def test_a_comment_becomes_a_comment() -> None:
    """The encoder turns an upstream's comment into a comment, which keeps the client's connection alive."""
    (frame,) = ChatTurnEncoder("m").encode(Frame(b"\n"))
    assert frame.raw.startswith(b":")
    assert frame.raw.endswith(b"\n\n")


def test_an_error_is_one_of_this_dialect() -> None:
    """Rule E1: an upstream's error becomes an error object of Chat."""
    failed = TurnFailed({"message": "Too hot.", "code": "heat"})
    (frame,) = ChatTurnEncoder("m").encode(Frame(b"x", {}, (failed,)))
    error = json.loads(frame.raw.removeprefix(b"data: "))["error"]
    assert error == {"message": "Too hot.", "type": "upstream_error", "param": None, "code": "heat"}


@pytest.mark.parametrize("custom", [False, True])
def test_a_reply_says_the_same(custom: bool) -> None:
    """A reply that is not streamed is one object, with the same content as the upstream's."""
    kind = {"type": "custom"} if custom else {}
    started = ToolCallStarted(0, "call_1", "look", kind)
    events = [started if isinstance(event, ToolCallStarted) else event for event in EVENTS]
    frame = ChatTurnEncoder("m").encode_reply(Frame(b"x", {}, tuple(events)))
    assert json.loads(frame.raw) == frame.payload
    reader = ChatWire().reader((), lambda name: False, 1 << 20)
    assert told(reader.read_reply(frame.raw).events) == told(events)
    (choice,) = json.loads(frame.raw)["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["tool_calls"][0]["type"] == ("custom" if custom else "function")
