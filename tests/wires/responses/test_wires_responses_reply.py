"""A Responses reply that is not streamed, and a stored response that is streamed again."""

import json
from typing import Any

import pytest
from responses_check import RESOURCE_FIELDS, check_response_stream
from responses_rig import ASK, OURS, WIRE, hides, reader_of
from responses_script import custom, function, function_call, message, reasoning, refusal, resource

from proxy.base.events import FinishReason, ToolCall, ToolResult
from proxy.wires.client_port import ClientView, StreamWriter, Trace
from proxy.wires.responses.dialect import error_event
from proxy.wires.responses.item_events import stream_of_stored
from proxy.wires.responses.items import own_item_id

CALL = function_call("call_h", OURS, '{"zone":"UTC"}')
OK = ToolResult(
    "call_h", True, "secret", redacted="12:00", arguments_redacted={"zone": "UTC"}, milliseconds=3
)
DECLARED = {"tools": [function("mine")]}


def writer_of(trace: Trace = "silent", **ask: Any) -> StreamWriter:
    """Return the writer of a request that does not stream."""
    asked = WIRE.parse({**ASK, "stream": False, **DECLARED, **ask})
    return WIRE.writer(asked, ClientView("m", hides("mine"), trace=trace))


def take(writer: StreamWriter, *items: dict[str, Any], **more: Any) -> bytes:
    """Give the writer one turn."""
    body = json.dumps(resource(items, **more), indent=1).encode()
    assert writer.write(reader_of("mine").read_reply(body)) == b""
    return body


def run(
    writer: StreamWriter, *last: dict[str, Any], reason: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return the client's response of a hidden turn and a last one."""
    take(writer, reasoning("hm"), message("See:"), CALL, id="resp_1", created_at=7, usage=usage(1, 2))
    assert writer.turn_ended("hidden") == b""
    call = ToolCall("call_h", OURS, "{}", 0)
    assert writer.tool_started(call, {}) == writer.tool_finished(call, OK) == writer.keep_alive() == b""
    take(writer, *last, id="resp_2", usage=usage(3, 4), **more)
    writer.turn_ended("final")
    assert writer.composing
    whole = json.loads(writer.finish(FinishReason(reason) if reason else None))
    assert writer.result() == whole
    return dict(whole)


def usage(read: int, written: int) -> dict[str, Any]:
    """Return a count of tokens."""
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}


def test_a_reply_without_our_calls_keeps_its_bytes() -> None:
    """Rule W2: a reply without a server call keeps its bytes, with the client's tools."""
    writer = writer_of()
    body = take(writer, message("hi"), function_call("c1", "mine"), tools=[], x=1.50)
    wanted = json.dumps(DECLARED["tools"], separators=(",", ":")).encode()
    assert writer.finish(None) == body.replace(b'"tools": []', b'"tools": ' + wanted)
    assert not writer.composing
    assert writer.client_ids() == {"c1": "c1"}
    assert (writer.result() or {})["tools"] == DECLARED["tools"]


def test_a_run_is_one_reply() -> None:
    """The reply has the first turn's id and time, summed usage, all visible items, and every field."""
    whole = run(writer_of(), message("Noon.", id="msg_2"))
    assert (whole["id"], whole["created_at"], whole["status"]) == ("resp_1", 7, "completed")
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "message"]
    assert whole["usage"]["total_tokens"] == 10
    assert OURS not in json.dumps(whole)
    for name, kinds in RESOURCE_FIELDS.items():
        assert isinstance(whole[name], kinds), name
    assert whole["tools"] == [{**function("mine"), "description": None, "strict": None}]


@pytest.mark.parametrize("hidden_turn", [False, True])
def test_tools_come_as_the_upstream_filled_them_in(hidden_turn: bool) -> None:
    """The client gets its own tools as the upstream completed them, and no server tools."""
    filled = {**function("mine"), "description": None, "strict": True}
    writer = writer_of()
    if hidden_turn:
        take(writer, CALL, tools=[filled, function(OURS)])
        writer.turn_ended("hidden")
    take(writer, message("a"), tools=[filled, function(OURS)])
    assert json.loads(writer.finish(None))["tools"] == (writer.result() or {})["tools"] == [filled]


@pytest.mark.parametrize(
    ("trace", "kind"), [("events", "mcp_call"), ("reasoning", "reasoning"), ("status", "message")]
)
def test_a_call_is_shown(trace: Trace, kind: str) -> None:
    """A server call is a redacted item between the turns, in the form of the trace mode."""
    whole = run(writer_of(trace), message("Noon.", id="msg_2"))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", kind, "message"]
    assert OURS in json.dumps(whole["output"][2])
    assert "secret" not in json.dumps(whole)


def test_json_output_is_one_text() -> None:
    """For JSON output the client gets only the last turn's message, and no status line."""
    form = {"format": {"type": "json_object"}}
    whole = run(writer_of("status", text=form), message("{}", id="msg_2"))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][1]["id"] == "msg_2"


def test_calls_of_both() -> None:
    """The client gets only its own call of a mixed turn."""
    writer = writer_of()
    take(writer, CALL, function_call("c1", "mine"))
    writer.turn_ended("suspended")
    whole = json.loads(writer.finish(FinishReason.TOOL_CALLS))
    assert [item["name"] for item in whole["output"]] == ["mine"]
    assert writer.client_ids() == {"c1": "c1"}


