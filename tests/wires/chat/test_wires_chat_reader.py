"""Turns of a Chat upstream read as events: odd, broken and complete ones."""

import json
import random
import re
from typing import Any

import orjson
import pytest
from cases import each
from fixture_loader import Exchange, all_exchanges
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_json import odd_chunk

from proxy.base.errors import FrameTooLarge, Unreadable, WireError
from proxy.base.events import (
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.wires.chat.reader import ChatTurnReader
from proxy.wires.stream.sse import is_comment

DONE = b"data: [DONE]\n\n"
STREAMS = [e for e in all_exchanges() if e.wire == "chat" and any(turn.sse for turn in e.turns)]


def reader(hidden: tuple[str, ...] = (), bound: int = 8192) -> ChatTurnReader:
    """Return a reader that knows three tools; calls of ``hidden`` are the server's."""
    return ChatTurnReader({"time", "book", "get", "get_weather"}, lambda name: name in hidden, bound)


def event(payload: Any) -> bytes:
    """Return one event with this payload."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def delta(delta: Any = None, **choice: Any) -> dict[str, Any]:
    """Return a chunk with one choice."""
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta or {}, **choice}]}


def tool(**call: Any) -> dict[str, Any]:
    """Return a chunk with one tool call fragment."""
    return delta({"tool_calls": [call]})


def function(name: Any = None, arguments: Any = None, **call: Any) -> dict[str, Any]:
    """Return a chunk with one fragment of a function call."""
    return tool(**call, function={"name": name, "arguments": arguments})


def read(*payloads: Any, turn: ChatTurnReader | None = None) -> list[TurnEvent]:
    """Return all events of a stream of these payloads."""
    turn = turn or reader()
    frames = turn.feed(b"".join(map(event, payloads))) + turn.close()
    return [e for frame in frames for e in frame.events if not isinstance(e, TurnStarted)]


def assembled(*payloads: Any) -> list[tuple[str, str, str]]:
    """Return (id, name, arguments) of the calls; a minted id is empty."""
    calls = [e.call for e in read(*payloads) if isinstance(e, ToolCallFinished)]
    return [
        ("" if c.call_id.startswith("call_") and len(c.call_id) == 29 else c.call_id, c.name, c.arguments)
        for c in calls
    ]


# Calls on the wire.


@pytest.mark.parametrize("blank", [None, "", " "])
def test_blank_is_absent(blank: str | None) -> None:
    """Blank ids and names on later fragments count as missing (Qwen, GLM, Mistral)."""
    assert assembled(
        function("time", "", index=0, id="a", type="function"),
        function(blank, '{"x":', index=0, id=blank, type=blank),
        function(blank, "1}", index=0, id=blank),
    ) == [("a", "time", '{"x":1}')]


@pytest.mark.parametrize("kind", ["function", "", None, 7])
def test_type_is_not_needed(kind: Any) -> None:
    """A call without a type is a function call."""
    assert assembled(function("time", "{}", index=0, id="a", type=kind)) == [("a", "time", "{}")]


@pytest.mark.parametrize(
    ("first", "second"),
    [(0, 1), ("0", "1"), (" 0 ", "1"), ("-1", "-2"), (None, None), ("x", "y"), (0.5, 1.5), (True, False)],
)
def test_indices_of_every_kind(first: Any, second: Any) -> None:
    """Numeric strings are indices, and other values are not; then ids tell the calls apart."""
    assert assembled(
        function("time", "{", index=first, id="a"),
        function("book", "{", index=second, id="b"),
        function(None, "}", index=second, id="b"),
        function(None, "}", index=first, id="a"),
    ) == [("a", "time", "{}"), ("b", "book", "{}")]


def test_numeric_strings_are_the_same_index() -> None:
    """An index as a string and the same index as a number are one index."""
    assert assembled(
        function("time", "", index="1", id="a"),
        function("book", "", index="0", id="b"),
        function(None, '{"x":1}', index=1),
    ) == [("a", "time", '{"x":1}'), ("b", "book", "{}")]
    assert assembled(
        function("time", "", index=-1, id="a"),
        function("book", "", index="0", id="b"),
        function(None, '{"x":1}', index=" -1 "),
    ) == [("a", "time", '{"x":1}'), ("b", "book", "{}")]


@pytest.mark.parametrize("index", ["--1", "1-", "9" * 40, "9" * 5000, "", "\u0663x"])
def test_indices_that_are_none(index: str) -> None:
    """A string that is no number counts as a missing index and does not raise an error."""
    assert assembled(function("time", "{}", index=index, id="a")) == [("a", "time", "{}")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x": 1}, '{"x":1}'),
        ({}, "{}"),
        ([1], "[1]"),
        (None, "{}"),
        ("", "{}"),
        ("null", "{}"),
        (7, "7"),
        (False, "false"),
        ('"{\\"x\\":1}"', '{"x":1}'),
    ],
)
def test_arguments_of_every_kind(arguments: Any, text: str) -> None:
    """Arguments may be an object, missing, or encoded twice, and are never lost."""
    assert assembled(function("time", arguments, index=0, id="a")) == [("a", "time", text)]


def test_an_id_that_is_a_number() -> None:
    """An id that is a number becomes text."""
    assert assembled(function("time", "{}", index=0, id=0)) == [("0", "time", "{}")]


@pytest.mark.parametrize("value", [[], None, "x", 5, [5, None, "x"], {}, True])
def test_no_calls(value: Any) -> None:
    """``tool_calls`` that is empty, null or not a list of objects has no calls."""
    assert assembled(delta({"content": "hi", "tool_calls": value})) == []


def test_one_call_without_a_list() -> None:
    """A call that stands in place of the list is read as one call."""
    assert assembled(
        delta({"tool_calls": {"index": 0, "id": "a", "function": {"name": "time", "arguments": "{}"}}})
    ) == [("a", "time", "{}")]


@pytest.mark.parametrize("value", [None, "x", 5, []])
def test_a_function_that_is_none(value: Any) -> None:
    """A ``function`` that is no object is ignored, and the call's other fields count."""
    assert assembled(tool(index=0, id="a", function=value), function("time", "{}", index=0)) == [
        ("a", "time", "{}")
    ]


def test_call_and_finish_in_one_chunk() -> None:
    """Text, call, finish reason and usage of one chunk are reported in a fixed order."""
    payload = delta(
        {"content": "hi", "tool_calls": [{"id": "a", "function": {"name": "time", "arguments": "{}"}}]},
        finish_reason="tool_calls",
    )
    payload["usage"] = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    kinds = [type(e) for e in read(payload)]
    assert kinds == [
        TextDelta,
        ToolCallStarted,
        TurnFinished,
        UsageReported,
        ToolCallDelta,
        ToolCallFinished,
    ]


def test_a_call_after_the_finish_reason() -> None:
    """A call after the finish reason still counts, because the turn ends with its stream."""
    assert assembled(delta({}, finish_reason="tool_calls"), function("time", "{}", index=0, id="a")) == [
        ("a", "time", "{}")
    ]


def test_the_older_form() -> None:
    """``function_call`` is read as one legacy call."""
    events = read(
        delta({"function_call": {"name": "time"}}), delta({"function_call": {"arguments": '{"x":1}'}})
    )
    (call,) = [e.call for e in events if isinstance(e, ToolCallFinished)]
    assert (call.name, call.arguments, call.legacy) == ("time", '{"x":1}', True)
    (started,) = [e for e in events if isinstance(e, ToolCallStarted)]
    assert started.extra["type"] == "function_call"


def test_the_same_call_in_both_forms() -> None:
    """A call that a gateway sends in both forms is one call."""
    payload = function("time", '{"x":', index=0, id="a")
    payload["choices"][0]["delta"]["function_call"] = {"name": "time", "arguments": '{"x":'}
    assert assembled(payload, function(None, "1}", index=0)) == [("a", "time", '{"x":1}')]


def test_a_custom_tool() -> None:
    """A custom tool's input is text and stays unchanged."""
    turn = reader()
    events = read(
        tool(index=0, id="a", type="custom", custom={"name": "time", "input": "now"}),
        tool(index=0, custom={"input": ", please"}),
        turn=turn,
    )
    (call,) = [e.call for e in events if isinstance(e, ToolCallFinished)]
    assert (call.name, call.arguments) == ("time", "now, please")
    assert json.loads(turn.message())["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "time", "input": "now, please"}}
    ]


def test_unknown_fields_of_a_call() -> None:
    """Unknown fields of a call and of its function go back upstream with it."""
    turn = reader()
    read(
        tool(
            index=0,
            id="a",
            function={"name": "time", "arguments": "{}", "strict": True},
            extra_content={"google": {"thought_signature": "S"}},
        ),
        turn=turn,
    )
    assert json.loads(turn.message())["tool_calls"] == [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "time", "arguments": "{}", "strict": True},
            "extra_content": {"google": {"thought_signature": "S"}},
        }
    ]


