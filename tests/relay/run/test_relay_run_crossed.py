"""A client of one dialect on an upstream of another, over real sockets: a toy proves that none is known."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_script import DONE, call, content, finish, payloads_of, reply, role, stream, text_of, usage
from looping import CLIENT_TOOL, ECHO
from raw_upstream import FIN, RawRequest, RawUpstream, Step, chunk, chunked, head, whole
from running_proxy import Answer, Proxy, make_config, running
from sse_check import check_chat_stream
from toy_dialect import TOY_ENDPOINTS, ToyWire
from toy_dialect import event as toy_event

from proxy.app.app import Overrides
from proxy.wires.openai.dialect import OPENAI
from proxy.wires.registry.table import SERVED, EndpointTable

CHAT_PATH, TOY_PATH = "/v1/chat/completions", "/v1/toy"
CHAT_ASK: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "hi"}],
}
TOY_ASK: dict[str, Any] = {"model": "m", "live": True, "turns": [{"by": "user", "text": "hi"}]}
TOY_MINE = {"tool": "mine", "about": "d", "takes": {"type": "object", "properties": {}}}
SAY = '{"text":"noon"}'
TABLE = EndpointTable((*TOY_ENDPOINTS, *SERVED.endpoints), OPENAI)


def toy(*said: Any, ends: bool = True) -> list[Step]:
    """A stream of a toy upstream."""
    events = [toy_event(one) for one in said]
    return chunked(*events, *([b"data: bye\n\n"] if ends else []), content_type="text/x-toy")


def toy_call(ref: str, tool: str, arguments: str = "{}") -> dict[str, Any]:
    """A call in a stream or a reply of a toy upstream."""
    return {"ref": ref, "tool": tool, "input": arguments}


@asynccontextmanager
async def crossing(
    wire: str, *scripts: Sequence[Step], **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy with the probe tools, before an upstream that speaks one wire and plays a script a turn."""
    async with RawUpstream(*scripts) as upstream:
        settings = make_config({"base_url": upstream.url}, modules=("probe_tools",), **config)
        (name,) = settings.upstreams
        spoken = settings.upstreams[name].model_copy(update={"wires": (wire,)})
        settings = settings.model_copy(update={"upstreams": {name: spoken}})
        overrides = Overrides(endpoints=TABLE, wires={"toy": ToyWire()})
        async with running(settings, overrides) as proxy:
            yield proxy, upstream


async def one(
    wire: str, path: str, ask: dict[str, Any], *scripts: Sequence[Step], **config: Any
) -> tuple[Answer, list[RawRequest]]:
    """One request, its answer, and what the upstream was asked."""
    async with crossing(wire, *scripts, **config) as (proxy, upstream):
        return await proxy.ask(ask, path=path), upstream.requests


