"""Anthropic's Messages end to end: tool loop, mixed turns, errors, cut streams and token counting."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from looping import TIME, looping
from messages_script import (
    STOP,
    block_events,
    ending,
    error_event,
    read_stream,
    reply,
    start,
    stream,
    text,
    thinking,
    tool,
    tool_use,
    turn,
    user,
)
from probe_tools import Watch
from raw_upstream import FIN, RawRequest, Step, chunk, chunked, head, whole
from running_proxy import Answer

SERVED = {"served": {"wires": ["anthropic"]}}
PATH = "/v1/messages"
ASK: dict[str, Any] = {"model": "m", "max_tokens": 500, "stream": True, "messages": [user(text="hi")]}
SERVER = tool_use("toolu_s", TIME, {"timezone": "UTC"})
MINE = tool_use("toolu_c", "mine", {"a": 1})
THOUGHT = thinking("Let me\nsee “it”.", "EqQBCkYI/+==")
ANSWER = stream(text("It is noon."), id="msg_2", output=9)
BETA = {"anthropic-version": "2026-10-21", "anthropic-beta": "a-1, b-2", "x-api-key": "client"}


async def one_run(
    *scripts: Sequence[Step], ask: Any = None, headers: Any = (), path: str = PATH, **config: Any
) -> tuple[Answer, list[RawRequest]]:
    """Send one request; return its answer and the requests that the upstream got."""
    async with looping(*scripts, **{**SERVED, **config}) as (proxy, upstream):
        return await proxy.ask(ask or ASK, headers, path=path), upstream.requests


def asked(requests: Sequence[RawRequest], at: int = -1) -> dict[str, Any]:
    """Return the body of a request that the upstream got."""
    return dict(json.loads(requests[at].body))


def message_of(answer: Answer, streaming: bool) -> dict[str, Any]:
    """Return the message that a client reads from an answer."""
    if not streaming:
        return dict(answer.json)
    read = read_stream(answer.body)
    return {**read.message, "content": read.blocks}


def said(streaming: bool, *blocks: Any, **more: Any) -> list[Step]:
    """Return a turn, as a stream or as one reply."""
    return (
        stream(*blocks, **more)
        if streaming
        else reply(*blocks, **{k: v for k, v in more.items() if k != "output"})
    )


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_server_tool_is_run(streaming: bool) -> None:
    """The client gets one message; the upstream gets the signed thinking back, with the tool's result."""
    ask = {**ASK, "stream": streaming}
    answer, requests = await one_run(
        said(streaming, THOUGHT, text("Wait. "), SERVER), said(streaming, text("It is noon."), id="msg_2"),
        ask=ask, headers=BETA, path=f"{PATH}?beta=true",
    )  # fmt: skip
    message = message_of(answer, streaming)
    assert message["content"] == [THOUGHT, text("Wait. "), text("It is noon.")]
    assert (message["id"], message["stop_reason"]) == ("msg_1", "end_turn")
    assert message["usage"]["output_tokens"] == 14
    assert TIME.encode() not in answer.body
    first, second = asked(requests, 0), asked(requests, 1)
    assert TIME in [one["name"] for one in first["tools"]]
    assert second["messages"][:2] == [
        ASK["messages"][0],
        {"role": "assistant", "content": [THOUGHT, text("Wait. "), SERVER]},
    ]
    (result,) = second["messages"][2]["content"]
    assert (result["type"], result["tool_use_id"]) == ("tool_result", "toolu_s")
    assert "2026-11-21T12:00" in result["content"]
    assert second["max_tokens"] == 493
    for request in requests:
        assert request.target == "/v1/messages?beta=true"
        assert request.header("anthropic-version") == "2026-10-21"
        assert request.header("anthropic-beta") == "a-1, b-2"
        assert request.header("x-api-key") == "sk-server-0123456789abcdef"
        assert request.header("authorization") is None


