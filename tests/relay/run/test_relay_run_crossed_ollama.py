"""Clients and upstreams of Ollama's chat, together with those of other dialects, over real sockets."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import messages_script as messages
import pytest
import responses_script as responses
from chat_script import call, content, finish, role, stream, usage
from looping import ECHO
from messages_script import text, tool_use
from ollama_script import LINES, Read, assistant, read_reply, read_stream, said, tool, turn, user
from ollama_script import call as ollama_call
from ollama_script import stream as ollama_stream
from raw_upstream import FIN, RawRequest, RawUpstream, Step, chunk, chunked, head
from responses_check import check_response_stream
from running_proxy import Answer, Proxy, make_config, running
from sse_check import check_chat_stream

CHAT_PATH, RESPONSES_PATH, MESSAGES_PATH = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CHAT_ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
RESPONSES_ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "hi"}
MESSAGES_ASK: dict[str, Any] = {**CHAT_ASK, "max_tokens": 500}
PATH = "/api/chat"
ASK: dict[str, Any] = {
    "model": "m:latest",
    "messages": [{"role": "system", "content": "Be brief."}, user("hi")],
    "options": {"temperature": 0.5, "num_predict": 500, "num_ctx": 4096},
}
SAY = '{"text":"noon"}'
SAID = {"text": "noon"}

UPSTREAMS: dict[str, tuple[list[Step], list[Step]]] = {
    "chat": (
        stream(role(), content("Wait. "), call("call_1", ECHO, SAY), finish("tool_calls"), usage(3, 2)),
        stream(role(), content("It ", "is noon."), finish(), usage(7, 4)),
    ),
    "responses": (
        responses.stream(
            responses.message("Wait. ", id="msg_1"), responses.function_call("call_1", ECHO, SAY)
        ),
        responses.stream(responses.message("It is noon.", id="msg_2"), id="resp_2"),
    ),
    "anthropic": (
        messages.stream(messages.thinking("Hm.", "sig"), text("Wait. "), tool_use("toolu_1", ECHO, SAID)),
        messages.stream(text("It is noon."), id="msg_2"),
    ),
    "ollama": (
        ollama_stream("Wait. ", ollama_call(ECHO, SAID, "call_1"), thinking="Hm."),
        ollama_stream("It is noon."),
    ),
}
LIMITS = {
    "chat": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "anthropic": ("max_tokens",),
    "ollama": ("options", "num_predict"),
}


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


@pytest.mark.parametrize("wire", UPSTREAMS)
async def test_an_ollama_client_sees_a_run_on_any_upstream(wire: str) -> None:
    """Rules W3, W5: the client gets one answer for both turns, without any part of the hidden call."""
    answer, requests = await one(wire, PATH, ASK, *UPSTREAMS[wire])
    assert (answer.status, answer.header("content-type")) == (200, LINES)
    read = read_stream(answer.body)
    assert (read.text, read.calls, read.error) == ("Wait. It is noon.", [], "")
    assert read.thinking == ("Hm." if wire in ("anthropic", "ollama") else "")
    assert read.last["done_reason"] == "stop"
    assert read.last.get("eval_count", 0) > 0 or wire == "responses"  # This script reports no usage.
    assert ECHO.encode() not in answer.body
    first: Any = json.loads(requests[0].body)
    assert first["model"] == ("m:latest" if wire == "ollama" else "m")
    assert first.get("stream") is (None if wire == "ollama" else True)
    for name in LIMITS[wire]:
        first = first[name]
    assert first == 500
    assert len(requests) == 2


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
async def test_an_ollama_clients_mixed_turn_on_any_upstream(wire: str) -> None:
    """Rules W5, R4: the client returns its call without an id, and the proxy restores the hidden call."""
    ask = {**ASK, "tools": [tool("mine")]}
    mixed: dict[str, list[Step]] = {
        "chat": stream(
            role(), call("call_1", ECHO, SAY), call("call_2", "mine", '{"a":1}', 1), finish("tool_calls")
        ),
        "responses": responses.stream(
            responses.function_call("call_1", ECHO, SAY), responses.function_call("call_2", "mine", '{"a":1}')
        ),
        "anthropic": messages.stream(tool_use("toolu_1", ECHO, SAID), tool_use("toolu_2", "mine", {"a": 1})),
    }
    async with upstream_of(wire, mixed[wire], UPSTREAMS[wire][1]) as (proxy, upstream):
        read = read_stream((await proxy.ask(ask, path=PATH)).body)
        assert read.called() == [("mine", {"a": 1})]
        back = [assistant("", ollama_call("mine", {"a": 1})), {"role": "tool", "content": "mine too"}]
        again = await proxy.ask({**ask, "messages": [*ask["messages"], *back]}, path=PATH)
        assert read_stream(again.body).text == "It is noon."
        sent = upstream.requests[1].body
    assert ECHO.encode() in sent
    assert b"noon" in sent
    assert b"mine too" in sent


async def test_an_ollama_client_gets_one_object() -> None:
    """Without a stream, the client gets one object with the text and its own call."""
    ask = {**ASK, "stream": False, "tools": [tool("mine")]}
    script = messages.reply(text("Hm."), tool_use("toolu_2", "mine", {"a": 1}))
    answer, _ = await one("anthropic", PATH, ask, script)
    read = read_reply(answer.body)
    assert answer.header("content-type") == "application/json"
    assert (read.text, read.called()) == ("Hm.", [("mine", {"a": 1})])


async def test_what_no_other_dialect_can_say_is_named() -> None:
    """A header names an option that the upstream lacks, and an unknown field, which Ollama would ignore."""
    answer, _ = await one("chat", PATH, {**ASK, "options": {"mirostat": 1}}, UPSTREAMS["chat"][1])
    assert answer.header("x-toolrelay-left-out") == "options.mirostat"
    answer, requests = await one("chat", PATH, {**ASK, "odd": 1}, UPSTREAMS["chat"][1])
    assert (answer.status, answer.header("x-toolrelay-left-out")) == (200, "odd, options.num_ctx")
    assert b"odd" not in requests[0].body


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
async def test_a_lost_upstream_is_an_error_line(wire: str) -> None:
    """Rule E1: an early end is an error, because Ollama's Python client takes it for a whole answer."""
    begun = {
        "chat": content("It"),
        "responses": responses.encode(responses.opening()),
        "anthropic": messages.start(),
    }[wire]
    for end in ([FIN], [chunk(b"")]):
        lost: list[Step] = [
            head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"), chunk(begun), *end,
        ]  # fmt: skip
        answer, _ = await one(wire, PATH, ASK, lost)
        said_error = answer.json["error"] if answer.status >= 400 else read_stream(answer.body).error
        assert said_error


