"""Chat clients on Responses upstreams and Responses clients on Chat upstreams, over real sockets."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import responses_script as responses
from chat_script import call, content, finish, payloads_of, reply, role, stream, text_of, usage
from looping import CLIENT_TOOL, ECHO
from raw_upstream import RawRequest, RawUpstream, Step, chunked
from responses_check import check_response_stream
from running_proxy import Answer, Proxy, make_config, running
from sse_check import check_chat_stream

from proxy.api.admin.json_output import run_to_json

CHAT_PATH, RESPONSES_PATH = "/v1/chat/completions", "/v1/responses"
CHAT_ASK: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
}
ASK: dict[str, Any] = {"model": "m", "stream": True, "instructions": "Be brief.", "input": "hi"}
MINE = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
SAY = '{"text":"noon"}'


@asynccontextmanager
async def upstream_of(
    wire: str, *scripts: Sequence[Step], **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy with the probe tools before an upstream of one dialect that plays a script a turn."""
    async with RawUpstream(*scripts) as upstream:
        served = {"base_url": upstream.url, "wires": (wire,)}
        async with running(make_config(served, modules=("probe_tools",), **config)) as proxy:
            yield proxy, upstream


async def one(
    wire: str,
    ask: dict[str, Any],
    *scripts: Sequence[Step],
    path: str = CHAT_PATH,
    **config: Any,
) -> tuple[Answer, list[RawRequest]]:
    """Send one request; return its answer and the requests that the upstream got."""
    async with upstream_of(wire, *scripts, **config) as (proxy, upstream):
        return await proxy.ask(ask, path=path), upstream.requests


# ---------------------------------------------------------------- Chat clients on Responses upstreams


async def test_a_chat_client_sees_a_run_on_a_responses_upstream() -> None:
    """Rules W3, W5: the client gets one Chat stream for both turns, without any part of the hidden call."""
    answer, requests = await one(
        "responses",
        CHAT_ASK,
        responses.stream(responses.function_call("call_1", ECHO, SAY)),
        responses.stream(responses.message("It is noon.", id="msg_2"), id="resp_2"),
    )
    read = check_chat_stream(answer.body, wants_usage=False, hidden=(ECHO, "call_1"))
    assert (answer.status, read.text, read.finish) == (200, "It is noon.", "stop")
    first, second = (json.loads(request.body) for request in requests)
    assert requests[0].target == "/v1/responses"
    assert first["instructions"] == "Be brief."
    assert first["stream"] is True
    assert first["store"] is False
    assert ECHO in [tool["name"] for tool in first["tools"]]
    assert [item.get("type") for item in second["input"]][-2:] == ["function_call", "function_call_output"]


async def test_a_chat_client_gets_one_object() -> None:
    """Without a stream, the client gets one Chat completion."""
    ask = {**CHAT_ASK, "stream": False}
    answer, _ = await one("responses", ask, responses.reply(responses.message("Hello.")))
    assert answer.json["choices"][0]["message"]["content"] == "Hello."
    assert answer.json["object"] == "chat.completion"


async def test_a_chat_clients_mixed_turn_on_a_responses_upstream() -> None:
    """Rules W5, R4: the client gets its own call; with its result the proxy restores the hidden call."""
    ask = {**CHAT_ASK, "tools": [CLIENT_TOOL]}
    mixed = responses.stream(
        responses.function_call("call_1", ECHO, SAY), responses.function_call("call_2", "mine")
    )
    done = responses.stream(responses.message("Both.", id="msg_2"), id="resp_2")
    async with upstream_of("responses", mixed, done) as (proxy, upstream):
        read = check_chat_stream((await proxy.ask(ask)).body, wants_usage=False, hidden=(ECHO,))
        (shown,) = read.calls
        made = {"id": shown.id, "type": "function", "function": {"name": "mine", "arguments": "{}"}}
        returned = [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": shown.id, "content": "mine too"},
        ]
        again = await proxy.ask({**ask, "messages": [*ask["messages"], *returned]})
        assert text_of(payloads_of(again.body)) == "Both."
        items = json.loads(upstream.requests[1].body)["input"]
    names = [item["name"] for item in items if item.get("type") == "function_call"]
    outputs = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
    assert (names, outputs) == ([ECHO, "mine"], {"call_1", "call_2"})