@pytest.mark.parametrize("allow", [(), ("core__*",)])
@pytest.mark.parametrize(
    "data",
    [
        turn(THOUGHT, text("Hi"), MINE),
        turn({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, reason="pause_turn"),
        start() + error_event(),
        turn(text("Hi")) + b"data: [DONE]\n\n",
    ],
)
async def test_a_stream_that_calls_nothing_of_ours_keeps_its_bytes(data: bytes, allow: Sequence[str]) -> None:
    """Rules W1 and W2: a stream without server calls keeps its bytes, whether or not tools are offered."""
    ask = {**ASK, "tools": [tool("mine")]}
    answer, requests = await one_run(
        chunked(*[data[at : at + 7] for at in range(0, len(data), 7)]), ask=ask, allow=allow
    )
    assert (answer.status, answer.body) == (200, data)
    if not allow:
        assert requests[0].body == json.dumps(ask).encode()


async def test_a_reply_that_calls_nothing_of_ours_keeps_its_bytes() -> None:
    """A reply without server calls keeps its bytes and its headers."""
    body = (
        b'{"id": "msg_1", "type":"message","content":[ ],"stop_reason":"end_turn","usage":{"input_tokens":1}}'
    )
    script = whole(body, "request-id: req_up", "anthropic-ratelimit-requests-limit: 50")
    answer, _ = await one_run(script, ask={**ASK, "stream": False})
    assert answer.body == body
    assert answer.header("request-id") == "req_up"
    assert answer.header("anthropic-ratelimit-requests-limit") == "50"


async def test_a_version_is_added_where_a_client_names_none() -> None:
    """The proxy adds ``anthropic-version`` if the client sends none, because the provider requires it."""
    _, (bare,) = await one_run(ANSWER, allow=())
    assert bare.header("anthropic-version") == "2023-06-01"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_mixed_turn_waits_for_the_client(streaming: bool) -> None:
    """The client gets only its own call; when it returns the result, the proxy restores the hidden part."""
    ask = {**ASK, "stream": streaming, "tools": [tool("mine")]}
    scripts = said(streaming, THOUGHT, SERVER, MINE), said(streaming, text("Done."), id="msg_2")
    async with looping(*scripts, **SERVED) as (proxy, upstream):
        shown = message_of(await proxy.ask(ask, path=PATH), streaming)
        assert shown["content"] == [THOUGHT, MINE]
        assert shown["stop_reason"] == "tool_use"
        moved = {**MINE, "cache_control": {"type": "ephemeral"}}
        back = [
            *ASK["messages"],
            {"role": "assistant", "content": [THOUGHT, moved]},
            user({"type": "tool_result", "tool_use_id": "toolu_c", "content": "ok"}, text("Go on.")),
        ]
        last = message_of(await proxy.ask({**ask, "messages": back}, path=PATH), streaming)
        assert last["content"] == [text("Done.")]
        messages = asked(upstream.requests)["messages"]
    assert [block.get("name") for block in messages[1]["content"]] == [None, TIME, "mine"]
    results = messages[2]["content"]
    assert [block.get("tool_use_id") for block in results] == ["toolu_s", "toolu_c", None]
    assert len(messages) == 3


async def test_the_turns_behind_an_answer_are_put_back() -> None:
    """When the client sends the answer back, the proxy restores all turns behind it for the upstream."""
    async with looping(stream(text("Wait. "), SERVER), ANSWER, ANSWER, **SERVED) as (proxy, upstream):
        read = read_stream((await proxy.ask(ASK, path=PATH)).body)
        back = [*ASK["messages"], {"role": "assistant", "content": read.blocks}, user(text="And?")]
        answer = await proxy.ask({**ASK, "messages": back}, path=PATH)
        assert answer.header("x-toolrelay-restored") is not None
        roles = [message["role"] for message in asked(upstream.requests)["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


async def test_a_paused_turn_goes_on() -> None:
    """After a hidden turn the proxy itself continues a paused turn; the client never saw the hidden one."""
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": "x"}}
    answer, requests = await one_run(
        stream(SERVER),
        stream(text("Hm. "), search, reason="pause_turn", id="msg_2"),
        stream(text("So."), id="msg_3"),
    )
    read = read_stream(answer.body)
    assert read.blocks == [text("Hm. "), search, text("So.")]
    assert read.message["stop_reason"] == "end_turn"
    assert asked(requests)["messages"][-1] == {"role": "assistant", "content": [text("Hm. "), search]}


async def test_calls_side_by_side_are_answered_in_one_message() -> None:
    """The model gets the results of parallel calls in one message, in the order of the calls."""
    two = [
        tool_use("toolu_1", TIME, {"timezone": "UTC"}),
        tool_use("toolu_2", TIME, {"timezone": "Asia/Tokyo"}),
    ]
    _, requests = await one_run(stream(*two), ANSWER)
    results = asked(requests)["messages"][2]["content"]
    assert [block["tool_use_id"] for block in results] == ["toolu_1", "toolu_2"]


async def test_a_failed_call_says_so() -> None:
    """The model is told that its call failed, and the run goes on (rule T3)."""
    _, requests = await one_run(stream(tool_use("toolu_1", TIME, {"timezone": "Nowhere/X"})), ANSWER)
    (result,) = asked(requests)["messages"][2]["content"]
    assert result["is_error"] is True
    assert json.loads(result["content"])["ok"] is False


async def test_a_call_cut_short_is_not_run() -> None:
    """Rule W7: a call whose arguments were cut off does not run."""
    cut = tool_use("toolu_1", TIME, '{"timezone": "UT')
    opened, *pieces, stop = block_events(0, cut)
    data = b"".join([start(), opened, *pieces, stop, ending("max_tokens"), STOP])
    answer, requests = await one_run(chunked(data))
    read = read_stream(answer.body)
    assert (read.blocks, read.message["stop_reason"], len(requests)) == ([], "max_tokens", 1)


BEGUN = start() + b"".join(block_events(0, text("It is")))
IN_A_CALL = start() + b"".join(block_events(0, SERVER)[:-2])


@pytest.mark.parametrize("allow", [(), ("core__*",)])
@pytest.mark.parametrize("data", [start(), BEGUN, IN_A_CALL])
@pytest.mark.parametrize("ends", ["properly", "broken"])
async def test_a_lost_upstream_is_an_error(ends: str, data: bytes, allow: Sequence[str]) -> None:
    """If the upstream's stream ends early, the client gets an error, because it could look complete."""
    broken: list[Step] = [
        head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
        chunk(data),
        FIN,
    ]
    answer, _ = await one_run(chunked(data) if ends == "properly" else broken, allow=allow)
    error = read_stream(answer.body).error
    assert error is not None
    assert error["type"] == "api_error"
    assert answer.body.count(b"event: error\n") == 1


async def test_a_later_turn_that_fails_is_an_error() -> None:
    """If a later turn fails, the client gets an error with the upstream's type and message."""
    refused = json.dumps(
        {"type": "error", "error": {"type": "invalid_request_error", "message": "Bad"}}
    ).encode()
    for script in (
        whole(refused, status="400 Bad Request"),
        chunked(start("msg_2") + error_event("invalid_request_error", "Bad")),
    ):
        answer, _ = await one_run(stream(text("Wait."), SERVER), script)
        read = read_stream(answer.body)
        assert read.error is not None
        assert read.error["type"] == "invalid_request_error"
        assert "Bad" in read.error["message"]


async def test_an_error_before_the_stream_passes() -> None:
    """Rule E2: an upstream's error passes with its status, its body and its headers about retries."""
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}'
    script = whole(
        body, "retry-after: 3", "x-should-retry: true", "request-id: req_1", status="529 Overloaded"
    )
    for allow in ((), ("core__*",)):
        answer, _ = await one_run(script, allow=allow)
        assert (answer.status, answer.body) == (529, body)
        assert (answer.header("retry-after"), answer.header("x-should-retry")) == ("3", "true")


@pytest.mark.parametrize(
    ("ask", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"model": "m", "messages": 3}, 400, "invalid_request_error"),
        ({**ASK, "tools": [tool("a"), tool("a")]}, 400, "invalid_request_error"),
    ],
)
async def test_errors_of_ours_are_in_this_dialect(ask: Any, status: int, kind: str) -> None:
    """Rule E1: the proxy's own errors are in Anthropic's format, with the request id in body and headers."""
    answer, requests = await one_run(ANSWER, ask=ask)
    assert answer.status == status
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == kind
    assert answer.json["request_id"] == answer.header("request-id") == answer.header("x-request-id")
    assert not requests