def said_to_toy(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream in the toy's dialect."""
    assert body.endswith(b"data: bye\n\n")
    assert body.count(b"bye") == 1
    return [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]


# ---------------------------------------------------------------- a Chat client on a toy upstream


async def test_a_chat_client_on_a_toy_upstream_runs_server_tools() -> None:
    """Rules W3, W5: one ordinary Chat stream with the usage of both turns, and no trace of the call."""
    answer, requests = await one(
        "toy",
        CHAT_PATH,
        CHAT_ASK,
        toy({"text": "Wait."}, {"call": toy_call("ours-1", ECHO, SAY)}, {"why": "called", "spent": [3, 2]}),
        toy({"text": "It is "}, {"text": "noon."}, {"why": "done", "spent": [7, 4]}),
    )
    assert answer.status == 200
    assert answer.header("content-type") == "text/event-stream"
    read = check_chat_stream(answer.body, wants_usage=True, hidden=(ECHO, "ours-1"))
    assert read.text == "Wait.\n\nIt is noon."
    assert read.finish == "stop"
    assert read.usage == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    first, second = (json.loads(request.body) for request in requests)
    assert requests[0].target == "/v1/toy"
    assert [turn["text"] for turn in first["turns"]] == ["hi"]
    assert ECHO in [tool["tool"] for tool in first["kit"]]
    _, made, result = second["turns"]
    assert made["calls"] == [toy_call("ours-1", ECHO, SAY)]
    assert (result["ref"], "noon" in result["text"]) == ("ours-1", True)


async def test_a_chat_client_gets_one_object_from_a_toy_upstream() -> None:
    """The same without streaming."""
    first = [{"call": toy_call("ours-1", ECHO, SAY)}, {"why": "called", "spent": [3, 2]}]
    last = [{"text": "It is noon."}, {"why": "done", "spent": [7, 4]}]
    scripts = [whole(json.dumps({"events": events}).encode()) for events in (first, last)]
    answer, requests = await one("toy", CHAT_PATH, {**CHAT_ASK, "stream": False}, *scripts)
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    assert answer.json["object"] == "chat.completion"
    assert answer.json["choices"][0]["message"]["content"] == "It is noon."
    assert answer.json["usage"]["total_tokens"] == 16
    assert len(requests) == 2


async def test_the_clients_own_calls_come_back_and_the_hidden_one_is_put_back() -> None:
    """Rules W5, R4: a mixed turn is held, and the client returns to the whole of it."""
    ask = {**CHAT_ASK, "tools": [CLIENT_TOOL]}
    mixed = toy(
        {"call": toy_call("ours-1", ECHO, SAY)},
        {"call": toy_call("theirs-2", "mine", "{}")},
        {"why": "called", "spent": [1, 1]},
    )
    done = toy({"text": "Both."}, {"why": "done", "spent": [1, 1]})
    async with crossing("toy", mixed, done) as (proxy, upstream):
        answer = await proxy.ask(ask)
        read = check_chat_stream(answer.body, wants_usage=True, hidden=(ECHO,))
        assert read.finish == "tool_calls"
        ((shown),) = read.calls
        assert (shown.name, shown.arguments) == ("mine", "{}")
        returned = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": shown.id, "type": "function", "function": {"name": "mine", "arguments": "{}"}}
            ],
        }
        result = {"role": "tool", "tool_call_id": shown.id, "content": "mine too"}
        again = await proxy.ask({**ask, "messages": [*ask["messages"], returned, result]})
        assert text_of(payloads_of(again.body)) == "Both."
        turns = json.loads(upstream.requests[1].body)["turns"]
    assert [call["tool"] for call in turns[1]["calls"]] == [ECHO, "mine"]
    assert {turn["ref"]: "noon" in turn["text"] or turn["text"] for turn in turns[2:]} == {
        "ours-1": True,
        "theirs-2": "mine too",
    }


async def test_without_tools_a_request_crosses_all_the_same() -> None:
    """Nothing passes as it came where nothing could be read."""
    answer, _ = await one(
        "toy",
        CHAT_PATH,
        CHAT_ASK,
        toy({"text": "Hello."}, {"why": "done", "spent": [1, 1]}),
        tools={"enabled": False},
    )
    read = check_chat_stream(answer.body, wants_usage=True)
    assert (read.text, read.finish) == ("Hello.", "stop")


# ---------------------------------------------------------------- a toy client on a Chat upstream


async def test_a_toy_client_on_a_chat_upstream_runs_server_tools() -> None:
    """And the other way round: the Chat editor and reader do their work, the toy writes."""
    answer, requests = await one(
        "chat",
        TOY_PATH,
        {**TOY_ASK, "kit": [TOY_MINE]},
        stream(role(), call("call_1", ECHO, SAY), finish("tool_calls"), usage(3, 2)),
        stream(role(), content("It ", "is noon."), finish(), usage(7, 4)),
    )
    assert answer.status == 200
    assert answer.header("content-type") == "text/x-toy"
    events = said_to_toy(answer.body)
    assert "".join(event.get("text", "") for event in events) == "It is noon."
    assert events[-1] == {"why": "done", "spent": [10, 6]}
    assert ECHO.encode() not in answer.body
    first, second = (json.loads(request.body) for request in requests)
    assert requests[0].target == "/v1/chat/completions"
    assert {tool["function"]["name"] for tool in first["tools"]} >= {"mine", ECHO}
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]


