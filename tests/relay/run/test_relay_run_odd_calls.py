"""Calls of server tools in unexpected places: the proxy runs them, or the turn fails (rule W5)."""

import copy
import json
from typing import Any

import chat_script as chat
import pytest
import responses_script as responses
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, looping
from raw_upstream import KEEP, LAST_CHUNK, Step, chunk, chunked, head, whole

PATH = "/v1/responses"
RESPONSES_ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "hi"}
OURS: dict[str, Any] = {
    "index": 0,
    "id": "call_s",
    "type": "function",
    "function": {"name": TIME, "arguments": '{"timezone":"UTC"}'},
}
MESSAGE: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [OURS]}
END = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
BLANK_CUSTOMS: tuple[dict[str, Any], ...] = ({}, {"name": "", "input": ""}, {"name": None, "input": None})


def reply(choice: dict[str, Any]) -> list[Step]:
    """Return a whole reply with one choice."""
    payload = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return whole(json.dumps(payload).encode())


def streamed(*choices: dict[str, Any]) -> list[Step]:
    """Return a stream of chunks with one choice each."""
    facts = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events = [chat.sse({**facts, "choices": [{"finish_reason": None, **choice}]}) for choice in choices]
    return chat.stream(*events)


def assert_unseen(body: bytes) -> None:
    """Check that a client got neither the name nor the id of the call."""
    assert TIME.encode() not in body
    assert b"call_s" not in body


@pytest.mark.parametrize("delta", [{}, {"content": "x"}, {"role": "assistant"}])
async def test_a_reply_with_a_delta_beside_its_message(delta: dict[str, Any]) -> None:
    """Rule W5: a call in a reply's message runs, whatever a delta beside the message says."""
    made = reply({"index": 0, "delta": delta, "message": MESSAGE, "finish_reason": "tool_calls"})
    async with looping(made, chat.reply("done"), allow=("core__*",)) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "stream": False})
        assert answer.json["choices"][0]["message"]["content"] == "done"
        assert_unseen(answer.body)
        assert len(upstream.requests) == 2


async def test_a_delta_of_a_mixed_reply_is_left_out() -> None:
    """Rule W5: the proxy leaves a reply's delta out, because the server call may be in it once more."""
    theirs = {**OURS, "index": 1, "id": "call_m", "function": {"name": "mine", "arguments": "{}"}}
    both = {**MESSAGE, "tool_calls": [OURS, theirs]}
    made = reply({"index": 0, "delta": both, "message": both, "finish_reason": "tool_calls"})
    async with looping(made, allow=("core__*",)) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": False, "tools": [CLIENT_TOOL]})
        (mine,) = answer.json["choices"][0]["message"]["tool_calls"]
        assert mine["id"] == "call_m"
        assert_unseen(answer.body)


async def test_a_chunk_with_a_message_beside_a_blank_delta() -> None:
    """A call in a chunk's message runs, even with a blank delta beside it (rule W5)."""
    made = streamed({"index": 0, "delta": {}, "message": MESSAGE, "finish_reason": "tool_calls"})
    async with looping(made, ANSWER, allow=("core__*",)) as (proxy, upstream):
        answer = await proxy.ask(ASK)
        assert chat.text_of(chat.payloads_of(answer.body)) == "It is noon."
        assert_unseen(answer.body)
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("custom", BLANK_CUSTOMS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_blank_custom_beside_a_function(custom: dict[str, Any], stream: bool) -> None:
    """Rule W5: a function call runs even if the upstream adds a blank ``custom`` member to it."""
    call = {**OURS, "custom": custom}
    message = {**MESSAGE, "tool_calls": [call]}
    made = reply({"index": 0, "message": message, "finish_reason": "tool_calls"})
    if stream:
        made = streamed({"index": 0, "delta": message}, END)
    async with looping(made, ANSWER if stream else chat.reply("done"), allow=("core__*",)) as (
        proxy,
        upstream,
    ):
        answer = await proxy.ask({**ASK, "stream": stream})
        assert answer.status == 200
        assert_unseen(answer.body)
        assert len(upstream.requests) == 2


async def test_a_blank_function_beside_a_custom() -> None:
    """The client gets a call of its custom tool, in pieces, even with a blank ``function`` member."""
    blank = {"name": "", "arguments": ""}
    first = {"index": 0, "id": "call_m", "type": "custom", "custom": {"name": "mine", "input": "a"}}
    more = {"index": 0, "function": blank, "custom": {"name": "", "input": "b"}}
    theirs = [{**first, "function": blank}, more]
    deltas = [{"index": 0, "delta": {"tool_calls": [call]}} for call in (*theirs, {**OURS, "index": 1})]
    tool = {"type": "custom", "custom": {"name": "mine"}}
    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}}
    async with looping(streamed(opening, *deltas, END), allow=("core__*",)) as (proxy, _):
        chunks = chat.payloads_of((await proxy.ask({**ASK, "tools": [tool]})).body)
    seen = [choice["delta"] for each in chunks for choice in each["choices"]]
    pieces = [call["custom"] for delta in seen for call in delta.get("tool_calls", ())]
    assert "".join(piece.get("input", "") for piece in pieces) == "ab"


