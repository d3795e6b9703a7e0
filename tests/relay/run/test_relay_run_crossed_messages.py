"""Clients and upstreams of Messages, together with those of other dialects, over real sockets."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import responses_script as responses
from chat_script import call, chunk_of, content, finish, payloads_of, reply, role, stream, text_of, usage
from looping import CLIENT_TOOL, ECHO
from messages_script import read_stream, text, thinking, tool, tool_use, user
from messages_script import reply as message_reply
from messages_script import stream as message_stream
from raw_upstream import FIN, RawRequest, RawUpstream, Step, chunk, head
from responses_check import check_response_stream
from running_proxy import Answer, Proxy, make_config, running
from sse_check import check_chat_stream

CHAT_PATH, RESPONSES_PATH, PATH = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASK: dict[str, Any] = {
    "model": "m",
    "max_tokens": 500,
    "stream": True,
    "system": "Be brief.",
    "messages": [user(text="hi")],
}
CHAT_ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
RESPONSES_ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "hi"}
SAY = '{"text":"noon"}'
SAID = {"text": "noon"}


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
    wire: str, path: str, ask: dict[str, Any], *scripts: Sequence[Step], **config: Any
) -> tuple[Answer, list[RawRequest]]:
    """Send one request; return its answer and the requests that the upstream got."""
    async with upstream_of(wire, *scripts, **config) as (proxy, upstream):
        return await proxy.ask(ask, path=path), upstream.requests


# ---------------------------------------------------------------- Messages clients on other upstreams

UPSTREAMS = {
    "chat": (
        stream(role(), call("call_1", ECHO, SAY), finish("tool_calls"), usage(3, 2)),
        stream(role(), content("It ", "is noon."), finish(), usage(7, 4)),
    ),
    "responses": (
        responses.stream(responses.function_call("call_1", ECHO, SAY)),
        responses.stream(responses.message("It is noon.", id="msg_2"), id="resp_2"),
    ),
}


@pytest.mark.parametrize("wire", UPSTREAMS)
async def test_a_messages_client_sees_a_run_on_any_upstream(wire: str) -> None:
    """Rules W3, W5: the client gets one message for both turns, without any part of the hidden call."""
    answer, requests = await one(wire, PATH, ASK, *UPSTREAMS[wire])
    assert (answer.status, answer.header("content-type")) == (200, "text/event-stream")
    read = read_stream(answer.body)
    assert read.error is None
    assert [block for block in read.blocks if block["type"] == "text"] == [text("It is noon.")]
    assert ECHO.encode() not in answer.body
    first = json.loads(requests[0].body)
    assert requests[0].target == (CHAT_PATH if wire == "chat" else RESPONSES_PATH)
    assert first["model"] == "m"
    bound = "max_tokens" if wire == "chat" else "max_output_tokens"
    assert first[bound] == 500
    assert len(requests) == 2


async def test_a_messages_clients_mixed_turn_on_a_chat_upstream() -> None:
    """Rules W5, R4: the client gets its own call; with its result the proxy restores the hidden call."""
    ask = {**ASK, "tools": [tool("mine")]}
    mixed = stream(
        role(),
        call("call_1", ECHO, SAY),
        call("call_2", "mine", '{"a":1}', 1),
        finish("tool_calls"),
        usage(1, 1),
    )
    done = stream(role(), content("Both."), finish())
    async with upstream_of("chat", mixed, done) as (proxy, upstream):
        read = read_stream((await proxy.ask(ask, path=PATH)).body)
        (shown,) = [block for block in read.blocks if block["type"] == "tool_use"]
        assert (shown["name"], shown["input"]) == ("mine", {"a": 1})
        result = {"type": "tool_result", "tool_use_id": shown["id"], "content": "mine too"}
        returned = [{"role": "assistant", "content": [shown]}, {"role": "user", "content": [result]}]
        again = read_stream(
            (await proxy.ask({**ask, "messages": [*ask["messages"], *returned]}, path=PATH)).body
        )
        assert again.text == "Both."
        messages = json.loads(upstream.requests[1].body)["messages"]
    (made,) = [message for message in messages if message.get("tool_calls")]
    assert [one["function"]["name"] for one in made["tool_calls"]] == [ECHO, "mine"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool"]


async def test_headers_of_a_dialect_stay_in_it() -> None:
    """The proxy passes no headers of Anthropic to a Chat upstream, and none of OpenAI to the client."""
    said = b'{"id":"c","choices":[{"index":0,"message":{"content":"Hi."},"finish_reason":"stop"}]}'
    script = [
        head(
            "Content-Type: application/json",
            f"Content-Length: {len(said)}",
            "openai-version: 7",
            "x-ratelimit-limit-requests: 5",
            "x-request-id: up_1",
        )
        + said
    ]
    theirs = {"anthropic-version": "2026-10-21", "anthropic-beta": "a-1", "x-stainless-lang": "python"}
    async with upstream_of("chat", script) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "stream": False}, theirs, path=f"{PATH}?beta=true")
        sent = upstream.requests[0]
    assert answer.status == 200
    assert "openai-version" not in answer.names()
    assert answer.header("x-ratelimit-limit-requests") != "5"  # The proxy has limits of its own.
    assert answer.header("x-upstream-request-id") == "up_1"
    assert sent.target == CHAT_PATH
    assert not set(theirs) & sent.names()


async def test_a_messages_client_gets_one_message() -> None:
    """Without a stream, the client gets one message."""
    answer, _ = await one("chat", PATH, {**ASK, "stream": False}, reply("Hi.", used=(3, 2)))
    assert (answer.json["type"], answer.json["content"]) == ("message", [text("Hi.")])
    assert answer.json["stop_reason"] == "end_turn"
    assert answer.json["usage"]["input_tokens"] == 3


@pytest.mark.parametrize("wire", ["responses", "chat"])
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "reply"])
async def test_a_models_refusal_is_the_stop_reason_of_messages(wire: str, streams: bool) -> None:
    """The text of a model's refusal reaches the client, and ``stop_reason`` says that it has refused.

    Source: Anthropic's documentation, "Handling stop reasons", ``refusal``.
    """
    words = "I will not."
    if wire == "responses":
        script = (responses.stream if streams else responses.reply)(responses.refusal(words))
    elif streams:
        script = stream(role(), chunk_of({"refusal": words}), finish())
    else:
        script = reply(refusal=words)
    answer, _ = await one(wire, PATH, {**ASK, "stream": streams}, script)
    assert answer.status == 200, answer.body
    if streams:
        read = read_stream(answer.body)
        assert (read.text, read.message["stop_reason"], read.error) == (words, "refusal", None)
    else:
        assert (answer.json["content"], answer.json["stop_reason"]) == ([text(words)], "refusal")


async def test_a_refusal_and_a_lost_upstream_are_errors_of_messages() -> None:
    """Rule E1: an upstream's refusal or an early end of its stream is an error in the format of Messages."""
    body = b'{"error":{"message":"Too hot.","type":"x","param":null,"code":"hot"}}'
    refused = [
        head("Content-Type: application/json", f"Content-Length: {len(body)}", status="429 No") + body,
    ]
    answer, _ = await one("chat", PATH, ASK, refused)
    assert (answer.status, answer.json["type"]) == (429, "error")
    assert answer.json["error"]["message"] == "Too hot."
    lost: list[Step] = [
        head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"), chunk(content("It")), FIN,
    ]  # fmt: skip
    answer, _ = await one("chat", PATH, ASK, lost)
    error = read_stream(answer.body).error
    assert error is not None


