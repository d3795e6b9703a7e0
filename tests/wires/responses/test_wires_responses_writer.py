"""The stream that a Responses client sees: its own bytes as long as that can be, then one of ours."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from responses_check import RESOURCE_FIELDS, check_response_stream, events_of
from responses_rig import ASK, HIDDEN, OURS, WIRE, compose, hides, play, reader_of, writer_of
from responses_script import (
    closing,
    custom,
    encode,
    event,
    function,
    function_call,
    item_events,
    message,
    opening,
    reasoning,
    refusal,
    resource,
    turn,
)

from proxy.errors import FrameTooLarge
from proxy.events import ToolResult
from proxy.wires.client_port import ClientView, Trace

DONE = b"data: [DONE]\n\n"
CALL = function_call("call_h", OURS, '{"zone":"UTC"}')
OK = ToolResult("call_h", True, "secret", redacted={"time": "12:00"}, arguments_redacted={"zone": "UTC"})
FAILED = ToolResult("call_h", False, "{}", "timeout", "It took too long.", arguments_redacted={})
MINE = {"tools": [function("mine")]}
WHOLE = [{**function("mine"), "description": None, "strict": None}]


# Nothing of ours was called.


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_no_server_tool_took_part_in_is_the_upstreams_own(step: int) -> None:
    """Rule W2: the upstream's bytes, for every cut, and one end mark that it did not send."""
    data = turn(reasoning("hm"), message("It is noon."))
    assert compose(data, at=range(0, len(data), step)) == data + DONE


def test_the_upstreams_own_end_mark_is_not_repeated() -> None:
    """Rule W3: an end mark that came is the end mark."""
    data = turn(message("hi")) + DONE
    assert compose(data) == data


def test_only_tools_and_choice_are_put_back() -> None:
    """Rule W2: the lifecycle events say what the client sent; no other byte differs."""
    ours = [function("mine"), function(OURS)]
    asked = {"tools": [function("mine")], "tool_choice": "required"}
    sent = turn(message("a"), tools=ours, tool_choice={"type": "function", "name": OURS})
    wanted = turn(message("a"), tools=asked["tools"], tool_choice="required")
    assert compose(sent, ask=asked) == wanted + DONE


SEARCH = {"type": "web_search"}
FILLED = {**function("mine"), "strict": True, "description": None}
SEARCHED = {"type": "web_search", "search_context_size": "medium"}


@pytest.mark.parametrize("hidden_turn", [False, True])
def test_tools_are_told_as_the_upstream_filled_them_in(hidden_turn: bool) -> None:
    """The client's tools come with what the upstream filled in, without ours; where ours took the place
    of a declaration the client gets what it declared, and so it does for what the upstream leaves out."""
    asked = {"tools": [function("now"), SEARCH, function("mine"), function("left_out")]}
    ours = {**function("now"), "description": "ours", "strict": True}
    tools = [ours, SEARCHED, FILLED, {**function(OURS), "strict": True}, {"type": "custom", "name": "odd"}]
    client = WIRE.parse({**ASK, **asked})
    writer = WIRE.writer(client, ClientView("m", hides("mine", "left_out")))
    out = b""
    turns = [turn(CALL, tools=tools)] if hidden_turn else []
    for data in [*turns, turn(message("a"), tools=tools)]:
        out += play(data, writer, "mine", "left_out").out
        out += writer.turn_ended("hidden" if hidden_turn and data is turns[0] else "final")
    told = events_of(out + writer.finish(None))
    null = {"description": None, "strict": None} if hidden_turn else {}
    whole = [{**function("now"), **null}, SEARCHED, FILLED, {**function("left_out"), **null}]
    first = [function("now"), SEARCHED, FILLED, function("left_out")]  # Nothing of ours was called yet.
    assert [e["response"]["tools"] for e in told if "response" in e] == [first, first, whole]
    assert (writer.result() or {})["tools"] == whole


def test_tools_of_a_stored_prompt_are_told() -> None:
    """Tools that only the prompt brings are the client's, and stand behind those that it declared."""
    client = WIRE.parse({**ASK, "prompt": {"id": "pmpt_1"}})
    writer = WIRE.writer(client, ClientView("m", lambda name: name == OURS))
    data = turn(message("a"), tools=[function("theirs"), function(OURS), SEARCHED])
    told = events_of(play(data, writer, "theirs").out + DONE)
    assert [e["response"]["tools"] for e in told if "response" in e] == [[function("theirs"), SEARCHED]] * 3


def test_tools_keep_their_bytes() -> None:
    """Rule W2: numbers and spacing of the client's tools are the upstream's, also beside one of ours."""
    mine = b'{"type": "function","name":"mine","x":1.50e1}'
    said = b'data: {"type":"response.created","response":{"tools":[%b]}}\n\n'
    ours = json.dumps(function(OURS)).encode()
    assert compose(said % (mine + b" , " + ours), ask=MINE).startswith(said % mine)
    assert compose(said % (mine + b" "), ask=MINE).startswith(said % (mine + b" "))


