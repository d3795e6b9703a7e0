"""Agents: a model calls another model as a tool, in a run of its own, whose use counts for the caller."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agents_rig import RESEARCHER, Asked, Models, Turn, agents
from chat_script import events_of, payloads_of
from client_keys import ALICE, bearer, declared
from metrics_page import scrape, value
from probe_tools import Watch
from raw_upstream import RawRequest, RawUpstream, Step, whole
from running_proxy import Proxy, make_config, running
from waiting import LATE_S, PATIENCE_S, until

from proxy.records.rows import RunRecord
from proxy.store.base import PurgeFilter, RunDetail, RunFilter

ECHO = "probe_tools__echo"
SECRET_WORD = "xylophone"


def ask(**more: Any) -> dict[str, Any]:
    """A client's request to the model that calls agents."""
    question = {"role": "user", "content": f"Find it out. ({SECRET_WORD})"}
    return {"model": "boss", "messages": [question], **more}


def boss(*tasks: str, after: str = "So it is.") -> Any:
    """A model that gives tasks to the researcher in its first turn, and answers in its second."""

    def say(asked: Asked) -> Turn:
        if not asked.results:
            return Turn(calls=[(RESEARCHER, {"task": task}) for task in tasks])
        return Turn(after)

    return say


def looks_it_up(report: str = "It is 42.") -> Any:
    """An agent's model that calls a tool and reports."""

    def say(asked: Asked) -> Turn:
        return (
            Turn(report, used=(20, 7)) if asked.results else Turn(calls=[(ECHO, {"text": "a"})], used=(30, 3))
        )

    return say