# ---------------------------------------------------------------- other clients on Messages upstreams

MESSAGES = (
    message_stream(thinking("Hm.", "sig"), tool_use("toolu_1", ECHO, SAID)),
    message_stream(text("It is noon."), id="msg_2"),
)


async def test_a_chat_client_sees_a_run_on_a_messages_upstream() -> None:
    """The client gets the thinking as reasoning; the upstream gets it back with its signature."""
    answer, requests = await one("anthropic", CHAT_PATH, CHAT_ASK, *MESSAGES)
    read = check_chat_stream(answer.body, wants_usage=False, hidden=(ECHO, "toolu_1"))
    assert (read.text, read.reasoning, read.finish) == ("It is noon.", "Hm.", "stop")
    first, second = (json.loads(request.body) for request in requests)
    assert requests[0].target == PATH
    assert requests[0].header("anthropic-version")
    assert requests[0].header("x-api-key")
    assert first["max_tokens"] > 0
    made, answered = second["messages"][1:]
    assert [block["type"] for block in made["content"]] == ["thinking", "tool_use"]
    assert made["content"][0]["signature"] == "sig"
    assert answered["content"][0]["type"] == "tool_result"


async def test_a_responses_client_sees_a_run_on_a_messages_upstream() -> None:
    """The client gets one response with reasoning and text, without any part of the hidden call."""
    answer, _ = await one("anthropic", RESPONSES_PATH, RESPONSES_ASK, *MESSAGES)
    read = check_response_stream(answer.body, hidden=(ECHO, "toolu_1"))
    assert [item["type"] for item in read.response["output"]] == ["reasoning", "message"]
    assert read.response["output"][1]["content"][0]["text"] == "It is noon."


