"""The official ``anthropic`` package for Python, every warning an error.

The provider behind the proxy refuses whatever Anthropic would refuse, so that an answer shows not only what
the client got but that each request of the run was well-formed.
"""

import importlib.util
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from messages_script import error_event, reply, start, stream, text, thinking, tool, tool_use
from raw_upstream import FIN, RawUpstream, Step, chunk, chunked, head, whole
from require import require
from running_proxy import make_config, running

HAS_ANTHROPIC = importlib.util.find_spec("anthropic") is not None

TIME = "core__get_current_time"
SERVER = tool_use("toolu_s", TIME, {"timezone": "UTC"})
MINE = tool_use("toolu_c", "mine", {"a": 1})
HI: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def talking(*scripts: Sequence[Step], **config: Any) -> AsyncIterator[tuple[Any, RawUpstream]]:
    """Yield a client of a proxy, and the provider behind it, which plays one script per request."""
    require("anthropic", HAS_ANTHROPIC, "the extra readers is not installed")
    from anthropic import AsyncAnthropic

    async with RawUpstream(*scripts) as upstream:
        served = {"base_url": upstream.url, "wires": ["anthropic"]}
        async with running(make_config(served, **config)) as proxy:
            base_url = f"http://127.0.0.1:{proxy.port}"
            async with AsyncAnthropic(base_url=base_url, api_key="client", max_retries=0) as client:
                yield client, upstream


async def ask(client: Any, streaming: bool, **arguments: Any) -> Any:
    """Return one message, from the package's stream helper or not streamed."""
    arguments = {"model": "m", "max_tokens": 500, "messages": HI, **arguments}
    if not streaming:
        return await client.messages.create(**arguments)
    async with client.messages.stream(**arguments) as events:
        return await events.get_final_message()


def said(streaming: bool, *blocks: Any, id: str = "msg_1") -> list[Step]:
    """A turn, streamed or not."""
    return stream(*blocks, id=id) if streaming else reply(*blocks, id=id)


both_ways = pytest.mark.parametrize("streaming", [True, False])


@both_ways
async def test_a_server_tool_is_run(streaming: bool) -> None:
    """The client gets one message with the blocks and the usage of both turns."""
    scripts = (
        said(streaming, thinking("Hm."), text("Wait. "), SERVER),
        said(streaming, thinking("So."), text("It is noon."), id="msg_2"),
    )
    async with talking(*scripts) as (client, upstream):
        message = await ask(client, streaming)
        assert [block.type for block in message.content] == ["thinking", "text", "thinking", "text"]
        assert message.content[0].signature == "c2ln"
        assert (message.stop_reason, message.usage.output_tokens, message.usage.input_tokens) == (
            "end_turn",
            14,
            20,
        )
        assert len(upstream.requests) == 2


@both_ways
async def test_the_client_runs_its_own_tools_beside_ours(streaming: bool) -> None:
    """The client sends its messages back as the package has them, and every request is well-formed."""
    scripts = (
        said(streaming, thinking("Hm."), SERVER, MINE),
        said(streaming, tool_use("toolu_t", TIME, {"timezone": "UTC"}), id="msg_2"),
        said(streaming, text("Done."), id="msg_3"),
        said(streaming, text("Bye."), id="msg_4"),
    )
    async with talking(*scripts) as (client, upstream):
        tools = [tool("mine")]
        first = await ask(client, streaming, tools=tools)
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert (call.name, call.input, first.stop_reason) == ("mine", {"a": 1}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "ok"}
        history = [
            *HI,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = await ask(client, streaming, tools=tools, messages=history)
        assert [block.text for block in second.content] == ["Done."]
        history += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "Bye"}]
        third = await ask(client, streaming, tools=tools, messages=history)
        assert (third.content[0].text, len(upstream.requests)) == ("Bye.", 4)


async def test_traces_are_passed_over() -> None:
    """The package reads the stream of each trace mode, and its message can be sent back."""
    for trace in ("events", "reasoning", "status"):
        scripts = stream(SERVER), stream(text("It is noon."), id="msg_2"), stream(text("Yes."), id="msg_3")
        async with talking(*scripts, tools={"trace": trace, "trace_max": "events"}) as (client, _):
            message = await ask(client, True)
            assert message.content[-1].text == "It is noon."
            history = [
                *HI,
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": "?"},
            ]
            assert (await ask(client, True, messages=history)).content[-1].text == "Yes."


