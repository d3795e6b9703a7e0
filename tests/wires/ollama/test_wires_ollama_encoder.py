"""Turns of upstreams of other dialects, encoded as Ollama's streams and replies."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from cases import each
from hypothesis import given
from hypothesis import strategies as st
from ollama_script import read_reply, read_stream
from turn_encoding import EVENTS, cut, encoded, read_again, recorded_turns, told

from proxy.base.events import (
    FinishReason,
    Frame,
    TextDelta,
    ToolCall,
    ToolCallFinished,
    ToolCallStarted,
    TurnFailed,
    TurnFinished,
)
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.crossing.encoder import OllamaTurnEncoder
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire

TURNS = recorded_turns({"chat": ChatWire(), "responses": ResponsesWire(), "anthropic": AnthropicWire()})
STREAM = [Frame(b"x", {}, (event,)) for event in EVENTS]


def said(events: Iterable[Any]) -> dict[str, Any]:
    """Return a turn as Ollama can express it, for example with a refusal as text."""
    found = told(events)
    cut_short = found["reason"] in ("length", "content_filter")
    calls = [] if cut_short else [(i, name, _given(text)) for i, name, text in found["calls"]]
    return {
        "text": found["TextDelta"] + found["RefusalDelta"],
        "thought": found["ReasoningDelta"],
        "calls": calls,
        "is_cut": found["reason"] == "length",
        "usage": [used[:2] for used in found["usage"]],
    }


def _given(arguments: str) -> Any:
    try:
        given = json.loads(arguments)
    except ValueError:
        return {"INVALID_JSON": arguments}
    return given if isinstance(given, dict) else {"INVALID_JSON": arguments}


@each("turn", TURNS, lambda turn: turn[0])
def test_a_recorded_stream_says_the_same(turn: tuple[str, Sequence[Frame]]) -> None:
    """Rule W1: the Ollama form of every recorded stream of another dialect has the same content."""
    frames = turn[1]
    events = [event for frame in frames for event in frame.events]
    made = encoded(OllamaTurnEncoder("m"), frames)
    raw = [frame.raw for frame in made]
    again = read_again(OllamaWire(), raw)
    if told(events)["failed"]:
        assert told(again)["failed"]
        return
    read = read_stream(b"".join(raw))
    assert read.error == ""
    assert said(again) == said(events)
    kept = [one.call for frame in made for one in frame.events if isinstance(one, ToolCallFinished)]
    assert kept == [one.call for one in events if isinstance(one, ToolCallFinished)]


@given(st.sets(st.integers(1, 9000)))
def test_however_its_bytes_are_cut(cuts: set[int]) -> None:
    """Rule W6: the encoded stream has the same content, however its bytes are cut."""
    raw = b"".join(frame.raw for frame in encoded(OllamaTurnEncoder("m"), STREAM))
    assert said(read_again(OllamaWire(), cut(raw, cuts))) == said(EVENTS)


def test_a_stream_looks_like_one_of_ollamas() -> None:
    """The stream has Ollama's lines and one last line, and no data that is the upstream's own."""
    frames = encoded(OllamaTurnEncoder("m"), STREAM)
    assert [frame.is_end_mark for frame in frames].count(True) == 1
    raw = b"".join(frame.raw for frame in frames)
    read = read_stream(raw)
    assert (read.thinking, read.called()) == ("Hm.", [("look", {"at": "it"})])
    assert (read.last["prompt_eval_count"], read.last["eval_count"]) == (7, 5)
    assert read.last["model"] == "model-1"
    assert b"secret" not in raw
    assert b"up_1" not in raw


def test_the_beginning_of_a_call_stands_beside_its_line() -> None:
    """Rule W5: a call's start event is in the same frame as its line, so a writer can hide the line."""
    frames = encoded(OllamaTurnEncoder("m"), STREAM)
    (frame,) = [
        one for one in frames if any(isinstance(event, ToolCallStarted) for event in one.events) and one.raw
    ]
    assert (frame.payload or {})["message"]["tool_calls"][0]["id"] == "call_1"


def test_a_call_that_was_cut_short_is_not_told() -> None:
    """The client gets no call that was cut short, but the run gets its event."""
    call = ToolCallFinished(0, ToolCall("c", "look", '{"at": ', 0))
    frames = encoded(
        OllamaTurnEncoder("m"), [Frame(b"x", {}, (one,)) for one in (TurnFinished(FinishReason.LENGTH), call)]
    )
    assert any(call in frame.events for frame in frames)
    read = read_stream(b"".join(frame.raw for frame in frames))
    assert (read.calls, read.last["done_reason"]) == ([], "length")


def test_an_error_is_the_last_word() -> None:
    """Rule E1: an error is a line with its message, and no last line follows."""
    failed = TurnFailed({"message": "Too hot.", "code": "heat"})
    frames = encoded(OllamaTurnEncoder("m"), [Frame(b"x", {}, (TextDelta("a"),)), Frame(b"y", {}, (failed,))])
    assert frames[-1].raw == b'{"error":"Too hot."}\n'


def test_a_comment_is_an_empty_line_of_a_message() -> None:
    """The encoder turns an upstream's comment into a line without content, to keep the connection alive."""
    (frame,) = OllamaTurnEncoder("m").encode(Frame(b": ping\n\n"))
    assert json.loads(frame.raw)["message"] == {"role": "assistant", "content": ""}


def test_a_reply_says_the_same() -> None:
    """A reply that is not streamed is one object, with the same content as the upstream's."""
    frame = OllamaTurnEncoder("m").encode_reply(Frame(b"x", {}, EVENTS))
    assert json.loads(frame.raw) == frame.payload
    reader = OllamaWire().reader((), lambda name: False, 1 << 20)
    assert said(reader.read_reply(frame.raw).events) == said(EVENTS)
    assert read_reply(frame.raw).called() == [("look", {"at": "it"})]