async def test_an_unreachable_upstream_is_said() -> None:
    """If the upstream cannot be reached, the client gets a 502, which clients retry."""
    answer, _ = await one_run([FIN], served={"wires": ["anthropic"], "retries": 0})
    assert (answer.status, answer.json["error"]["type"]) == (502, "api_error")


async def test_tokens_are_counted_by_the_upstream() -> None:
    """The proxy sends a request to count tokens on unchanged, with the upstream's key."""
    ask = {"model": "m", "messages": [user(text="hi")], "tools": [tool("mine")]}
    answer, (request,) = await one_run(
        whole(b'{"input_tokens": 12}'), ask=ask, path=f"{PATH}/count_tokens?beta=true"
    )
    assert answer.body == b'{"input_tokens": 12}'
    assert (request.target, request.body) == ("/v1/messages/count_tokens?beta=true", json.dumps(ask).encode())
    assert request.header("x-api-key")
    assert request.header("anthropic-version") == "2023-06-01"


async def test_counting_where_no_upstream_can_is_a_clear_error() -> None:
    """If no upstream can count tokens, the client gets a 404."""
    ask = {"model": "m", "messages": []}
    answer, _ = await one_run(ANSWER, ask=ask, path=f"{PATH}/count_tokens", served={"wires": ["chat"]})
    assert (answer.status, answer.json["type"]) == (404, "error")


