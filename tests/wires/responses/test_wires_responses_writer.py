"""The client's Responses stream: the upstream's bytes at first, then a composed stream."""

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

from proxy.base.errors import FrameTooLarge
from proxy.base.events import FinishReason, ToolCall, ToolResult
from proxy.wires.chosen import ShownTools
from proxy.wires.client_port import ClientView, Trace
from proxy.wires.responses.own_items.hosted import hosted_tools

DONE = b"data: [DONE]\n\n"
CALL = function_call("call_h", OURS, '{"zone":"UTC"}')
OK = ToolResult("call_h", True, "secret", redacted={"time": "12:00"}, arguments_redacted={"zone": "UTC"})
FAILED = ToolResult("call_h", False, "{}", "timeout", "It took too long.", arguments_redacted={})
MINE = {"tools": [function("mine")]}
WHOLE = [{**function("mine"), "description": None, "strict": None}]


# No server tool was called.


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_no_server_tool_took_part_in_is_the_upstreams_own(step: int) -> None:
    """Rule W2: the client gets the upstream's bytes for every cut, with an added end mark."""
    data = turn(reasoning("hm"), message("It is noon."))
    assert compose(data, at=range(0, len(data), step)) == data + DONE


def test_the_upstreams_own_end_mark_is_not_repeated() -> None:
    """Rule W3: the writer adds no end mark if the upstream sent one."""
    data = turn(message("hi")) + DONE
    assert compose(data) == data


def test_only_tools_and_choice_are_put_back() -> None:
    """Rule W2: only the client's tools and choice are put back, and no other byte changes."""
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
    """The client gets its own tools as the upstream completed them, else as declared, and no server tools."""
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
    filled = {**SEARCHED, "filters": None, "user_location": None} if hidden_turn else SEARCHED
    whole = [{**function("now"), **null}, filled, FILLED, {**function("left_out"), **null}]
    first = [function("now"), SEARCHED, FILLED, function("left_out")]  # No server tool was called yet.
    assert [e["response"]["tools"] for e in told if "response" in e] == [first, first, whole]
    assert (writer.result() or {})["tools"] == whole


def test_tools_of_a_stored_prompt_are_told() -> None:
    """Tools that only a stored prompt brings are shown to the client, and server tools are not."""
    client = WIRE.parse({**ASK, "prompt": {"id": "pmpt_1"}})
    writer = WIRE.writer(client, ClientView("m", lambda name: name == OURS))
    data = turn(message("a"), tools=[function("theirs"), function(OURS), SEARCHED])
    told = events_of(play(data, writer, "theirs").out + DONE)
    assert [e["response"]["tools"] for e in told if "response" in e] == [[function("theirs"), SEARCHED]] * 3


def test_tools_keep_their_bytes() -> None:
    """Rule W2: the client's tools keep the upstream's bytes when a server tool next to them is removed."""
    mine = b'{"type": "function","name":"mine","x":1.50e1}'
    said = b'data: {"type":"response.created","response":{"tools":[%b]}}\n\n'
    ours = json.dumps(function(OURS)).encode()
    assert compose(said % (mine + b" , " + ours), ask=MINE).startswith(said % mine)
    assert compose(said % (mine + b" "), ask=MINE).startswith(said % (mine + b" "))


def test_a_client_without_tools_is_told_of_none() -> None:
    """Rule W2: a client without tools and choice gets an empty list and ``auto``."""
    for ask in ({}, {"tools": None, "tool_choice": None}):
        sent = turn(message("a"), tools=[function(OURS)])
        assert compose(sent, ask=ask) == turn(message("a"), tools=[], tool_choice="auto") + DONE


def test_the_response_gone_on_from_is_the_one_that_the_client_named() -> None:
    """The client gets the ``previous_response_id`` that it sent, not the upstream's."""
    begun = {"status": "in_progress", "previous_response_id": "resp_upstream"}
    events = [*opening(**begun), closing([message("a")], previous_response_id="resp_upstream")]
    read = events_of(compose(encode(events), ask={"previous_response_id": "resp_ours"}))
    assert [e["response"]["previous_response_id"] for e in read] == ["resp_ours"] * 3