# Text, reasoning, refusals.


def test_text() -> None:
    """Each piece of text is an event, and empty or null content is not."""
    turn = reader()
    payloads = [delta({"role": "assistant", "content": ""}), delta({"content": "a"}), delta({"content": "b"})]
    assert read(*payloads, delta({"content": None}), turn=turn) == [TextDelta("a"), TextDelta("b")]
    assert turn.text == "ab"


def test_text_in_parts() -> None:
    """For content as a list of parts (Mistral), the text is that of the text parts, the rest is reasoning."""
    parts = [
        {"type": "thinking", "thinking": []},
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "thinking", "thinking": "so"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    turn = reader()
    assert read(delta({"content": parts}), delta({"content": "c"}), turn=turn) == [
        ReasoningDelta("hm"),
        ReasoningDelta("so"),
        TextDelta("a"),
        TextDelta("b"),
        TextDelta("c"),
    ]
    assert turn.text == "abc"
    assert read(delta({"content": [{"type": "text"}, 5, None, {"type": "image", "text": "x"}]})) == []


def test_content_that_is_neither() -> None:
    """Content of another type gives no text and no error."""
    for content in (5, True, {"text": "x"}):
        assert read(delta({"content": content})) == []


def test_reasoning() -> None:
    """Reasoning is read under either name, and once if both are sent."""
    assert read(
        delta({"reasoning_content": "a"}),
        delta({"reasoning": "b"}),
        delta({"reasoning": "c", "reasoning_content": "c"}),
        delta({"reasoning_content": "", "reasoning": "d", "content": "e"}),
        delta({"reasoning": ["x"]}),
    ) == [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        ReasoningDelta("c"),
        ReasoningDelta("d"),
        TextDelta("e"),
    ]


def test_refusal() -> None:
    """A refusal gives an event of its own."""
    assert read(delta({"refusal": "No."}), delta({"refusal": None}), delta({"refusal": ""})) == [
        RefusalDelta("No.")
    ]


def test_other_choices_are_not_read() -> None:
    """Only the first choice belongs to this turn; its index may be missing."""
    payload = {
        "choices": [
            {"index": 1, "delta": {"content": "other"}, "finish_reason": "length"},
            {"delta": {"content": "mine"}, "finish_reason": "stop"},
        ]
    }
    assert read(payload) == [TextDelta("mine"), TurnFinished(FinishReason.STOP)]


def test_messages_instead_of_deltas() -> None:
    """The reader accepts ``message`` instead of ``delta``, and prefers ``delta``."""
    assert read({"choices": [{"index": 0, "message": {"content": "a"}}]}) == [TextDelta("a")]
    assert read({"choices": [{"index": 0, "delta": {"content": "a"}, "message": {"content": "b"}}]}) == [
        TextDelta("a")
    ]


# The turn's head and end.


def test_the_head_waits_for_an_id() -> None:
    """The turn starts at the first chunk with an id; Azure's first chunk has a blank one."""
    turn = reader()
    first = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}
    frames = turn.feed(event(first) + event(delta({"content": "a"})) + event(delta({"content": "b"})))
    assert frames[0].events == ()
    assert frames[1].events == (TurnStarted("c1", "m"), TextDelta("a"))
    assert frames[2].events == (TextDelta("b"),)


