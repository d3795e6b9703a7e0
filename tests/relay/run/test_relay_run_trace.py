"""What a client sees of server calls if it asks, and what keeps a stream alive while tools run."""

import json
from typing import Any

import pytest
from chat_script import DONE, call, content, finish, payloads_of, reply, role, stream, text_of
from looping import ANSWER, ASK, CLIENT_TOOL, called, looping, one_loop
from probe_tools import Watch
from raw_upstream import whole

from proxy.relay.run.keepalive import Notifier

ECHO_A = ("call_1", "probe_tools__echo", '{"text":"a"}')
EVENTS = {"trace_max": "events"}


def traces_of(body: bytes) -> list[dict[str, Any]]:
    """Return the ``x_toolrelay`` objects of a stream, each in a chunk with an empty delta."""
    found = []
    for chunk in payloads_of(body):
        if "x_toolrelay" in chunk:
            (choice,) = chunk["choices"]
            assert {k: v for k, v in choice["delta"].items() if k != "role"} == {}
            assert choice["finish_reason"] is None
            found.append(chunk["x_toolrelay"])
    return found


async def test_silent_is_the_default() -> None:
    """Rule W5: a client that asks for no trace sees nothing of a server call."""
    answer, _ = await one_loop(called(ECHO_A), ANSWER)
    assert b"echo" not in answer.body
    assert b"x_toolrelay" not in answer.body


async def test_reasoning_is_one_line_a_call() -> None:
    """A call is shown as a line of reasoning, and the text stays the model's own."""
    answer, _ = await one_loop(called(ECHO_A), ANSWER, headers={"x-toolrelay-trace": "reasoning"})
    chunks = payloads_of(answer.body)
    (line,) = [
        r for c in chunks for choice in c["choices"] if (r := choice["delta"].get("reasoning_content"))
    ]
    assert line.startswith('probe_tools__echo(text="a"): done in ')
    assert line.endswith(" ms\n")
    assert line.count("\n") == 1
    assert text_of(chunks) == "It is noon."


async def test_status_is_ordinary_text() -> None:
    """A call is shown as a paragraph of the answer."""
    answer, _ = await one_loop(called(ECHO_A), ANSWER, headers={"x-toolrelay-trace": "status"})
    text = text_of(payloads_of(answer.body))
    first, second = text.split("\n\n")
    assert first.startswith('> probe_tools__echo(text="a"): done in ')
    assert second == "It is noon."


@pytest.mark.accepts("chat-word-json", why="the format is not about what is asked")
async def test_status_stays_out_of_json_output() -> None:
    """With ``response_format`` the text is only the model's JSON, even with the trace ``status``."""
    ask = {**ASK, "response_format": {"type": "json_object"}}
    second = stream(role(), content('{"b":2}'), finish())
    answer, _ = await one_loop(called(ECHO_A), second, ask=ask, headers={"x-toolrelay-trace": "status"})
    assert text_of(payloads_of(answer.body)) == '{"b":2}'


async def test_events_show_the_call_and_then_its_result() -> None:
    """Rule T4: the call comes first, then its result, under one id, without what redaction removes."""
    first = called(ECHO_A, ("call_2", "probe_tools__unlock", '{"pin":"pin-1234"}'))
    answer, _ = await one_loop(first, ANSWER, headers={"x-toolrelay-trace": "events"}, tools=EVENTS)
    traces = traces_of(answer.body)
    by_call = {i: [t for t in traces if t["call_id"] == i] for i in ("call_1", "call_2")}
    for made, result in by_call.values():
        assert (made["type"], result["type"]) == ("tool_call", "tool_result")
        assert set(made) == {"type", "call_id", "name", "arguments", "status", "ms"}
        assert set(result) == {"type", "call_id", "name", "result", "status", "ms"}
        assert result["status"] == "completed"
    made, result = by_call["call_1"]
    assert made["arguments"] == {"text": "a"}
    assert result["result"] == {"echo": "a"}
    assert b"hidden-output" not in answer.body
    assert b"pin-1234" not in answer.body
    assert text_of(payloads_of(answer.body)) == "It is noon."


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("not json", "invalid_json"), ("[1]", "invalid_arguments"), ('{"x":', "invalid_json")],
)
async def test_events_show_calls_that_do_not_parse(arguments: str, code: str) -> None:
    """A call with invalid arguments has both events, with the error code and without its raw text."""
    answer, _ = await one_loop(
        called(("call_1", "probe_tools__echo", arguments)),
        ANSWER,
        headers={"x-toolrelay-trace": "events"},
        tools=EVENTS,
    )
    made, result = traces_of(answer.body)
    assert (made["call_id"], result["call_id"]) == ("call_1", "call_1")
    assert made["arguments"] is None
    assert result["status"] == "failed"
    assert result["error"]["code"] == code
    assert b"not json" not in answer.body


