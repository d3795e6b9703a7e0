"""Tool search: the model is shown one tool that finds the others, and then those that it found."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from approvals_rig import ID
from looping import ECHO
from pair_kits import PAIRS, SPEAKERS, Call, Got, Message, Speaker, Turn
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import Proxy, make_config, running

SEARCH, UNLOCK, BUY = "core__search_tools", "probe_tools__unlock", "probe_tools__buy"
CORE = ["core__calculate", "core__get_current_time", "core__get_weather", "core__read_result"]
SHOWN = [*CORE, SEARCH]
SAYS = [Message("user", "Say it back.")]
SEARCHED = Call("call_s", SEARCH, {"query": "echo a text"})
ECHOED = Call("call_e", ECHO, {"text": "noon"})
ON = {"search": "on", "search_finds": 1}


@asynccontextmanager
async def between(
    upstream: Speaker, *turns: Turn, tools: dict[str, Any] = ON, served: Any = (), **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy with tool search before an upstream whose model takes these turns."""
    left = list(turns)

    def model(request: RawRequest) -> list[Step]:
        body = json.loads(request.body)
        return upstream.script(left.pop(0), stream=body.get("stream", upstream.name == "ollama"))

    async with RawUpstream(model) as raw:
        table = {"base_url": raw.url, "wires": (upstream.name,), **dict(served)}
        async with running(make_config(table, modules=("probe_tools",), tools=tools, **config)) as proxy:
            yield proxy, raw


def got(upstream: Speaker, raw: RawUpstream) -> list[Got]:
    """The requests of an upstream."""
    return [upstream.got(json.loads(request.body)) for request in raw.requests]


def shown(upstream: Speaker, raw: RawUpstream) -> list[list[str]]:
    """The names of the tools in each request, in their order."""
    return [list(one.tools) for one in got(upstream, raw)]


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_what_is_found_is_shown_from_the_next_turn_on(
    client: str, upstream: str, streaming: bool
) -> None:
    """Each turn has the tools of the one before in the same order, and then those that were found."""
    asks, answers = SPEAKERS[client], SPEAKERS[upstream]
    turns = Turn("", (SEARCHED,)), Turn("", (ECHOED,)), Turn("noon")
    async with between(answers, *turns) as (proxy, raw):
        answer = await proxy.ask(asks.ask(SAYS, stream=streaming, tools=["mine"]), path=asks.path)
        assert answer.status == 200, answer.body
        seen = asks.seen(answer, stream=streaming)
        assert (seen.text, seen.calls, seen.finish) == ("noon", [], "stop")
        assert shown(answers, raw) == [
            ["mine", *SHOWN],
            ["mine", *SHOWN, ECHO],
            ["mine", *SHOWN, ECHO],
        ]
        requests = got(answers, raw)
        found = json.loads(requests[1].results["call_s"])
        assert [tool["name"] for tool in found["tools"]] == [ECHO]
        assert json.loads(requests[2].results["call_e"])["echo"] == "noon"
        # Anthropic's last tool has the mark up to which it caches.
        first = [
            [{key: value for key, value in tool.items() if key != "cache_control"} for tool in body["tools"]]
            for body in map(json.loads, [request.body for request in raw.requests])
        ]
        assert first[1][: len(first[0])] == first[0]
        assert first[2] == first[1]


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_later_request_shows_what_was_found(client: str, upstream: str) -> None:
    """The next request of a conversation has the tools that its hidden turns found, in the same order."""
    asks, answers = SPEAKERS[client], SPEAKERS[upstream]
    second = Call("call_u", SEARCH, {"query": "unlock with a pin"})
    turns = Turn("", (second,)), Turn("", (SEARCHED,)), Turn("Found both."), Turn("Still here.")
    async with between(answers, *turns, auth={"mode": "open"}) as (proxy, raw):
        one = asks.seen(await proxy.ask(asks.ask(SAYS, tools=["mine"]), path=asks.path), stream=True)
        again = [*SAYS, *one.returned, Message("user", "And now?")]
        answer = await proxy.ask(asks.ask(again, tools=["mine"]), path=asks.path)
        assert asks.seen(answer, stream=True).text == "Still here."
        names = shown(answers, raw)
        assert names[2] == ["mine", *SHOWN, UNLOCK, ECHO]
        assert names[3] == names[2]