@pytest.mark.parametrize("head", [{"id": 5}, {"id": None}, {}, {"id": ["x"]}])
def test_a_head_of_another_kind(head: dict[str, Any]) -> None:
    """An id that is not text counts as missing."""
    assert reader().feed(event(head))[0].events == ()


def test_a_head_without_model() -> None:
    """A turn without a model has an empty model name."""
    assert reader().feed(event({"id": "x"}))[0].events == (TurnStarted("x", ""),)


def test_a_choice_without_delta() -> None:
    """The reader accepts a choice without a delta, which Azure sends in later chunks."""
    payload = {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"a": 1}}]}
    assert read(payload, {"choices": [{"delta": None, "finish_reason": "stop"}]}) == [
        TurnFinished(FinishReason.STOP)
    ]


@pytest.mark.parametrize("choices", [None, 5, "x", {}, {"a": 1}, [None, 5, "x", []], True])
def test_choices_of_another_kind(choices: Any) -> None:
    """Choices of another type count as missing and do not raise an error."""
    assert read({"choices": choices}) == []


@pytest.mark.parametrize("reason", [None, "", 0, False, [], {}])
def test_no_finish_reason(reason: Any) -> None:
    """A finish reason that is empty counts as missing."""
    assert read(delta({}, finish_reason=reason)) == []