async def test_a_chat_clients_mixed_turn_on_a_messages_upstream() -> None:
    """Rules W5, R4: when the client returns its result, the proxy restores the hidden call for the model."""
    ask = {**CHAT_ASK, "tools": [CLIENT_TOOL]}
    mixed = message_stream(tool_use("toolu_1", ECHO, SAID), tool_use("toolu_2", "mine", {}))
    async with upstream_of("anthropic", mixed, message_stream(text("Both."), id="msg_2")) as (
        proxy,
        upstream,
    ):
        read = check_chat_stream((await proxy.ask(ask)).body, wants_usage=False, hidden=(ECHO,))
        (shown,) = read.calls
        made = {"id": shown.id, "type": "function", "function": {"name": "mine", "arguments": "{}"}}
        returned = [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": shown.id, "content": "mine too"},
        ]
        again = await proxy.ask({**ask, "messages": [*ask["messages"], *returned]})
        assert text_of(payloads_of(again.body)) == "Both."
        _, model, results = json.loads(upstream.requests[1].body)["messages"]
    assert [block["name"] for block in model["content"] if block["type"] == "tool_use"] == [ECHO, "mine"]
    assert {block["tool_use_id"] for block in results["content"]} == {"toolu_1", "toolu_2"}


async def test_a_chat_client_gets_one_object_from_a_messages_upstream() -> None:
    """Without a stream, the client gets one Chat completion."""
    answer, _ = await one(
        "anthropic", CHAT_PATH, {**CHAT_ASK, "stream": False}, message_reply(text("Hello."))
    )
    assert answer.json["choices"][0]["message"]["content"] == "Hello."
    assert answer.json["usage"]["prompt_tokens"] > 0


async def test_a_chat_clients_prompt_is_cached_and_bounded() -> None:
    """Both requests have cache marks, and ``max_tokens`` of the operator; usage counts cached tokens."""
    turns = (
        message_stream(tool_use("toolu_1", ECHO, SAID), cache_read_input_tokens=70),
        message_stream(text("Noon."), id="msg_2", cache_read_input_tokens=80),
    )
    async with RawUpstream(*turns) as upstream:
        served = {
            "base_url": upstream.url,
            "wires": ("anthropic",),
            "models": {"m": "claude-x"},
            "max_tokens": {"claude-*": 777},
        }
        async with running(make_config(served, modules=("probe_tools",))) as proxy:
            answer = await proxy.ask({**CHAT_ASK, "stream_options": {"include_usage": True}})
    first, second = (json.loads(request.body) for request in upstream.requests)
    for body, sent in zip((first, second), upstream.requests, strict=True):
        assert (body["model"], body["max_tokens"]) == ("claude-x", 777)
        assert "cache_control" in body["tools"][-1]
        assert "cache_control" in body["messages"][-1]["content"][-1]
        assert sent.body.count(b'"cache_control"') <= 4
    used = payloads_of(answer.body)[-1]["usage"]
    assert used["prompt_tokens_details"]["cached_tokens"] == 150


@pytest.mark.parametrize(
    ("own", "limits"), [({"max_tokens": 500}, [500, 493]), ({}, [8192] * 2)], ids=["own", "none"]
)
async def test_only_a_clients_own_limit_counts_for_all_turns(own: dict[str, Any], limits: list[int]) -> None:
    """What the first turn used lowers the client's own limit in the second, but not the proxy's default."""
    answer, requests = await one("anthropic", CHAT_PATH, {**CHAT_ASK, **own}, *MESSAGES)
    assert text_of(payloads_of(answer.body)) == "It is noon."
    assert [json.loads(request.body)["max_tokens"] for request in requests] == limits


async def test_an_upstream_without_a_cache_is_asked_without() -> None:
    """If an upstream refuses ``cache_control``, the proxy repeats the request without it."""
    said = (
        b'{"type":"error","error":{"type":"invalid_request_error","message":"cache_control: Extra inputs"}}'
    )
    refusal = [head("Content-Type: application/json", f"Content-Length: {len(said)}", status="400 No") + said]
    answer, requests = await one(
        "anthropic", CHAT_PATH, CHAT_ASK, refusal, message_stream(text("Hi.")), allow=()
    )
    assert text_of(payloads_of(answer.body)) == "Hi."
    assert [b"cache_control" in request.body for request in requests] == [True, False]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
async def test_a_refusal_has_the_dialects_own_type(status: int, kind: str) -> None:
    """Rule E2: the client gets the upstream's status, with the error type that Messages has for it."""
    body = b'{"error":{"message":"No.","type":"x","param":null,"code":"y"}}'
    refused = [
        head(
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "retry-after: 3",
            status=f"{status} No",
        )
        + body
    ]
    answer, _ = await one("chat", PATH, ASK, refused)
    assert (answer.status, answer.header("retry-after")) == (status, "3")
    assert answer.json["error"] == {"type": kind, "message": "No."}