def test_a_client_without_tools_is_told_of_none() -> None:
    """Rule W2: the defaults stand where the client said nothing, or null."""
    for ask in ({}, {"tools": None, "tool_choice": None}):
        sent = turn(message("a"), tools=[function(OURS)])
        assert compose(sent, ask=ask) == turn(message("a"), tools=[], tool_choice="auto") + DONE


def test_the_response_gone_on_from_is_the_one_that_the_client_named() -> None:
    """An id of ours is not the id that the upstream was sent: the client's is put back."""
    begun = {"status": "in_progress", "previous_response_id": "resp_upstream"}
    events = [*opening(**begun), closing([message("a")], previous_response_id="resp_upstream")]
    read = events_of(compose(encode(events), ask={"previous_response_id": "resp_ours"}))
    assert [e["response"]["previous_response_id"] for e in read] == ["resp_ours"] * 3


def test_values_are_put_back_in_data_over_several_lines() -> None:
    """An event of a gateway that breaks its JSON over lines is written anew in one."""
    text = json.dumps({"type": "response.created", "response": resource(tools=[function(OURS)])}, indent=1)
    raw = "".join(f"data: {line}\n" for line in text.split("\n")).encode() + b"\n"
    out = compose(raw)
    assert OURS.encode() not in out
    assert events_of(out)[0]["response"]["tools"] == []


@pytest.mark.parametrize(
    "raw",
    [
        b"data: {broken\n\n",
        b"data: null\n\n",
        b"data: []\n\n",
        b'data: {"type":7}\n\n',
        b'data: {"type":"response.created","response":null}\n\n',
        b'data: {"type":"response.completed","response":[]}\n\n',
        b'data: {"type":"response.output_item.added","item":null}\n\n',
        b'data: {"type":"response.output_item.done","output_index":"x","item":[]}\n\n',
        b'data: {"type":"response.output_text.delta","delta":null}\n\n',
        b": comment\r\n\r\n",
        b"event: ping\n\n",
        b"id: 1\nretry: 5\ndata: {}\n\n",
    ],
)
def test_what_cannot_be_read_passes(raw: bytes) -> None:
    """Rule W2: the parser may look, it may not touch, and odd JSON is no reason to fail."""
    assert compose(raw + turn(message("a"))) == raw + turn(message("a")) + DONE


@pytest.mark.parametrize("name", [b"\xff", b"\\ud83d", b"\\n\xe2\x82"])
def test_values_are_put_back_beside_a_broken_name(name: bytes) -> None:
    """Rules W2, W5: what is left of a character in a member's name is no reason to fail, nor to show ours."""
    said = b'data: {"type":"response.created","response":{"%b":1,"tools":%b}}\n\n'
    shown = compose(said % (name, json.dumps([function(OURS)]).encode()))
    assert shown.startswith(said % (name, b"[]"))


def test_the_clients_own_call_is_the_upstreams_bytes() -> None:
    """A turn with the client's calls alone is handed on as it came."""
    data = turn(function_call("call_1", "mine", '{"a":1}'), tools=MINE["tools"])
    assert compose(data, ask=MINE) == data + DONE


def test_what_was_passed_on_is_known_for_later() -> None:
    """The resource of a forwarded response is the client's version, also where its output came empty."""
    writer = writer_of({"tools": [function("mine")]})
    items = [message("a"), function_call("call_1", "mine")]
    events = [e for index, item in enumerate(items) for e in item_events(item, index)]
    play(encode([*opening(), *events, closing([])]), writer, "mine")
    writer.finish(None)
    assert (writer.result() or {})["output"] == items
    assert (writer.result() or {})["tools"] == [function("mine")]
    assert writer.composing is False
    assert writer.client_ids() == {"call_1": "call_1"}


def test_what_was_composed_is_known_for_later() -> None:
    """The resource is the one that the client was given."""
    writer = writer_of()
    out = play(turn(CALL), writer).out + writer.turn_ended("hidden")
    out += play(turn(message("Noon.")), writer).out + writer.turn_ended("final") + writer.finish(None)
    assert writer.composing
    assert writer.result() == check_response_stream(out).response


# A server tool was called.


def test_a_silent_run_is_one_response_with_the_last_text() -> None:
    """Rules W3, W4 and W5: one opening, one id, numbers without a gap, the text, nothing of the call."""
    first = turn(reasoning("hm"), CALL, id="resp_1", usage=_usage(10, 5))
    second = turn(message("Noon.", id="msg_2"), id="resp_2", usage=_usage(20, 7))
    read = check_response_stream(compose(first, second), hidden=HIDDEN)
    assert read.id == "resp_1"
    assert read.text == "Noon."
    assert [item["type"] for item in read.response["output"]] == ["reasoning", "message"]
    assert read.response["created_at"] == 1700000000
    assert read.response["usage"]["input_tokens"] == 30
    assert read.response["usage"]["output_tokens"] == 12
    assert read.response["usage"]["total_tokens"] == 42
    assert read.response["usage"]["input_tokens_details"] == {"cached_tokens": 2}
    assert read.kinds[:2] == ["response.created", "response.in_progress"]


