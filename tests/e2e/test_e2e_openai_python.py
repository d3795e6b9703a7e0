"""The official ``openai`` package for Python reads the proxy's answers; every warning is an error."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import openai
import pytest
import pytest_asyncio
from e2e_rig import CORE_TOOLS, Proxy, ProxyFor, golden_file, is_orchestrated, proxy_for
from fixture_loader import Exchange, all_exchanges, exchange
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import (
    ChatCompletionChunk,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
)
from pydantic import BaseModel
from sse_check import check_chat_stream

from proxy.config.settings import LimitsConfig, ToolsConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

T = TypeVar("T")
BOTH = exchange("demo/both")
MIXED = exchange("openai.chat/mixed-calls")
STREAMED = [e for e in all_exchanges() if e.wire == "chat" and is_orchestrated(e) and e.streams]
# Streams that end in an error event, with its code; and streams in dialects only a raw reader can take.
FAILING = {
    "openai.chat/connection-lost": "upstream_broken",
    "openai.chat/error-event": None,
    "openai.chat/second-turn-refused": "content_policy_violation",
    "ollama.chat/truncated": "upstream_broken",
}
CUT_OFF = "openai.chat/length-in-arguments"
FOREIGN = {"perplexity.chat/cumulative-usage", "mistral.chat/content-parts"}
READABLE = [e for e in STREAMED if e.name not in FAILING]


class LocalTime(BaseModel):
    """What the model is asked to answer with."""

    city: str
    time: str


def client_of(proxy: Proxy) -> AsyncOpenAI:
    """The SDK as a user makes it: another base URL, nothing else. Nothing is retried in a test."""
    return AsyncOpenAI(base_url=proxy.base_url, api_key="unused", max_retries=0)


async def with_sync_client(proxy: Proxy, use: Callable[[OpenAI], T]) -> T:
    """Use the synchronous SDK in a thread, so that the proxy in this loop can answer it."""

    def work() -> T:
        with OpenAI(base_url=proxy.base_url, api_key="unused", max_retries=0) as client:
            return use(client)

    return await asyncio.to_thread(work)


def arguments_of(fixture: Exchange, position: int = 0) -> dict[str, Any]:
    """Return the client's request of an exchange as keyword arguments, without ``stream``."""
    return {key: value for key, value in fixture.client_requests[position].items() if key != "stream"}


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    """The text of a stream."""
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(shared_proxy: ProxyFor) -> Proxy:
    """A proxy with all recordings as its upstream, in the same process."""
    return await shared_proxy("replay")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    """The asynchronous SDK."""
    async with client_of(proxy) as made:
        yield made


# Streams.


@pytest.mark.parametrize("fixture", READABLE, ids=lambda e: e.name)
async def test_every_stream_is_read(fixture: Exchange, way: str, shared_proxy: ProxyFor) -> None:
    """``create(stream=True)`` reads from each exchange what its golden stream says."""
    proxy = await shared_proxy(way)
    async with client_of(proxy) as client:
        stream = await client.chat.completions.create(**arguments_of(fixture), stream=True)
        chunks = [chunk async for chunk in stream]
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert len(finishes) == 1
    assert chunks[-1].usage is not None
    assert len({chunk.id for chunk in chunks} - {""}) == 1
    if fixture.name in FOREIGN:
        return
    golden = check_chat_stream(golden_file(fixture, 0).read_bytes(), wants_usage=True, forwarded=10**6)
    assert text_of(chunks) == golden.text
    assert finishes == [golden.finish]
    assert chunks[-1].usage.model_dump(exclude_none=True) == golden.usage


@pytest.mark.parametrize(
    "fixture", [e for e in READABLE if e.name not in (*FOREIGN, CUT_OFF)], ids=lambda e: e.name
)
async def test_every_stream_is_put_together(fixture: Exchange, client: AsyncOpenAI) -> None:
    """``chat.completions.stream()`` accumulates each exchange into one whole completion."""
    async with client.chat.completions.stream(**arguments_of(fixture)) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    golden = check_chat_stream(golden_file(fixture, 0).read_bytes(), wants_usage=True, forwarded=10**6)
    (choice,) = final.choices
    assert (choice.message.content or "") == golden.text
    assert choice.finish_reason == golden.finish
    assert [call.id for call in choice.message.tool_calls or ()] == [call.id for call in golden.calls]
    assert final.usage is not None
    assert final.usage.model_dump(exclude_none=True) == golden.usage
    assert ("content.done" in kinds) == bool(golden.text)
    if not fixture.name.startswith("openrouter"):  # Its own first turn says the role in every delta.
        assert choice.message.role == "assistant"