def test_values_are_put_back_in_data_over_several_lines() -> None:
    """An event whose JSON is on several lines is rewritten without server tools."""
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
    """Rule W2: odd or invalid events pass unchanged and raise no error."""
    assert compose(raw + turn(message("a"))) == raw + turn(message("a")) + DONE


@pytest.mark.parametrize("name", [b"\xff", b"\\ud83d", b"\\n\xe2\x82"])
def test_values_are_put_back_beside_a_broken_name(name: bytes) -> None:
    """Rules W2, W5: server tools are removed even if a member's name has invalid characters."""
    said = b'data: {"type":"response.created","response":{"%b":1,"tools":%b}}\n\n'
    shown = compose(said % (name, json.dumps([function(OURS)]).encode()))
    assert shown.startswith(said % (name, b"[]"))


def test_the_clients_own_call_is_the_upstreams_bytes() -> None:
    """A turn with only client calls keeps the upstream's bytes."""
    data = turn(function_call("call_1", "mine", '{"a":1}'), tools=MINE["tools"])
    assert compose(data, ask=MINE) == data + DONE


def test_what_was_passed_on_is_known_for_later() -> None:
    """The stored resource of a forwarded response is the client's version, with all its items."""
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
    """The stored resource of a composed response is the one that the client got."""
    writer = writer_of()
    out = play(turn(CALL), writer).out + writer.turn_ended("hidden")
    out += play(turn(message("Noon.")), writer).out + writer.turn_ended("final") + writer.finish(None)
    assert writer.composing
    assert writer.result() == check_response_stream(out).response


# A server tool was called.


def test_a_silent_run_is_one_response_with_the_last_text() -> None:
    """Rules W3, W4 and W5: one opening, one id, summed usage, the text, and no server call."""
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
    """Text of all turns stays, in items with ids of their own."""
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
    """Before the first server call, the client gets the upstream's exact bytes."""
    first = turn(message("Let me see."), CALL)
    out = compose(first, turn(message("Noon.")))
    assert out.startswith(
        first[: first.index(b"event: response.output_item.added", first.index(b"item.done"))]
    )


def test_a_hidden_call_between_two_of_the_clients() -> None:
    """The client gets only its own calls, complete and with dense indices."""
    items = [function_call("call_1", "mine"), CALL, function_call("call_2", "mine", '{"a":2}')]
    read = check_response_stream(_mixed(turn(*items, tools=MINE["tools"])), hidden=HIDDEN)
    assert read.calls == [("call_1", "mine", "{}"), ("call_2", "mine", '{"a":2}')]
    assert read.response["status"] == "completed"
    assert read.response["tools"] == WHOLE


def _mixed(data: bytes) -> bytes:
    """Return the client's stream of one turn with calls of both sides."""
    writer = writer_of(MINE)
    out = play(data, writer, "mine").out
    return (
        out
        + writer.turn_ended("suspended")
        + writer.turn_ended("final")
        + writer.finish(FinishReason.TOOL_CALLS)
    )


def test_interleaved_items_keep_apart() -> None:
    """Items that are open at the same time, as with xAI, stay apart by their index."""
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
    """If each event has another id for its item, as with GitHub Copilot, the client gets the first."""
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
    """Numbers and indices that llama-server does not send are added to a composed stream."""
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
    """Parts of a summary get indices if the upstream sends none."""
    item = {**reasoning("a"), "summary": [{"type": "summary_text", "text": t} for t in ("one", "two")]}
    events = [_bare(one) | {"output_index": 0} for one in item_events(item, 0)]
    read = check_response_stream(compose(turn(CALL), turn(item, events=events)), hidden=HIDDEN)
    places = [e["summary_index"] for e in read.events if e["type"] == "response.reasoning_summary_part.done"]
    assert places == [0, 1]