def _usage(read: int, written: int) -> dict[str, Any]:
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def test_turns_of_text_and_calls_follow_each_other() -> None:
    """Text of a turn with a hidden call stays; the next turn's items go on behind it, ids of their own."""
    first = turn(message("Let me see."), CALL, id="resp_1")
    second = turn(CALL, message("Again."), id="resp_2")
    third = turn(message("Noon."), id="resp_3")
    read = check_response_stream(compose(first, second, third), hidden=HIDDEN)
    assert read.text == "Let me see.Again.Noon."
    ids = [item["id"] for item in read.response["output"]]
    assert ids[0] == "msg_1"
    assert len(set(ids)) == 3
    assert all(item_id.startswith("msg_") for item_id in ids)


def test_bytes_before_the_call_are_the_upstreams_own() -> None:
    """What the client got before a hidden call began is a prefix of what the upstream sent."""
    first = turn(message("Let me see."), CALL)
    out = compose(first, turn(message("Noon.")))
    assert out.startswith(
        first[: first.index(b"event: response.output_item.added", first.index(b"item.done"))]
    )


def test_a_hidden_call_between_two_of_the_clients() -> None:
    """Dense indices in the order of opening, each call whole, the hidden one nowhere."""
    items = [function_call("call_1", "mine"), CALL, function_call("call_2", "mine", '{"a":2}')]
    read = check_response_stream(_mixed(turn(*items, tools=MINE["tools"])), hidden=HIDDEN)
    assert read.calls == [("call_1", "mine", "{}"), ("call_2", "mine", '{"a":2}')]
    assert read.response["status"] == "completed"
    assert read.response["tools"] == WHOLE


def _mixed(data: bytes) -> bytes:
    """One turn with calls of both, handed to the client."""
    writer = writer_of(MINE)
    out = play(data, writer, "mine").out
    return out + writer.turn_ended("suspended") + writer.turn_ended("final") + writer.finish("tool_calls")


def test_interleaved_items_keep_apart() -> None:
    """Items that are open at once, as xAI sends them, go by their index."""
    items = [CALL, message("One two three", id="msg_1"), message("four five six", id="msg_2")]
    lives = [item_events(item, index) for index, item in enumerate(items)]
    woven = [life[0] for life in lives]
    rest = [life[1:] for life in lives]
    while any(rest):
        woven += [life.pop(0) for life in rest if life]
    out = compose(turn(*items, events=woven), turn(message("Noon.", id="msg_3")))
    read = check_response_stream(out, hidden=HIDDEN)
    texts = [item["content"][0]["text"] for item in read.response["output"]]
    assert texts == ["One two three", "four five six", "Noon."]


def test_rotating_ids_become_one() -> None:
    """GitHub Copilot gives an item another id in every event: the client sees the first."""
    events = item_events(message("Noon."), 0)
    for number, one in enumerate(events):
        if "item" in one:
            one["item"] = {**one["item"], "id": f"rotated_{number}"}
        else:
            one["item_id"] = f"rotated_{number}"
    read = check_response_stream(compose(turn(CALL), turn(message("Noon."), events=events)), hidden=HIDDEN)
    assert read.text == "Noon."
    assert read.response["output"][0]["id"] == "rotated_0"


def test_a_stream_without_numbers_and_indices() -> None:
    """llama-server sends neither: what is composed has them, and the lists that clients read."""
    bare = [
        _bare(one)
        for one in [*opening(id="r"), *item_events(message("Noon."), 0), closing([message("Noon.")])]
    ]
    hidden = [_bare(one) for one in [*opening(id="q"), *item_events(CALL, 0), closing([CALL])]]
    out = compose(encode(hidden, numbered=False), encode(bare, numbered=False))
    read = check_response_stream(out, hidden=HIDDEN, unnumbered=2)
    assert read.text == "Noon."
    assert [e["sequence_number"] for e in read.events[2:]] == list(range(2, len(read.events)))


def _bare(one: dict[str, Any]) -> dict[str, Any]:
    left_out = ("output_index", "content_index", "summary_index", "logprobs")
    return {key: value for key, value in one.items() if key not in left_out}


def test_summary_parts_without_their_index() -> None:
    """Parts of a summary are counted where the upstream does not."""
    item = {**reasoning("a"), "summary": [{"type": "summary_text", "text": t} for t in ("one", "two")]}
    events = [_bare(one) | {"output_index": 0} for one in item_events(item, 0)]
    read = check_response_stream(compose(turn(CALL), turn(item, events=events)), hidden=HIDDEN)
    places = [e["summary_index"] for e in read.events if e["type"] == "response.reasoning_summary_part.done"]
    assert places == [0, 1]