async def test_a_tool_that_was_not_found_runs_and_is_shown() -> None:
    """A model may call a tool by the name in the list; it runs by the same rules, and is shown afterwards."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("", (ECHOED,)), Turn("noon")) as (proxy, raw):
        answer = await proxy.ask(chat.ask(SAYS), path=chat.path)
        assert chat.seen(answer, stream=True).text == "noon"
        assert json.loads(got(chat, raw)[1].results["call_e"])["echo"] == "noon"
        assert shown(chat, raw) == [SHOWN, [*SHOWN, ECHO]]


@pytest.mark.parametrize("allowed", [("probe_tools__unlock",), ("core__*", "probe_tools__unlock")])
async def test_search_shows_nothing_that_may_not_be_called(allowed: Sequence[str]) -> None:
    """Rule T2: a tool that the policy does not allow is neither listed nor found, nor run by its name."""
    chat = SPEAKERS["chat"]
    turns = Turn("", (SEARCHED,)), Turn("", (ECHOED,)), Turn("no")
    async with between(chat, *turns, allow=allowed) as (proxy, raw):
        await proxy.ask(chat.ask(SAYS), path=chat.path)
        requests = got(chat, raw)
        assert SEARCH in requests[0].tools
        assert ECHO.encode() not in raw.requests[0].body
        assert json.loads(requests[1].results["call_s"])["tools"] == []
        assert "policy_denied" in requests[2].results["call_e"]


async def test_search_shows_nothing_that_needs_an_approval_now() -> None:
    """Rule T2: after untrusted text, a search no longer lists or finds what could do harm, then or later."""
    chat = SPEAKERS["chat"]
    page = Call("call_p", "probe_tools__page", {})
    search = Call("call_b", SEARCH, {"query": "buy what"})
    turns = Turn("", (page,)), Turn("", (search,)), Turn("no"), Turn("Still no.")
    tools = {**ON, "search_finds": 5}
    async with between(chat, *turns, tools=tools) as (proxy, raw):
        one = chat.seen(await proxy.ask(chat.ask(SAYS), path=chat.path), stream=True)
        await proxy.ask(chat.ask([*SAYS, *one.returned, Message("user", "And now?")]), path=chat.path)
        requests = got(chat, raw)
        bodies = [json.loads(request.body)["tools"] for request in raw.requests]
        assert [BUY in json.dumps(body) for body in bodies] == [True, False, False, False]
        assert all(ECHO in json.dumps(body) for body in bodies)
        found = [tool["name"] for tool in json.loads(requests[2].results["call_b"])["tools"]]
        assert BUY not in found
        assert BUY not in requests[2].tools


@pytest.mark.parametrize(
    ("tools", "searches"),
    [
        ({"search": "off"}, False),
        ({"search": "auto"}, False),
        ({"search": "auto", "search_above_tools": 5}, True),
        ({"search": "auto", "search_above_bytes": 500}, True),
        ({"search": "on"}, True),
        ({"search": "on", "search_shows": ("*",)}, False),
    ],
)
async def test_when_models_search(tools: dict[str, Any], searches: bool) -> None:
    """Without search, or below its limits, the model is shown all tools and none that searches."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("hi"), tools=tools) as (proxy, raw):
        await proxy.ask(chat.ask(SAYS), path=chat.path)
        (names,) = shown(chat, raw)
        assert (SEARCH in names, ECHO in names) == (searches, not searches)


async def test_models_search_where_an_upstream_takes_fewer_tools() -> None:
    """Tools for which a request has no room are found; what is shown stays within the upstream's limit."""
    chat = SPEAKERS["chat"]
    finds = Call("call_1", SEARCH, {"query": f"{ECHO} {UNLOCK} probe_tools__page"})
    more = Call("call_2", SEARCH, {"query": "probe_tools__slow"})
    turns = Turn("", (finds,)), Turn("", (more,)), Turn("hi")
    served = {"profile": {"max_tools": 8}}
    async with between(chat, *turns, tools={"search": "auto"}, served=served) as (proxy, raw):
        await proxy.ask(chat.ask(SAYS, tools=["mine"]), path=chat.path)
        names = shown(chat, raw)
        assert names[0] == ["mine", *SHOWN]
        assert len(names[1]) == len(names[2]) == 8
        assert [tool["name"] for tool in json.loads(got(chat, raw)[2].results["call_2"])["tools"]] != [
            "probe_tools__slow"
        ]


async def test_a_forced_tool_is_shown() -> None:
    """The tool that the tool choice names is shown at once."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("", (ECHOED,)), Turn("noon")) as (proxy, raw):
        choice = {"type": "function", "function": {"name": ECHO}}
        answer = await proxy.ask({**chat.ask(SAYS), "tool_choice": choice}, path=chat.path)
        assert answer.status == 200, answer.body
        assert ECHO in shown(chat, raw)[0]


async def test_the_client_has_a_tool_of_that_name() -> None:
    """A client that declares the name of the search tool keeps it; then all tools are shown."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("hi")) as (proxy, raw):
        await proxy.ask(chat.ask(SAYS, tools=[SEARCH]), path=chat.path)
        (names,) = shown(chat, raw)
        assert names.count(SEARCH) == 1
        assert ECHO in names


async def test_a_search_is_on_record() -> None:
    """Rule R1: a search is a call like any other, with its decision."""
    chat = SPEAKERS["chat"]
    async with between(chat, Turn("", (SEARCHED,)), Turn("hi")) as (proxy, _):
        await proxy.ask(chat.ask(SAYS), path=chat.path)
        detail = await proxy.only_run()
        (call,) = detail.invocations
        assert (call.tool, call.status, call.decision) == (SEARCH, "success", "allowed: tools.search")
        assert SEARCH in detail.run.offered
        assert ECHO in detail.run.offered


async def test_a_tool_that_waits_for_an_approval_is_shown_afterwards(tmp_path: Path) -> None:
    """A deferred tool whose call a person approves is among the tools when the model goes on."""
    chat = SPEAKERS["chat"]
    turns = Turn("", (Call("call_b", BUY, {"what": "milk"}),)), Turn("Bought.")
    config: dict[str, Any] = {
        "approvals": {},
        "policy": {"approve": ("probe_tools__buy",)},
        "store": {"url": f"sqlite:///{tmp_path / 'r.db'}"},
    }
    async with between(chat, *turns, **config) as (proxy, raw):
        one = chat.seen(await proxy.ask(chat.ask(SAYS), path=chat.path), stream=True)
        (asked,) = set(ID.findall(one.text))
        again = [*SAYS, Message("assistant", one.text), Message("user", "Yes.")]
        headers = [("x-toolrelay-approve", asked)]
        answer = await proxy.ask(chat.ask(again), headers, path=chat.path)
        assert chat.seen(answer, stream=True).text == "Bought."
        assert shown(chat, raw) == [SHOWN, [*SHOWN, BUY]]
