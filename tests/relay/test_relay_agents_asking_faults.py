"""Agents whose own calls need approvals: the client leaves at a bad moment, or another upstream answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from agents_rig import RESEARCHER, Asked, Models, Turn, agents
from approvals_rig import BUY, ID
from probe_tools import Watch
from raw_upstream import RawRequest, RawUpstream, Step, whole
from running_proxy import Proxy, make_config, running
from websocket_client import connected

from proxy.relay.approvals.decisions import Verdict
from proxy.relay.approvals.rules import Decider
from proxy.relay.memory.hidden.agent_turns import AgentCall, AgentTurn, AgentTurns
from proxy.relay.run.parents import Parent, Parents

APPROVE = "toolrelay__approve"
DECLARED: Any = {
    "type": "function",
    "function": {"name": APPROVE, "parameters": {"type": "object", "properties": {}}},
}
QUESTION: Any = {"role": "user", "content": "Find it out."}


def boss(asked: Asked) -> Turn:
    """A model that calls the agent, and says what it was told."""
    return Turn(" | ".join(asked.results)) if asked.results else Turn(calls=[(RESEARCHER, {"task": "shop"})])


def buys(*things: str) -> Any:
    """An agent's model that buys one thing after the other."""

    def say(asked: Asked) -> Turn:
        done = len(asked.results)
        return Turn(calls=[(BUY, {"what": things[done]})]) if done < len(things) else Turn("Report.")

    return say


@asynccontextmanager
async def served(tmp_path: Path, *scripts: Any, **config: Any) -> AsyncIterator[Proxy]:
    """A proxy before these upstreams, with an agent whose purchases need an approval."""
    async with AsyncExitStack() as stack:
        tables = [
            {"base_url": (await stack.enter_async_context(RawUpstream(script))).url, "wires": ("chat",)}
            for script in scripts
        ]
        made = make_config(
            *tables,
            allow=("probe_tools__*", "agent__*"),
            modules=("probe_tools",),
            policy={"approve": (BUY,)},
            store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
            agents=agents(),
            approvals={},
            **config,
        )
        yield await stack.enter_async_context(running(made))


async def test_an_agent_that_asks_again_asks_where_another_upstream_has_the_conversation(
    watch: Watch, tmp_path: Path
) -> None:
    """If an agent asks again while the proxy plans the request twice, the client is asked in its own form."""
    models = Models({"boss": boss, "small": buys("milk", "eggs")})
    is_down = True

    def first(request: RawRequest) -> Sequence[Step]:
        return whole(b"{}", status="503 Down") if is_down else models(request)

    async with served(tmp_path, first, models) as proxy:
        body: dict[str, Any] = {"model": "boss", "messages": [QUESTION], "tools": [DECLARED]}
        for tool in ("milk", "eggs"):
            message = (await proxy.ask(body)).json["choices"][0]["message"]
            (asked,) = message["tool_calls"]
            assert json.loads(asked["function"]["arguments"])["arguments"] == {"what": tool}
            is_down = False
            answer = {"role": "tool", "tool_call_id": asked["id"], "content": '{"approve": true}'}
            body["messages"] = [*body["messages"], message, answer]
        said = (await proxy.ask(body)).json["choices"][0]["message"]["content"]
    assert said == "Report."
    assert watch.finished == ["buy", "buy"]


async def test_an_agent_does_not_go_on_whose_client_leaves_before_it_does(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the client leaves while the store notes that the agent goes on, the agent does not go on."""
    models = Models({"boss": boss, "small": buys("milk")})
    begun, gone, noted = asyncio.Event(), asyncio.Event(), asyncio.Event()
    begin, continuing = AgentTurns.begin, Parents.continuing

    async def begin_late(turns: AgentTurns, turn: AgentTurn) -> bool:
        begun.set()
        await gone.wait()
        try:
            return await begin(turns, turn)
        finally:
            noted.set()

    @contextmanager
    def told(parents: Parents, agent: AgentCall, parent: Parent) -> Iterator[None]:
        try:
            with continuing(parents, agent, parent):
                yield
        finally:
            gone.set()

    monkeypatch.setattr(AgentTurns, "begin", begin_late)
    async with served(tmp_path, models) as proxy:
        body: dict[str, Any] = {"model": "boss", "messages": [QUESTION]}
        message = (await proxy.ask(body)).json["choices"][0]["message"]
        body["messages"] = [QUESTION, message, {"role": "user", "content": "Go on."}]
        monkeypatch.setattr(Parents, "continuing", told)
        async with proxy.sent(body, {"x-toolrelay-approve": ID.findall(message["content"])[0]}):
            await begun.wait()
        await noted.wait()
        await proxy.services.runner.drain()
        again = (await proxy.ask(body)).json["choices"][0]["message"]["content"]
    assert "nobody knows how it ended" in again
    assert watch.started == []
    assert len(models.asked["small"]) == 1


async def test_what_a_websocket_client_does_not_store_is_not_stored_when_its_agent_goes_on(
    watch: Watch, tmp_path: Path
) -> None:
    """If the client stores nothing, the response that waited is completed on its connection only."""
    models = Models({"boss": boss, "small": buys("milk")})
    async with served(tmp_path, models) as proxy:
        async with connected(proxy) as client:
            first = await client.ask(model="boss", input="Find it out.", store=False)
            (id_,) = dict.fromkeys(ID.findall(first.text))
            admin = Decider("admin", tools=("*",))
            await proxy.services.approvals.decide(id_, Verdict(approve=True), admin, "api")
            before = {"store": False, "previous_response_id": first.response["id"]}
            second = await client.ask(model="boss", input="Go on.", **before)
            third = await client.ask(model="boss", input="Go on.", **before)
        stored = await proxy.services.store.find_response(first.response["id"], "open")
    assert (second.text, third.text) == ("Report.", "Report.")
    assert watch.finished == ["buy"]
    assert stored is None