@pytest.mark.parametrize("kind", ["response.completed", "response.done"])
def test_items_that_only_the_terminal_event_has(kind: str) -> None:
    """A gateway that streams no items: the client gets them as events all the same."""
    items = [
        reasoning("hm", content=[{"type": "reasoning_text", "text": "raw"}]),
        message("Noon.", annotations=[]),
        refusal("No.", id="msg_2"),
        function_call("call_1", "mine", '{"a":1}'),
        custom("call_2", "write", "text"),
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {}},
        CALL,
    ]
    last = encode([*opening(id="resp_2"), {**closing(items, id="resp_2"), "type": kind}])
    read = check_response_stream(compose(turn(CALL), last, ask=MINE), hidden=HIDDEN)
    assert read.response["output"] == items[:-1]
    assert read.text == "Noon."
    for wanted in ("refusal.done", "reasoning_text.delta", "custom_tool_call_input.done"):
        assert f"response.{wanted}" in read.kinds


def test_items_of_a_first_turn_that_only_its_end_has() -> None:
    """A hidden call in the terminal event alone is hidden like any other."""
    first = encode([*opening(), closing([message("See:"), CALL])])
    read = check_response_stream(compose(first, turn(message("Noon.", id="msg_2"))), hidden=HIDDEN)
    assert read.text == "See:Noon."


def test_an_item_that_ends_without_having_begun() -> None:
    """``done`` alone is told as a whole item; pieces that came before it are not told twice."""
    life = item_events(message("Noon."), 0)
    read = check_response_stream(compose(turn(CALL), turn(message("Noon."), events=life[1:])), hidden=HIDDEN)
    assert read.text == "Noon."
    hidden = turn(CALL, events=item_events(CALL, 0)[-1:])
    assert check_response_stream(compose(hidden, turn(message("Noon."))), hidden=HIDDEN).text == "Noon."


def test_an_item_that_begins_and_does_not_end() -> None:
    """It is ended with the terminal event's version, else with what came of it."""
    life = item_events(message("Noon."), 0)[:-1]
    read = check_response_stream(compose(turn(CALL), turn(message("Noon."), events=life)), hidden=HIDDEN)
    assert read.response["output"] == [message("Noon.")]
    items = [message("Noon."), function_call("call_1", "mine", '{"a":1}'), reasoning("hm")]
    events = [one for index, item in enumerate(items) for one in item_events(item, index)[:-1]]
    data = encode([*opening(), *events, closing([])])
    read = check_response_stream(compose(turn(CALL), data, ask=MINE), hidden=HIDDEN)
    assert [item.get("status") for item in read.response["output"]] == ["incomplete", "incomplete", None]
    assert read.response["output"][1]["arguments"] == '{"a":1}'
    assert read.response["output"][2]["summary"] == [{"type": "summary_text", "text": "hm"}]


def test_an_opening_that_comes_late_is_whole() -> None:
    """A gateway that opens its response after the call: the client's first event is a whole ``created``."""
    begun = opening(tools=[function(OURS)])
    first = encode([*item_events(CALL, 0), *begun, begun[0], closing([CALL])])
    read = check_response_stream(compose(first, turn(message("Noon."), id="resp_2")), hidden=HIDDEN)
    assert read.kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert set(RESOURCE_FIELDS) <= set(read.events[0]["response"])
    assert (read.events[0]["response"]["status"], read.events[0]["response"]["tools"]) == ("in_progress", [])
    assert read.id == "resp_1"


def test_what_follows_a_hidden_call_does_not_wait() -> None:
    """Composing is no reason to hold text back: each event leaves when it came."""
    writer = writer_of()
    reader = reader_of()
    data = turn(CALL, message("Noon."))
    cut = data.index(b"response.output_text.done")
    out = b"".join(writer.write(frame) for frame in reader.feed(data[:cut]))
    assert b'"delta":"."' in out
    rest = b"".join(writer.write(frame) for frame in reader.feed(data[cut:]))
    assert b"output_text.done" in rest


def test_a_call_whose_name_comes_late() -> None:
    """Nobody's call is shown before its name is known; the client's is then told whole."""
    for name, shown in (("mine", [("call_1", "mine", "{}")]), (OURS, [])):
        item = function_call("call_1", name)
        life = item_events(item, 0)
        life[0]["item"] = {**life[0]["item"], "name": ""}
        read = check_response_stream(compose(turn(CALL), turn(item, events=life), ask=MINE), hidden=(OURS,))
        assert read.calls == shown


def test_a_repeated_call_id_is_repaired_once_and_for_all() -> None:
    """Rule W8: two calls of one turn under one id become two, the same ids for client and upstream."""
    items = [
        CALL,
        function_call("call_1", "mine", '{"a":1}'),
        {**function_call("call_1", "mine"), "id": "fc_2"},
    ]
    writer = writer_of(MINE)
    played = play(turn(*items), writer, "mine")
    out = played.out + writer.turn_ended("suspended") + writer.finish("tool_calls")
    shown = [call_id for call_id, _, _ in check_response_stream(out, hidden=HIDDEN).calls]
    assert shown[0] == "call_1"
    assert len(set(shown)) == 2
    assert [call.call_id for call in played.calls] == ["call_h", *shown]
    assert [item["call_id"] for item in played.message["output"]] == ["call_h", *shown]
    assert writer.client_ids() == {call_id: call_id for call_id in shown}


