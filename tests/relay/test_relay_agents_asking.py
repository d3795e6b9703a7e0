"""Agents whose own calls need approvals: the client is asked, and the agents go on."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chat_script
import pytest
from agents_rig import RESEARCHER, Asked, Models, Turn, agents
from approvals_rig import BUY, ID
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running
from store_postgres import need_postgres, new_schema
from waiting import until

from proxy.records.approvals import Approval, ApprovalFilter
from proxy.records.rows import RunRecord
from proxy.store.base import PurgeFilter, RunFilter

APPROVE = "toolrelay__approve"
DECLARED: Any = {
    "type": "function",
    "function": {"name": APPROVE, "parameters": {"type": "object", "properties": {}}},
}
QUESTION: Any = {"role": "user", "content": "Find it out."}
WAITING = "calls of the agent wait for an approval"


def boss(*tasks: str) -> Any:
    """A model that gives tasks in its first turn, and repeats the reports in its second."""

    def say(asked: Asked) -> Turn:
        if not asked.results:
            return Turn(calls=[(RESEARCHER, {"task": task}) for task in tasks or ("milk",)])
        return Turn(" | ".join(asked.results))

    return say


def buys(*things: str) -> Any:
    """An agent's model that buys one thing after the other, by default its task, and reports the results."""

    def say(asked: Asked) -> Turn:
        wanted = things or (asked.body["messages"][1]["content"],)
        done = len(asked.results)
        if done < len(wanted) and asked.body.get("tool_choice") != "none":
            return Turn(f"I want {wanted[done]}.", calls=[(BUY, {"what": wanted[done]})])
        return Turn("Report: " + ", ".join(asked.results))

    return say


@asynccontextmanager
async def served(
    models: Models, tmp_path: Path, *, workers: int = 1, **config: Any
) -> AsyncIterator[Sequence[Proxy]]:
    """Proxies with one record and one agent whose purchases need an approval."""
    config = {"agents": agents(), "approvals": {}, **config}
    policy = {"approve": (BUY,), **config.pop("policy", {})}
    store = config.pop("store", {"url": f"sqlite:///{tmp_path / 'r.db'}"})
    async with RawUpstream(models) as upstream, AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running(
                    make_config(
                        upstream.url,
                        allow=("probe_tools__*", "agent__*"),
                        modules=("probe_tools",),
                        policy=policy,
                        store=store,
                        **config,
                    )
                )
            )
            for _ in range(workers)
        ]