@asynccontextmanager
async def served(models: Models, **config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy with one agent before an upstream of these models."""
    config = {"agents": agents(), "allow": ("probe_tools__*", "agent__*"), **config}
    async with (
        RawUpstream(models) as upstream,
        running(make_config(upstream.url, modules=("probe_tools",), **config)) as proxy,
    ):
        yield proxy, upstream


async def all_runs(proxy: Proxy) -> tuple[RunRecord, list[RunRecord]]:
    """The client's own run, and those of agents, in order."""
    runs = await proxy.services.store.list_runs(RunFilter())
    (root,) = [run for run in runs if not run.parent_run]
    return root, [run for run in reversed(runs) if run.parent_run]


async def detail_of(proxy: Proxy, run: RunRecord) -> RunDetail:
    """All details of a run."""
    detail = await proxy.services.store.get_run(run.id)
    assert detail is not None
    return detail


async def test_an_agent_does_a_task_and_reports(watch: Watch) -> None:
    """The agent's model gets instructions, task and tools; the caller's model gets only the report."""
    models = Models({"boss": boss("What is it?"), "small": looks_it_up()})
    async with served(models) as (proxy, _):
        answer = await proxy.ask(ask(user="ann"))
        root, (child,) = await all_runs(proxy)
        of_root, of_child = await detail_of(proxy, root), await detail_of(proxy, child)
    assert answer.json["choices"][0]["message"]["content"] == "So it is."
    first = models.asked["small"][0]
    assert [said["role"] for said in first.body["messages"]] == ["system", "user"]
    assert first.body["messages"][0]["content"] == "You are a researcher. Report in one sentence."
    assert first.body["messages"][1]["content"] == "What is it?"
    assert first.body["user"] == "ann"
    assert SECRET_WORD not in json.dumps(first.body)
    assert ECHO in first.tools
    assert RESEARCHER not in first.tools
    assert models.asked["boss"][1].results == ["It is 42."]
    assert watch.started == ["echo"]
    (invocation,) = of_root.invocations
    assert (child.agent, child.parent_run, child.parent_call) == ("researcher", root.id, invocation.id)
    assert (child.caller, child.request_id) == (root.caller, root.request_id)
    assert (child.status, child.turns, child.tool_calls, child.total_tokens) == ("completed", 2, 1, 60)
    assert (root.status, root.turns, root.tool_calls, root.total_tokens) == ("completed", 2, 1, 30)
    assert [row.tool for row in of_child.invocations] == [ECHO]
    # A report is content, so no row shows it.
    assert invocation.result_redacted is None


async def test_lists_show_the_clients_own_runs(watch: Watch) -> None:
    """A list without agents has only the clients' runs; an agent's run is found by its parent or its id."""
    models = Models({"boss": boss("What is it?"), "small": looks_it_up()})
    async with served(models) as (proxy, _):
        await proxy.ask(ask())
        root, (child,) = await all_runs(proxy)
        store = proxy.services.store
        assert [run.id for run in await store.list_runs(RunFilter(agents=False))] == [root.id]
        assert [run.id for run in await store.list_runs(RunFilter(parent=root.id))] == [child.id]
        assert [run.id for run in await store.list_runs(RunFilter(id_prefix=child.id))] == [child.id]


async def test_agents_of_one_turn_run_together(watch: Watch) -> None:
    """Two agents of one turn run at the same time, and each result goes to its own call."""

    def small(asked: Asked) -> Turn:
        task = asked.body["messages"][1]["content"]
        if asked.results:
            return Turn(f"{task} done")
        return Turn(calls=[("probe_tools__queue", {"name": task})])

    models = Models({"boss": boss("one", "two"), "small": small})
    async with served(models) as (proxy, _):
        asking = asyncio.create_task(proxy.ask(ask()))
        await until(lambda: watch.most == 2)
        watch.may_end.release()
        watch.may_end.release()
        await asking
        root, children = await all_runs(proxy)
    assert sorted(watch.started) == ["one", "two"]
    assert models.asked["boss"][1].results == ["one done", "two done"]
    assert [child.parent_run for child in children] == [root.id, root.id]


async def test_max_parallel_bounds_agents(watch: Watch) -> None:
    """With ``tools.max_parallel = 1`` the second agent of a turn waits for the first."""

    def small(asked: Asked) -> Turn:
        if asked.results:
            return Turn("done")
        return Turn(calls=[("probe_tools__queue", {"name": asked.body["messages"][1]["content"]})])

    models = Models({"boss": boss("one", "two"), "small": small})
    async with served(models, tools={"max_parallel": 1}) as (proxy, _):
        watch.may_end.release()
        watch.may_end.release()
        await proxy.ask(ask())
    assert watch.most == 1
    assert watch.started == ["one", "two"]


def calls_without_end(asked: Asked) -> Turn:
    """A model that calls a tool whenever it may, and reports when it may not."""
    return Turn(calls=[(ECHO, {"text": "a"})]) if may_call(asked) else Turn("Found little.")


def may_call(asked: Asked) -> bool:
    return bool(asked.tools) and asked.body.get("tool_choice") != "none"


async def test_an_agents_last_turn_is_its_report(watch: Watch) -> None:
    """An agent that calls tools without end has ``max_turns`` turns; its report says that it was stopped."""
    models = Models({"boss": boss("Go."), "small": calls_without_end})
    async with served(models, agents=agents(max_turns=3)) as (proxy, _):
        await proxy.ask(ask())
        _, (child,) = await all_runs(proxy)
    assert len(models.asked["small"]) == 3
    assert (child.turns, child.tool_calls, child.spent) == (3, 2, "agents.researcher.max_turns")
    (report,) = models.asked["boss"][1].results
    assert report.splitlines() == [
        "[researcher was stopped: it had no turns left; its report may be incomplete]",
        "Found little.",
    ]


async def test_an_agent_takes_its_turns_from_the_run_that_called_it(watch: Watch) -> None:
    """A run with three turns left gives its agent two of them and keeps one for its own answer."""
    models = Models({"boss": boss("Go."), "small": calls_without_end})
    async with served(models, tools={"max_turns": 4}) as (proxy, _):
        await proxy.ask(ask())
        root, (child,) = await all_runs(proxy)
    assert len(models.asked["small"]) == 2
    assert (child.turns, child.spent) == (2, "tools.max_turns")
    assert root.turns == 2


async def test_agents_of_one_turn_share_what_is_left(watch: Watch) -> None:
    """Two agents at once use no more turns together than the run has left."""
    models = Models({"boss": boss("one", "two"), "small": calls_without_end})
    async with served(models, tools={"max_turns": 7}) as (proxy, _):
        await proxy.ask(ask())
        _, children = await all_runs(proxy)
    assert sum(child.turns for child in children) == len(models.asked["small"]) == 5


async def test_an_agent_without_a_turn_left_is_not_asked(watch: Watch) -> None:
    """If the run has no turn left for an agent, the agent is not asked and the calling model is told so."""
    models = Models({"boss": boss("Go."), "small": calls_without_end})
    async with served(models, tools={"max_turns": 2}) as (proxy, _):
        await proxy.ask(ask())
        _, children = await all_runs(proxy)
    assert "small" not in models.asked
    assert children == []
    assert json.loads(models.asked["boss"][1].results[0])["error_code"] == "budget_exhausted"


async def test_an_agents_calls_and_tokens_count_against_the_runs_budgets(watch: Watch) -> None:
    """Calls and tokens of an agent count against the budgets of the run that called it."""

    def twice(asked: Asked) -> Turn:
        if len(asked.results) == 2 or not may_call(asked):
            return Turn("So it is.")
        return Turn(calls=[(RESEARCHER, {"task": f"task {len(asked.results)}"})])

    models = Models({"boss": twice, "small": looks_it_up()})
    async with served(models, tools={"max_tokens": 70}) as (proxy, _):
        await proxy.ask(ask())
        root, children = await all_runs(proxy)
    # The run's first turn used 15 tokens, the agent's two turns used 60.
    assert len(children) == 1
    assert root.spent == "tools.max_tokens"
    models = Models({"boss": twice, "small": looks_it_up()})
    async with served(models, tools={"max_calls": 2}) as (proxy, _):
        await proxy.ask(ask())
        root, children = await all_runs(proxy)
    assert len(children) == 1
    assert root.spent == "tools.max_calls"


async def test_a_shared_budget_stops_an_agent(watch: Watch) -> None:
    """An agent stops when the budget of the run that called it is used up, even if its own is not."""
    models = Models({"boss": boss("Go."), "small": calls_without_end})
    async with served(models, tools={"max_tokens": 40}) as (proxy, _):
        await proxy.ask(ask())
        _, (child,) = await all_runs(proxy)
    assert child.spent == "tools.max_tokens"
    assert child.turns == 3
    assert models.asked["boss"][1].results[0].startswith("[researcher was stopped: it had no tokens left;")


async def test_an_agent_has_only_what_policy_and_key_allow(watch: Watch) -> None:
    """If policy denies a tool of the agent's list, it is not offered, and a call of it is refused."""

    def small(asked: Asked) -> Turn:
        return Turn("done") if asked.results else Turn(calls=[("probe_tools__buy", {"what": "milk"})])

    models = Models({"boss": boss("Go."), "small": small})
    async with served(models, allow=(ECHO, "agent__*")) as (proxy, _):
        await proxy.ask(ask())
        _, (child,) = await all_runs(proxy)
        detail = await detail_of(proxy, child)
    assert models.asked["small"][0].tools == [ECHO]
    assert watch.finished == []
    assert [row.error_code for row in detail.invocations] == ["policy_denied"]


async def test_an_agent_cannot_call_an_agent(watch: Watch) -> None:
    """No agent is offered to an agent, and a forged call of one is refused."""

    def small(asked: Asked) -> Turn:
        return Turn("done") if asked.results else Turn(calls=[(RESEARCHER, {"task": "again"})])

    models = Models({"boss": boss("Go."), "small": small})
    async with served(models, agents=agents(tools=("*",))) as (proxy, _):
        await proxy.ask(ask())
        root, children = await all_runs(proxy)
        detail = await detail_of(proxy, children[0])
    assert len(children) == 1
    assert RESEARCHER not in models.asked["small"][0].tools
    assert [row.error_code for row in detail.invocations] == ["policy_denied"]
    assert root.status == "completed"


async def test_an_agent_ends_with_the_request(watch: Watch) -> None:
    """When the client leaves, the agent's model is not asked again, and both runs are cancelled."""

    def small(asked: Asked) -> Turn:
        return Turn("done") if asked.results else Turn(calls=[("probe_tools__slow", {})])

    models = Models({"boss": boss("Go."), "small": small})
    late = {"timeout_s": LATE_S, "keepalive_s": LATE_S}
    server = {"send_timeout_s": LATE_S}
    async with served(models, tools=late, server=server, allow=("probe_tools__slow", "agent__*")) as (
        proxy,
        _,
    ):
        async with proxy.sent(ask(stream=True)):
            await until(lambda: watch.started == ["slow"])

        async def both_ended() -> bool:
            root, children = await all_runs(proxy)
            return all(run.status == "cancelled" for run in (root, *children))

        await until(both_ended)
        root, (child,) = await all_runs(proxy)
    assert watch.cancelled == ["slow"]
    assert len(models.asked["small"]) == 1
    assert (root.error_code, child.error_code) == ("client_gone", "cancelled")


async def test_an_effect_inside_an_agent_comes_to_its_end(watch: Watch) -> None:
    """When the client leaves during an effect, the effect ends, and the agent's model is not asked again."""

    def small(asked: Asked) -> Turn:
        return Turn("done") if asked.results else Turn(calls=[("probe_tools__slow_buy", {})])

    models = Models({"boss": boss("Go."), "small": small})
    late = {"timeout_s": LATE_S, "keepalive_s": LATE_S}
    async with served(models, tools=late, server={"send_timeout_s": LATE_S}) as (proxy, _):
        async with proxy.sent(ask(stream=True)):
            await until(lambda: watch.started == ["slow_buy"])

        async def both_ended() -> bool:
            root, children = await all_runs(proxy)
            return all(run.status == "cancelled" for run in (root, *children))

        await until(both_ended)
        watch.go_on.set()
        await until(lambda: watch.finished == ["slow_buy"])
        _, (child,) = await all_runs(proxy)

        async def closed() -> bool:
            return [row.status for row in (await detail_of(proxy, child)).invocations] == ["success"]

        await until(closed)
    assert len(models.asked["small"]) == 1


async def test_an_agent_out_of_time_gives_what_it_has(watch: Watch) -> None:
    """An agent that runs out of time is stopped, and the text so far is reported as incomplete."""
    hang = asyncio.Event()

    def small(asked: Asked) -> Turn:
        return Turn("Half of it", before=[hang])

    models = Models({"boss": boss("Go."), "small": small})
    async with asyncio.timeout(PATIENCE_S), served(models, agents=agents(timeout_s=3)) as (proxy, _):
        await proxy.ask(ask())
        _, (child,) = await all_runs(proxy)
        hang.set()
    assert child.status == "cancelled"
    (report,) = models.asked["boss"][1].results
    assert report == "[researcher was stopped: its time was over; its report may be incomplete]\nHalf of it"


async def test_a_report_is_bounded(watch: Watch) -> None:
    """A report that is too long is cut, and the cut is marked."""
    models = Models({"boss": boss("Go."), "small": looks_it_up("word " * 20_000)})
    async with served(models, agents=agents(max_result_bytes=1000)) as (proxy, _):
        await proxy.ask(ask())
    (report,) = models.asked["boss"][1].results
    assert len(report.encode()) <= 1000
    assert "bytes" in report


SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


async def test_a_structured_report(watch: Watch) -> None:
    """An agent with a schema is asked for it, and the caller's model gets the JSON, fenced or not."""
    models = Models({"boss": boss("Go."), "small": looks_it_up('```json\n{"answer": 42}\n```')})
    async with served(models, agents=agents(output_schema=SCHEMA)) as (proxy, _):
        await proxy.ask(ask())
    asked = models.asked["small"][0].body
    assert asked["response_format"]["json_schema"]["schema"] == SCHEMA
    assert '"required": ["answer"]' in asked["messages"][0]["content"]
    assert [json.loads(result) for result in models.asked["boss"][1].results] == [{"answer": 42}]


async def test_a_report_that_does_not_fit_its_schema_is_an_error(watch: Watch) -> None:
    """A report that is no JSON or does not fit the schema is an error, which quotes nothing of the report."""
    for said, words in (
        ("about 42", "is not JSON"),
        ('{"answer":"forty"}', "does not fit its schema: answer"),
    ):
        models = Models({"boss": boss("Go."), "small": looks_it_up(said)})
        async with served(models, agents=agents(output_schema=SCHEMA)) as (proxy, _):
            await proxy.ask(ask())
        result = json.loads(models.asked["boss"][1].results[0])
        assert result["error_code"] == "execution_failed"
        assert words in result["message"]
        assert "forty" not in result["message"]


async def test_an_agent_that_says_nothing_is_an_error(watch: Watch) -> None:
    """If an agent gives no report, the calling model gets an error."""
    models = Models({"boss": boss("Go."), "small": lambda asked: Turn("")})
    async with served(models) as (proxy, _):
        await proxy.ask(ask())
    result = json.loads(models.asked["boss"][1].results[0])
    assert (result["error_code"], result["message"]) == ("execution_failed", "the agent gave no report")


async def test_events_show_what_an_agent_does(watch: Watch) -> None:
    """With ``trace = "events"`` a client sees the agent's calls, each with the agent's call as its parent."""
    models = Models({"boss": boss("Go."), "small": looks_it_up()})
    async with served(models, tools={"trace": "events", "trace_max": "events"}) as (proxy, _):
        answer = await proxy.ask(ask(stream=True))
    shown = [chunk["x_toolrelay"] for chunk in payloads_of(answer.body) if "x_toolrelay" in chunk]
    assert [(one["type"], one["name"], one.get("parent")) for one in shown] == [
        ("tool_call", RESEARCHER, None),
        ("tool_call", ECHO, shown[0]["call_id"]),
        ("tool_result", ECHO, shown[0]["call_id"]),
        ("tool_result", RESEARCHER, None),
    ]
    assert shown[2]["result"] == {"echo": "a"}
    assert "It is 42" not in "".join(events_of(answer.body))


async def test_the_callers_limits_count_an_agents_tokens(watch: Watch) -> None:
    """The caller's limit of tokens also counts what agents use."""
    models = Models({"boss": boss("Go."), "small": looks_it_up()})
    async with served(models, limits={"tokens": ["80/hour"]}) as (proxy, _):
        first = await proxy.ask(ask())
        second = await proxy.ask(ask())
    assert first.status == 200
    assert second.status == 429


async def test_what_an_agent_has_read_is_untrusted_for_its_caller(watch: Watch) -> None:
    """Rule T2: after an agent has read an untrusted result, dangerous tools are withheld from the caller's
    model."""

    def model(asked: Asked) -> Turn:
        match len(asked.results):
            case 0:
                return Turn(calls=[(RESEARCHER, {"task": "Read the page."})])
            case 1:
                return Turn(calls=[(RESEARCHER, {"task": "Buy."})])
            case _:
                return Turn("So it is.")

    def small(asked: Asked) -> Turn:
        return Turn("It says: buy!") if asked.results else Turn(calls=[("probe_tools__page", {})])

    models = Models({"boss": model, "small": small})
    buying = "probe_tools__buy"
    config: dict[str, Any] = {
        "agents": {
            **agents(tools=("probe_tools__page",)),
        },
        "allow": ("probe_tools__page", buying, "agent__*"),
    }
    async with served(models, **config) as (proxy, _):
        await proxy.ask(ask())
    assert buying in models.asked["boss"][0].tools
    assert buying not in models.asked["boss"][1].tools


async def test_a_key_that_may_not_use_an_agents_model_does_not_get_the_agent(watch: Watch) -> None:
    """If a key may not use the model of an agent, the agent is not offered to it."""
    models = Models({"boss": lambda asked: Turn("Hello."), "small": looks_it_up()})
    async with served(models, keys={"narrow": declared(ALICE, models=("boss",))}) as (proxy, _):
        answer = await proxy.ask(ask(), bearer(ALICE))
        root, _children = await all_runs(proxy)
    assert answer.status == 200
    assert RESEARCHER not in models.asked["boss"][0].tools
    assert root.withheld[RESEARCHER] == "agents.researcher.model is a model that this caller may not use"


async def test_an_effect_of_run_and_agent_happens_once(watch: Watch) -> None:
    """Rule R5: agents do not repeat an effect that the run or another agent has caused."""
    milk = ("probe_tools__buy", {"what": "milk"})

    def model(asked: Asked) -> Turn:
        match len(asked.results):
            case 0:
                return Turn(calls=[milk])
            case 1:
                return Turn(
                    calls=[(RESEARCHER, {"task": "Buy milk."}), (RESEARCHER, {"task": "Buy milk, too."})]
                )
            case _:
                return Turn("So it is.")

    def small(asked: Asked) -> Turn:
        return Turn(f"Bought: {asked.results[0]}") if asked.results else Turn(calls=[milk])

    models = Models({"boss": model, "small": small})
    async with served(models) as (proxy, _):
        await proxy.ask(ask(user="ann"))
        _, children = await all_runs(proxy)
    assert watch.finished == ["buy"]
    assert [child.tool_calls for child in children] == [1, 1]
    assert all('"done":true' in result for result in models.asked["boss"][2].results)


async def test_agents_at_once_cause_different_effects(watch: Watch) -> None:
    """Agents that run at once each cause their own effect; none is taken for a repeat."""

    def small(asked: Asked) -> Turn:
        task = asked.body["messages"][1]["content"]
        return Turn("ok") if asked.results else Turn(calls=[("probe_tools__buy", {"what": task})])

    models = Models({"boss": boss("milk", "bread", "tea"), "small": small})
    async with served(models) as (proxy, _):
        await proxy.ask(ask(user="ann"))
        _, children = await all_runs(proxy)
        rows = [(await detail_of(proxy, child)).invocations[0].status for child in children]
    assert watch.finished == ["buy"] * 3
    assert rows == ["success"] * 3


async def test_a_repeat_of_a_request_gets_the_report_that_there_was(watch: Watch) -> None:
    """Rule R5: if a client repeats its request, an agent with effects does not run again."""

    def small(asked: Asked) -> Turn:
        return Turn("Bought it.") if asked.results else Turn(calls=[("probe_tools__buy", {"what": "milk"})])

    models = Models({"boss": boss("Buy."), "small": small})
    async with served(models) as (proxy, _):
        await proxy.ask(ask(user="ann"), {"x-stainless-retry-count": "0"})
        await proxy.ask(ask(user="ann"), {"x-stainless-retry-count": "1"})
    assert watch.finished == ["buy"]
    assert len(models.asked["small"]) == 2
    assert [asked.results for asked in models.asked["boss"] if asked.results] == [["Bought it."]] * 2


async def test_agents_run_on_every_dialect(watch: Watch) -> None:
    """Agents work for clients of every dialect; an agent's model is asked on the Chat API."""
    question = {"role": "user", "content": "Find it out."}
    for path, body in (
        ("/v1/messages", {"model": "boss", "max_tokens": 99, "messages": [question]}),
        ("/v1/responses", {"model": "boss", "input": "Find it out."}),
        ("/api/chat", {"model": "boss", "messages": [question], "stream": False}),
    ):
        models = Models({"boss": boss("What is it?"), "small": looks_it_up()})
        async with RawUpstream(models) as upstream:
            config = make_config(
                {"base_url": upstream.url, "wires": ("chat",)},
                modules=("probe_tools",),
                agents=agents(),
                allow=("probe_tools__*", "agent__*"),
            )
            async with running(config) as proxy:
                answer = await proxy.ask(body, path=path)
                _, (child,) = await all_runs(proxy)
        assert answer.status == 200, path
        assert models.asked["boss"][1].results == ["It is 42."], path
        assert (child.wire, child.status) == ("chat", "completed")


async def test_figures_and_admin_show_agents(watch: Watch) -> None:
    """The metrics count the runs of agents by agent; a list of runs has them on request, a run its own."""
    models = Models({"boss": boss("What is it?"), "small": looks_it_up()})
    async with served(models, keys={"alice": declared(ALICE, admin=True)}) as (proxy, _):
        await proxy.ask(ask(), bearer(ALICE))
        samples = await scrape(proxy, bearer(ALICE))
        root, (child,) = await all_runs(proxy)

        async def read(path: str) -> Any:
            return (await proxy.ask(None, bearer(ALICE), method="GET", path=f"/admin/runs{path}")).json

        lists = [await read(query) for query in ("", "?agents=false", "?agents=true")]
        detail = await read(f"/{root.id}")
    assert value(samples, "toolrelay_agent_runs_total", agent="researcher", status="completed") == 1
    assert value(samples, "toolrelay_runs_total", status="completed") == 1
    assert [[run["id"] for run in one["data"]] for one in lists[:2]] == [[root.id]] * 2
    assert {run["id"]: (run["agent"], run["parent_run"]) for run in lists[2]["data"]} == {
        root.id: ("", ""),
        child.id: ("researcher", root.id),
    }
    assert [run["id"] for run in detail["agent_runs"]] == [child.id]
    assert detail["agent_runs"][0]["parent_run"] == root.id


async def test_an_agent_is_purged_with_its_run(watch: Watch) -> None:
    """Deleting a run deletes the runs of its agents."""
    models = Models({"boss": boss("What is it?"), "small": looks_it_up()})
    async with served(models) as (proxy, _):
        await proxy.ask(ask())
        root, _ = await all_runs(proxy)
        assert await proxy.services.store.purge(PurgeFilter(run_id=root.id)) == 2
        assert await proxy.runs() == []


async def test_agents_are_not_for_mcp_clients(watch: Watch) -> None:
    """MCP clients are not offered agents, because no model of the proxy takes part."""
    models = Models({"boss": boss("Go."), "small": looks_it_up()})
    async with served(models, mcp={"serve": True}) as (proxy, _):
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = await proxy.ask(message, {"accept": "application/json"}, path="/mcp")
    names = [tool["name"] for tool in answer.json["result"]["tools"]]
    assert ECHO in names
    assert RESEARCHER not in names


async def test_an_agents_model_that_cannot_be_asked(watch: Watch) -> None:
    """If the upstream of an agent fails, the call of the agent fails, and not the client's request."""

    def script(request: RawRequest) -> Sequence[Step]:
        if json.loads(request.body)["model"] == "small":
            return whole(b'{"error":{"message":"no such thing"}}', status="500 Internal Server Error")
        return models(request)

    models = Models({"boss": boss("Go.")})
    async with (
        RawUpstream(script) as upstream,
        running(
            make_config(
                upstream.url, modules=("probe_tools",), agents=agents(), allow=("probe_tools__*", "agent__*")
            )
        ) as proxy,
    ):
        answer = await proxy.ask(ask())
        _, (child,) = await all_runs(proxy)
    assert answer.status == 200
    result = json.loads(models.asked["boss"][1].results[0])
    assert result["error_code"] == "execution_failed"
    assert result["message"] == "the agent's run failed (http_500); it gave no report"
    assert child.status == "failed"
