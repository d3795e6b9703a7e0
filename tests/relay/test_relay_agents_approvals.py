"""Approvals and agents: an approved call of an agent, and agents whose client cannot be asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents_rig import RESEARCHER, Asked, Models, Turn, agents
from approvals_rig import BUY, ID
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running

from proxy.records.approvals import ApprovalFilter
from proxy.records.rows import RunRecord
from proxy.store.base import RunFilter

PAGE = "probe_tools__page"
QUESTION: Any = {"role": "user", "content": "Find it out."}


@asynccontextmanager
async def served(models: Models, tmp_path: Path, approve: str, **config: Any) -> AsyncIterator[Proxy]:
    """A proxy with one agent; ``approve`` names the calls that need an approval."""
    config = {"agents": agents(), **config}
    async with (
        RawUpstream(models) as upstream,
        running(
            make_config(
                upstream.url,
                allow=("probe_tools__*", "agent__*"),
                modules=("probe_tools",),
                policy={"approve": (approve,)},
                approvals={},
                store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
                **config,
            )
        ) as proxy,
    ):
        yield proxy


async def say(proxy: Proxy, *messages: Any, **headers: str) -> str:
    """The text of the answer to a conversation."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await proxy.ask({"model": "boss", "messages": list(messages)}, headers=named)
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


def boss(asked: Asked) -> Turn:
    """Give one task to the agent, and repeat its report."""
    return Turn(asked.results[0]) if asked.results else Turn(calls=[(RESEARCHER, {"task": "What is it?"})])


async def decided(proxy: Proxy, decision: str) -> str:
    """Ask for the agent, decide about its call, and go on."""
    notice = await say(proxy, QUESTION)
    (approval_id,) = set(ID.findall(notice))
    told: list[Any] = [
        QUESTION,
        {"role": "assistant", "content": notice},
        {"role": "user", "content": "Go on."},
    ]
    return await say(proxy, *told, x_toolrelay_approve=approval_id + decision)


async def runs_of(proxy: Proxy) -> list[RunRecord]:
    return list(reversed(await proxy.services.store.list_runs(RunFilter())))


async def test_an_approved_call_of_an_agent_runs(watch: Watch, tmp_path: Path) -> None:
    """An approved agent runs with its tools in the request that goes on, and that one gets its report."""

    def small(asked: Asked) -> Turn:
        return Turn("It is 42.") if asked.results else Turn(calls=[("probe_tools__echo", {"text": "a"})])

    models = Models({"boss": boss, "small": small})
    async with served(models, tmp_path, RESEARCHER) as proxy:
        assert await decided(proxy, "") == "It is 42."
        first, child, second = sorted(await runs_of(proxy), key=lambda run: run.started_at)
        assert (child.agent, child.parent_run, child.status) == ("researcher", first.id, "completed")
        assert (first.status, second.status) == ("suspended", "completed")
        log: Any = proxy.services.store
        (row,) = await log.list_approvals(ApprovalFilter())
        assert (row.tool, row.status) == (RESEARCHER, "used")
    assert watch.started == ["echo"]
    assert [len(models.asked[name]) for name in ("boss", "small")] == [2, 2]


@pytest.mark.parametrize(
    "change",
    [{"instructions": "Buy everything."}, {"tools": ("*",)}, {"model": "large"}, {"max_tokens": 9}, {}],
    ids=["instructions", "tools", "model", "budgets", "nothing"],
)
@pytest.mark.parametrize("approve", [RESEARCHER, BUY], ids=["the agent", "its call"])
async def test_an_approval_holds_for_one_version_of_an_agent(
    approve: str, change: dict[str, Any], watch: Watch, tmp_path: Path
) -> None:
    """After an agent's definition has changed, neither an approved call of it nor its held turn goes on."""

    def small(asked: Asked) -> Turn:
        return Turn("It is 42.") if asked.results else Turn(calls=[(BUY, {"what": "tea"})])

    models = Models({"boss": boss, "small": small, "large": small})
    async with served(models, tmp_path, approve) as proxy:
        notice = await say(proxy, QUESTION)
        (approval_id,) = set(ID.findall(notice))
        before = models.count
    told: list[Any] = [
        QUESTION,
        {"role": "assistant", "content": notice},
        {"role": "user", "content": "Yes."},
    ]
    async with served(models, tmp_path, approve, agents=agents(**change)) as proxy:
        said = await say(proxy, *told, x_toolrelay_approve=approval_id)
        runs = await runs_of(proxy)
    if not change:
        assert (said, watch.started) == ("It is 42.", ["buy"])
        versions = {run.agent_version for run in runs if run.agent}
        assert [len(version) for version in versions] == [32]
        assert {run.agent_version for run in runs if not run.agent} == {""}
    else:
        assert "It is 42." not in said
        assert models.count == before + 1, "only the calling model was asked"