@pytest.mark.parametrize("reason", [5, True, ["stop"], {"type": "stop"}])
def test_a_finish_reason_that_is_no_word(reason: Any) -> None:
    """A finish reason that is not a word is one that nobody knows (rule W7)."""
    (event,) = read(delta({}, finish_reason=reason))
    assert event == TurnFinished(FinishReason.ERROR, str(reason))


@pytest.mark.parametrize(
    ("payload", "usage"),
    [
        (
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 9}},
            (1, 2, 9),
        ),
        ({**delta(), "usage": {"prompt_tokens": 1}}, (1, 0, 1)),
        ({"x_groq": {"usage": {"completion_tokens": 2}}}, (0, 2, 2)),
        ({"usage": None, "x_groq": {"usage": {"completion_tokens": 2}}}, (0, 2, 2)),
        ({"usage": {"prompt_tokens": "1", "completion_tokens": -2, "total_tokens": True}}, (0, 0, 0)),
    ],
)
def test_usage_anywhere(payload: dict[str, Any], usage: tuple[int, int, int]) -> None:
    """Usage is found in each known place; an invalid count is 0, a total that is missing is the sum, and the
    native object is kept."""
    native = payload.get("usage") or payload["x_groq"]["usage"]
    assert read(payload) == [UsageReported(Usage(*usage, native))]


@pytest.mark.parametrize(
    "payload", [{"usage": None}, {"usage": 5}, {"x_groq": None}, {"x_groq": {"id": "x"}}]
)
def test_no_usage(payload: dict[str, Any]) -> None:
    """Usage that is null or no object is not reported."""
    assert read(payload) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ({"message": "x", "code": 1}, {"message": "x", "code": 1}),
        ("bad", {"message": "bad"}),
        ([1], {"message": "[1]"}),
    ],
)
def test_an_error_inside_the_stream(error: Any, told: dict[str, Any]) -> None:
    """An error of any type fails the turn."""
    assert read({"error": error}) == [TurnFailed(told)]