def test_comments_go_on_and_nothing_else_that_is_no_event() -> None:
    """Keep-alives of an upstream reach the client; what a strict parser trips over does not."""
    odd = b": ping\n\nevent: ping\n\ndata: {broken\n\n: x\ndata: 5\n\n"
    out = compose(turn(CALL), odd + turn(message("Noon.")) + DONE + DONE)
    assert out.count(b": ping") == 1
    assert check_response_stream(out, hidden=HIDDEN).text == "Noon."


def test_events_that_belong_to_no_item_go_on() -> None:
    """What is unknown is handed on, numbered; an upstream's error event is ours to tell."""
    data = turn(message("Noon."), events=[event("response.audio.delta", delta="AAAA"), {"type": "error"}])
    out = compose(turn(CALL), data)
    assert [e["type"] for e in events_of(out)].count("response.audio.delta") == 1
    assert "error" not in [e["type"] for e in events_of(out)]


@pytest.mark.parametrize(("status", "details"), [("incomplete", {"reason": "max_output_tokens"})])
def test_an_incomplete_answer_is_told_as_that(status: str, details: dict[str, str]) -> None:
    """The last turn's status and its details are the run's."""
    data = turn(message("No", status="incomplete"), status=status, incomplete_details=details)
    read = check_response_stream(compose(turn(CALL), data, reason="length"), hidden=HIDDEN)
    assert read.response["status"] == "incomplete"
    assert read.response["incomplete_details"] == details
    assert read.response["completed_at"] is None


def test_a_run_that_was_ended_is_completed() -> None:
    """Where the run says that it stops, the upstream's own word on it does not count."""
    data = turn(message("No"), status="incomplete")
    assert check_response_stream(compose(turn(CALL), data, reason="stop")).response["status"] == "completed"


# What is shown of a call.


def test_a_call_is_shown_as_a_hosted_one() -> None:
    """``events``: an ``mcp_call`` in the official order, redacted, whole, before the answer."""
    out = compose(turn(CALL), turn(message("Noon.")), trace="events", results=[OK])
    read = check_response_stream(out, hidden=("secret", "fc_call_h"))
    (shown,) = read.of_type("mcp_call")
    assert {k: v for k, v in shown.items() if k != "id"} == {
        "type": "mcp_call",
        "server_label": "toolrelay",
        "name": OURS,
        "arguments": '{"zone":"UTC"}',
        "output": '{"time":"12:00"}',
        "error": None,
        "status": "completed",
        "approval_request_id": None,
    }
    assert shown["id"].startswith("mcp_")
    assert read.kinds[2:8] == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
    ]
    assert read.events[2]["item"]["status"] == "in_progress"
    assert read.events[2]["item"]["arguments"] == ""


def test_a_failed_call_is_shown_as_that() -> None:
    """Its code and words, no output."""
    out = compose(turn(CALL), turn(message("Noon.")), trace="events", results=[FAILED])
    read = check_response_stream(out)
    (shown,) = read.of_type("mcp_call")
    assert (shown["status"], shown["output"]) == ("failed", None)
    assert shown["error"] == "timeout: It took too long."
    assert "response.mcp_call.failed" in read.kinds
    assert "response.mcp_call.completed" not in read.kinds


@pytest.mark.parametrize(("trace", "kind"), [("reasoning", "reasoning"), ("status", "message")])
def test_a_call_is_shown_as_a_line(trace: Trace, kind: str) -> None:
    """``reasoning`` and ``status``: an item with a short line, in its official events."""
    out = compose(turn(CALL), turn(message("Noon.")), trace=trace, results=[OK])
    read = check_response_stream(out, hidden=("secret",))
    shown = read.response["output"][0]
    assert shown["type"] == kind
    assert f'{OURS}(zone="UTC"): done' in json.dumps(shown).replace('\\"', '"')
    assert [item["type"] for item in read.response["output"]] == [kind, "message"]


def test_a_silent_run_shows_no_call() -> None:
    """Rule W5: no item, no name, no argument."""
    out = compose(turn(CALL), turn(message("Noon.")), results=[OK])
    assert check_response_stream(out, hidden=(*HIDDEN, "UTC", "zone", "mcp")).text == "Noon."


def test_a_word_of_our_own_is_a_message() -> None:
    """A note to the user is an item like any other."""
    writer = writer_of()
    out = play(turn(CALL), writer).out + writer.turn_ended("hidden") + writer.note("[Spent.]")
    read = check_response_stream(out + writer.finish("stop"), hidden=HIDDEN)
    assert read.text == "[Spent.]"
    assert read.response["output"][0]["content"][0]["annotations"] == []