@pytest.mark.parametrize(
    "odd", [b" data: ", b"\tdata:", b"\xef\xbb\xbfdata: ", b"DATA: ", b"data : ", b"id: 1\n  data: "]
)
async def test_a_line_that_a_lenient_client_reads(odd: bytes) -> None:
    """Rule W5: a call in a line that only lenient clients read as ``data:`` ends the turn."""
    call = chat.call("call_s", TIME).replace(b"data: ", odd, 1)
    assert odd in call
    made = chat.stream(chat.role() + chat.content("a"), call, chat.finish("tool_calls"))
    async with looping(made, allow=("core__*",)) as (proxy, _):
        answer = await proxy.ask(ASK)
        assert b"upstream_malformed" in answer.body
        assert answer.body.endswith(chat.DONE)
        assert_unseen(answer.body)


CALL = responses.function_call("call_s", TIME, '{"timezone":"UTC"}')
SAID = responses.message("hi")


@pytest.mark.parametrize("output", [[SAID, CALL], [CALL, SAID]])
async def test_a_call_that_only_the_terminal_event_has(output: list[Any]) -> None:
    """Rule W5: a server call that is only in ``response.completed`` runs, because clients read it there."""
    events = [*responses.opening(), *responses.item_events(SAID, 0), responses.closing(output)]
    made = chunked(responses.encode(events))
    end = responses.stream(responses.message("done", "msg_2"), id="resp_2")
    async with looping(made, end, allow=("core__*",)) as (proxy, upstream):
        answer = await proxy.ask(RESPONSES_ASK, path=PATH)
        assert_unseen(answer.body)
        assert b"done" in answer.body
        (result,) = [
            item for item in json.loads(upstream.requests[1].body)["input"]
            if item.get("type") == "function_call_output"
        ]  # fmt: skip
        assert result["call_id"] == "call_s"


@pytest.mark.parametrize("change", [{}, {"id": "fc_x"}, {"call_id": "call_x", "id": "fc_x"}])
async def test_a_call_is_not_run_again_for_the_terminal_event(change: dict[str, Any]) -> None:
    """Rule W7: a streamed call does not run again for the terminal event, even under other ids there."""
    events = [*responses.opening(), *responses.item_events(CALL, 0)]
    made = chunked(responses.encode([*events, responses.closing([{**CALL, **change}])]))
    end = responses.stream(responses.message("done", "msg_2"), id="resp_2")
    async with looping(made, end, allow=("core__*",)) as (proxy, upstream):
        answer = await proxy.ask(RESPONSES_ASK, path=PATH)
        assert_unseen(answer.body)
        sent = json.loads(upstream.requests[1].body)["input"]
        assert [item.get("type") for item in sent].count("function_call_output") == 1


def misplaced() -> dict[str, list[Any]]:
    """Return streams with a server call in an event that should have none."""
    opening = responses.opening()
    opened = copy.deepcopy(opening)
    opened[1]["response"]["output"] = [CALL]
    custom = responses.custom("call_s", TIME, "x")
    updated = responses.event("response.output_item.updated", output_index=1, item=CALL)
    failed = responses.event("error", message="m", item=CALL)
    said = responses.item_events(SAID, 0)
    return {
        "opening": [*opened, *said, responses.closing([SAID])],
        "later opening": [*opening, *said, opened[1], responses.closing([SAID])],
        "custom": [*opening, *responses.item_events(custom, 0), responses.closing([custom])],
        "terminal custom": [*opening, *said, responses.closing([SAID, custom])],
        "unknown event": [*opening, *said, updated, responses.closing([SAID])],
        "error": [*opening, *said, failed],
    }


@pytest.mark.parametrize("case", misplaced())
async def test_a_call_in_an_event_of_another_kind(case: str) -> None:
    """Rule W5: a server call in an event that should have none ends the turn; the client never sees it."""
    async with looping(chunked(responses.encode(misplaced()[case])), allow=("core__*",)) as (proxy, upstream):
        answer = await proxy.ask(RESPONSES_ASK, path=PATH)
        assert b"upstream_malformed" in answer.body
        assert_unseen(answer.body)
        assert len(upstream.requests) == 1


async def test_a_call_of_a_custom_tool_in_a_reply() -> None:
    """A server tool's name in a custom call ends a turn without a stream, too (rule W5)."""
    made = responses.reply(responses.custom("call_s", TIME, "x"))
    async with looping(made, allow=("core__*",)) as (proxy, _):
        answer = await proxy.ask({**RESPONSES_ASK, "stream": False}, path=PATH)
        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
        assert_unseen(answer.body)


@pytest.mark.parametrize("cut", [1 << 20, 700, 1])
async def test_what_came_before_a_fault_leaves_for_every_cut(cut: int) -> None:
    """Rule W6: if an event exceeds a limit, everything before it still goes out, however it was cut."""
    theirs = {**OURS, "function": {"name": "mine"}}
    choices = [{"index": at, "delta": {"tool_calls": [theirs]}} for at in range(130)]
    payload = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    data = chat.role() + chat.content("a", "b") + chat.sse(payload) + chat.finish() + chat.DONE
    pieces = [chunk(data[at : at + cut]) for at in range(0, len(data), cut)]
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    async with looping([opening, *pieces, LAST_CHUNK, KEEP], allow=("core__*",)) as (proxy, _):
        answer = await proxy.ask({**ASK, "tools": [CLIENT_TOOL]})
        assert answer.body.startswith(chat.role() + chat.content("a", "b"))
        assert b"choices in one response" in answer.body
        assert answer.body.endswith(chat.DONE)