def test_no_error() -> None:
    """A null error does not fail the turn."""
    assert read({"error": None, **delta({"content": "a"})}) == [TextDelta("a")]


# Frames.


def test_frames_have_their_bytes() -> None:
    """Rule W2: each frame has the exact bytes of its event, also for comments and empty events."""
    stream = b": ping\n\n" + b'data:{"id":"x"}\r\n\r\n' + b"event: ping\n\n" + b"data: 5\n\n" + DONE
    turn = reader()
    frames = turn.feed(stream)
    assert b"".join(frame.raw for frame in frames) == stream
    assert [frame.payload for frame in frames] == [None, {"id": "x"}, None, None, None]
    assert [frame.is_end_mark for frame in frames] == [False] * 4 + [True]
    assert turn.close() == [Frame(b"")]


@pytest.mark.parametrize(
    "data", [b"5", b"null", b'"x"', b"[1]", b": OPENROUTER PROCESSING", b"ping", b"true"]
)
def test_data_that_is_no_object(data: bytes) -> None:
    """Data that is not an object gives no events."""
    (frame,) = reader().feed(b"data: " + data + b"\n\n")
    assert (frame.payload, frame.events, frame.is_end_mark) == (None, (), False)


@pytest.mark.parametrize("data", [b'{"a":1}data: {"b":2}', b'{"a":', b'{"a" 1}'])
def test_an_event_that_cannot_be_read(data: bytes) -> None:
    """Two joined events, or half of one, fail the turn, since a part of it is lost."""
    (frame,) = reader().feed(b"data: " + data + b"\n\n")
    assert frame.payload is None
    (failed,) = frame.events
    assert isinstance(failed, TurnFailed)
    assert failed.error == {
        "message": "The upstream sent an event that is not valid JSON.",
        "type": "upstream_error",
        "code": "upstream_malformed",
    }


def test_an_event_that_was_cut_off() -> None:
    """Half an event at the end of a stream is no error, and a complete one without its end counts."""
    turn = reader()
    assert turn.feed(b'data: {"choices":[{"del') == []
    assert turn.close() == [Frame(b'data: {"choices":[{"del\n\n'), Frame(b"")]
    turn = reader()
    turn.feed(event(delta({"content": "a"}))[:-2])
    assert [e for frame in turn.close() for e in frame.events] == [TurnStarted("c1", "m"), TextDelta("a")]
    turn = reader()
    turn.feed(b"data: [DONE]")
    assert [frame.is_end_mark for frame in turn.close()] == [True, False]


def test_one_bad_byte() -> None:
    """The reader finds a call even if the event has invalid UTF-8."""
    raw = event(function("time", '{"a":"X"}', index=0, id="a")).replace(b"X", b"\xff")
    turn = reader()
    frames = turn.feed(raw) + turn.close()
    assert frames[0].raw == raw
    (call,) = [e.call for frame in frames for e in frame.events if isinstance(e, ToolCallFinished)]
    assert call.arguments == '{"a":"\ufffd"}'


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\ud83d", "\ufffd"),
        (rb"\uDE00", "\ufffd"),
        (rb"a\ud83d\ud83d\ude00\ude00b", "a\ufffd\U0001f600\ufffdb"),
        (rb"\\ud83d", r"\ud83d"),
        (rb"\\\ud83d", "\\\ufffd"),
        (rb"\u0041\n\ud83d", "A\n\ufffd"),
    ],
)
def test_half_an_emoji(escaped: bytes, text: str) -> None:
    """Half of a surrogate pair that no other half follows is replaced; all other text is read unchanged."""
    raw = b'data: {"choices":[{"delta":{"content":"' + escaped + b'"}}],"x":"\\ud83d"}\n\n'
    turn, more = reader(), b'data: {"choices":[{"delta":{"content":"."}}]}\n\n'
    events = [one for frame in turn.feed(raw + more) for one in frame.events]
    assert "".join(one.text for one in events if isinstance(one, TextDelta)) == text + "."