LOST = [head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"), chunk(start()), FIN]


@pytest.mark.parametrize("allow", [(), ("core__*",)])
@pytest.mark.parametrize("script", [chunked(start()), LOST, chunked(start() + error_event())])
async def test_a_lost_stream_raises(script: Sequence[Step], allow: Sequence[str]) -> None:
    """If the upstream's stream is lost or has an error, the package raises an error."""
    async with talking(script, allow=allow) as (client, _):
        import anthropic

        with pytest.raises(anthropic.APIStatusError):
            await ask(client, True)


async def test_errors_have_their_classes() -> None:
    """Errors of the upstream and of the proxy raise the package's classes, with their request ids."""
    overloaded = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    async with talking(whole(overloaded, "request-id: req_up", status="529 Overloaded")) as (client, _):
        import anthropic

        with pytest.raises(anthropic.InternalServerError) as failed:
            await ask(client, False)
        assert (failed.value.status_code, failed.value.request_id) == (529, "req_up")
        with pytest.raises(anthropic.BadRequestError) as refused:
            await ask(client, False, tools=[tool("a"), tool("a")])
        assert refused.value.request_id
        assert "declared twice" in str(refused.value)


async def test_tokens_are_counted() -> None:
    """The upstream counts tokens."""
    async with talking(whole(b'{"input_tokens":12}')) as (client, _):
        counted = await client.messages.count_tokens(model="m", messages=HI)
        assert counted.input_tokens == 12


@both_ways
@pytest.mark.parametrize("ours", [False, True])
async def test_the_tool_runner_goes_on_with_the_whole_conversation(
    streaming: bool, ours: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The helper for tools asks for a thread unasked; the refusal lets it send everything instead."""
    second = said(streaming, text("It is one."), id="msg_2")
    allow = ("core__*",) if ours else ()
    async with talking(said(streaming, MINE), second, allow=allow) as (client, upstream):
        from anthropic import beta_async_tool

        @beta_async_tool
        async def mine(a: int) -> str:
            """Mine."""
            return f"got {a}"

        runner = client.beta.messages.tool_runner(
            model="m", max_tokens=500, messages=HI, tools=[mine], stream=streaming
        )
        with caplog.at_level(logging.INFO, "anthropic"):
            message = await runner.until_done()
    assert "cannot thread this request" in caplog.text
    assert message.content[-1].text == "It is one."
    first, last = (json.loads(request.body) for request in upstream.requests)
    assert "thread" not in first
    assert "thread" not in last
    assert (TIME in [each["name"] for each in first["tools"]]) is ours
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "user"]
    assert last["messages"][2]["content"][0]["content"] in ("got 1", [{"type": "text", "text": "got 1"}])


@pytest.mark.accepts("messages-fields", why="Anthropic takes thread with its beta header")
async def test_a_thread_is_for_an_upstream_that_keeps_it() -> None:
    """Anthropic keeps threads itself, so a request without server tools passes; others cannot be asked."""
    asked = {"model": "m", "max_tokens": 9, "messages": HI, "thread": {"type": "create"}}
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    for native, wires, allow, passes in (
        (("*",), ("anthropic",), (), True),
        (("*",), ("anthropic",), ("core__*",), False),
        ((), ("anthropic",), (), False),
        (("*",), ("chat",), (), False),
    ):
        async with RawUpstream(said(False, text("Hi."))) as upstream:
            served = {"base_url": upstream.url, "wires": wires, "native": native}
            async with running(make_config(served, allow=allow)) as proxy:
                answer = await proxy.ask(asked, path="/v1/messages")
        assert (answer.status == 200) is passes
        assert len(upstream.requests) == passes
        if passes:
            assert json.loads(upstream.requests[0].body)["thread"] == asked["thread"]
        else:
            assert answer.json["error"]["type"] == "invalid_request_error"
            assert answer.json["error"]["details"] == details