def test_a_keep_alive_is_a_comment() -> None:
    """What is said while tools run is skipped by every client."""
    alive = writer_of().keep_alive()
    assert alive.startswith(b": ")
    assert alive.endswith(b"\n\n")
    assert alive.count(b"\n") == 2
    assert len(alive) == 2048


# JSON output: one text, never two.

JSON = {"text": {"format": {"type": "json_schema", "name": "t", "schema": {}}}}


@pytest.mark.parametrize("trace", ["silent", "status", "events", "reasoning"])
def test_json_output_is_one_text(trace: Trace) -> None:
    """Of several turns only the last one's message is shown, and no line of ours."""
    first = turn(reasoning("hm"), message('{"a":1}'), CALL, message('{"b":1}', id="msg_2"))
    last = turn(message('{"c":1}', id="msg_3"))
    out = compose(first, last, ask=JSON, trace=trace, results=[OK])
    read = check_response_stream(out, hidden=('{"a":1}',))
    assert read.text == '{"c":1}'
    assert len(read.of_type("message")) == 1


def test_json_output_of_one_turn_is_the_upstreams_own() -> None:
    """Rule W2: held back to its end, then let go unchanged; what is no text does not wait."""
    data = turn(reasoning("hm"), message('{"c":1}'))
    assert compose(data, ask=JSON) == data + DONE
    writer = writer_of(JSON)
    early = play(data[: data.index(b'"type":"message"')], writer).out
    assert b"response.created" in early
    assert b"hm" in early
    assert writer.note("[Spent.]") == b""


def test_a_reasoning_part_is_no_json_text() -> None:
    """The parts of reasoning are not held back as those of a message are."""
    part = {"type": "reasoning_text", "text": ""}
    events = [
        event("response.output_item.added", output_index=0, item={**reasoning("x"), "summary": []}),
        event("response.content_part.added", output_index=0, item_id="rs_1", content_index=0, part=part),
        event("response.output_item.done", output_index=0, item={**reasoning("x"), "summary": []}),
    ]
    first = turn(CALL, events=[*events, *item_events(CALL, 1)])
    out = compose(first, turn(message("{}")), ask=JSON)
    assert "response.content_part.added" in check_response_stream(out, hidden=HIDDEN).kinds
    assert len(check_response_stream(out).of_type("reasoning")) == 1


def test_what_is_held_back_is_bounded() -> None:
    """A text that waits for its end may not fill the memory."""
    writer = writer_of(JSON)
    reader = reader_of()
    big = event("response.output_text.delta", item_id="msg_1", output_index=0, delta="x" * 1_000_000)
    frames = [frame for _ in range(18) for frame in reader.feed(encode([big]))]
    with pytest.raises(FrameTooLarge):
        b"".join(map(writer.write, frames))


# A run that fails.


