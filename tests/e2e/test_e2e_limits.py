"""At a limit, the official ``openai`` package raises its own error, or waits and retries."""

import asyncio
from typing import Any

import openai
import pytest
import responses_script
from chat_script import reply
from openai import AsyncOpenAI
from raw_upstream import RawUpstream
from running_proxy import make_config, running

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_raises_rate_limit_error(wire: str, stream: bool) -> None:
    """RateLimitError has the code, type, Retry-After and the rest of the limit, on both wires."""
    script = reply("Hi") if wire == "chat" else responses_script.reply(responses_script.message("Hi"))
    limits = {"requests": ["1/minute"], "tokens": ["1000/minute"]}
    async with (
        RawUpstream(script) as upstream,
        running(make_config(upstream.url, limits=limits)) as proxy,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0) as client,
    ):

        async def ask(stream: bool) -> Any:
            if wire == "chat":
                return await client.chat.completions.create(**ASK, stream=stream)
            return await client.responses.create(model="m", input="hi", stream=stream)

        await ask(False)
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(stream)
        error = caught.value
        assert (error.status_code, error.code, error.type) == (429, "rate_limit_exceeded", "rate_limit_error")
        assert "requests: 1 per minute (limits.requests)" in error.message
        headers = error.response.headers
        assert 1 <= int(headers["retry-after"]) <= 60
        assert int(headers["retry-after-ms"]) <= 60_000
        assert headers["x-ratelimit-limit-requests"] == "1"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        assert headers["x-request-id"]


async def test_the_client_waits_as_it_is_told() -> None:
    """With its own retries, the client waits until the limit allows it, and every request succeeds."""
    async with (
        RawUpstream(reply("Hi")) as upstream,
        running(make_config(upstream.url, allow=(), limits={"requests": ["2/second"]})) as proxy,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=9) as client,
    ):
        answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(4)))
        assert [answer.choices[0].message.content for answer in answers] == ["Hi"] * 4
        assert len(upstream.requests) == 4
