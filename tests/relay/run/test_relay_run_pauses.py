"""Paused turns of a Messages upstream: the proxy continues them for clients of other dialects."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import messages_script as messages
import pytest
from messages_script import text, thinking, tool_use
from pair_kits import SPEAKERS, Message
from raw_upstream import RawUpstream, Script
from running_proxy import Proxy, make_config, running

QUESTION = Message("user", "What is new?")
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": "x"}}
CLIENTS = ("chat", "responses", "ollama")
THOUGHT = thinking("Hm.", "c2ln")
FIRST = (THOUGHT, text("Wait. "), SEARCH)


@asynccontextmanager
async def pausing(*scripts: Script, **config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy without server tools before a Messages upstream that plays a script a turn."""
    async with (
        RawUpstream(*scripts) as upstream,
        running(
            make_config({"base_url": upstream.url, "wires": ("anthropic",)}, allow=(), **config)
        ) as proxy,
    ):
        yield proxy, upstream


def turn(*blocks: Any, stream: bool = True, reason: str = "pause_turn", **more: Any) -> Script:
    """Return one turn, as a stream or as one reply."""
    make = messages.stream if stream else messages.reply
    return make(*blocks, reason=reason, **more)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_paused_turn_goes_on_for_any_client(client: str, stream: bool) -> None:
    """Rules W3, W4: the client gets one answer with the usage of both turns; the upstream its first turn."""
    speaker = SPEAKERS[client]
    answer = turn(text("News."), reason="end_turn", stream=stream)
    async with pausing(turn(*FIRST, stream=stream), answer) as (proxy, upstream):
        told = await proxy.ask(speaker.ask([QUESTION], stream=stream), path=speaker.path)
    seen = speaker.seen(told, stream=stream)
    assert (seen.text, seen.calls, seen.finish, seen.error) == ("Wait. News.", [], "stop", "")
    assert seen.used == (20, 14)
    assert b"pause" not in told.body
    sent = [json.loads(request.body)["messages"] for request in upstream.requests]
    assert sent[1][:-1] == sent[0]
    assert sent[1][-1] == {"role": "assistant", "content": list(FIRST)}


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_call_of_the_clients_ends_a_paused_turn(client: str) -> None:
    """If a paused turn also calls a client tool, the client acts first, and its next request has the turn."""
    speaker = SPEAKERS[client]
    call = tool_use("toolu_1", "mine", {"a": 1})
    first = messages.stream(*FIRST, call, reason="pause_turn")
    async with pausing(first, turn(text("News."), reason="end_turn")) as (proxy, upstream):
        asked = speaker.ask([QUESTION], tools=["mine"])
        seen = speaker.seen(await proxy.ask(asked, path=speaker.path))
        assert (seen.finish, [one.name for one in seen.calls]) == ("calls", ["mine"])
        back = [QUESTION, *seen.returned, Message("tool", "did", call_id=seen.calls[0].id)]
        again = speaker.ask(back, tools=["mine"])
        assert speaker.seen(await proxy.ask(again, path=speaker.path)).text == "News."
    content = json.loads(upstream.requests[1].body)["messages"][1]["content"]
    assert content == [*FIRST, call]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_turn_that_pauses_for_ever_is_cut_off(client: str, stream: bool) -> None:
    """Rule T7: each pause counts as a turn, and the answer ends with ``length`` when none is left."""
    speaker = SPEAKERS[client]
    paused = [turn(*FIRST, stream=stream) for _ in range(3)]
    async with pausing(*paused, tools={"max_turns": 2}) as (proxy, upstream):
        seen = speaker.seen(
            await proxy.ask(speaker.ask([QUESTION], stream=stream), path=speaker.path), stream=stream
        )
        assert (seen.text, seen.finish) == ("Wait. " * 3, "length")
        detail = await proxy.only_run()
    assert len(upstream.requests) == 3
    assert (detail.run.turns, detail.run.finish_reason) == (3, "length")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_messages_client_is_shown_the_pause(stream: bool) -> None:
    """Rule W1: a Messages client gets the pause unchanged, because it can continue the turn itself."""
    async with pausing(turn(*FIRST, stream=stream)) as (proxy, upstream):
        asked = SPEAKERS["anthropic"].ask([QUESTION], stream=stream)
        told = await proxy.ask(asked, path="/v1/messages")
    assert b'"pause_turn"' in told.body
    assert len(upstream.requests) == 1


async def test_a_completion_goes_on() -> None:
    """The proxy continues a paused turn for Ollama's completions, too."""
    async with pausing(turn(*FIRST), turn(text("News."), reason="end_turn")) as (proxy, _):
        told = await proxy.ask({"model": "m", "prompt": "What is new?"}, path="/api/generate")
    lines = [json.loads(line) for line in told.body.splitlines()]
    assert "".join(line["response"] for line in lines) == "Wait. News."
    assert [line["done"] for line in lines].count(True) == 1
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"]) == ("stop", 14)