@dataclass
class Chat:
    """A client that sends its whole conversation; it is asked in text or by calls of the function."""

    proxy: Proxy
    by_call: bool = False
    stream: bool = False
    messages: list[Any] = field(default_factory=lambda: [QUESTION])

    async def say(self, *messages: Any, **headers: str) -> Any:
        """Send one request; add its answer to the conversation and return it."""
        self.messages += messages
        body: dict[str, Any] = {"model": "boss", "messages": self.messages, "stream": self.stream}
        if self.by_call:
            body["tools"] = [DECLARED]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.proxy.ask(body, headers=named)
        assert answer.status == 200, answer.body
        message = _assembled(answer.body) if self.stream else answer.json["choices"][0]["message"]
        self.messages.append(message)
        return message

    async def text(self, *messages: Any, **headers: str) -> str:
        """Send one request and return the text of its answer."""
        return str((await self.say(*messages, **headers))["content"])

    async def go_on(self, decision: str = "", *, of: str | None = None) -> str:
        """Decide with the header about the calls that the last answer names, and go on."""
        found = dict.fromkeys(ID.findall(of if of is not None else self.messages[-1]["content"]))
        header = ", ".join(one + decision for one in found)
        return await self.text({"role": "user", "content": "Go on."}, x_toolrelay_approve=header)

    def asked(self) -> list[dict[str, Any]]:
        """The questions of the last answer."""
        return [json.loads(call["function"]["arguments"]) for call in self.messages[-1]["tool_calls"]]

    def answers(self, *said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Answers to the questions of the last answer, in order."""
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(one)}
            for call, one in zip(self.messages[-1]["tool_calls"], said, strict=True)
        ]


def _assembled(body: bytes) -> dict[str, Any]:
    """The message of a stream."""
    text = ""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chat_script.payloads_of(body):
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                known = calls.setdefault(call["index"], {"type": "function", "function": {"arguments": ""}})
                known["id"] = call.get("id") or known["id"]
                function = call["function"]
                known["function"]["name"] = function.get("name") or known["function"]["name"]
                known["function"]["arguments"] += function.get("arguments", "")
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    return message | ({"tool_calls": list(calls.values())} if calls else {})


async def approvals_of(proxy: Proxy) -> list[Approval]:
    """All approvals on record, the oldest first."""
    log: Any = proxy.services.store
    return list(reversed(await log.list_approvals(ApprovalFilter())))


async def runs_of(proxy: Proxy) -> list[RunRecord]:
    """All runs on record, the oldest first."""
    runs = await proxy.services.store.list_runs(RunFilter())
    return sorted(runs, key=lambda run: run.started_at)


def sent(models: Models) -> str:
    """Everything that was sent to any model."""
    return "".join(asked.text for each in models.asked.values() for asked in each)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_is_asked_in_text(watch: Watch, tmp_path: Path, stream: bool) -> None:
    """The agent suspends, the outer turn is held, and the approved call runs once in the agent's own run."""
    models = Models({"boss": boss(), "small": buys()})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy, stream=stream)
        notice = await client.text()
        assert f'{BUY} with `{{"what":"milk"}}`' in notice
        assert "for the agent researcher" in notice
        assert watch.started == []
        (approval,) = await approvals_of(proxy)
        assert approval.rule.startswith('agent researcher: policy.approve has "')
        assert await client.text({"role": "user", "content": "Well?"}) == notice.replace(
            "is waiting", "is still waiting"
        )
        said = await client.go_on(of=notice)
        assert said.startswith("Report: ")
        assert "milk" in said
        assert watch.finished == ["buy"]
        (approval,) = await approvals_of(proxy)
        assert approval.status == "used"
        outer, first, _, second, again = await runs_of(proxy)
        assert (first.status, first.parent_run, first.agent) == ("suspended", outer.id, "researcher")
        assert (second.status, second.parent_run, second.agent) == ("completed", outer.id, "researcher")
        assert (outer.status, again.status) == ("suspended", "completed")
        detail = await proxy.services.store.get_run(outer.id)
        assert detail is not None
        assert [row.status for row in detail.invocations] == ["error", "success"]
        assert detail.invocations[1].decision.startswith(f"continues {detail.invocations[0].id}")
    assert [len(models.asked[name]) for name in ("boss", "small")] == [2, 2]
    assert "toolrelay-waits-for" not in sent(models)
    assert WAITING not in sent(models)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_is_asked_by_calls_again_and_again(watch: Watch, tmp_path: Path, stream: bool) -> None:
    """An agent that needs two approvals, one after the other, asks twice in the same form."""
    models = Models({"boss": boss(), "small": buys("milk", "eggs")})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy, by_call=True, stream=stream)
        await client.say()
        (first,) = client.asked()
        assert (first["tool"], first["arguments"]) == (BUY, {"what": "milk"})
        assert first["why"].startswith("agent researcher: ")
        await client.say(*client.answers({"approve": True}))
        (second,) = client.asked()
        assert second["arguments"] == {"what": "eggs"}
        assert watch.finished == ["buy"]
        said = await client.text(*client.answers({"approve": False, "reason": "We have eggs."}))
        assert "milk" in said
        assert "We have eggs." in said
        assert watch.finished == ["buy"]
        assert [one.status for one in await approvals_of(proxy)] == ["used", "denied"]
        # The client can send all of it again, and nothing runs again.
        assert await client.text({"role": "user", "content": "Thanks."}) == said
    assert [len(models.asked[name]) for name in ("boss", "small")] == [3, 3]
    assert [said["role"] for said in models.asked["boss"][1].body["messages"]] == [
        "user",
        "assistant",
        "tool",
    ]
    roles = [said["role"] for said in models.asked["small"][2].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert "appr_" not in sent(models)


async def test_an_agent_that_asks_again_asks_a_client_in_text(watch: Watch, tmp_path: Path) -> None:
    """The second notice replaces the first one, and no model sees either."""
    models = Models({"boss": boss(), "small": buys("milk", "eggs")})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        await client.say()
        notice = await client.go_on()
        assert "eggs" in notice
        assert "still" not in notice
        assert "eggs" in await client.go_on()
    assert watch.finished == ["buy", "buy"]
    assert "appr_" not in sent(models)
    roles = [said["role"] for said in models.asked["boss"][1].body["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "user"]


async def test_of_two_agents_one_asks(watch: Watch, tmp_path: Path) -> None:
    """If one of two agents asks, the held turn has the other one's report, and that agent runs only once."""

    def small(asked: Asked) -> Turn:
        if asked.body["messages"][1]["content"] == "no milk":
            return Turn("None.")
        turn: Turn = buys()(asked)
        return turn

    models = Models({"boss": boss("no milk", "milk"), "small": small})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        await client.say()
        said = await client.go_on()
    assert said.startswith("None. | Report: ")
    assert watch.finished == ["buy"]
    assert len(models.asked["small"]) == 3


async def test_an_agent_whose_own_call_was_approved_asks_too(watch: Watch, tmp_path: Path) -> None:
    """First a person approves the call of the agent, then the agent asks about its purchase."""
    models = Models({"boss": boss(), "small": buys()})
    async with served(models, tmp_path, policy={"approve": (BUY, RESEARCHER)}) as (proxy,):
        client = Chat(proxy, by_call=True)
        await client.say()
        (first,) = client.asked()
        assert (first["tool"], first["why"].startswith("agent")) == (RESEARCHER, False)
        assert "small" not in models.asked
        await client.say(*client.answers({"approve": True}))
        (second,) = client.asked()
        assert (second["tool"], second["why"].startswith("agent")) == (BUY, True)
        assert (await client.text(*client.answers({"approve": True}))).startswith("Report: ")
        assert [one.status for one in await approvals_of(proxy)] == ["used", "used"]
    assert watch.finished == ["buy"]
    assert len(models.asked["small"]) == 2


async def test_two_agents_ask_and_one_is_decided_first(watch: Watch, tmp_path: Path) -> None:
    """The decided agent goes on at once; the outer model is not asked before the other agent is decided."""
    models = Models({"boss": boss("milk", "eggs"), "small": buys()})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        first, second = dict.fromkeys(ID.findall(await client.text()))
        notice = await client.go_on(of=first)
        assert second in notice
        assert first not in notice
        assert watch.finished == ["buy"]
        assert len(models.asked["boss"]) == 1
        said = await client.go_on(of=second)
    assert said.count("Report: ") == 2
    assert watch.finished == ["buy", "buy"]
    assert len(models.asked["small"]) == 4


async def test_two_agents_go_on_together(watch: Watch, tmp_path: Path) -> None:
    """Two agents that are decided in one request go on together, and one's end does not end the other."""

    def small(asked: Asked) -> Turn:
        turn: Turn = buys()(asked)
        if asked.results and "eggs" in asked.text:
            return Turn(calls=[("probe_tools__queue", {"name": "slow"})]) if len(asked.results) == 1 else turn
        return turn

    models = Models({"boss": boss("milk", "eggs"), "small": small})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        await client.say()
        going_on = asyncio.create_task(client.go_on())
        await until(lambda: "slow" in watch.started and len(models.asked["small"]) == 4)
        watch.may_end.release()
        said = await going_on
    assert said.count("Report: ") == 2
    assert watch.finished.count("buy") == 2


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_eight_decisions_on_two_workers_continue_once(watch: Watch, tmp_path: Path, kind: str) -> None:
    """After eight decisions at once on two workers, the call runs once and all clients get one report."""
    models = Models({"boss": boss(), "small": buys()})
    async with AsyncExitStack() as stack:
        config: dict[str, Any] = {}
        if kind == "postgres":
            need_postgres()
            config["store"] = {"url": await stack.enter_async_context(new_schema()), "seal": False}
        proxies = await stack.enter_async_context(served(models, tmp_path, workers=2, **config))
        client = Chat(proxies[0])
        notice = await client.text()
        clients = [Chat(proxies[at % 2], messages=list(client.messages)) for at in range(8)]
        said = await asyncio.gather(*(each.go_on(of=notice) for each in clients))
        assert len(set(said)) == 1
        assert said[0].startswith("Report: ")
    assert watch.finished == ["buy"]
    assert len(models.asked["small"]) == 2


async def test_a_refusal_or_an_expiry_is_read_by_the_agent(watch: Watch, tmp_path: Path) -> None:
    """After a refusal or an expiry the agent's model reads the reason and reports."""
    models = Models({"boss": boss(), "small": buys()})
    async with served(models, tmp_path, approvals={"expires_s": 1}) as (proxy,):
        client = Chat(proxy)
        await client.say()
        assert "approval_denied" in await client.go_on(";deny")
        late = Chat(proxy)
        await late.say()
        (_, approval) = await approvals_of(proxy)
        proxy.services.approvals._now = lambda: approval.expires_at + 1
        assert "expired before anybody used it" in await late.text({"role": "user", "content": "Go on."})
    assert watch.started == []


async def test_budgets_go_on_counting(watch: Watch, tmp_path: Path) -> None:
    """Turns that an agent used before it asked count against its ``max_turns``."""
    models = Models({"boss": boss(), "small": buys("milk", "eggs", "bread")})
    async with served(models, tmp_path, agents=agents(max_turns=3)) as (proxy,):
        client = Chat(proxy)
        await client.say()
        await client.go_on()
        said = await client.go_on()
    assert said.startswith("[researcher was stopped: it had no turns left")
    assert watch.finished == ["buy", "buy"]
    assert len(models.asked["small"]) == 3


async def test_calls_of_an_agent_count_across_its_runs(watch: Watch, tmp_path: Path) -> None:
    """A call beyond the agent's ``max_calls`` is refused, and nobody is asked about it."""
    models = Models({"boss": boss(), "small": buys("milk", "eggs")})
    async with served(models, tmp_path, agents=agents(max_calls=1)) as (proxy,):
        client = Chat(proxy)
        await client.say()
        assert "budget_exhausted" in await client.go_on()
        assert len(await approvals_of(proxy)) == 1


async def test_an_agent_that_had_begun_to_go_on_does_not_do_so_again(watch: Watch, tmp_path: Path) -> None:
    """If the process died after the agent began to go on, it does not go on again, and the model is told."""
    models = Models({"boss": boss(), "small": buys()})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        notice = await client.text()
        turns = proxy.services.approvals.agents
        assert turns is not None
        name = f"agent-{ID.findall(notice)[0]}"
        (turn,) = (await turns.find([name], "open")).values()
        assert await turns.begin(turn)
        assert "nobody knows how it ended" in await client.go_on()
    assert watch.started == []
    assert len(models.asked["small"]) == 1


async def test_an_agent_without_its_held_turn_does_not_go_on(watch: Watch, tmp_path: Path) -> None:
    """If the held turn of an agent is not on record, its model is not asked, and nothing runs."""
    models = Models({"boss": boss(), "small": buys()})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        notice = await client.text()
        (approval,) = await approvals_of(proxy)
        with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as db:
            held = ("DELETE FROM suspended_turns WHERE run_id = ? AND wire <> 'agent'", (approval.run_id,))
            assert db.execute(*held).rowcount == 1
            db.commit()
        assert "was not found on record" in await client.go_on(of=notice)
    assert watch.started == []
    assert len(models.asked["small"]) == 1


async def test_a_deleted_run_takes_its_agents_turns_along(watch: Watch, tmp_path: Path) -> None:
    """Deleting a run deletes its agents' turns and approvals, so nothing can go on."""
    models = Models({"boss": boss(), "small": buys()})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        notice = await client.text()
        outer = (await runs_of(proxy))[0]
        await proxy.services.store.purge(PurgeFilter(run_id=outer.id))
        turns = proxy.services.approvals.agents
        assert turns is not None
        assert not await turns.find([f"agent-{ID.findall(notice)[0]}"], "open")
        assert not await approvals_of(proxy)
    assert watch.started == []


@pytest.mark.parametrize("more", [{"response_format": {"type": "json_object"}}, {"n": 1, "user": "ann"}])
@pytest.mark.accepts("chat-word-json", why="the format is not about what is asked")
async def test_an_agent_asks_only_where_its_client_can_be_asked(
    watch: Watch, tmp_path: Path, more: dict[str, Any]
) -> None:
    """If the client asks for JSON output, the agent gets no tools that need approvals, and is told so."""
    models = Models({"boss": boss(), "small": lambda asked: Turn("None.")})
    async with served(models, tmp_path) as (proxy,):
        await proxy.ask({"model": "boss", "messages": [QUESTION], **more})
    small = models.asked["small"][0]
    assert (BUY in small.tools) is ("user" in more)
    assert ("you do not have them" in small.text) is ("user" not in more)


async def test_an_agent_with_a_schema_asks_too(watch: Watch, tmp_path: Path) -> None:
    """An agent with an output schema can ask the client, too."""
    schema = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}

    def small(asked: Asked) -> Turn:
        return Turn('{"done": true}') if asked.results else Turn(calls=[(BUY, {"what": "milk"})])

    models = Models({"boss": boss(), "small": small})
    async with served(models, tmp_path, agents=agents(output_schema=schema)) as (proxy,):
        client = Chat(proxy)
        await client.say()
        assert await client.go_on() == '{"done":true}'
    assert watch.finished == ["buy"]


async def test_a_process_that_dies_as_an_agent_goes_on_leaves_that_nobody_knows(
    watch: Watch, tmp_path: Path
) -> None:
    """If a process dies while an agent goes on, no other worker continues it, and the outcome is unknown."""
    hang = asyncio.Event()

    def small(asked: Asked) -> Turn:
        return Turn("Report.", before=[hang]) if asked.results else Turn(calls=[(BUY, {"what": "milk"})])

    models = Models({"boss": boss(), "small": small})
    async with served(models, tmp_path, workers=2) as (dies, lives):
        client = Chat(dies)
        notice = await client.text()
        other = Chat(lives, messages=list(client.messages))
        dying = asyncio.create_task(client.go_on(of=notice))
        await until(lambda: len(models.asked["small"]) == 2)
        with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as db:
            db.execute("UPDATE tool_invocations SET status = 'interrupted' WHERE status = 'started'")
            db.commit()
        assert "nobody knows how it ended" in await other.go_on(of=notice)
        hang.set()
        await dying
    assert watch.finished == ["buy"]
    assert len(models.asked["small"]) == 2


async def test_an_agent_whose_client_leaves_is_cancelled_for_good(watch: Watch, tmp_path: Path) -> None:
    """If the client leaves while an agent goes on, the agent is cancelled, and it does not go on again."""
    hang = asyncio.Event()

    def small(asked: Asked) -> Turn:
        return Turn("Report.", before=[hang]) if asked.results else Turn(calls=[(BUY, {"what": "milk"})])

    models = Models({"boss": boss(), "small": small})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        notice = await client.text()
        body = {"model": "boss", "messages": [*client.messages, {"role": "user", "content": "Go on."}]}
        header = {"x-toolrelay-approve": ID.findall(notice)[0]}
        async with proxy.sent(body, header):
            await until(lambda: len(models.asked["small"]) == 2)

        async def cancelled() -> bool:
            return [run.status for run in await runs_of(proxy) if run.agent] == ["suspended", "cancelled"]

        await until(cancelled)
        hang.set()
        assert "nobody knows how it ended" in await client.go_on(of=notice)
    assert watch.finished == ["buy"]
    assert len(models.asked["small"]) == 2


async def test_a_grant_for_the_conversation_covers_the_agents_next_calls(
    watch: Watch, tmp_path: Path
) -> None:
    """A grant for the conversation covers the agent's next calls, in this run and in a later one."""

    def shops(asked: Asked) -> Turn:
        wanted = asked.text.count("Find it out.")
        if len(asked.results) < wanted:
            return Turn(calls=[(RESEARCHER, {"task": f"shop {wanted}"})])
        return Turn(asked.results[-1])

    models = Models({"boss": shops, "small": buys("milk", "eggs")})
    async with served(models, tmp_path) as (proxy,):
        client = Chat(proxy)
        await client.say()
        assert "eggs" in await client.go_on(";conversation")
        assert watch.finished == ["buy", "buy"]
        assert (await client.text(QUESTION)).startswith("Report: ")
        assert len(await approvals_of(proxy)) == 1
    assert watch.finished == ["buy"] * 4