def test_a_failure_ends_what_is_open() -> None:
    """Error event, ``response.failed`` with the run's id and the output so far, one end mark."""
    writer = writer_of()
    second = turn(message("Noon and more"))
    half = second[: second.index(b"response.output_text.done") - 7]
    out = (
        play(turn(CALL, usage=_usage(1, 2)), writer).out
        + writer.turn_ended("hidden")
        + play(half, writer).out
    )
    out += writer.fail("It broke.", type="upstream_error", code="upstream_broken")
    read = check_response_stream(out, hidden=HIDDEN)
    assert read.error == {
        "type": "upstream_error", "code": "upstream_broken", "message": "It broke.", "param": None
    }  # fmt: skip
    assert read.response["error"] == {"code": "upstream_broken", "message": "It broke."}
    assert read.id == "resp_1"
    (item,) = read.response["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == "Noon and more"
    assert read.response["usage"]["output_tokens"] == 2


def test_a_failure_of_a_first_turn() -> None:
    """What was forwarded counts: its numbers go on, its item is ended, its id stays."""
    data = turn(message("Noon and more"))
    writer = writer_of()
    out = play(data[: data.index(b"response.output_text.done") - 7], writer).out
    read = check_response_stream(out + writer.fail("It broke.", type="upstream_error", code=None))
    assert read.id == "resp_1"
    assert read.response["output"][0]["status"] == "incomplete"
    assert read.response["error"]["code"] == "upstream_error"


def test_a_failure_after_the_end_adds_nothing() -> None:
    """A response that was told to its end has ended, whatever its connection did."""
    writer = writer_of()
    out = play(turn(message("a")), writer).out
    assert out + writer.fail("m", type="t", code=None) == turn(message("a")) + DONE
    writer = writer_of()
    out = play(turn(message("a")) + DONE, writer).out
    assert out + writer.fail("m", type="t", code=None) == turn(message("a")) + DONE


def test_the_usage_of_a_turn_that_failed_is_counted() -> None:
    """What an upstream billed before it failed is in the sum."""
    writer = writer_of()
    failed = turn(message("a"), status="failed", usage=_usage(5, 5), error={"code": "x", "message": "y"})
    out = play(turn(CALL, usage=_usage(1, 1)), writer).out + writer.turn_ended("hidden")
    out += play(failed, writer).out + writer.fail("m", type="t", code="c")
    assert check_response_stream(out, hidden=HIDDEN).response["usage"]["total_tokens"] == 12


# The resource.


def test_every_field_of_the_resource_is_there() -> None:
    """A bare upstream's resource is made whole: each field of the schema, with the client's own values."""
    bare = [
        event("response.created", response={"id": "r", "object": "response", "status": "in_progress"}),
        *item_events(CALL, 0),
        event("response.completed", response={"id": "r", "status": "completed", "output": [CALL]}),
    ]
    ask = {
        "instructions": "Be brief.", "max_output_tokens": 50, "max_tool_calls": 3, "temperature": 0.5,
        "metadata": {"a": "b"}, "store": False, "tools": [function("mine")], "tool_choice": "required",
        "text": {"verbosity": "low"}, "reasoning": {"effort": "low"}, "user": "u", "truncation": "auto",
        "parallel_tool_calls": False, "top_p": 0.9, "safety_identifier": "s", "prompt_cache_key": "k",
        "previous_response_id": "resp_0", "service_tier": None, "top_logprobs": 2,
    }  # fmt: skip
    read = check_response_stream(compose(encode(bare), encode(bare[:1] + bare[-1:]), ask=ask), unnumbered=0)
    for name, value in ask.items():
        if name not in ("text", "reasoning", "service_tier", "tools"):
            assert read.response[name] == value, name
    assert read.response["tools"] == WHOLE
    assert read.response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert read.response["reasoning"] == {"effort": "low", "summary": None}
    assert read.response["service_tier"] == "default"
    assert set(RESOURCE_FIELDS) <= set(read.response)
    assert read.response["usage"] is None


def test_what_the_upstream_says_of_itself_is_kept() -> None:
    """Fields that we know nothing of, and values that only the upstream knows, come from the last turn."""
    last = turn(message("a"), service_tier="flex", moderation={"x": 1}, model="m-2026", temperature=0.7)
    read = check_response_stream(compose(turn(CALL), last, ask={"temperature": 0.5}))
    assert read.response["service_tier"] == "flex"
    assert read.response["moderation"] == {"x": 1}
    assert read.response["model"] == "m-2026"
    assert read.response["temperature"] == 0.7


def test_times_are_whole_seconds() -> None:
    """``created_at`` is the first turn's, an integer, also where it came as another number."""
    first = encode([*opening(created_at=12.7), *item_events(CALL, 0), closing([CALL], created_at=12.7)])
    read = check_response_stream(compose(first, turn(message("a"))))
    assert read.response["created_at"] == 12
    assert read.response["completed_at"] >= 1700000000


def test_usage_is_whole() -> None:
    """Counts that an upstream leaves out are 0, so that strict clients can read it."""
    bare = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    read = check_response_stream(compose(turn(CALL, usage=bare), turn(message("a"), usage=bare)))
    assert read.response["usage"] == {
        "input_tokens": 6, "output_tokens": 8, "total_tokens": 14,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


# Properties.

# A text may be any but what the stream is searched for.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(
    lambda text: "secret" not in text and OURS not in text
)


@st.composite
def turns(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Turns of items, whose ids may repeat later; every turn but the last has a hidden call."""
    found = []
    count = draw(st.integers(1, 3))
    for number in range(count):
        items = []
        for place in range(draw(st.integers(0, 4))):
            # The first turn is the upstream's own bytes at first, its ids as they are.
            item_id = draw(st.sampled_from([f"i{number}{place}", "again", ""])) if number else str(place)
            match draw(st.sampled_from(["message", "refusal", "reasoning", "call", "custom", "search"])):
                case "message":
                    items.append(message(draw(texts), id=f"msg_{item_id}"))
                case "refusal":
                    items.append(refusal(draw(texts), id=f"msg_{item_id}"))
                case "reasoning":
                    items.append(reasoning(draw(texts), id=f"rs_{item_id}"))
                case "call":
                    items.append(function_call(f"c{number}{place}", OURS, '{"q":1}'))
                case "custom":
                    items.append(custom(f"c{number}{place}", "theirs", draw(texts)))
                case _:
                    items.append({"id": f"ws_{item_id}", "type": "web_search_call", "status": "completed"})
        if number == count - 1:
            items = [item for item in items if item.get("name") != OURS]
            items += [function_call(f"mine{n}", "mine", '{"a":1}') for n in range(draw(st.integers(0, 2)))]
        else:
            items.insert(draw(st.integers(0, len(items))), function_call(f"h{number}", OURS, '{"q":2}'))
        found.append(items)
    return found


def _woven(draw: Any, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of all items, each item's own in order, opened in order, else mixed."""
    lives = [item_events(item, index) for index, item in enumerate(items)]
    woven: list[dict[str, Any]] = []
    begun = 0
    while any(lives):
        ready = [n for n in range(begun) if lives[n]] + ([begun] if begun < len(lives) else [])
        chosen = draw(st.sampled_from(ready))
        woven.append(lives[chosen].pop(0))
        begun = max(begun, chosen + 1)
    return woven


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_sequence_of_items_keeps_the_numbering_rules(data: st.DataObject) -> None:
    """Rule W4: whatever the turns hold, in whatever order their events mix, the rules of the wire hold."""
    sequence = data.draw(turns())
    streams = [
        turn(*items, events=_woven(data.draw, items), id=f"resp_{n}", usage=_usage(n, n))
        for n, items in enumerate(sequence)
    ]
    trace: Trace = data.draw(st.sampled_from(["silent", "events", "status", "reasoning"]))
    results = [
        ToolResult(item["call_id"], True, "secret", redacted="shown", arguments_redacted={"q": 1})
        for items in sequence
        for item in items
        if item.get("name") == OURS
    ]
    whole = compose(*streams, ask=MINE, trace=trace, results=results)
    if len(sequence) == 1:
        assert whole == streams[0].replace(b'"tools":[]', _MINE_JSON) + DONE
        return
    read = check_response_stream(whole, hidden=("secret", *((OURS,) if trace == "silent" else ())))
    assert read.id == "resp_0"
    shown = [item for items in sequence for item in items if item.get("name") != OURS]
    own = {"events": "mcp_call", "status": "message", "reasoning": "reasoning"}.get(trace)
    kinds = sorted([item["type"] for item in shown] + [own] * (len(results) if own else 0))
    assert sorted(item["type"] for item in read.response["output"]) == kinds
    total = sum(range(len(sequence)))
    assert read.response["usage"]["input_tokens"] == total
    at = data.draw(st.lists(st.integers(1, max(map(len, streams))), max_size=12))
    assert _masked(compose(*streams, ask=MINE, trace=trace, results=results, at=at)) == _masked(whole)


_MINE_JSON = b'"tools":' + json.dumps(MINE["tools"], separators=(",", ":")).encode()


def _masked(body: bytes) -> list[dict[str, Any]]:
    """The events without what is minted anew each time, or the clock's."""
    found = []
    names: dict[str, str] = {}
    for one in events_of(body):
        for holder in (one, one.get("item"), *(one.get("response", {}).get("output") or ())):
            for key in ("id", "item_id"):
                if isinstance(holder, dict) and isinstance(holder.get(key), str):
                    holder[key] = names.setdefault(holder[key], str(len(names)))
        one.get("response", {}).pop("completed_at", None)
        found.append(one)
    return found


@pytest.mark.parametrize("step", [1, 2, 3, 64])
def test_every_cut_gives_the_same_bytes(step: int) -> None:
    """Rule W6: the composed stream does not depend on how the upstream's bytes were cut."""
    first = turn(message("Grüße 🌍"), CALL, id="resp_1")
    last = turn(reasoning("hm", id="rs_2"), message("Zwölf.", id="msg_2"), id="resp_2")
    whole = compose(first, last)
    cut = compose(first, last, at=range(0, len(first) + len(last), step))
    # One value is the clock's.
    assert _masked(cut) == _masked(whole)
    assert len(cut) == len(whole)


def test_every_event_leaves_in_one_write() -> None:
    """Rule W6: each piece that the writer gives is whole events, blank line included."""
    writer = writer_of()
    reader = reader_of()
    pieces = []
    for data, end in ((turn(message("a"), CALL), True), (turn(message("b", id="msg_2")), False)):
        for byte in data:
            pieces += [writer.write(frame) for frame in reader.feed(bytes([byte]))]
        pieces += [writer.write(frame) for frame in reader.close()]
        reader = reader_of()
        if end:
            pieces.append(writer.turn_ended("hidden"))
    pieces += [writer.turn_ended("final"), writer.finish(None)]
    assert all(piece.endswith(b"\n\n") for piece in pieces if piece)
    check_response_stream(b"".join(pieces), hidden=HIDDEN)


def test_names_that_begin_alike_are_told_apart() -> None:
    """A call whose name may still grow into another declared one waits until it is certain."""
    names = ("mine", "mine_too")
    ask = {"tools": [function(name) for name in names]}
    data = turn(function_call("call_1", "mine", '{"a":1}'), tools=ask["tools"])
    assert compose(data, ask=ask) == data + DONE
    empty = turn({**function_call("call_1", "mine", ""), "arguments": ""}, tools=ask["tools"])
    assert compose(empty, ask=ask) == empty + DONE


def test_the_wire_hides_by_the_offer_alone() -> None:
    """With a stored prompt, whose tools nobody here sees, a name that is unknown is the client's."""
    asked = WIRE.parse({**ASK, "prompt": {"id": "pmpt_1"}})
    writer = WIRE.writer(asked, ClientView("m", lambda name: name == OURS))
    reader = WIRE.reader({OURS}, lambda name: name == OURS, 8192)
    data = turn(function_call("call_1", "unseen"))
    out = b"".join(writer.write(frame) for frame in reader.feed(data) + reader.close())
    assert out == data
    assert hides("unseen")(OURS)