@pytest.mark.parametrize("name", FAILING)
async def test_a_failure_inside_a_stream_is_raised(name: str, client: AsyncOpenAI) -> None:
    """The SDK reads the chunks before the failure, then raises an error with message and code."""
    chunks: list[ChatCompletionChunk] = []
    stream = await client.chat.completions.create(**arguments_of(exchange(name)), stream=True)

    async def read() -> None:
        async for chunk in stream:
            chunks.append(chunk)  # noqa: PERF401 (a comprehension would lose them on the error)

    with pytest.raises(openai.APIError) as caught:
        await read()
    assert caught.value.code == FAILING[name]
    assert caught.value.message
    assert chunks
    assert all(c.choices[0].finish_reason is None for c in chunks if c.choices)


async def test_an_answer_that_was_cut_off_is_told_as_that(client: AsyncOpenAI) -> None:
    """If arguments are cut off, ``length`` reaches the SDK, and its helper raises an error."""
    async with client.chat.completions.stream(**arguments_of(exchange(CUT_OFF))) as stream:
        with pytest.raises(openai.LengthFinishReasonError):
            await stream.get_final_completion()


async def test_a_stream_is_read_by_the_synchronous_client(proxy: Proxy) -> None:
    """The synchronous client reads the same text, chunk by chunk and with its stream helper."""

    def use(client: OpenAI) -> tuple[str, str | None]:
        stream = client.chat.completions.create(**arguments_of(BOTH), stream=True)
        with client.chat.completions.stream(**arguments_of(BOTH)) as helper:
            final = helper.get_final_completion()
        return text_of(list(stream)), final.choices[0].message.content

    raw, put_together = await with_sync_client(proxy, use)
    assert "14:05" in raw
    assert "7.4" in raw
    assert put_together == raw


async def test_each_request_gets_an_id_of_its_own(client: AsyncOpenAI) -> None:
    """Rule W4: each response has one id of its own, even if the same recording answers twice."""
    ids = []
    for _ in range(2):
        stream = await client.chat.completions.create(**arguments_of(BOTH), stream=True)
        ids.append({chunk.id async for chunk in stream})
    assert [len(found) for found in ids] == [1, 1]
    assert ids[0] != ids[1]


async def test_many_streams_at_once_do_not_mix(client: AsyncOpenAI) -> None:
    """Each of many concurrent streams has its own text, usage and id."""

    async def ask(fixture: Exchange) -> list[ChatCompletionChunk]:
        stream = await client.chat.completions.create(**arguments_of(fixture), stream=True)
        return [chunk async for chunk in stream]

    wanted = [e for e in READABLE if e.name not in FOREIGN] * 2
    streams = await asyncio.gather(*(ask(fixture) for fixture in wanted))
    for fixture, chunks in zip(wanted, streams, strict=True):
        golden = check_chat_stream(golden_file(fixture, 0).read_bytes(), wants_usage=True, forwarded=10**6)
        assert text_of(chunks) == golden.text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.model_dump(exclude_none=True) == golden.usage
    ids = [{chunk.id for chunk in chunks} - {""} for chunks in streams]
    assert [len(found) for found in ids] == [1] * len(wanted)
    assert len(set().union(*ids)) == len(wanted)


# Whole replies.


@pytest.mark.parametrize("name", ["demo/both", "demo/time", "demo/weather", "demo/plain"])
async def test_a_reply_that_is_not_streamed(name: str, client: AsyncOpenAI) -> None:
    """A reply has the same text as the stream, the usage of all turns and no server call."""
    fixture = exchange(name)
    arguments = {k: v for k, v in arguments_of(fixture).items() if k != "stream_options"}
    reply = await client.chat.completions.create(**arguments)
    golden = check_chat_stream(golden_file(fixture, 0).read_bytes(), wants_usage=True, forwarded=10**6)
    assert reply.choices[0].message.content == golden.text
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.tool_calls is None
    assert reply.usage is not None
    assert golden.usage is not None
    assert reply.usage.total_tokens == golden.usage["total_tokens"]


