"""The client's Messages stream: unchanged bytes, composed runs, traces, ends and errors."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_rig import ASK, OURS, WIRE, compose, hides, play, writer_of
from messages_script import (
    STOP,
    Block,
    block_events,
    ending,
    error_event,
    read_stream,
    start,
    text,
    thinking,
    tool,
    tool_use,
    turn,
    user,
)

from proxy.base.events import FinishReason, Frame, ToolCall, ToolResult, TurnFailed
from proxy.wires.client_port import ClientView
from proxy.wires.stream.fast_path import FastWriter

MINE: dict[str, Any] = {"tools": [tool("mine")]}
HIDDEN = turn(
    thinking("I look.", "sig1"), text("Wait. "), tool_use("toolu_s", OURS, {"z": "UTC"}), id="msg_1"
)
ANSWER = turn(thinking("It is.", "sig2"), text("It is noon."), id="msg_2", output=9)
RESULT = ToolResult("toolu_s", True, "noon", redacted="noon", arguments_redacted={"z": "UTC"}, milliseconds=3)


def test_what_calls_nothing_of_ours_keeps_its_bytes() -> None:
    """Rule W2: without a server call, the client gets the upstream's exact bytes."""
    for data in (ANSWER, turn(text("x"), tool_use("toolu_c", "mine", {"a": 1}))):
        assert compose(data, ask=MINE) == data


def test_two_turns_are_one_message() -> None:
    """Rules W3 and W4: one start, dense indices, and one stop with the usage of both turns."""
    read = read_stream(compose(HIDDEN, ANSWER))
    assert read.blocks == [
        thinking("I look.", "sig1"), text("Wait. "), thinking("It is.", "sig2"), text("It is noon."),
    ]  # fmt: skip
    assert (read.message["id"], read.message["stop_reason"]) == ("msg_1", "end_turn")
    assert read.message["usage"]["output_tokens"] == 16
    assert read.message["usage"]["input_tokens"] == 20
    assert read.stopped


@pytest.mark.parametrize("hold", [False, True])
def test_no_word_of_a_server_call_reaches_the_client(hold: bool) -> None:
    """Rule W5: the client sees no name, id or argument of a server call."""
    ask = {"output_config": {"format": {"type": "json_schema", "schema": {}}}} if hold else {}
    out = compose(HIDDEN, ANSWER, ask=ask, results=[RESULT])
    for word in (OURS, "toolu_s", "UTC", "toolrelay"):
        assert word.encode() not in out


def test_json_is_given_once() -> None:
    """For JSON output the client gets only the last turn's text."""
    ask = {"output_config": {"format": {"type": "json_schema", "schema": {}}}}
    read = read_stream(compose(HIDDEN, turn(text('{"a":1}')), ask=ask))
    assert read.text == '{"a":1}'
    assert compose(ANSWER, ask=ask) == ANSWER