def test_numbers_that_json_does_not_have() -> None:
    """The reader accepts NaN and Infinity, which Python servers write as log probabilities."""
    raw = (
        b'data: {"choices":[{"delta":{"content":"a"},"logprobs":[NaN,-Infinity,Infinity,1e400,'
        + b"9" * 30
        + b",123,%d,%d,%d,%d]}]}\n\n" % (-(2**63), -(2**63) - 1, 2**64 - 1, 2**64)
    )
    (frame,) = reader().feed(raw)
    assert list(frame.events) == [TextDelta("a")]
    assert frame.payload is not None
    logprobs = frame.payload["choices"][0]["logprobs"]
    assert logprobs[:3] == [None, None, None]
    assert logprobs[4:] == [1e30, 123, -(2**63), float(-(2**63) - 1), 2**64 - 1, float(2**64)]
    assert [type(n) for n in logprobs[4:]] == [float, int, int, float, int, float]
    orjson.dumps(frame.payload)


@pytest.mark.parametrize(("depth", "readable"), [(150, True), (190, True), (230, False), (1500, False)])
def test_deep_events(depth: int, readable: bool) -> None:
    """An event that is nested too deeply to be encoded again fails the turn."""
    raw = b'data: {"choices":[],"x":' + b"[" * depth + b"]" * depth + b"}\n\n"
    (frame,) = reader().feed(raw)
    assert (frame.payload is not None) is readable
    assert [type(e) for e in frame.events] == ([] if readable else [TurnFailed])


def test_wide_events_are_not_deep() -> None:
    """Many brackets side by side do not count as deep nesting."""
    (frame,) = reader().feed(event({"choices": [], "x": [[{"y": 1}, None, "z"]] * 500}))
    assert frame.payload is not None


def test_undecided_calls_are_on_every_frame() -> None:
    """Rule W5: while a call is undecided, comments and end marks are marked undecided, too."""
    turn = reader()
    stream = event(function("get", None, index=0, id="a")) + b": ping\n\n" + b"data: 5\n\n" + DONE
    assert [frame.undecided for frame in turn.feed(stream)] == [1, 1, 1, 1]
    assert [frame.undecided for frame in turn.close()] == [0]


def test_nothing_counts_after_the_end_mark() -> None:
    """Rules W5, W6: events after the end mark do not count, in the same read or a later one.

    Their bytes are forwarded, except for what may be a call.
    """
    call = event(function("time", "{}", index=0, id="a"))
    rest = event(delta({"content": "late"})) + b": ping, called {}\n\n" + DONE
    for cut in (True, False):
        turn = reader()
        frames = [*turn.feed(DONE), *turn.feed(call + rest)] if cut else turn.feed(DONE + call + rest)
        assert b"".join(frame.raw for frame in frames) == DONE + rest
        assert all(frame.is_end_mark and not frame.events and frame.payload is None for frame in frames)
        assert turn.close() == [Frame(b"")]


def test_an_endless_event_is_refused() -> None:
    """An event larger than 16 MiB is an error, so that it cannot use up the memory."""
    turn = reader()
    for _ in range(16):
        turn.feed(b"x" * 1024 * 1024)
    assert turn.feed(b"x") == []
    assert isinstance(turn.fault, FrameTooLarge)


def test_an_endless_turn_is_refused() -> None:
    """A turn with too much text is an error, so that it cannot use up the memory."""
    turn = reader()
    chunk = event(delta({"content": "x" * 4 * 1024 * 1024}))
    for _ in range(15):
        turn.feed(chunk)
    assert turn.feed(chunk) == []
    assert "message of one turn" in str(turn.fault)