async def test_a_parsed_reply(client: AsyncOpenAI) -> None:
    """``parse()`` gets one JSON text, although the turn with the tool call had one, too."""
    fixture = exchange("openai.chat/structured-answer")
    reply = await client.chat.completions.parse(
        model=fixture.client_request["model"],
        messages=fixture.client_request["messages"],
        response_format=LocalTime,
    )
    assert reply.choices[0].message.parsed == LocalTime(city="Berlin", time="14:05")


async def test_a_parsed_stream(client: AsyncOpenAI) -> None:
    """The stream helper parses the answer, and every snapshot is the beginning of one JSON text."""
    fixture = exchange("openai.chat/structured-answer")
    async with client.chat.completions.stream(
        model=fixture.client_request["model"],
        messages=fixture.client_request["messages"],
        response_format=LocalTime,
    ) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == LocalTime(city="Berlin", time="14:05")
    whole = '{"city":"Berlin","time":"14:05"}'
    assert snapshots
    assert all(whole.startswith(snapshot) for snapshot in snapshots)


# The client's own tools.


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_tool_beside_server_tools(way: str, streamed: bool, shared_proxy: ProxyFor) -> None:
    """The client sees only its own call and answers it; the model gets both results in order."""
    proxy = await shared_proxy(way)
    arguments = arguments_of(MIXED)
    if not streamed:
        del arguments["stream_options"]
    messages: list[Any] = list(arguments.pop("messages"))
    async with client_of(proxy) as client:

        async def ask() -> Any:
            if not streamed:
                return (await client.chat.completions.create(**arguments, messages=messages)).choices[0]
            async with client.chat.completions.stream(**arguments, messages=messages) as stream:
                return (await stream.get_final_completion()).choices[0]

        choice = await ask()
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert call.function.name == "lookup_order"
        assert json.loads(call.function.arguments) == {"order_id": "A-1001"}
        messages.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
        for sent in messages[-1]["tool_calls"]:
            sent["function"].pop("parsed_arguments", None)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"status": "shipped"}'})
        answer = await ask()
    assert answer.finish_reason == "stop"
    assert answer.message.content == "It is 14:05, and the order has shipped."
    told = proxy.upstream_requests[-1]["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool"]
    assert [call["function"]["name"] for call in told[1]["tool_calls"]] == [CORE_TOOLS[0], "lookup_order"]
    assert [message["tool_call_id"] for message in told[2:]] == [c["id"] for c in told[1]["tool_calls"]]
    assert "14:05" in told[2]["content"]
    assert "shipped" in told[3]["content"]


# Headers.


async def test_headers_of_a_run(proxy: Proxy, client: AsyncOpenAI) -> None:
    """The headers have the client's request id, the upstream's, and the id of the recorded run."""
    raw = await client.chat.completions.with_raw_response.create(
        **arguments_of(BOTH), stream=True, extra_headers={"x-request-id": "my-request.1"}
    )
    stream = raw.parse()
    assert [chunk async for chunk in stream]
    assert raw.headers["x-request-id"] == "my-request.1"
    assert raw.headers["x-upstream-request-id"].startswith("req_")
    rows = await proxy.invocations(raw.headers["x-toolrelay-run"])
    assert [row.tool for row in sorted(rows, key=lambda row: row.seq)] == list(CORE_TOOLS)


async def test_tools_are_chosen_by_a_header(proxy: Proxy, client: AsyncOpenAI) -> None:
    """``x-toolrelay-tools`` chooses the server tools of a request: none, one by name, or all."""
    plain = exchange("demo/plain")
    for header, names in (("none", []), (CORE_TOOLS[1], [CORE_TOOLS[1]]), ("all", list(CORE_TOOLS))):
        proxy.upstream_requests.clear()
        stream = await client.chat.completions.create(
            **arguments_of(plain), stream=True, extra_headers={"x-toolrelay-tools": header}
        )
        assert text_of([chunk async for chunk in stream]).startswith("Rivers")
        (sent,) = proxy.upstream_requests
        assert [tool["function"]["name"] for tool in sent.get("tools", ())] == names