# ---------------------------------------------------------------- other clients on Ollama upstreams


async def test_a_chat_client_sees_a_run_on_an_ollama_upstream() -> None:
    """The client gets the thinking as reasoning, and the upstream gets it back in the next turn."""
    answer, requests = await one("ollama", CHAT_PATH, CHAT_ASK, *UPSTREAMS["ollama"])
    read = check_chat_stream(answer.body, wants_usage=False, hidden=(ECHO, "call_1"))
    assert (read.text, read.reasoning, read.finish) == ("Wait. It is noon.", "Hm.", "stop")
    assert requests[0].target == PATH
    first, second = (json.loads(request.body) for request in requests)
    assert first["stream"] is True
    made, answered = second["messages"][1:]
    assert made["thinking"] == "Hm."
    assert made["tool_calls"][0]["function"]["arguments"] == SAID
    assert (answered["role"], answered["tool_name"]) == ("tool", ECHO)


async def test_a_responses_client_sees_a_run_on_an_ollama_upstream() -> None:
    """The client gets one whole response, without any part of the hidden call."""
    answer, _ = await one("ollama", RESPONSES_PATH, RESPONSES_ASK, *UPSTREAMS["ollama"])
    read = check_response_stream(answer.body, hidden=(ECHO, "call_1"))
    assert read.response["output"][-1]["content"][0]["text"] == "It is noon."