@pytest.mark.parametrize("kind", ["response.completed", "response.done"])
def test_items_that_only_the_terminal_event_has(kind: str) -> None:
    """Items that only the last event has are sent to the client as events, too."""
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
    """A server call that only the last event has stays hidden."""
    first = encode([*opening(), closing([message("See:"), CALL])])
    read = check_response_stream(compose(first, turn(message("Noon.", id="msg_2"))), hidden=HIDDEN)
    assert read.text == "See:Noon."


def test_an_item_that_ends_without_having_begun() -> None:
    """An item without its ``added`` event is sent completely, and nothing twice."""
    life = item_events(message("Noon."), 0)
    read = check_response_stream(compose(turn(CALL), turn(message("Noon."), events=life[1:])), hidden=HIDDEN)
    assert read.text == "Noon."
    hidden = turn(CALL, events=item_events(CALL, 0)[-1:])
    assert check_response_stream(compose(hidden, turn(message("Noon."))), hidden=HIDDEN).text == "Noon."


def test_an_item_that_begins_and_does_not_end() -> None:
    """An unfinished item ends with the last event's version, else as incomplete with what came."""
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
    """If the upstream opens its response late, the client still gets a complete ``created`` first."""
    begun = opening(tools=[function(OURS)])
    first = encode([*item_events(CALL, 0), *begun, begun[0], closing([CALL])])
    read = check_response_stream(compose(first, turn(message("Noon."), id="resp_2")), hidden=HIDDEN)
    assert read.kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert set(RESOURCE_FIELDS) <= set(read.events[0]["response"])
    assert (read.events[0]["response"]["status"], read.events[0]["response"]["tools"]) == ("in_progress", [])
    assert read.id == "resp_1"


def test_what_follows_a_hidden_call_does_not_wait() -> None:
    """After a server call the writer still sends each event at once."""
    writer = writer_of()
    reader = reader_of()
    data = turn(CALL, message("Noon."))
    cut = data.index(b"response.output_text.done")
    out = b"".join(writer.write(frame) for frame in reader.feed(data[:cut]))
    assert b'"delta":"."' in out
    rest = b"".join(writer.write(frame) for frame in reader.feed(data[cut:]))
    assert b"output_text.done" in rest


def test_a_call_whose_name_comes_late() -> None:
    """A call is held until its name is known, and a client's call is then sent completely."""
    for name, shown in (("mine", [("call_1", "mine", "{}")]), (OURS, [])):
        item = function_call("call_1", name)
        life = item_events(item, 0)
        life[0]["item"] = {**life[0]["item"], "name": ""}
        read = check_response_stream(compose(turn(CALL), turn(item, events=life), ask=MINE), hidden=(OURS,))
        assert read.calls == shown


def test_a_repeated_call_id_is_repaired_once_and_for_all() -> None:
    """Rule W8: a repeated call id is replaced, with the same new id for client and upstream."""
    items = [
        CALL,
        function_call("call_1", "mine", '{"a":1}'),
        {**function_call("call_1", "mine"), "id": "fc_2"},
    ]
    writer = writer_of(MINE)
    played = play(turn(*items), writer, "mine")
    out = played.out + writer.turn_ended("suspended") + writer.finish(FinishReason.TOOL_CALLS)
    shown = [call_id for call_id, _, _ in check_response_stream(out, hidden=HIDDEN).calls]
    assert shown[0] == "call_1"
    assert len(set(shown)) == 2
    assert [call.call_id for call in played.calls] == ["call_h", *shown]
    assert [item["call_id"] for item in played.message["output"]] == ["call_h", *shown]
    assert writer.client_ids() == {call_id: call_id for call_id in shown}