@each("exchange", STREAMS, lambda e: e.name)
def test_recorded_streams_read_alike_for_every_cut(exchange: Exchange) -> None:
    """Rule W6: a recorded stream gives the same frames whole, in pieces of seven bytes, and byte by byte."""
    for turn in exchange.turns:
        if turn.sse is None:
            continue
        names = {tool.get("function", {}).get("name") for tool in (turn.request or {}).get("tools", [])} - {
            None
        }
        results = []
        for size in (len(turn.sse), 7, 1):
            read = ChatTurnReader(names, lambda name: False, 8192)
            frames = [f for at in range(0, len(turn.sse), size) for f in read.feed(turn.sse[at : at + size])]
            frames += read.close()
            assert b"".join(frame.raw for frame in frames).startswith(turn.sse)
            # The cuts decide how comments are split, which has no meaning.
            frames = [frame for frame in frames if frame.events or not is_comment(frame.raw)]
            results.append((unminted(repr(frames)), unminted(read.message().decode()), read.text))
        assert results[0] == results[1] == results[2]


def unminted(text: str) -> str:
    """Return the text without minted ids."""
    return re.sub(r"call_[A-Za-z0-9]{24}", "call_", text)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_no_json_breaks_it(seed: int) -> None:
    """Any JSON gives events, a message and text, or an error that is expected, but never a crash."""
    rng = random.Random(seed)
    payloads = [odd_chunk(rng) for _ in range(rng.randint(1, 4))]
    turn = reader(hidden=("time",))
    if rng.random() < 0.5:
        try:
            turn.read_reply(json.dumps(payloads[0]).encode())
        except Unreadable:
            assert b"tool_calls" in event(payloads[0]) or b"function_call" in event(payloads[0])
            return
    else:
        frames = turn.feed(b"".join(map(event, payloads)))
        assert all(frame.payload is not None for frame in frames)
        assert [frame.raw for frame in frames] == [event(payload) for payload in payloads][: len(frames)]
        assert len(frames) == len(payloads) or turn.fault is not None
        turn.close()
    assert isinstance(json.loads(turn.message()), dict)
    assert isinstance(turn.text, str)


# What goes back upstream.


@pytest.mark.parametrize(
    ("name", "arguments", "sent"),
    [
        ("time", '{"x":1}', '{"x":1}'),
        ("time", ' {"x" : 1e400} ', "{}"),
        ("time", '{"x":1.0} ', '{"x":1.0} '),
        ("time", "{broken", "{}"),
        ("time", "[1]", "{}"),
        ("time", '{"x":"12345678901"}', "{}"),
        ("time", '{"x":"1234567890"}', '{"x":"1234567890"}'),
        ("time", '{"x":"\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"}', "{}"),
        ("book", "{broken", "{broken"),
        ("book", '{"x":"123456789012345"}', '{"x":"123456789012345"}'),
        ("book", "", "{}"),
    ],
)
def test_arguments_that_go_back(name: str, arguments: str, sent: str) -> None:
    """Rule W8: server arguments that are no object, or too long, go back as ``{}``; others do not change."""
    turn = reader(hidden=("time",), bound=18)
    read(function(name, arguments, index=0, id="a"), turn=turn)
    assert json.loads(turn.message())["tool_calls"][0]["function"]["arguments"] == sent


def test_a_name_goes_back_once() -> None:
    """B.1-5: blank names on later fragments do not replace the name in the message."""
    turn = reader()
    read(function("time", "{", index=0, id="a"), function("", "}", index=0), turn=turn)
    assert json.loads(turn.message())["tool_calls"][0]["function"] == {"name": "time", "arguments": "{}"}


def test_a_message_before_the_end() -> None:
    """The message of an unfinished turn has no calls."""
    turn = reader()
    turn.feed(event(delta({"content": "a"})) + event(function("time", "{}", index=0)))
    assert json.loads(turn.message()) == {"role": "assistant", "content": "a"}


def test_ids_go_back_as_they_came() -> None:
    """Rule W8: an odd id goes back unchanged, and only a repeated one is replaced."""
    turn = reader()
    read(
        function("time", "{}", index=0, id="functions.time:0"),
        function("time", '{"x":1}', index=1, id="functions.time:0"),
        turn=turn,
    )
    first, second = json.loads(turn.message())["tool_calls"]
    assert first["id"] == "functions.time:0"
    assert second["id"] != first["id"]


