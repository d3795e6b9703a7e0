"""Ollama's Python client works on upstreams of every dialect, with its own tools and server tools."""

import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import messages_script as messages
import ollama_script as script
import pytest
import responses_script as responses
from chat_script import content, finish, role, stream, usage
from looping import ECHO
from ollama_clients import ASK, SCRIPTS, serving
from raw_upstream import FIN, RawUpstream, Step, chunk, chunked, head, whole
from require import require

ERROR = "upstream"
"""A word of the proxy's message about a lost upstream."""


@asynccontextmanager
async def asking(wire: str, *scripts: Sequence[Step]) -> AsyncIterator[tuple[Any, RawUpstream]]:
    """Yield a client of a proxy with the probe tools, and its upstream of the given dialect."""
    require("ollama", importlib.util.find_spec("ollama") is not None, "the package ollama is not installed")
    from ollama import AsyncClient

    async with serving(wire, *scripts) as (url, upstream):
        client: Any = AsyncClient(url, headers={"Authorization": "Bearer unused"})
        try:
            yield client, upstream
        finally:
            await client.close()


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
      a: The first one.
      b: The second one.

    Returns:
      Their sum.
    """
    return a + b


@pytest.mark.parametrize("wire", SCRIPTS)
async def test_a_program_with_tools_of_its_own(wire: str) -> None:
    """Rules W5, R4: a program's call beside a server call works, though its result has no id."""
    async with asking(wire) as (client, upstream):
        history: list[Any] = [*ASK]
        calls: list[Any] = []
        text = ""
        async for part in await client.chat("m", history, tools=[add], stream=True):
            text += part.message.content or ""
            calls += part.message.tool_calls or []
        assert part.done
        assert part.done_reason == "stop"
        assert [(one.function.name, dict(one.function.arguments)) for one in calls] == [
            ("add", {"a": 1, "b": 2})
        ]
        history.append({"role": "assistant", "content": text, "tool_calls": calls})
        history.append({"role": "tool", "tool_name": "add", "content": str(add(1, 2))})
        answer = ""
        async for part in await client.chat("m", history, tools=[add], stream=True):
            answer += part.message.content or ""
        assert answer == "It is noon."
        sent = upstream.requests[1].body
    assert ECHO.encode() in sent
    assert b"noon" in sent


async def test_an_answer_that_is_not_streamed() -> None:
    """A request without streaming gets one object."""
    reply = messages.reply(messages.text("It is noon."))
    async with asking("anthropic", reply) as (client, _):
        answer = await client.chat("m", ASK)
    assert answer.message.content == "It is noon."
    assert answer.eval_count == 7


@pytest.mark.parametrize("wire", ["chat", "ollama"])
async def test_a_lost_upstream_raises(wire: str) -> None:
    """Rule E1: if the upstream is lost, the client raises an error and takes no part for the whole."""
    kinds = {"chat": "text/event-stream", "ollama": script.LINES}
    begun = {"chat": content("It"), "ollama": script.said("It")}[wire]
    for end in ([FIN], [chunk(b"")]):
        lost: list[Step] = [
            head(f"Content-Type: {kinds[wire]}", "Transfer-Encoding: chunked"), chunk(begun), *end,
        ]  # fmt: skip
        async with asking(wire, lost) as (client, _):
            with pytest.raises(Exception, match=ERROR):
                async for _part in await client.chat("m", ASK, stream=True):
                    pass


async def test_errors_are_told_in_words() -> None:
    """The client raises errors with the message of the upstream or of the proxy."""
    body = b'{"error":{"message":"Too hot.","type":"x","code":"hot"}}'
    refused = [head("Content-Type: application/json", f"Content-Length: {len(body)}", status="429 No") + body]
    async with asking("chat", refused) as (client, _):
        with pytest.raises(Exception, match=r"Too hot\.") as told:
            await client.chat("m", ASK)
        assert (type(told.value).__name__, vars(told.value)["status_code"]) == ("ResponseError", 429)
        with pytest.raises(Exception, match="endpoints"):
            await client.pull("m")


async def test_models_are_listed_and_shown() -> None:
    """The client lists and shows the models of a provider that knows only OpenAI's API."""
    listed = whole(b'{"object":"list","data":[{"id":"gpt-4o"}]}')
    async with asking("chat", listed, listed) as (client, _):
        models = (await client.list()).models
        assert [one.model for one in models] == ["gpt-4o"]
        shown = await client.show("gpt-4o")
        assert "tools" in (shown.capabilities or ())
        assert (await client.ps()).models == []


PLAIN = {
    "chat": stream(role(), content("It ", "is noon."), finish(), usage(7, 4)),
    "responses": responses.stream(responses.message("It is noon.")),
    "anthropic": messages.stream(messages.text("It is noon.")),
    "ollama": chunked(
        b'{"model":"m","created_at":"2026-11-21T10:00:00Z","response":"It is noon.","done":false}\n'
        b'{"model":"m","created_at":"2026-11-21T10:00:00Z","response":"","done":true,"done_reason":"stop"}\n',
        content_type=script.LINES,
    ),
}


@pytest.mark.parametrize("wire", PLAIN)
async def test_a_completion_of_any_upstream(wire: str) -> None:
    """``generate`` gets a completion from an upstream of any dialect."""
    async with asking(wire, PLAIN[wire]) as (client, _):
        parts = [one async for one in await client.generate("m", "Noon?", system="Be brief.", stream=True)]
        assert "".join(one.response for one in parts) == "It is noon."
        assert (parts[-1].done, parts[-1].done_reason) == (True, "stop")


async def test_a_model_is_loaded_and_unloaded() -> None:
    """Requests to load and unload a model succeed and reach no upstream."""
    async with asking("chat") as (client, upstream):
        assert (await client.generate("m")).done_reason == "load"
        assert (await client.generate("m", keep_alive=0)).done_reason == "unload"
        assert (await client.chat("m", keep_alive="5m")).done_reason == "load"
    assert not upstream.requests


async def test_embeddings_pass() -> None:
    """Requests for embeddings pass through to an Ollama server."""
    reply = whole(b'{"model":"m","embeddings":[[0.5,1.0]],"prompt_eval_count":3}')
    async with asking("ollama", reply) as (client, _):
        found = await client.embed("m", "hi")
    assert found.embeddings == [[0.5, 1.0]]