async def test_fields_that_responses_has_no_form_for() -> None:
    """The proxy leaves ``seed`` out and names it in a header; it refuses ``n`` with a 400."""
    quiet = {**CHAT_ASK, "seed": 7}
    answer, requests = await one("responses", quiet, responses.stream(responses.message("Hello.")))
    assert answer.header("x-toolrelay-left-out") == "seed"
    assert "seed" not in json.loads(requests[0].body)
    refused, none = await one("responses", {**CHAT_ASK, "n": 2}, responses.stream())
    assert (refused.status, refused.error["param"], none) == (400, "n", [])
    assert refused.error["code"] == "not_translatable"


# ---------------------------------------------------------------- Responses clients on Chat upstreams


async def test_a_responses_client_sees_a_run_on_a_chat_upstream() -> None:
    """The client gets one response for both turns, which repeats its own instructions and tools only."""
    answer, requests = await one(
        "chat",
        {**ASK, "tools": [MINE]},
        stream(role(), call("call_1", ECHO, SAY), finish("tool_calls"), usage(3, 2)),
        stream(role(), content("It ", "is noon."), finish(), usage(7, 4)),
        path=RESPONSES_PATH,
    )
    read = check_response_stream(answer.body, hidden=(ECHO, "call_1"))
    assert [item["type"] for item in read.response["output"]] == ["message"]
    assert read.response["output"][0]["content"][0]["text"] == "It is noon."
    assert read.response["instructions"] == "Be brief."
    assert [tool["name"] for tool in read.response["tools"]] == ["mine"]
    assert read.response["usage"]["total_tokens"] == 16
    first, second = (json.loads(request.body) for request in requests)
    assert requests[0].target == "/v1/chat/completions"
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["stream_options"]["include_usage"] is True
    assert [message["role"] for message in second["messages"]][-2:] == ["assistant", "tool"]


async def test_a_responses_client_goes_on_from_an_answer_by_its_id() -> None:
    """The proxy itself stores the response and its input, because a Chat upstream does not."""
    chat = [stream(role(), content("Noon."), finish()), stream(role(), content("Still."), finish())]
    async with upstream_of("chat", *chat) as (proxy, upstream):
        first = check_response_stream((await proxy.ask(ASK, path=RESPONSES_PATH)).body)
        kept = await proxy.ask(method="GET", path=f"{RESPONSES_PATH}/{first.id}")
        assert (kept.status, kept.json["id"]) == (200, first.id)
        assert kept.json["output"][0]["content"][0]["text"] == "Noon."
        more = {"model": "m", "stream": True, "input": "and now?", "previous_response_id": first.id}
        second = check_response_stream((await proxy.ask(more, path=RESPONSES_PATH)).body)
        assert second.response["previous_response_id"] == first.id
        messages = json.loads(upstream.requests[1].body)["messages"]
    assert [(m["role"], m["content"]) for m in messages if m["role"] != "system"] == [
        ("user", "hi"),
        ("assistant", "Noon."),
        ("user", "and now?"),
    ]


async def test_a_responses_client_returns_with_its_own_result() -> None:
    """Rules W5, R4: the client names the response, and the proxy restores the hidden call from its record."""
    ask = {**ASK, "tools": [MINE]}
    mixed = stream(
        role(), call("call_1", ECHO, SAY), call("call_2", "mine", "{}", 1), finish("tool_calls"), usage(1, 1)
    )
    async with upstream_of("chat", mixed, stream(role(), content("Both."), finish())) as (proxy, upstream):
        first = check_response_stream((await proxy.ask(ask, path=RESPONSES_PATH)).body, hidden=(ECHO,))
        ((call_id, name, _),) = first.calls
        assert name == "mine"
        result = {"type": "function_call_output", "call_id": call_id, "output": "mine too"}
        more = {**ask, "input": [result], "previous_response_id": first.id}
        second = check_response_stream((await proxy.ask(more, path=RESPONSES_PATH)).body)
        assert second.response["output"][0]["content"][0]["text"] == "Both."
        messages = json.loads(upstream.requests[1].body)["messages"]
    (made,) = [message for message in messages if message.get("tool_calls")]
    assert [one["function"]["name"] for one in made["tool_calls"]] == [ECHO, "mine"]
    assert {message["tool_call_id"] for message in messages if message["role"] == "tool"} == {
        one["id"] for one in made["tool_calls"]
    }


async def test_a_response_that_nobody_knows_is_not_gone_on_from() -> None:
    """An unknown response id gets OpenAI's error, and no upstream is asked."""
    ask = {**ASK, "previous_response_id": "resp_unknown"}
    answer, requests = await one("chat", ask, path=RESPONSES_PATH)
    assert (answer.status, answer.error["code"], requests) == (400, "previous_response_not_found", [])