async def test_events_show_calls_that_a_budget_refused() -> None:
    """A call that a budget refuses has both events, with the error code."""
    answer, _ = await one_loop(
        called(ECHO_A), ANSWER, headers={"x-toolrelay-trace": "events"}, tools={**EVENTS, "max_turns": 1}
    )
    made, result = traces_of(answer.body)
    assert made["name"] == result["name"] == "probe_tools__echo"
    assert result["error"]["code"] == "budget_exhausted"


async def test_a_reply_shows_its_events_in_one_list() -> None:
    """Without a stream, the events are in one list of the reply, in order."""
    answer, _ = await one_loop(
        reply(None, ECHO_A),
        reply("noon"),
        ask={**ASK, "stream": False},
        headers={"x-toolrelay-trace": "events"},
        tools=EVENTS,
    )
    assert [t["type"] for t in answer.json["x_toolrelay"]] == ["tool_call", "tool_result"]


@pytest.mark.parametrize(("trace", "field"), [("reasoning", "reasoning_content"), ("status", "content")])
async def test_a_reply_shows_lines_too(trace: str, field: str) -> None:
    """Without a stream, the lines are in the message."""
    answer, _ = await one_loop(
        reply(None, ECHO_A),
        reply("noon"),
        ask={**ASK, "stream": False},
        headers={"x-toolrelay-trace": trace},
    )
    assert "probe_tools__echo" in answer.json["choices"][0]["message"][field]


async def test_a_client_gets_no_more_than_it_may() -> None:
    """A client that asks for ``events`` but may see only ``status`` gets no trace at all, because it did not
    ask for lines in the text. A header says so."""
    quiet, _ = await one_loop(called(ECHO_A), ANSWER)
    answer, _ = await one_loop(called(ECHO_A), ANSWER, headers={"x-toolrelay-trace": "events"})
    assert traces_of(answer.body) == []
    assert text_of(payloads_of(answer.body)) == text_of(payloads_of(quiet.body))
    assert answer.header("x-toolrelay-trace") == "silent"
    assert quiet.header("x-toolrelay-trace") is None


@pytest.mark.parametrize("most", ["silent", "reasoning", "status", "events"])
@pytest.mark.parametrize("asked", ["silent", "reasoning", "status", "events"])
@pytest.mark.parametrize("streams", [True, False])
async def test_the_response_says_which_trace_it_is(asked: str, most: str, streams: bool) -> None:
    """A header names the trace that was asked for if it is allowed, else ``silent``: with and without a
    stream, and even if there is no tool to show."""
    levels = ("silent", "reasoning", "status", "events")
    granted = asked if levels.index(asked) <= levels.index(most) else "silent"
    tools = {"trace_max": most, "trace": "silent"}
    for extra in ({}, {"x-toolrelay-tools": "none"}):
        turns = (called(ECHO_A), ANSWER) if not extra else (ANSWER,)
        if not streams:
            turns = (whole(json.dumps({"choices": [{"message": {"content": "x"}}]}).encode()),)
        answer, _ = await one_loop(
            *turns, ask={**ASK, "stream": streams}, headers={"x-toolrelay-trace": asked, **extra}, tools=tools
        )
        assert answer.status == 200
        assert [value for name, value in answer.headers if name.lower() == "x-toolrelay-trace"] == [granted]


async def test_a_trace_that_does_not_exist_is_refused() -> None:
    """Rule E1: an unknown trace is a 400 that names the header."""
    answer, requests = await one_loop(ANSWER, headers={"x-toolrelay-trace": "loud"})
    assert answer.status == 400
    assert answer.error["param"] == "x-toolrelay-trace"
    assert requests == []


async def test_wrapper_calls_are_run_and_answered_once() -> None:
    """Each call inside a wrapper runs and has its events; the model gets one result for the wrapper."""
    uses = [
        {"recipient_name": "functions.probe_tools__echo", "parameters": {"text": "a"}},
        {"recipient_name": "functions.core__get_current_time", "parameters": {"timezone": "UTC"}},
    ]
    first = called(("call_1", "multi_tool_use.parallel", json.dumps({"tool_uses": uses})))
    answer, requests = await one_loop(first, ANSWER, headers={"x-toolrelay-trace": "events"}, tools=EVENTS)
    result = json.loads(requests[1].body)["messages"][-1]
    assert result["tool_call_id"] == "call_1"
    outputs = json.loads(result["content"])
    assert [o["recipient_name"] for o in outputs] == [u["recipient_name"] for u in uses]
    assert json.loads(outputs[0]["output"])["echo"] == "a"
    traced = [t["call_id"] for t in traces_of(answer.body)]
    assert sorted(traced) == ["call_1.0", "call_1.0", "call_1.1", "call_1.1"]
    assert b"multi_tool_use" not in answer.body