async def test_an_approved_agent_uses_the_budgets_of_the_request_that_goes_on(
    watch: Watch, tmp_path: Path
) -> None:
    """An approved agent leaves one turn for the answer of the request that goes on, and is stopped then."""

    def small(asked: Asked) -> Turn:
        echo = ("probe_tools__echo", {"text": str(len(asked.results))})
        return Turn("Stopped.") if asked.body.get("tool_choice") == "none" else Turn(calls=[echo])

    models = Models({"boss": boss, "small": small})
    async with served(models, tmp_path, RESEARCHER, tools={"max_turns": 3}) as proxy:
        said = await decided(proxy, "")
    assert said.startswith("[researcher was stopped: it had no turns left")
    assert [len(models.asked[name]) for name in ("boss", "small")] == [2, 2]


async def test_a_refused_call_of_an_agent_never_runs(watch: Watch, tmp_path: Path) -> None:
    """If the call of an agent is refused, the agent's model is not asked."""
    models = Models({"boss": boss, "small": lambda asked: Turn("It is 42.")})
    async with served(models, tmp_path, RESEARCHER) as proxy:
        assert "approval_denied" in await decided(proxy, ";deny")
    assert "small" not in models.asked


async def test_an_approved_agent_knows_what_was_read_before(watch: Watch, tmp_path: Path) -> None:
    """If the model read an untrusted result before, the approved agent has to ask about its own calls."""

    def stranger(asked: Asked) -> Turn:
        if not asked.results:
            return Turn(calls=[(PAGE, {})])
        if len(asked.results) == 1:
            return Turn(calls=[(RESEARCHER, {"task": "What is it?"})])
        return Turn(asked.results[1])

    def buys(asked: Asked) -> Turn:
        return Turn(asked.results[0]) if asked.results else Turn(calls=[(BUY, {"what": "milk"})])

    async with served(Models({"boss": stranger, "small": buys}), tmp_path, RESEARCHER) as proxy:
        notice = await decided(proxy, "")
        assert f"{BUY} with" in notice
        assert "buy" not in watch.started
    async with served(Models({"boss": boss, "small": buys}), tmp_path, RESEARCHER) as proxy:
        assert "milk" in await decided(proxy, "")
    assert watch.started[-1] == "buy"


@pytest.mark.parametrize("calls", [False, True], ids=["reports", "calls"])
@pytest.mark.accepts("chat-word-json", why="the format is not about what is asked")
async def test_an_agent_is_told_which_tools_it_cannot_ask_for(
    watch: Watch, tmp_path: Path, calls: bool
) -> None:
    """If the client cannot be asked, the agent gets no tools that need approvals, and cannot call them."""

    def small(asked: Asked) -> Turn:
        if calls and not asked.results:
            return Turn(calls=[(BUY, {"what": "milk"})])
        return Turn(asked.results[0] if calls else f"Call {BUY}.")

    models = Models({"boss": boss, "small": small})
    async with served(models, tmp_path, BUY) as proxy:
        body = {"model": "boss", "messages": [QUESTION], "response_format": {"type": "json_object"}}
        said = (await proxy.ask(body)).json["choices"][0]["message"]["content"]
        log: Any = proxy.services.store
        assert not await log.list_approvals(ApprovalFilter())
    assert ("approval_required" in said) is calls
    first = models.asked["small"][0]
    assert BUY not in first.tools
    (system, task) = first.body["messages"]
    assert f"you do not have them: {BUY}." in system["content"]
    assert task["content"] == "What is it?"
    assert watch.started == []
    assert BUY in models.asked["boss"][0].tools


async def test_an_agent_without_such_tools_reads_its_instructions_alone(watch: Watch, tmp_path: Path) -> None:
    """If no tool is withheld for an approval, nothing is added to the agent's instructions."""
    models = Models({"boss": boss, "small": lambda asked: Turn("Yes.")})
    only_echo = agents(tools=("probe_tools__echo",))
    async with served(models, tmp_path, BUY, agents=only_echo) as proxy:
        await say(proxy, QUESTION)
    (system, _) = models.asked["small"][0].body["messages"]
    assert system["content"] == only_echo["researcher"]["instructions"]