async def test_traces_are_read_without_harm() -> None:
    """The SDK reads the stream of each trace mode; the text stays whole, and both calls are shown."""
    async with (
        proxy_for("replay", tools=ToolsConfig(trace_max="events")) as proxy,
        client_of(proxy) as client,
    ):

        async def ask(trace: str) -> list[ChatCompletionChunk]:
            stream = await client.chat.completions.create(
                **arguments_of(BOTH), stream=True, extra_headers={"x-toolrelay-trace": trace}
            )
            return [chunk async for chunk in stream]

        silent = text_of(await ask("silent"))
        events = await ask("events")
        shown = [found for c in events if (found := (c.model_extra or {}).get("x_toolrelay"))]
        assert text_of(events) == silent
        assert [e["type"] for e in shown].count("tool_call") == 2
        for call in [e for e in shown if e["type"] == "tool_call"]:
            (result,) = [e for e in shown if e["type"] == "tool_result" and e["call_id"] == call["call_id"]]
            assert shown.index(call) < shown.index(result)
            assert result["status"] == "completed"
        reasoning = await ask("reasoning")
        thought = "".join(
            (c.choices[0].delta.model_extra or {}).get("reasoning_content") or ""
            for c in reasoning
            if c.choices
        )
        assert text_of(reasoning) == silent
        assert all(name in thought for name in CORE_TOOLS)
        status = text_of(await ask("status"))
        assert status.endswith(silent)
        assert all(name in status for name in CORE_TOOLS)


# Errors.


async def test_a_mistake_of_the_client_names_its_field(client: AsyncOpenAI) -> None:
    """Rule E1: a 400 is a BadRequestError with the field's name."""
    fixture = exchange("demo/plain")
    question = fixture.client_request["messages"][0]
    orphan: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": "call_nobody", "content": "{}"}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model=fixture.client_request["model"], messages=[question, orphan]
        )
    assert caught.value.param == "messages[1].tool_call_id"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model=fixture.client_request["model"],
            messages=[question],
            n=2,
            extra_headers={"x-toolrelay-tools": CORE_TOOLS[0]},
        )
    assert caught.value.param == "n"


@pytest.mark.parametrize("name", ["core__get_nothing", "no_such_tool"])
async def test_a_tool_that_cannot_be_had(name: str, client: AsyncOpenAI) -> None:
    """The name of a tool that is not offered is a 400 that names the header."""
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            **arguments_of(BOTH), stream=True, extra_headers={"x-toolrelay-tools": name}
        )
    assert caught.value.param == "x-toolrelay-tools"


async def test_a_question_that_was_not_recorded(client: AsyncOpenAI) -> None:
    """The upstream's 404 reaches the client, with its code and the field that differs from a recording."""
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(
            model=BOTH.client_request["model"],
            messages=[{"role": "user", "content": "What time is it in Bern?"}],
        )
    assert caught.value.code == "no_fixture"
    assert "messages[0].content" in caught.value.message


async def test_an_endpoint_that_was_not_recorded(client: AsyncOpenAI) -> None:
    """Other endpoints are passed through, so the SDK raises the upstream's own error."""
    with pytest.raises(openai.NotFoundError) as caught:
        await client.embeddings.create(model="text-embedding-3-small", input="rivers")
    assert caught.value.code == "no_fixture"
    assert "/embeddings" in caught.value.message


async def test_a_limit_that_is_reached() -> None:
    """Above a limit, the SDK raises RateLimitError with Retry-After."""
    async with (
        proxy_for("replay", limits=LimitsConfig(requests=("1/minute",))) as proxy,
        client_of(proxy) as client,
    ):
        assert (await client.models.list()).data
        with pytest.raises(openai.RateLimitError) as caught:
            await client.models.list()
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) > 0


# Models.


async def test_models(client: AsyncOpenAI) -> None:
    """The SDK lists the recorded models and retrieves one; an unknown one is not found."""
    names = {model.id async for model in client.models.list()}
    assert BOTH.client_request["model"] in names
    assert (await client.models.retrieve(BOTH.client_request["model"])).object == "model"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("no-such-model")


async def test_models_whose_names_have_a_slash(proxy: Proxy) -> None:
    """A model whose name has a slash can be retrieved."""
    answer = await proxy.ask("/models/anthropic/claude-sonnet-4.5", method="GET")
    assert answer.status == 200
    assert json.loads(answer.body)["id"] == "anthropic/claude-sonnet-4.5"