def test_long_arguments_are_kept_as_far_as_the_bound() -> None:
    """Rule W7: a server call's arguments are kept up to 1 MiB, or up to their limit if it is larger."""
    for bound, size in ((10, 1024 * 1024), (2 * 1024 * 1024, 2 * 1024 * 1024)):
        events = read(
            function("time", "x" * (size + 99), index=0), turn=reader(hidden=("time",), bound=bound)
        )
        (call,) = [e.call for e in events if isinstance(e, ToolCallFinished)]
        assert len(call.arguments) == size + 1


# Replies that are not streamed.


def reply(message: dict[str, Any], **choice: Any) -> bytes:
    """Return a complete reply."""
    return json.dumps(
        {"id": "r1", "model": "m", "choices": [{"index": 0, "message": message, **choice}], "usage": {}}
    ).encode()


def test_a_whole_reply() -> None:
    """A reply is one frame with all its events."""
    call = {"id": "a", "type": "function", "function": {"name": "time", "arguments": '{"x":1}'}}
    raw = reply({"role": "assistant", "content": "hi", "tool_calls": [call]}, finish_reason="tool_calls")
    turn = reader()
    frame = turn.read_reply(raw)
    assert (frame.raw, frame.payload) == (raw, json.loads(raw))
    assert [type(e) for e in frame.events] == [
        TurnStarted,
        TextDelta,
        ToolCallStarted,
        ToolCallDelta,
        TurnFinished,
        UsageReported,
        ToolCallFinished,
    ]
    assert json.loads(turn.message()) == {"role": "assistant", "content": "hi", "tool_calls": [call]}


def test_each_call_of_a_reply_is_one() -> None:
    """Rule W7: each entry of a reply is a call of its own, even if ids and indices repeat."""
    entry = {"index": 0, "id": "a", "function": {"name": "time", "arguments": '{"x":1}'}}
    bare = {"function": {"name": "time", "arguments": '{"x":1}'}}
    turn = reader()
    frame = turn.read_reply(reply({"tool_calls": [entry, entry, bare, bare]}))
    calls = [e.call for e in frame.events if isinstance(e, ToolCallFinished)]
    assert [(call.name, call.arguments) for call in calls] == [("time", '{"x":1}')] * 4
    assert len({call.call_id for call in calls}) == 4
    message = json.loads(turn.message())
    assert [call["id"] for call in message["tool_calls"]] == [call.call_id for call in calls]
    assert message["content"] is None


def test_a_reply_with_the_older_form() -> None:
    """A reply's ``function_call`` goes back as ``function_call``."""
    turn = reader()
    turn.read_reply(reply({"content": None, "function_call": {"name": "time", "arguments": ""}}))
    assert json.loads(turn.message()) == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "time", "arguments": "{}"},
    }


def test_unknown_fields_of_a_reply() -> None:
    """A reply's message goes back with all its fields, also null ones."""
    message = {"role": "assistant", "content": "x", "refusal": None, "reasoning_details": [{"a": 1}]}
    turn = reader()
    turn.read_reply(reply(message))
    assert json.loads(turn.message()) == message


@pytest.mark.parametrize(
    "body", [b"", b"nope", b"[]", b"5", b'{"a":', b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"]
)
def test_a_reply_that_cannot_be_read(body: bytes) -> None:
    """A reply that is no JSON object raises an error."""
    with pytest.raises(WireError, match="not a JSON object"):
        reader().read_reply(body)


def test_a_reply_without_calls_has_no_calls() -> None:
    """A message with an empty list of calls goes back without it."""
    turn = reader()
    turn.read_reply(reply({"role": "assistant", "content": "x", "tool_calls": []}))
    assert json.loads(turn.message()) == {"role": "assistant", "content": "x"}