async def test_events_are_told_on_pings() -> None:
    """The trace comes with pings, because clients would send a block of the proxy's back to it."""
    async with looping(stream(SERVER), ANSWER, **SERVED, tools={"trace_max": "events"}) as (proxy, _):
        answer = await proxy.ask(ASK, {"x-toolrelay-trace": "events"}, path=PATH)
    read = read_stream(answer.body)
    told = [ping["x_toolrelay"] for ping in read.pings if "x_toolrelay" in ping]
    assert [(one["type"], one["name"]) for one in told] == [("tool_call", TIME), ("tool_result", TIME)]
    assert read.blocks == [text("It is noon.")]


async def test_a_trace_that_was_a_thought_does_not_go_back() -> None:
    """The proxy removes its trace from a client's thinking blocks, because no upstream has signed it."""
    async with looping(stream(SERVER), ANSWER, ANSWER, **SERVED, tools={"trace_max": "events"}) as (
        proxy,
        upstream,
    ):
        answer = await proxy.ask(ASK, {"x-toolrelay-trace": "reasoning"}, path=PATH)
        read = read_stream(answer.body)
        assert read.blocks[0]["signature"] == "toolrelay"
        back = [*ASK["messages"], {"role": "assistant", "content": read.blocks}, user(text="And?")]
        await proxy.ask({**ASK, "messages": back}, {"x-toolrelay-history": "off"}, path=PATH)
        assert b"toolrelay" not in upstream.requests[-1].body
        assert asked(upstream.requests)["messages"][1]["content"] == [text("It is noon.")]


async def test_a_ping_says_that_tools_run(watch: Watch) -> None:
    """While a tool runs, the client gets pings."""
    slow = stream(tool_use("toolu_1", "probe_tools__slow"))
    got = b""
    async with (
        looping(slow, ANSWER, **SERVED, tools={"keepalive_s": 0.05}) as (proxy, _),
        proxy.sent(ASK, path=PATH) as conversation,
    ):
        async for piece in conversation.pieces(await conversation.head()):
            got += piece
            if got.count(b"event: ping") > 3:
                watch.go_on.set()
    read = read_stream(got)
    assert len(read.pings) > 3
    assert read.blocks == [text("It is noon.")]


async def test_usage_is_limited() -> None:
    """The limit of tokens counts input and output, whether or not the request has server tools."""
    for allow in ((), ("core__*",)):
        async with looping(ANSWER, **SERVED, allow=allow, limits={"tokens": ["15/hour"]}) as (proxy, _):
            statuses = [(await proxy.ask(ASK, path=PATH)).status for _ in range(2)]
        assert statuses == [200, 429]


async def test_the_run_is_on_record() -> None:
    """The record has the run with its dialect, its turns, its tool call, and its messages as in Chat."""
    async with looping(stream(THOUGHT, SERVER), ANSWER, **SERVED) as (proxy, _):
        await proxy.ask(ASK, path=PATH)
        detail = await proxy.run_reaches("completed")
    assert detail.run.wire == "anthropic"
    assert [invocation.tool for invocation in detail.invocations] == [TIME]
    turns = [
        (turn.number, turn.upstream_id, turn.finish_reason, turn.output_tokens, turn.tool_calls)
        for turn in detail.turns
    ]
    assert turns == [(1, "msg_1", "tool_calls", 7, 1), (2, "msg_2", "stop", 9, 0)]
    made, result, last = detail.messages
    function = {"name": TIME, "arguments": '{"timezone":"UTC"}'}
    assert json.loads(made.tool_calls or "") == [{"id": "toolu_s", "type": "function", "function": function}]
    assert (made.role, json.loads(made.content_json or "")) == ("assistant", [THOUGHT, SERVER])
    assert (result.role, result.tool_call_id) == ("tool", "toolu_s")
    assert json.loads(result.content or "")["timezone"] == "UTC"
    assert (last.role, last.content, last.tool_calls) == ("assistant", "It is noon.", None)
    assert [message.turn for message in detail.messages] == [1, 1, 2]