def mixed_writer(data: bytes, ask: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """Return the client's stream of a turn with calls of both sides, and its writer."""
    writer = writer_of({**MINE, **(ask or {})})
    out = play(data, writer, "mine").out + writer.turn_ended("suspended")
    out += (
        writer.turn_ended("suspended") + writer.turn_ended("final") + writer.finish(FinishReason.TOOL_CALLS)
    )
    return read_stream(out), writer


@pytest.mark.parametrize("first", [True, False])
def test_a_mixed_turn_shows_the_clients_calls_alone(first: bool) -> None:
    """The client gets only its own call with its id, whichever call comes first."""
    calls = [tool_use("toolu_s", OURS, {"z": 1}), tool_use("toolu_c", "mine", {"a": 1})]
    read, writer = mixed_writer(turn(text("So. "), *(calls if first else reversed(calls))))
    assert read.blocks == [text("So. "), tool_use("toolu_c", "mine", {"a": 1})]
    assert read.message["stop_reason"] == "tool_use"
    assert writer.client_ids() == {"toolu_c": "toolu_c"}
    assert writer.visible == "So. "


def test_an_id_that_the_history_has_is_not_given_again() -> None:
    """A composed stream replaces a call id that the history already has."""
    history = [
        user(text="hi"),
        {"role": "assistant", "content": [tool_use("toolu_c", "mine")]},
        user({"type": "tool_result", "tool_use_id": "toolu_c", "content": "x"}),
    ]
    data = turn(tool_use("toolu_s", OURS), tool_use("toolu_c", "mine"))
    read, writer = mixed_writer(data, {"messages": history})
    (shown,) = read.calls
    assert shown["id"] != "toolu_c"
    assert writer.client_ids() == {"toolu_c": shown["id"]}


def test_a_call_with_a_repaired_id_waits_for_the_turn() -> None:
    """A call without an id keeps its bytes only if no server call needs the turn to be composed."""
    alone = turn(tool_use("", "mine", {"a": 1}))
    assert compose(alone, ask=MINE) == alone
    read, writer = mixed_writer(turn(tool_use("", "mine", {"a": 1}), tool_use("toolu_s", OURS)))
    (shown,) = read.calls
    assert shown["id"]
    assert shown["id"] in writer.client_ids().values()


def test_blocks_that_overlap_are_ended() -> None:
    """If two calls overlap and one is a server call, the client's block is still stopped."""
    one, two = tool_use("toolu_s", OURS, {"n": 1}), tool_use("toolu_c", "mine", {"n": 2})
    (open_1, *said_1, stop_1), (open_2, *said_2, _) = block_events(0, one), block_events(1, two)
    data = b"".join([start(), open_1, *said_1, open_2, *said_2, stop_1, ending("tool_use"), STOP])
    read, _ = mixed_writer(data)
    assert read.calls == [two]


def test_traces() -> None:
    """Each trace mode shows a server call in its form: nothing, a thought, text, or data on pings."""
    runs = {
        trace: read_stream(compose(HIDDEN, ANSWER, trace=trace, results=[RESULT]))
        for trace in ("silent", "reasoning", "status", "events")
    }
    texts = {trace: read.text for trace, read in runs.items()}
    assert texts["silent"] == texts["reasoning"] == texts["events"] == "Wait. It is noon."
    assert f'{OURS}(z="UTC"): done' in texts["status"]
    thoughts = [block for block in runs["reasoning"].blocks if block["type"] == "thinking"]
    assert [block["signature"] for block in thoughts] == ["sig1", "toolrelay", "sig2"]
    told = [ping["x_toolrelay"] for ping in runs["events"].pings if "x_toolrelay" in ping]
    assert [(one["type"], one["name"]) for one in told] == [("tool_call", OURS), ("tool_result", OURS)]
    assert [len(read.pings) for read in runs.values()] == [2, 2, 2, 4]


def test_keep_alives_are_pings() -> None:
    """A keep-alive is a ping, large enough for proxies that buffer, and may come first."""
    writer = writer_of()
    alive = writer.keep_alive()
    assert len(alive) > 2000
    read = read_stream(alive + play(ANSWER, writer).out)
    assert [ping["type"] for ping in read.pings] == ["ping", "ping"]


def test_a_note_is_a_block_of_text() -> None:
    """A note of the proxy is a block of text, even if no turn had any text."""
    writer = writer_of()
    out = play(turn(tool_use("toolu_s", OURS)), writer).out + writer.turn_ended("final")
    read = read_stream(out + writer.note("Spent.") + writer.finish(FinishReason.STOP))
    assert (read.text, read.message["stop_reason"]) == ("Spent.", "end_turn")
    assert writer.visible == "Spent."


@pytest.mark.parametrize(
    ("said", "reason", "told"),
    [
        ("stop_sequence", None, "stop_sequence"),
        ("stop_sequence", "stop", "stop_sequence"),
        ("tool_use", "stop", "end_turn"),
        ("model_context_window_exceeded", "length", "model_context_window_exceeded"),
        ("refusal", "content_filter", "refusal"),
        ("end_turn", "length", "max_tokens"),
    ],
)
def test_the_upstreams_word_stays_where_it_means_the_same(said: str, reason: str | None, told: str) -> None:
    """The upstream's stop reason and its details stay if they match the run's reason."""
    details = {"stop_reason": said, "stop_sequence": "END", "stop_details": {"type": "x"}}
    last = ending().replace(b'{"stop_reason":"end_turn","stop_sequence":null}', json.dumps(details).encode())
    data = b"".join([start(), *block_events(0, text("x")), last, STOP])
    message = read_stream(compose(HIDDEN, data, reason=reason)).message
    assert message["stop_reason"] == told
    assert ("stop_details" in message) == (said == told)
    assert message["stop_sequence"] == ("END" if said == told else None)


def test_what_a_stream_lacks_is_said() -> None:
    """The writer adds a missing ``message_stop``, or an error if the stream gave no stop reason."""
    assert compose(ANSWER.removesuffix(STOP)) == ANSWER
    cut = start() + b"".join(block_events(0, text("It is"))[:-1])
    for out in (compose(cut), compose(start())):
        assert read_stream(out).error is not None


@pytest.mark.parametrize(
    "said",
    [
        error_event(),
        b'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
        b'data: {"error":{"code":529,"type":"overloaded_error","message":"Overloaded"}}\n\n',
    ],
)
def test_an_error_has_its_name(said: bytes) -> None:
    """The writer adds the name of an error event, without which clients see only an end."""
    out = compose(start() + said)
    assert read_stream(out).error == {"type": "overloaded_error", "message": "Overloaded"}
    if said == error_event():
        assert out == start() + said


def test_a_run_that_fails_ends_in_an_error() -> None:
    """A failed run ends with one error, and held data is dropped."""
    writer = writer_of()
    out = play(HIDDEN, writer).out + writer.turn_ended("hidden")
    out += writer.fail("It broke.", type="upstream_error", code="upstream_broken")
    assert read_stream(out).error == {"type": "api_error", "message": "It broke."}
    assert writer.fail("again", type="upstream_error", code=None) == b""
    held = writer_of({"output_config": {"format": {"type": "json_schema"}}})
    held.write(Frame(b"x"))
    assert held.fail("no", type="server_error", code="draining")[:1] != b"x"


def test_an_end_is_said_once() -> None:
    """After the end or an error, the writer writes nothing more."""
    writer = writer_of()
    assert play(ANSWER, writer).out == ANSWER
    assert writer.turn_ended("final") + writer.finish(None) == b""
    assert writer.fail("late", type="api_error", code=None) == b""
    broken = writer_of()
    broken.write(Frame(b"", events=(TurnFailed({"message": "No"}),)))
    assert broken.finish(None) == b""


def test_a_run_whose_turns_say_nothing_is_a_message() -> None:
    """A run without any text still gives a complete message."""
    writer = writer_of()
    out = writer.tool_started(ToolCall("a", OURS, "{}", 0), {}) + writer.turn_ended("hidden")
    read = read_stream(out + writer.finish(FinishReason.STOP))
    assert read.message["id"].startswith("msg_")
    assert read.message["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_a_paused_turn_is_gone_on_from() -> None:
    """A paused turn's blocks stay in the message, and the next turn's blocks follow."""
    server: Block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}}
    read = read_stream(compose(HIDDEN, turn(text("Hm. "), server, reason="pause_turn"), ANSWER))
    assert [block["type"] for block in read.blocks] == [
        "thinking", "text", "text", "server_tool_use", "thinking", "text",
    ]  # fmt: skip
    assert read.message["stop_reason"] == "end_turn"


