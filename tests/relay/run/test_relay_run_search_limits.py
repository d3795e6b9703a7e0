"""Tool search where there is little room: for tools in a request, and for results."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from pair_kits import SPEAKERS, Call, Message, Turn
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import Proxy, make_config, running

SEARCH = "core__search_tools"
CHAT = SPEAKERS["chat"]
NAMES = [f"get_rate_{at}" for at in range(12)]
SCHEMA = {"type": "object", "properties": {"symbol": {"type": "string"}}}
DEFERRED = [
    {"name": name, "description": "A rate.", "input_schema": SCHEMA, "defer_loading": True} for name in NAMES
]
SEARCHED = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}


@asynccontextmanager
async def between(*turns: Turn, served: Any = (), **config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy before a Chat upstream whose model takes these turns."""
    left = list(turns)

    def model(request: RawRequest) -> list[Step]:
        return CHAT.script(left.pop(0), stream=json.loads(request.body).get("stream", False))

    async with RawUpstream(model) as raw:
        table = {"base_url": raw.url, "wires": ("chat",), "native": (), **dict(served)}
        async with running(make_config(table, modules=("probe_tools",), **config)) as proxy:
            yield proxy, raw


def messages(mine: int, **fields: Any) -> dict[str, Any]:
    """A request of Messages with a search, deferred tools, and ``mine`` others."""
    others = [{"name": f"mine_{at}", "input_schema": SCHEMA} for at in range(mine)]
    asked = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "What is the rate?"}]}
    return {**asked, "tools": [SEARCHED, *DEFERRED, *others], **fields}


def shown(raw: RawUpstream) -> list[list[str]]:
    """The names of the tools in each request of the upstream, in their order."""
    return [list(CHAT.got(json.loads(request.body)).tools) for request in raw.requests]


@pytest.mark.parametrize(
    ("mine", "server", "found"),
    [(2, ["core__calculate"], 4), (5, ["core__calculate"], 1), (6, [], 1), (7, None, 1), (8, None, 0)],
)
async def test_a_clients_search_stays_within_the_limit(mine: int, server: Any, found: int) -> None:
    """Whatever a client's search finds, no request has more tools than its upstream takes.

    The client's tools have room before the server's. Where there is no room for a search either, as many of
    the deferred tools are shown as there is room for.
    """
    searches = [Turn("", (Call(f"c_{at}", SEARCH, {"query": " ".join(NAMES[3 * at :])}),)) for at in range(3)]
    turns = searches if server is not None else []
    config: dict[str, Any] = {"allow": ("core__calculate",), "tools": {"search_finds": 3}}
    limit = {"profile": {"max_tools": 8}}
    async with between(*turns, Turn("hi"), served=limit, **config) as (proxy, raw):
        answer = await proxy.ask(messages(mine), path="/v1/messages")
        assert answer.status == 200, answer.body
        requests = shown(raw)
        own = [f"mine_{at}" for at in range(mine)]
        begin = own if server is None else [*own, *server, SEARCH]
        assert requests[0][: len(begin)] == begin
        assert requests[-1] == [*begin, *NAMES[:found]]
        for before, after in pairwise(requests):
            assert after[: len(before)] == before


@pytest.mark.parametrize(
    "choice", [{"type": "none"}, {"type": "tool", "name": NAMES[-1]}], ids=["none", "forced"]
)
async def test_deferred_tools_that_are_shown_stay_within_the_limit(choice: dict[str, Any]) -> None:
    """A request that may not search shows as many deferred tools as there is room for, the forced first."""
    async with between(Turn("hi"), served={"profile": {"max_tools": 8}}) as (proxy, raw):
        answer = await proxy.ask(messages(2, tool_choice=choice), path="/v1/messages")
        assert answer.status == 200, answer.body
        last = NAMES[5] if choice["type"] == "none" else NAMES[-1]
        assert shown(raw) == [["mine_0", "mine_1", *NAMES[:5], last]]


async def test_what_is_found_is_shown_where_results_are_small() -> None:
    """The smallest limit of results leaves names enough for the next turn."""
    search = Call("call_s", SEARCH, {"query": "echo unlock buy page"})
    config: dict[str, Any] = {"tools": {"search": "on"}, "policy": {"max_result_bytes": 256}}
    async with between(Turn("", (search,)), Turn("hi"), **config) as (proxy, raw):
        await proxy.ask(CHAT.ask([Message("user", "Say it back.")]), path=CHAT.path)
        before, after = shown(raw)
        assert after[: len(before)] == before
        assert "probe_tools__echo" in after


@pytest.mark.parametrize("odd", [None, {}, 0, ""])
async def test_an_odd_message_beside_a_search_is_refused(odd: Any) -> None:
    """A message that is none is not left out with the blocks of earlier searches: the client reads why."""
    async with between() as (proxy, raw):
        said = [{"role": "user", "content": "x"}, odd]
        answer = await proxy.ask(messages(2) | {"messages": said}, path="/v1/messages")
        assert answer.status == 400
        assert "messages[1]" in answer.json["error"]["message"]
        assert raw.requests == []