async def test_a_responses_client_gets_one_object() -> None:
    """Without a stream, the client gets one whole response."""
    answer, _ = await one("chat", {**ASK, "stream": False}, reply("Hi.", used=(3, 2)), path=RESPONSES_PATH)
    assert answer.json["object"] == "response"
    assert answer.json["status"] == "completed"
    assert answer.json["output"][0]["content"][0]["text"] == "Hi."
    assert answer.json["usage"]["total_tokens"] == 5


@pytest.mark.parametrize("path", [RESPONSES_PATH, CHAT_PATH])
async def test_fallback_to_an_upstream_of_another_dialect(path: str) -> None:
    """If the first upstream refuses, one of another dialect answers, in the client's dialect."""
    busy = chunked(b"{}", content_type="application/json", status="503 No")
    chat = path == CHAT_PATH
    answers = {
        "chat": stream(role(), content("Hello."), finish()),
        "responses": responses.stream(responses.message("Hello.")),
    }
    own, other = ("chat", "responses") if chat else ("responses", "chat")
    async with RawUpstream(busy) as first, RawUpstream(answers[other]) as second:
        config = make_config(
            {"base_url": first.url, "wires": (own,)}, {"base_url": second.url, "wires": (other,)}
        )
        async with running(config) as proxy:
            answer = await proxy.ask(CHAT_ASK if chat else ASK, path=path)
    assert answer.status == 200
    if chat:
        assert check_chat_stream(answer.body, wants_usage=False).text == "Hello."
    else:
        assert check_response_stream(answer.body).response["output"][0]["content"][0]["text"] == "Hello."


async def test_who_cannot_take_over_does_not_hide_why_the_first_failed() -> None:
    """If the next upstream cannot take a field of the request, the client gets the first one's error."""
    busy = chunked(b"{}", content_type="application/json", status="503 No")
    async with RawUpstream(busy) as first, RawUpstream() as second:
        config = make_config(
            {"base_url": first.url, "wires": ("chat",)}, {"base_url": second.url, "wires": ("responses",)}
        )
        async with running(config) as proxy:
            answer = await proxy.ask({**CHAT_ASK, "n": 2})
            assert second.requests == []
    assert (answer.status, answer.error["code"]) == (503, "upstream_error")


async def test_the_turns_behind_an_answer_are_put_back_for_another_dialect() -> None:
    """Rule R4: when the client sends the answer back, the proxy restores the call before it for the model."""
    scripts = [
        responses.stream(responses.function_call("call_1", ECHO, SAY)),
        responses.stream(responses.message("It is noon.", id="msg_2"), id="resp_2"),
        responses.stream(responses.message("Still.", id="msg_3"), id="resp_3"),
    ]
    async with upstream_of("responses", *scripts) as (proxy, upstream):
        first = check_chat_stream((await proxy.ask(CHAT_ASK)).body, wants_usage=False)
        messages = [*CHAT_ASK["messages"], {"role": "assistant", "content": first.text}]
        more = [*messages, {"role": "user", "content": "and now?"}]
        again = await proxy.ask({**CHAT_ASK, "messages": more})
        assert again.header("x-toolrelay-restored") is not None
        items = json.loads(upstream.requests[2].body)["input"]
    assert [item.get("type", item.get("role")) for item in items] == [
        "user",
        "function_call",
        "function_call_output",
        "assistant",
        "user",
    ]


async def test_the_record_names_what_was_left_out() -> None:
    """The record of a run names the fields that the upstream was not sent."""
    script = (responses.stream(responses.message("Hello.")),)
    async with upstream_of("responses", *script) as (proxy, _):
        answer = await proxy.ask({**CHAT_ASK, "seed": 7, "stream": True})
        assert answer.header("x-toolrelay-left-out") == "seed"
        detail = await proxy.run_reaches("completed")
    assert detail.run.left_out == ("seed",)
    assert run_to_json(detail.run)["left_out"] == ["seed"]


async def test_an_operator_may_have_nothing_left_out() -> None:
    """With ``strict_bridge``, the proxy refuses a request instead of leaving out a field."""
    async with RawUpstream() as upstream:
        served = {"base_url": upstream.url, "wires": ("responses",), "strict_bridge": True}
        async with running(make_config(served)) as proxy:
            answer = await proxy.ask({**CHAT_ASK, "seed": 7})
        assert (answer.status, answer.error["param"], upstream.requests) == (400, "seed", [])
