"""Lines of an Ollama upstream read as events, however they are cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama_rig import OURS, play, reader_of
from ollama_script import call, done, error, said, turn

from proxy.base.errors import Unreadable, WireError
from proxy.base.events import ReasoningDelta, TextDelta, TurnFailed, TurnFinished, TurnStarted, UsageReported

WHOLE = turn("Hé “you”.", call(OURS, {"a": [1, {"b": None}]}, "call_1"), thinking="Hm. So.")


def texts(played: Any, kind: Any = TextDelta) -> str:
    """Return the text of a turn."""
    return "".join(event.text for event in played.of(kind))


@given(st.sets(st.integers(1, len(WHOLE))))
def test_however_its_bytes_are_cut(cuts: set[int]) -> None:
    """Rule W6: the reader gives the same events and the same bytes, however the stream is cut."""
    played = play(WHOLE, at=cuts)
    assert (texts(played), texts(played, ReasoningDelta)) == ("Hé “you”.", "Hm. So.")
    (made,) = played.calls
    assert (made.call_id, made.name, json.loads(made.arguments)) == (
        "call_1", OURS, {"a": [1, {"b": None}]},
    )  # fmt: skip
    assert [event.reason for event in played.of(TurnFinished)] == ["tool_calls"]
    assert played.of(UsageReported)[-1].usage.all_tokens == 17
    assert played.of(TurnStarted)[0].model == "m"
    assert played.out == WHOLE


def test_a_turn_goes_back_as_it_was_said() -> None:
    """The next request's message keeps the thought, unknown fields, and numbers as written."""
    big = b'{"model":"m","created_at":"c","message":{"role":"assistant","content":"","odd":1,"tool_calls":['
    big += b'{"id":"c1","type":"function","function":{"name":"f","arguments":'
    big += b'{"n":123456789012345678901234,"f":1.0}}}'
    big += b']},"done":false}\n'
    played = play(said("", thinking="Hm.") + big + done())
    raw = played.reader.message()
    assert b'"n":123456789012345678901234,"f":1.0' in raw
    message = played.message
    assert (message["content"], message["thinking"], message["odd"]) == ("", "Hm.", 1)
    assert message["tool_calls"][0]["type"] == "function"


@pytest.mark.parametrize("index", [0, None])
def test_calls_without_ids_are_told_apart(index: int | None) -> None:
    """Equal calls without ids stay separate calls with ids of their own, even if all have the index 0."""
    calls = [call("f", {"a": 1}, index=index), call("f", {"a": 1}, index=index), call("g", index=index)]
    played = play(said("", *calls) + done(), None, "f", "g")
    assert [(made.name, made.arguments) for made in played.calls] == [
        ("f", '{"a":1}'), ("f", '{"a":1}'), ("g", "{}"),
    ]  # fmt: skip
    assert len({made.call_id for made in played.calls}) == 3
    assert [one["id"] for one in played.message["tool_calls"]] == [made.call_id for made in played.calls]


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"a": 1}', '{"a": 1}'), (None, "{}"), ({}, "{}"), ("", "{}"), ([1], "[1]")],
)
def test_arguments_in_every_form(arguments: Any, read: str) -> None:
    """The reader accepts arguments as an object, as text, or none at all."""
    line = {"model": "m", "created_at": "c", "done": False}
    made = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    played = play(json.dumps({**line, "message": made}).encode() + b"\n" + done(), None, "f")
    assert [one.arguments for one in played.calls] == [read]


def test_a_call_without_a_name_is_none() -> None:
    """The reader drops a call without a name, because nobody could answer it."""
    played = play(said("a", {"function": {"arguments": {}}}, {"odd": 1}) + done())
    assert not played.calls
    assert "tool_calls" not in played.message


@pytest.mark.parametrize(
    ("last", "reason"),
    [(done("stop"), "stop"), (done("length"), "length"), (done("odd"), "error"), (done(""), "stop")],
)
def test_why_it_stopped(last: bytes, reason: str) -> None:
    """An empty stop reason counts as an ordinary end, and an unknown one as an error."""
    assert [event.reason for event in play(said("a") + last).of(TurnFinished)] == [reason]