def test_comments_go_on_and_nothing_else_that_is_no_event() -> None:
    """A composed stream keeps the upstream's comments and drops invalid events."""
    odd = b": ping\n\nevent: ping\n\ndata: {broken\n\n: x\ndata: 5\n\n"
    out = compose(turn(CALL), odd + turn(message("Noon.")) + DONE + DONE)
    assert out.count(b": ping") == 1
    assert check_response_stream(out, hidden=HIDDEN).text == "Noon."


def test_events_that_belong_to_no_item_go_on() -> None:
    """A composed stream keeps unknown events, and drops the upstream's error event."""
    data = turn(message("Noon."), events=[event("response.audio.delta", delta="AAAA"), {"type": "error"}])
    out = compose(turn(CALL), data)
    assert [e["type"] for e in events_of(out)].count("response.audio.delta") == 1
    assert "error" not in [e["type"] for e in events_of(out)]


@pytest.mark.parametrize(("status", "details"), [("incomplete", {"reason": "max_output_tokens"})])
def test_an_incomplete_answer_is_told_as_that(status: str, details: dict[str, str]) -> None:
    """The composed response has the status and details of an incomplete last turn."""
    data = turn(message("No", status="incomplete"), status=status, incomplete_details=details)
    read = check_response_stream(compose(turn(CALL), data, reason="length"), hidden=HIDDEN)
    assert read.response["status"] == "incomplete"
    assert read.response["incomplete_details"] == details
    assert read.response["completed_at"] is None


def test_a_run_that_was_ended_is_completed() -> None:
    """If the run gives a stop reason, the upstream's status does not count."""
    data = turn(message("No"), status="incomplete")
    assert check_response_stream(compose(turn(CALL), data, reason="stop")).response["status"] == "completed"


# How a server call is shown.


def test_a_call_is_shown_as_a_hosted_one() -> None:
    """``events``: a server call is a redacted ``mcp_call`` with its official events, before the answer."""
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
    """A failed server call is shown with its error and without an output."""
    out = compose(turn(CALL), turn(message("Noon.")), trace="events", results=[FAILED])
    read = check_response_stream(out)
    (shown,) = read.of_type("mcp_call")
    assert (shown["status"], shown["output"]) == ("failed", None)
    assert shown["error"] == "timeout: It took too long."
    assert "response.mcp_call.failed" in read.kinds
    assert "response.mcp_call.completed" not in read.kinds


@pytest.mark.parametrize(("trace", "kind"), [("reasoning", "reasoning"), ("status", "message")])
def test_a_call_is_shown_as_a_line(trace: Trace, kind: str) -> None:
    """``reasoning`` and ``status``: a server call is an item with a short line."""
    out = compose(turn(CALL), turn(message("Noon.")), trace=trace, results=[OK])
    read = check_response_stream(out, hidden=("secret",))
    shown = read.response["output"][0]
    assert shown["type"] == kind
    assert f'{OURS}(zone="UTC"): done' in json.dumps(shown).replace('\\"', '"')
    assert [item["type"] for item in read.response["output"]] == [kind, "message"]


def test_a_silent_run_shows_no_call() -> None:
    """Rule W5: the client sees no item, name or argument of a server call."""
    out = compose(turn(CALL), turn(message("Noon.")), results=[OK])
    assert check_response_stream(out, hidden=(*HIDDEN, "UTC", "zone", "mcp")).text == "Noon."


def test_a_word_of_our_own_is_a_message() -> None:
    """A note of the proxy is a message item."""
    writer = writer_of()
    out = play(turn(CALL), writer).out + writer.turn_ended("hidden") + writer.note("[Spent.]")
    read = check_response_stream(out + writer.finish(FinishReason.STOP), hidden=HIDDEN)
    assert read.text == "[Spent.]"
    assert read.response["output"][0]["content"][0]["annotations"] == []


def test_a_keep_alive_is_a_comment() -> None:
    """A keep-alive is one padded comment, which clients skip."""
    alive = writer_of().keep_alive()
    assert alive.startswith(b": ")
    assert alive.endswith(b"\n\n")
    assert alive.count(b"\n") == 2
    assert len(alive) == 2048