async def test_a_toy_clients_own_call() -> None:
    """It is shown whole, in the toy's words."""
    scripts = stream(role(), call("call_1", "mine", "{}"), finish("tool_calls"), usage(3, 2))
    answer, _ = await one("chat", TOY_PATH, {**TOY_ASK, "kit": [TOY_MINE]}, scripts)
    events = said_to_toy(answer.body)
    assert events[0] == {"call": toy_call("call_1", "mine")}
    assert events[-1]["why"] == "called"


async def test_a_toy_client_gets_one_object() -> None:
    """Without streaming."""
    answer, _ = await one("chat", TOY_PATH, {**TOY_ASK, "live": False}, reply("Hi.", used=(3, 2)))
    assert answer.json == {"events": [{"text": "Hi."}, {"why": "done", "spent": [3, 2]}]}


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_a_refusal_is_told_in_the_clients_dialect(status: int) -> None:
    """Rule E1: the upstream's words and status, in the client's shape, with its word on when to retry."""
    body = json.dumps({"wrong": "Too hot.", "code": "hot"}).encode()
    refused = [
        head(
            "Content-Type: application/json",
            "Retry-After: 7",
            f"Content-Length: {len(body)}",
            status=f"{status} No",
        )
        + body
    ]
    answer, _ = await one("toy", CHAT_PATH, CHAT_ASK, refused)
    assert answer.status == status
    assert answer.error["message"] == "Too hot."
    assert answer.error["code"] == "hot"
    assert answer.error["type"] == ("invalid_request_error" if status == 400 else "upstream_error")
    assert answer.header("retry-after") == "7"


async def test_an_error_of_ours_is_told_in_the_dialect_of_the_path() -> None:
    """Also where no upstream was asked."""
    answer, requests = await one("chat", TOY_PATH, {**TOY_ASK, "turns": "none"})
    assert (answer.status, answer.json["where"], requests) == (400, "turns", [])


@pytest.mark.parametrize("stream_events", [[], [{"text": "It is"}], [{"call": toy_call("ours-1", "mine")}]])
@pytest.mark.parametrize("properly", [True, False])
async def test_a_lost_upstream_is_an_error(stream_events: list[Any], properly: bool) -> None:
    """Rule W1: a stream that merely ends is no success, whether its HTTP framing was complete or not."""
    script = toy(*stream_events, ends=False)
    if not properly:
        data = b"".join(toy_event(one) for one in stream_events)
        head_of_it = head("Content-Type: text/x-toy", "Transfer-Encoding: chunked")
        script = [head_of_it, *([chunk(data)] if data else []), FIN]
    answer, _ = await one("toy", CHAT_PATH, {**CHAT_ASK, "tools": [CLIENT_TOOL]}, script)
    if answer.status == 200:
        read = check_chat_stream(answer.body, wants_usage=True)
        assert read.error is not None
        assert read.error["code"] == "upstream_broken"
        assert read.finish is None
    else:
        assert (answer.status, answer.error["code"]) == (502, "upstream_broken")


async def test_an_error_in_the_stream_is_told_in_the_clients_stream() -> None:
    """What came before it has gone out; nothing but the end mark comes behind."""
    answer, _ = await one(
        "toy", CHAT_PATH, CHAT_ASK, toy({"text": "It is"}, {"wrong": "Too hot.", "code": "hot"})
    )
    read = check_chat_stream(answer.body, wants_usage=True)
    assert read.text == "It is"
    assert read.error is not None
    assert (read.error["message"], read.error["code"]) == ("Too hot.", "hot")
    assert answer.body.endswith(DONE)


async def test_what_a_dialect_cannot_say_is_refused_by_name() -> None:
    """A part that the upstream's dialect has no form for is a 400 that names it, before anybody is asked."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    ask = {**CHAT_ASK, "messages": [{"role": "user", "content": [picture]}]}
    answer, requests = await one("toy", CHAT_PATH, ask, toy({"why": "done"}))
    assert (answer.status, answer.error["code"]) == (400, "not_translatable")
    assert answer.error["param"] == "messages[0].content[0]"
    assert requests == []