def test_how_a_run_ended() -> None:
    """An incomplete last turn makes the reply incomplete, unless the run gives a stop reason."""
    details = {"reason": "max_output_tokens"}
    half = {"status": "incomplete", "incomplete_details": details}
    whole = run(writer_of(), message("No", id="msg_2"), reason="length", **half)
    assert (whole["status"], whole["incomplete_details"], whole["completed_at"]) == (
        "incomplete",
        details,
        None,
    )
    assert run(writer_of(), message("a", id="msg_2"), reason="stop", **half)["status"] == "completed"
    assert run(writer_of(), message("a", id="msg_2"), status="in_progress")["status"] == "completed"


def test_a_note_is_a_message() -> None:
    """A note of the proxy is an item, except for JSON output."""
    writer = writer_of()
    take(writer, CALL)
    writer.note("[Spent.]")
    assert json.loads(writer.finish(FinishReason.STOP))["output"][0]["content"][0]["text"] == "[Spent.]"
    writer = writer_of(text={"format": {"type": "json_object"}})
    take(writer, CALL)
    writer.note("[Spent.]")
    assert json.loads(writer.finish(FinishReason.STOP))["output"] == []


def test_a_reply_that_fails() -> None:
    """A failure becomes OpenAI's error object."""
    assert json.loads(writer_of().fail("m", type="t", code="c")) == {
        "error": {"message": "m", "type": "t", "param": None, "code": "c"}
    }


def test_a_reply_without_an_id_gets_one() -> None:
    """A reply without an id gets a minted one."""
    assert run(writer_of(), message("a"))["id"] == "resp_1"
    writer = writer_of()
    take(writer, CALL, id=None)
    assert json.loads(writer.finish(FinishReason.STOP))["id"].startswith("resp_")


# Stored responses that are streamed again.

ITEMS = [
    {**custom("c0", "write", "x"), "input": None},
    reasoning("hm", id="rs_1"),
    {**reasoning("x", id="rs_2"), "content": [{"type": "reasoning_text", "text": "raw"}]},
    message("Noon.", id="msg_1"),
    refusal("No.", id="msg_2"),
    function_call("c1", "mine", '{"a":1}'),
    custom("c2", "write", "text"),
    {
        "id": own_item_id("mcp"),
        "type": "mcp_call",
        "server_label": "toolrelay",
        "name": OURS,
        "arguments": "{}",
        "output": "x",
        "error": None,
        "status": "completed",
        "approval_request_id": None,
    },
    {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {}},
]


def stored(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a complete resource, as it is stored."""
    return {**run(writer_of(), message("a", id="msg_a")), "output": list(items), **more}


def test_a_response_told_again_keeps_the_rules() -> None:
    """A stored response gives a valid stream with the events of all its items."""
    response = stored(*ITEMS)
    read = check_response_stream(stream_of_stored(response))
    assert read.response == response
    assert read.text == "Noon."
    opened = [e["item"] for e in read.events if e["type"] == "response.output_item.added"]
    assert [item.get("content") for item in opened if item["type"] == "reasoning"] == [None, []]
    told = [e["input"] for e in read.events if e["type"] == "response.custom_tool_call_input.done"]
    assert told == ["", "text"]
    assert read.events[0]["response"]["status"] == "in_progress"
    assert read.events[0]["response"]["output"] == []
    assert read.events[0]["response"]["usage"] is None
    for wanted in (
        "refusal.delta",
        "reasoning_summary_part.done",
        "mcp_call.completed",
        "custom_tool_call_input.done",
    ):
        assert f"response.{wanted}" in read.kinds


def test_annotations_are_told_again() -> None:
    """Each annotation of a stored text has an event of its own."""
    part = {
        "type": "output_text",
        "text": "See.",
        "annotations": [{"type": "url_citation"}],
        "logprobs": [{}],
    }
    read = check_response_stream(stream_of_stored(stored({**message("x"), "content": [part]})))
    (one,) = [e for e in read.events if e["type"] == "response.output_text.annotation.added"]
    assert (one["annotation_index"], one["annotation"]) == (0, {"type": "url_citation"})


def test_a_call_that_failed_is_told_again_as_that() -> None:
    """A failed call and an incomplete response keep their status."""
    failed = {**ITEMS[7], "status": "failed"}
    read = check_response_stream(stream_of_stored(stored(failed, status="incomplete")))
    assert "response.mcp_call.failed" in read.kinds
    assert read.response["status"] == "incomplete"


@pytest.mark.parametrize("after", [-1, 0, 3, 7, 1000])
def test_a_client_goes_on_where_it_was(after: int) -> None:
    """``starting_after`` skips the events that the client has; the end mark is always sent."""
    response = stored(*ITEMS)
    whole, rest = stream_of_stored(response).split(b"\n\n"), stream_of_stored(response, after).split(b"\n\n")
    assert rest == whole[max(0, min(after + 1, len(whole) - 2)) :]


def test_an_error_event_is_nested() -> None:
    """The error event is nested as in OpenAI's streams, so that every SDK raises it."""
    event, data, *_ = error_event("m", type="t", code="c").split(b"\n")
    assert event == b"event: error"
    assert json.loads(data[6:]) == {
        "type": "error", "error": {"type": "t", "code": "c", "message": "m", "param": None}
    }  # fmt: skip


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_stored_search_as_a_stream(status: str) -> None:
    """A stored search has the events of a search; one that failed has no event of its completion."""
    action = {"type": "search", "query": "x", "queries": ["x"]}
    item = {"id": "ws_1", "type": "web_search_call", "status": status, "action": action}
    kinds = check_response_stream(stream_of_stored(stored(item))).kinds
    ends = ["response.web_search_call.completed"] if status == "completed" else []
    assert [kind for kind in kinds if ".web_search_call." in kind] == [
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        *ends,
    ]