# JSON output: one text, never two.

JSON = {"text": {"format": {"type": "json_schema", "name": "t", "schema": {}}}}


@pytest.mark.parametrize("trace", ["silent", "status", "events", "reasoning"])
def test_json_output_is_one_text(trace: Trace) -> None:
    """For JSON output the client gets only the last turn's message, and no status line."""
    first = turn(reasoning("hm"), message('{"a":1}'), CALL, message('{"b":1}', id="msg_2"))
    last = turn(message('{"c":1}', id="msg_3"))
    out = compose(first, last, ask=JSON, trace=trace, results=[OK])
    read = check_response_stream(out, hidden=('{"a":1}',))
    assert read.text == '{"c":1}'
    assert len(read.of_type("message")) == 1


def test_json_output_of_one_turn_is_the_upstreams_own() -> None:
    """Rule W2: a message with JSON is held to its end and keeps its bytes; other items do not wait."""
    data = turn(reasoning("hm"), message('{"c":1}'))
    assert compose(data, ask=JSON) == data + DONE
    writer = writer_of(JSON)
    early = play(data[: data.index(b'"type":"message"')], writer).out
    assert b"response.created" in early
    assert b"hm" in early
    assert writer.note("[Spent.]") == b""


def test_a_reasoning_part_is_no_json_text() -> None:
    """For JSON output, parts of reasoning are not held."""
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
    """A text that is held has a size limit."""
    writer = writer_of(JSON)
    reader = reader_of()
    big = event("response.output_text.delta", item_id="msg_1", output_index=0, delta="x" * 1_000_000)
    frames = [frame for _ in range(18) for frame in reader.feed(encode([big]))]
    with pytest.raises(FrameTooLarge):
        b"".join(map(writer.write, frames))


# A run that fails.


def test_a_failure_ends_what_is_open() -> None:
    """A failed run ends with an error event and ``response.failed``, with open items as incomplete."""
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


@pytest.mark.parametrize("kind", ["web_search", "image_generation"])
def test_a_failure_ends_a_call(kind: str) -> None:
    """A call that was running when the run failed is an item that failed, in its events and at the end."""
    (declared,) = hosted_tools({"tools": [{"type": kind}]}).values()
    shown = ShownTools().serving({OURS: declared})
    writer = WIRE.writer(WIRE.parse(ASK), ClientView("m", hides(), shown=shown))
    out = play(turn(CALL), writer).out + writer.turn_ended("hidden")
    out += writer.tool_started(ToolCall("call_h", OURS, "{}", 0), {"query": "rivers"})
    out += writer.fail("It broke.", type="server_error", code="internal_error")
    read = check_response_stream(out)
    (item,) = read.response["output"]
    assert (item["type"], item["status"]) == (f"{kind}_call", "failed")
    # Vercel's AI SDK takes no image without a text as its result.
    assert item.get("result") == ("" if kind == "image_generation" else None)


def test_a_failure_of_a_first_turn() -> None:
    """A failure in a forwarded turn ends its open item and keeps its id and numbers."""
    data = turn(message("Noon and more"))
    writer = writer_of()
    out = play(data[: data.index(b"response.output_text.done") - 7], writer).out
    read = check_response_stream(out + writer.fail("It broke.", type="upstream_error", code=None))
    assert read.id == "resp_1"
    assert read.response["output"][0]["status"] == "incomplete"
    assert read.response["error"]["code"] == "upstream_error"


def test_a_failure_after_the_end_adds_nothing() -> None:
    """After a complete response, a failure adds nothing but a missing end mark."""
    writer = writer_of()
    out = play(turn(message("a")), writer).out
    assert out + writer.fail("m", type="t", code=None) == turn(message("a")) + DONE
    writer = writer_of()
    out = play(turn(message("a")) + DONE, writer).out
    assert out + writer.fail("m", type="t", code=None) == turn(message("a")) + DONE