async def test_a_messages_client_sees_a_run_on_an_ollama_upstream() -> None:
    """The client gets one message with the text and usage of both turns, and thinking with our signature."""
    answer, _ = await one("ollama", MESSAGES_PATH, MESSAGES_ASK, *UPSTREAMS["ollama"])
    read = messages.read_stream(answer.body)
    thought = messages.thinking("Hm.", signature="toolrelay-translated")
    assert read.blocks == [thought, text("Wait. "), text("It is noon.")]
    assert ECHO.encode() not in answer.body
    assert (read.message["stop_reason"], read.message["usage"]["output_tokens"]) == ("end_turn", 14)


async def test_a_chat_clients_mixed_turn_on_an_ollama_upstream() -> None:
    """Rules W5, R4: the proxy gives a call without an id one, and finds the turn by it."""
    ask = {**CHAT_ASK, "tools": [tool("mine")]}
    mixed = ollama_stream("", ollama_call(ECHO, SAID), ollama_call("mine", {"a": 1}))
    async with upstream_of("ollama", mixed, ollama_stream("Both.")) as (proxy, upstream):
        read = check_chat_stream((await proxy.ask(ask)).body, wants_usage=False, hidden=(ECHO,))
        (shown,) = read.calls
        made = {"id": shown.id, "type": "function", "function": {"name": "mine", "arguments": '{"a":1}'}}
        returned = [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": shown.id, "content": "mine too"},
        ]
        again = await proxy.ask({**ask, "messages": [*ask["messages"], *returned]})
        assert check_chat_stream(again.body, wants_usage=False).text == "Both."
        sent = json.loads(upstream.requests[1].body)["messages"]
    assert [one["function"]["name"] for one in sent[1]["tool_calls"]] == [ECHO, "mine"]
    assert [one["tool_name"] for one in sent[2:]] == [ECHO, "mine"]
    assert sent[1]["content"] == ""


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "mine"}}])
async def test_a_choice_that_ollama_has_not_is_refused(choice: Any) -> None:
    """An Ollama upstream cannot force a call: such a ``tool_choice`` gets a 400 that names the field."""
    ask = {**CHAT_ASK, "tools": [tool("mine")], "tool_choice": choice}
    answer, requests = await one("ollama", CHAT_PATH, ask, ollama_stream("Hm."))
    assert (answer.status, answer.json["error"]["param"]) == (400, "tool_choice")
    assert not requests


@pytest.mark.parametrize("end", [[FIN], [chunk(b"")]])
async def test_an_ollama_upstream_that_is_lost_is_an_error_of_chat(end: list[Step]) -> None:
    """Rule E1: the client gets an error, whether the upstream's connection breaks or its stream just ends."""
    lost: list[Step] = [
        head(f"Content-Type: {LINES}", "Transfer-Encoding: chunked"), chunk(said("It")), *end,
    ]  # fmt: skip
    answer, _ = await one("ollama", CHAT_PATH, CHAT_ASK, lost)
    assert b'"error"' in answer.body


@pytest.mark.parametrize("size", [1, 7])
async def test_in_pieces_of_any_size(size: int) -> None:
    """Rule W6: the client's answer does not depend on how the network cut the upstream's lines."""
    body = turn("It is “noon”.", ollama_call("mine", {"a": "é"}, "call_1"), thinking="Hm.")
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    ask = {**CHAT_ASK, "tools": [tool("mine")]}
    answer, _ = await one("ollama", CHAT_PATH, ask, chunked(*pieces, content_type=LINES))
    read = check_chat_stream(answer.body, wants_usage=False)
    assert (read.text, read.reasoning) == ("It is “noon”.", "Hm.")
    assert json.loads(read.calls[0].arguments) == {"a": "é"}
    own, _ = await one("ollama", PATH, {**ASK, "tools": [tool("mine")]}, chunked(*pieces, content_type=LINES))
    assert own.body == body
    assert isinstance(read_stream(own.body), Read)