def test_counts_that_are_left_out_are_unknown() -> None:
    """Usage is not reported without any counts; a missing prompt count, as for a cached prompt, is 0."""
    assert not play(done(prompt_eval_count=None, eval_count=None)).of(UsageReported)
    (report,) = play(done(prompt_eval_count=None)).of(UsageReported)
    assert (report.usage.input_tokens, report.usage.output_tokens) == (0, 7)


@pytest.mark.parametrize("data", [b"", said("It"), said("It") + b'{"model"', said("It") + b"\n\n"])
def test_a_stream_that_merely_ends_has_failed(data: bytes) -> None:
    """Rule E1: a stream without a last line has failed, and the client does not get half a line."""
    played = play(data)
    assert played.of(TurnFailed)
    assert not played.of(TurnFinished)
    assert b'{"model"' not in played.out[len(said("It")) :]


def test_an_error_line_is_one() -> None:
    """An error line makes the turn fail with the upstream's own message."""
    played = play(said("It") + error("no memory"))
    assert [event.error["message"] for event in played.of(TurnFailed)] == ["no memory"]
    with_status = b'{"error":"no memory","status":500}\n'
    assert [event.error["message"] for event in play(with_status).of(TurnFailed)] == ["no memory"]


def test_what_comes_after_the_last_line_is_no_part_of_the_turn() -> None:
    """Rule W5: the reader ignores calls and text after the last line."""
    played = play(done() + said("", call(OURS)) + said("more"))
    assert not played.calls
    assert OURS.encode() not in played.out


def test_a_line_that_is_no_json_and_may_hold_a_call_stops_the_reading() -> None:
    """Rule W5: the reader stops at an invalid line that may contain a call."""
    reader = reader_of()
    reader.feed(b'{"message": {"tool_calls": [ {"function": oops}]}}\n' + done())
    assert isinstance(reader.fault, Unreadable)


def test_a_last_line_without_its_end_is_one() -> None:
    """The reader accepts a last line without its line break, which some gateways cut off."""
    played = play(said("a") + done().strip())
    assert played.of(TurnFinished)
    assert not played.of(TurnFailed)


def test_lines_that_differ_in_their_text_alone_are_told_together() -> None:
    """On the fast path, one frame holds many lines that differ only in their text, with the same bytes."""
    data = b"".join(said(f"w{at} ") for at in range(50)) + done()
    reader = reader_of()
    assert reader.feed(data[:200]) is not None
    frames = [*reader.feed(data[200:]), *reader.close()]
    assert b"".join(frame.raw for frame in frames)
    taken_unread = reader_of()
    told = taken_unread.feed(data, together=True)  # type: ignore[call-arg]
    events = [event for frame in [*told, *taken_unread.close()] for event in frame.events]
    assert "".join(one.text for one in events if isinstance(one, TextDelta)) == "".join(
        f"w{at} " for at in range(50)
    )
    assert b"".join(frame.raw for frame in told) == data
    assert len(told) < 10


def test_a_reply_is_read_as_a_stream_is() -> None:
    """A reply has the text, calls, usage and end of a stream; a body that is no reply is refused."""
    reader = reader_of("f")
    body = done("stop", "Hm.", call("f", {"a": 1}, "call_1")).strip()
    frame = reader.read_reply(body)
    assert list(frame.events) == play(body, None, "f").events
    assert "".join(event.text for event in frame.events if isinstance(event, TextDelta)) == "Hm."
    (usage,) = (event.usage for event in frame.events if isinstance(event, UsageReported))
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 7, 17)
    assert [event.reason for event in frame.events if isinstance(event, TurnFinished)] == ["tool_calls"]
    assert json.loads(reader.message())["tool_calls"][0]["id"] == "call_1"
    with pytest.raises(WireError):
        reader_of().read_reply(b"<html>")
    with pytest.raises(Unreadable):
        reader_of().read_reply(b'[{"tool_calls": []}]')


def test_a_call_is_kept_as_it_was_sent() -> None:
    """The record keeps a call in the upstream's form, with masked arguments."""
    played = play(said("", call("f", {"secret": "x", "a": 1}, "call_1")) + done(), None, "f")
    native = played.reader.native(played.calls[0], lambda name, text: '{"secret":"***"}')
    assert json.loads(native) == {
        "id": "call_1", "function": {"index": 0, "name": "f", "arguments": {"secret": "***"}},
    }  # fmt: skip
