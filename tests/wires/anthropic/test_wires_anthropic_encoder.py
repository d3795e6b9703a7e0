"""Turns of upstreams of other dialects, encoded as streams and replies of Messages."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from cases import each
from hypothesis import given
from hypothesis import strategies as st
from messages_script import read_stream
from turn_encoding import EVENTS, cut, encoded, read_again, recorded_turns, told

from proxy.base.events import (
    FinishReason,
    Frame,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnFailed,
    TurnFinished,
)
from proxy.wires.anthropic.crossing.encoder import AnthropicTurnEncoder
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire

TURNS = recorded_turns({"chat": ChatWire(), "responses": ResponsesWire()})
STREAM = [Frame(b"x", {}, (event,)) for event in EVENTS]


def said(events: Iterable[Any]) -> dict[str, Any]:
    """Return a turn as Messages can express it, for example with a refusal as text."""
    found = told(events)
    return {
        "text": found["TextDelta"] + found["RefusalDelta"],
        "thought": found["ReasoningDelta"],
        "calls": [(i, name, _given(text, cut=_is_cut(found))) for i, name, text in found["calls"]],
        "reason": found["reason"],
        "usage": found["usage"] or [(0, 0, 0)],
    }


def _is_cut(found: dict[str, Any]) -> bool:
    return found["reason"] in ("length", "content_filter")


def _given(arguments: str, *, cut: bool) -> Any:
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if isinstance(given, dict):
        return given
    return {} if cut else {"INVALID_JSON": arguments}


@each("turn", TURNS, lambda turn: turn[0])
def test_a_recorded_stream_says_the_same(turn: tuple[str, Sequence[Frame]]) -> None:
    """Rule W1: the Messages form of every recorded stream of another dialect has the same content."""
    frames = turn[1]
    events = [event for frame in frames for event in frame.events]
    made = encoded(AnthropicTurnEncoder("m"), frames)
    assert told(event for frame in made for event in frame.events) == told(events)
    raw = [frame.raw for frame in made]
    again = read_again(AnthropicWire(), raw)
    if told(events)["failed"]:
        assert told(again)["failed"]
        return
    read = read_stream(b"".join(raw))
    assert read.error is None
    assert said(again) == said(events)


@given(st.sets(st.integers(1, 9000)))
def test_however_its_bytes_are_cut(cuts: set[int]) -> None:
    """Rule W6: the encoded stream has the same content, however its bytes are cut."""
    raw = b"".join(frame.raw for frame in encoded(AnthropicTurnEncoder("m"), STREAM))
    assert said(read_again(AnthropicWire(), cut(raw, cuts))) == said(EVENTS)


def test_a_stream_looks_like_one_of_messages() -> None:
    """The stream has consecutive blocks, a start and a stop, and no data that is the upstream's own."""
    frames = encoded(AnthropicTurnEncoder("m"), STREAM)
    assert frames[-1].is_end_mark
    raw = b"".join(frame.raw for frame in frames)
    read = read_stream(raw)
    assert [block["type"] for block in read.blocks] == ["thinking", "text", "tool_use"]
    assert read.blocks[2]["input"] == {"at": "it"}
    payloads = [frame.payload or {} for frame in frames if frame.raw]
    delta = next(payload for payload in payloads if payload["type"] == "message_delta")
    assert delta["delta"]["stop_reason"] == "tool_use"
    assert delta["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 5,
    }
    assert payloads[0]["message"]["id"].startswith("msg_")
    assert b"secret" not in raw
    assert b"up_1" not in raw


def test_the_beginning_of_a_call_stands_beside_its_own_block() -> None:
    """Rule W5: a call's start event and its block are in one frame, so a writer can hide both."""
    frames = encoded(AnthropicTurnEncoder("m"), STREAM)
    (frame,) = [one for one in frames if any(isinstance(event, ToolCallStarted) for event in one.events)]
    assert (frame.payload or {})["content_block"]["id"] == "call_1"


def test_calls_that_overlap_come_one_after_the_other() -> None:
    """The first of overlapping calls streams, and the others wait and lose nothing."""
    parts = (
        ToolCallStarted(0, "call_1", "look"),
        ToolCallStarted(1, "call_2", "look"),
        ToolCallDelta(1, '{"b": '),
        ToolCallDelta(0, '{"a": 1}'),
        ToolCallDelta(1, "2}"),
        ToolCallFinished(0, ToolCall("call_1", "look", '{"a": 1}', 0)),
        ToolCallFinished(1, ToolCall("call_2", "look", '{"b": 2}', 1)),
        TurnFinished(FinishReason.TOOL_CALLS),
    )
    frames = encoded(AnthropicTurnEncoder("m"), [Frame(b"x", {}, (part,)) for part in parts])
    read = read_stream(b"".join(frame.raw for frame in frames))
    assert [(block["id"], block["input"]) for block in read.blocks] == [
        ("call_1", {"a": 1}),
        ("call_2", {"b": 2}),
    ]


def test_an_error_is_one_of_this_dialect_and_the_last_word() -> None:
    """Rule E1: an error is an event named ``error``, and no ``message_stop`` follows."""
    failed = TurnFailed({"message": "Too hot.", "code": "heat"})
    frames = encoded(
        AnthropicTurnEncoder("m"), [Frame(b"x", {}, (TextDelta("a"),)), Frame(b"y", {}, (failed,))]
    )
    assert frames[-1].raw.startswith(b"event: error\n")
    assert b"Too hot." in frames[-1].raw
    assert b"message_stop" not in b"".join(frame.raw for frame in frames)


def test_a_reply_says_the_same() -> None:
    """A reply that is not streamed is one message, with the same content as the upstream's."""
    frame = AnthropicTurnEncoder("m").encode_reply(Frame(b"x", {}, EVENTS))
    assert json.loads(frame.raw) == frame.payload
    reader = AnthropicWire().reader((), lambda name: False, 1 << 20)
    assert said(reader.read_reply(frame.raw).events) == said(EVENTS)
    message = json.loads(frame.raw)
    assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "tool_use")
