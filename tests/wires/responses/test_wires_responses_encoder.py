"""Turns of upstreams of other dialects, encoded as streams and replies of the Responses API."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from responses_check import check_response_stream
from turn_encoding import EVENTS, cut, encoded, read_again, recorded_turns, streamed_arguments, told

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
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.crossing.encoder import ResponsesTurnEncoder
from proxy.wires.responses.wire import ResponsesWire

TURNS = recorded_turns({"chat": ChatWire()})
STREAM = [Frame(b"x", {}, (event,)) for event in EVENTS]
TOOLS = [{"type": "function", "name": "look", "parameters": {}}]
DONE = b"data: [DONE]\n\n"


def encoder() -> ResponsesTurnEncoder:
    """Return an encoder for a request that declares a tool."""
    return ResponsesTurnEncoder("m", {"model": "m", "input": "hi", "tools": TOOLS})


@each("turn", TURNS, lambda turn: turn[0])
def test_a_recorded_stream_says_the_same(turn: tuple[str, Sequence[Frame]]) -> None:
    """Rule W1: the Responses form of every recorded Chat stream has the same content."""
    frames = turn[1]
    events = [event for frame in frames for event in frame.events]
    said = told(events)
    made = encoded(encoder(), frames)
    raw = [frame.raw for frame in made]
    assert told(event for frame in made for event in frame.events) == said
    # Arguments that were encoded twice, or were null, are right only at the end of their item.
    as_streamed = [*streamed_arguments(events).values()] == [arguments for _, _, arguments in said["calls"]]
    if not said["failed"] and as_streamed:
        check_response_stream(b"".join(raw) + DONE)
    again = told(read_again(ResponsesWire(), raw))
    assert again == said if not said["failed"] else again["failed"] == said["failed"]


@given(st.sets(st.integers(1, 9000)))
def test_however_its_bytes_are_cut(cuts: set[int]) -> None:
    """Rule W6: the encoded stream has the same content, however its bytes are cut."""
    raw = b"".join(frame.raw for frame in encoded(encoder(), STREAM))
    assert told(read_again(ResponsesWire(), cut(raw, cuts))) == told(EVENTS)


def test_a_stream_looks_like_one_of_the_responses_api() -> None:
    """The stream has complete consecutive items and a last response, and no data of the upstream's own."""
    frames = encoded(encoder(), STREAM)
    assert frames[-1].is_end_mark
    raw = b"".join(frame.raw for frame in frames)
    read = check_response_stream(raw + DONE)
    assert [item["type"] for item in read.response["output"]] == ["reasoning", "message", "function_call"]
    reasoning, message, call = read.response["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert [part["type"] for part in message["content"]] == ["output_text", "refusal"]
    assert (call["call_id"], call["arguments"]) == ("call_1", '{"at": "it"}')
    assert read.response["tools"] == [{**TOOLS[0], "description": None, "strict": None}]
    assert read.response["usage"]["input_tokens_details"] == {"cached_tokens": 3}
    assert read.id.startswith("resp_")
    assert b"secret" not in raw
    assert b"up_1" not in raw


def call_events(*parts: Any) -> list[Frame]:
    """Frames of calls, one event each."""
    return [Frame(b"x", {}, (part,)) for part in parts]


def test_calls_that_overlap_come_one_after_the_other() -> None:
    """The first of overlapping calls streams, and the others wait and lose nothing."""
    frames = call_events(
        ToolCallStarted(0, "call_1", "look"),
        ToolCallStarted(1, "call_2", "look"),
        ToolCallDelta(1, '{"b": '),
        ToolCallDelta(0, '{"a": 1}'),
        ToolCallDelta(1, "2}"),
        ToolCallFinished(0, ToolCall("call_1", "look", '{"a": 1}', 0)),
        ToolCallFinished(1, ToolCall("call_2", "look", '{"b": 2}', 1)),
        TurnFinished(FinishReason.TOOL_CALLS),
    )
    raw = b"".join(frame.raw for frame in encoded(encoder(), frames))
    read = check_response_stream(raw + DONE)
    assert read.calls == [("call_1", "look", '{"a": 1}'), ("call_2", "look", '{"b": 2}')]
    assert [item["output_index"] for item in read.events if item["type"].endswith("item.added")] == [0, 1]


@pytest.mark.parametrize(
    ("reason", "arguments", "status"),
    [
        ("length", '{"a": 1}', "completed"),
        ("length", '{"a": ', "incomplete"),
        ("content_filter", '{"a": ', "incomplete"),
        ("tool_calls", '{"a": ', "completed"),
    ],
)
def test_a_call_that_was_cut_off(reason: str, arguments: str, status: str) -> None:
    """A call whose arguments the model could not end is incomplete; one before it is complete."""
    first, last = (ToolCall(f"call_{at}", "look", text, at) for at, text in enumerate(("{}", arguments)))
    frames = [
        *call_events(*(ToolCallStarted(call.index, call.call_id, call.name) for call in (first, last))),
        *call_events(*(ToolCallDelta(call.index, call.arguments) for call in (first, last))),
        *call_events(TurnFinished(FinishReason(reason))),
        *call_events(*(ToolCallFinished(call.index, call) for call in (first, last))),
    ]
    read = check_response_stream(b"".join(frame.raw for frame in encoded(encoder(), frames)) + DONE)
    assert [item["status"] for item in read.response["output"]] == ["completed", status]
    done = [event["item"]["status"] for event in read.events if event["type"].endswith("item.done")]
    assert done == ["completed", status]
    assert read.calls[1] == ("call_1", "look", arguments)


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_why_a_turn_ended(reason: str, status: str, details: Any) -> None:
    """Chat's finish reason becomes the response's status and details."""
    frames = encoded(encoder(), call_events(TextDelta("a"), TurnFinished(FinishReason(reason))))
    response = (frames[-1].payload or {})["response"]
    assert (response["status"], response["incomplete_details"]) == (status, details)


def test_an_error_ends_the_response() -> None:
    """Rule E1: an error becomes ``response.failed``, the last event."""
    failed = TurnFailed({"message": "Too hot.", "code": "heat"})
    frames = encoded(encoder(), call_events(TextDelta("a"), failed))
    payload = json.loads(frames[-1].raw.split(b"data: ")[1])
    assert payload["type"] == "response.failed"
    assert payload["response"]["error"] == {"code": "heat", "message": "Too hot."}


@pytest.mark.parametrize("custom", [False, True])
def test_a_reply_says_the_same(custom: bool) -> None:
    """A reply that is not streamed is one object, with the same calls, status and usage."""
    started = ToolCallStarted(0, "call_1", "look", {"type": "custom"} if custom else {})
    events = [started if isinstance(event, ToolCallStarted) else event for event in EVENTS]
    frame = encoder().encode_reply(Frame(b"x", {}, tuple(events)))
    assert json.loads(frame.raw) == frame.payload
    reader = ResponsesWire().reader({"look"}, lambda name: False, 1 << 20)
    again, said = told(reader.read_reply(frame.raw).events), told(events)
    # The reader gives reasoning and refusals only of streams, not of replies.
    assert {key: again[key] for key in ("calls", "reason", "usage")} == {
        key: said[key] for key in ("calls", "reason", "usage")
    }
    kind = "custom_tool_call" if custom else "function_call"
    assert [item["type"] for item in json.loads(frame.raw)["output"]] == ["reasoning", "message", kind]