# ---------------------------------------------------------------- a slow tool


async def test_a_stream_is_kept_alive_while_a_tool_runs(watch: Watch) -> None:
    """While a tool runs, the client gets comments that are padded to 2 KiB."""
    first = stream(role(), content("Wait."), call("call_1", "probe_tools__slow", "{}"), finish("tool_calls"))
    async with (
        looping(first, ANSWER, tools={"keepalive_s": 0.05}) as (proxy, _),
        proxy.sent(ASK) as conversation,
    ):
        answer = await conversation.head()
        pieces = conversation.pieces(answer)
        kept, seen = [], b""
        async for piece in pieces:
            seen += piece
            if piece.startswith(b":"):
                kept.append(piece)
                if len(kept) == 2:
                    watch.go_on.set()
        assert all(len(piece) % 2048 == 0 and piece.endswith(b"\n\n") for piece in kept)
        assert text_of(payloads_of(seen)) == "Wait.\n\nIt is noon."
        assert seen.endswith(DONE)


async def test_text_is_there_before_the_tool_has_run(watch: Watch) -> None:
    """The client gets the text before a call while the tool still runs."""
    first = stream(role(), content("Wait."), call("call_1", "probe_tools__slow", "{}"), finish("tool_calls"))
    async with looping(first, ANSWER) as (proxy, _), proxy.sent(ASK) as conversation:
        answer = await conversation.head()
        pieces = conversation.pieces(answer)
        seen = b""
        while b"Wait." not in seen:
            seen += await anext(pieces)
        assert watch.finished == []
        watch.go_on.set()
        seen += b"".join([piece async for piece in pieces])
        assert text_of(payloads_of(seen)) == "Wait.\n\nIt is noon."


async def test_read_only_calls_run_together(watch: Watch) -> None:
    """Read-only calls of a turn run together; a slow one does not delay the other's result."""
    first = called(("call_1", "probe_tools__slow", "{}"), ("call_2", *ECHO_A[1:]))
    async with (
        looping(first, ANSWER, tools=EVENTS) as (proxy, _),
        proxy.sent(ASK, {"x-toolrelay-trace": "events"}) as conversation,
    ):
        answer = await conversation.head()
        seen = b""
        async for piece in conversation.pieces(answer):
            seen += piece
            if b'"call_2"' in seen and b"tool_result" in seen:
                watch.go_on.set()
        assert [t["call_id"] for t in traces_of(seen)] == ["call_1", "call_2", "call_2", "call_1"]


async def test_a_tool_past_its_time_is_told_to_the_model(watch: Watch) -> None:
    """Rule T7: a tool that takes too long is cancelled, and the model gets a timeout as its result."""
    _, requests = await one_loop(
        called(("call_1", "probe_tools__slow", "{}")), ANSWER, tools={"timeout_s": 0.1}
    )
    result = json.loads(json.loads(requests[1].body)["messages"][-1]["content"])
    assert result["error_code"] == "timeout"
    assert watch.cancelled == ["slow"]


async def test_client_calls_and_trace_share_one_stream() -> None:
    """In a mixed turn the client gets the trace of the server call, and the stream ends with its own call."""
    first = called(ECHO_A, ("call_2", "mine", "{}"))
    answer, _ = await one_loop(
        first, ask={**ASK, "tools": [CLIENT_TOOL]}, headers={"x-toolrelay-trace": "events"}, tools=EVENTS
    )
    assert len(traces_of(answer.body)) == 2
    assert payloads_of(answer.body)[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_nobody_wakes_for_what_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a call that the client is shown ends the wait for a keep-alive comment."""
    notified: list[str] = []

    class Counted(Notifier):
        def notify(self) -> None:
            notified.append("notify")
            super().notify()

    monkeypatch.setattr("proxy.relay.run.tool_calls.Notifier", Counted)
    await one_loop(called(ECHO_A), ANSWER)
    assert notified == []
    await one_loop(called(ECHO_A), ANSWER, headers={"x-toolrelay-trace": "events"}, tools=EVENTS)
    assert notified == ["notify", "notify"]