def test_the_usage_of_a_turn_that_failed_is_counted() -> None:
    """The usage of a failed turn is in the sum."""
    writer = writer_of()
    failed = turn(message("a"), status="failed", usage=_usage(5, 5), error={"code": "x", "message": "y"})
    out = play(turn(CALL, usage=_usage(1, 1)), writer).out + writer.turn_ended("hidden")
    out += play(failed, writer).out + writer.fail("m", type="t", code="c")
    assert check_response_stream(out, hidden=HIDDEN).response["usage"]["total_tokens"] == 12


# The resource.


def test_every_field_of_the_resource_is_there() -> None:
    """A bare upstream's resource gets every field of the schema, with the client's values."""
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
    """Unknown fields, and values that the upstream knows better, come from the last turn."""
    last = turn(message("a"), service_tier="flex", moderation={"x": 1}, model="m-2026", temperature=0.7)
    read = check_response_stream(compose(turn(CALL), last, ask={"temperature": 0.5}))
    assert read.response["service_tier"] == "flex"
    assert read.response["moderation"] == {"x": 1}
    assert read.response["model"] == "m-2026"
    assert read.response["temperature"] == 0.7


def test_times_are_whole_seconds() -> None:
    """``created_at`` is the first turn's, as an integer."""
    first = encode([*opening(created_at=12.7), *item_events(CALL, 0), closing([CALL], created_at=12.7)])
    read = check_response_stream(compose(first, turn(message("a"))))
    assert read.response["created_at"] == 12
    assert read.response["completed_at"] >= 1700000000


def test_usage_is_whole() -> None:
    """Missing counts of usage become 0, so that strict clients can parse it."""
    bare = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    read = check_response_stream(compose(turn(CALL, usage=bare), turn(message("a"), usage=bare)))
    assert read.response["usage"] == {
        "input_tokens": 6, "output_tokens": 8, "total_tokens": 14,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


# Properties.

# The texts must not contain what the tests search for.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(
    lambda text: "secret" not in text and OURS not in text
)


@st.composite
def turns(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Turns of items, whose ids may repeat; every turn except the last has a hidden call."""
    found = []
    count = draw(st.integers(1, 3))
    for number in range(count):
        items = []
        for place in range(draw(st.integers(0, 4))):
            # The first turn is forwarded at first, with its ids unchanged, so its ids must not repeat.
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
    """Return the events of all items, mixed, with each item's own events in order."""
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
    """Rule W4: the composed stream is valid for all items, in whatever order their events are mixed."""
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
    """Return the events without minted ids and times."""
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
    # Ids and the time of completion differ.
    assert _masked(cut) == _masked(whole)
    assert len(cut) == len(whole)


def test_every_event_leaves_in_one_write() -> None:
    """Rule W6: each piece that the writer returns is made of complete events."""
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
    """A call whose name could become a longer declared one keeps its bytes when it is certain."""
    names = ("mine", "mine_too")
    ask = {"tools": [function(name) for name in names]}
    data = turn(function_call("call_1", "mine", '{"a":1}'), tools=ask["tools"])
    assert compose(data, ask=ask) == data + DONE
    empty = turn({**function_call("call_1", "mine", ""), "arguments": ""}, tools=ask["tools"])
    assert compose(empty, ask=ask) == empty + DONE


def test_the_wire_hides_by_the_offer_alone() -> None:
    """With a stored prompt, a call of an unknown tool is the client's."""
    asked = WIRE.parse({**ASK, "prompt": {"id": "pmpt_1"}})
    writer = WIRE.writer(asked, ClientView("m", lambda name: name == OURS))
    reader = WIRE.reader({OURS}, lambda name: name == OURS, 8192)
    data = turn(function_call("call_1", "unseen"))
    out = b"".join(writer.write(frame) for frame in reader.feed(data) + reader.close())
    assert out == data
    assert hides("unseen")(OURS)