def test_events_of_other_kinds() -> None:
    """A composed stream keeps comments and drops unknown events; a forwarded stream keeps both."""
    odd = b'event: odd\ndata: {"type":"odd"}\n\n'
    out = compose(HIDDEN, b": hi\n\n" + odd + ANSWER)
    assert b": hi\n\n" in out
    assert b"odd" not in out
    assert compose(odd + ANSWER) == odd + ANSWER


PIECES = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).map(text),
        st.just(thinking("Hm.", "sig")),
        st.sampled_from([OURS, "mine"]).map(lambda name: tool_use("?", name, {"n": 1})),
    ),
    min_size=1,
    max_size=5,
)


@given(turns=st.lists(PIECES, min_size=1, max_size=3), seed=st.integers(0, 2**16))
def test_any_run_is_one_message(turns: list[list[Block]], seed: int) -> None:
    """Rules W3 to W6: any run gives one well-formed message, the same for every cut."""
    datas = []
    turns = [*([*blocks, tool_use("?", OURS)] for blocks in turns[:-1]), turns[-1]]
    for number, blocks in enumerate(turns):
        named = [{**b, "id": f"toolu_{number}_{at}"} if "id" in b else b for at, b in enumerate(blocks)]
        datas.append(turn(*named, id=f"msg_{number}"))
    at = random.Random(seed).sample(range(1, 400), 30)
    whole, cut = compose(*datas, ask=MINE), compose(*datas, ask=MINE, at=at)
    assert whole == cut
    read = read_stream(whole)
    shown = [block for blocks in turns for block in blocks if block.get("name") != OURS]
    assert [block["type"] for block in read.blocks] == [block["type"] for block in shown]
    assert read.text == "".join(block["text"] for block in shown if block["type"] == "text")
    assert OURS.encode() not in whole


def test_a_writer_passes_only_what_it_need_not_see() -> None:
    """The fast path is open only while the writer neither holds nor composes."""
    writer = writer_of()
    assert isinstance(writer, FastWriter)
    assert writer.transform() is not None
    play(HIDDEN, writer)
    assert writer.transform() is None
    holding = writer_of({"output_config": {"format": {"type": "json_schema"}}})
    assert isinstance(holding, FastWriter)
    assert holding.transform() is None
    assert writer.result() is None


def test_a_stream_is_asked_for_or_not() -> None:
    """For a request that does not stream, the writer sends no keep-alives."""
    asked = WIRE.parse({**ASK, "stream": False})
    writer = WIRE.writer(asked, ClientView("m", hides()))
    assert writer.keep_alive() == b""
