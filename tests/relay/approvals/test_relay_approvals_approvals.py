"""Approvals under every order of events: decisions, expiry, returning clients, workers that stop.

The two workers share one database. Each has its own store and its own runner, like a process.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner_kit import StillClock
from store_postgres import need_postgres, new_schema

from proxy.base.errors import RequestError, StoreError
from proxy.base.events import ToolCall
from proxy.records.approvals import Approval, ApprovalFilter, ApprovalStatus
from proxy.records.result_for_model import Hole
from proxy.relay.approvals.approvals import Approvals, Resuming
from proxy.relay.approvals.decisions import Verdict
from proxy.relay.approvals.rules import MOST_WAITING, ApprovalRules, Decider
from proxy.relay.ask import Identity
from proxy.store.options import StoreOptions
from proxy.store.postgres.store import PostgresStore
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.store import SqliteStore
from proxy.tools.access.catalog import Catalog, Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner

POLICY: Final = Policy(allow=("*",), approve=("t__buy",))
EXPIRES_S: Final = 3600.0
BOSS: Final = Decider("boss", tools=("*",))
KINDS: Final = ("sqlite", "postgres")

OpenStore = Callable[[Callable[[], float]], SqlStore]


def identity(run_id: str) -> Identity:
    return Identity(run_id, "req_1", "alice", "alice", is_person=True)


@asynccontextmanager
async def database(kind: str) -> AsyncIterator[OpenStore]:
    """Make a new database and yield a function that opens a store on it."""
    if kind == "postgres":
        async with new_schema() as url:
            yield lambda clock: PostgresStore(url, StoreOptions(clock=clock))
        return
    with tempfile.TemporaryDirectory(prefix="toolrelay-approvals-") as folder:
        path = Path(folder) / "r.db"
        yield lambda clock: SqliteStore(path, StoreOptions(clock=clock))


class World:
    """What all workers share: the database, the clock, and what the tool did."""

    def __init__(self, open_store: OpenStore) -> None:
        self.open_store = open_store
        self.now = 1_800_000_000.0
        self.ran: list[tuple[str, float]] = []

    def clock(self) -> float:
        return self.now

    async def worker(self) -> "Worker":
        """Start one more worker, which stands for a process."""
        store = self.open_store(self.clock)
        await store.start()

        @tool(effect="external_side_effect", redaction=Redaction(output=("done",)))
        async def buy(what: str) -> dict[str, str]:
            """Change the world."""
            self.ran.append((what, self.now))
            for _ in range(3):
                await asyncio.sleep(0)
            return {"done": what}

        registry = await Registry.load([FunctionProvider("t", [buy], Capabilities(clock=StillClock()))])
        runner = Runner(registry, POLICY, store, None, StillClock(), effects=store)
        rules = ApprovalRules(expires_s=EXPIRES_S, edit=True)
        return Worker(self, store, runner, registry, Approvals(store, runner, rules, now=self.clock))


class Worker:
    """One process; ``stop`` ends it in the middle of its work."""

    def __init__(
        self, world: World, store: SqlStore, runner: Runner, registry: Registry, approvals: Approvals
    ) -> None:
        self.world = world
        self.store = store
        self.runner = runner
        self.registry = registry
        self.approvals = approvals
        self.tasks: set[asyncio.Task[Any]] = set()

    async def decide(self, approval_id: str, verdict: Verdict) -> Approval | None:
        """The approval after the decision; ``None`` if it came too late."""
        try:
            return await self.approvals.decide(approval_id, verdict, BOSS, "api")
        except RequestError as error:
            if error.status != 409:
                raise
            return None

    async def go_on(self, approval_id: str) -> str | None:
        """What the model is told about the call; ``None`` while nobody has decided."""
        resuming = Resuming(identity("run_2"), POLICY, self.registry.current)
        text = (await self.approvals.settle([approval_id], resuming)).results.get(approval_id)
        assert not isinstance(text, Hole)
        return text

    async def stop(self) -> None:
        """Stop, whatever is under way; the rest of the work is lost."""
        for task in self.tasks:
            task.cancel()
        await self.runner.drain(0.0)
        await self.store.aclose()


async def asked(worker: Worker, *whats: str, run_id: str = "run_1") -> dict[int, Approval]:
    """Ask for an approval of each purchase, in one turn."""
    calls = [
        ToolCall(f"call_{seq}", "t__buy", orjson.dumps({"what": what}).decode(), seq)
        for seq, what in enumerate(whats)
    ]
    found = await worker.approvals.ask(calls, RunContext(run_id, 1, "alice"), POLICY, identity(run_id))
    return dict(found.waiting)


OPS: Final = st.tuples(
    st.sampled_from(("yes", "no", "edit", "return", "return", "repeat", "stop")),
    st.integers(0, 1),
    st.integers(0, 6),
)
"""What happens, at which worker, and after how many steps of the event loop."""
STEPS: Final = st.lists(st.one_of(st.just("expire"), st.lists(OPS, min_size=1, max_size=4)), max_size=6)


class Story:
    """One order of events, and its results."""

    def __init__(self, world: World, workers: list[Worker], approval: Approval) -> None:
        self.world = world
        self.workers = workers
        self.approval = approval
        self.approved = self.denied = False
        self.told: list[str] = []

    async def step(self, step: Any) -> None:
        """Let time pass, or let some things happen at once."""
        if step == "expire":
            self.world.now += EXPIRES_S + 1
            return
        stopped = [number for name, number, _ in step if name == "stop"]
        await asyncio.gather(*(self._guarded(*op) for op in step))
        for number in set(stopped):
            self.workers[number] = await self.world.worker()

    async def _guarded(self, name: str, number: int, pauses: int) -> None:
        worker = self.workers[number]
        for _ in range(pauses):
            await asyncio.sleep(0)
        if name == "stop":
            await worker.stop()
            return
        task = asyncio.create_task(self._do(name, worker))
        worker.tasks.add(task)
        # A worker that stops answers no one.
        with suppress(asyncio.CancelledError, StoreError):
            await task
        worker.tasks.discard(task)

    async def _do(self, name: str, worker: Worker) -> None:
        id_ = self.approval.id
        if name == "yes":
            self._note(await worker.decide(id_, Verdict(True)))
        elif name == "edit":
            self._note(await worker.decide(id_, Verdict(True, arguments={"what": "tea"})))
        elif name == "no":
            self._note(await worker.decide(id_, Verdict(False, "No.")))
        else:
            times = 1 if name == "return" else 3
            found = await asyncio.gather(*(worker.go_on(id_) for _ in range(times)))
            self.told += [said for said in found if said is not None]

    def _note(self, decided: Approval | None) -> None:
        if decided is not None:
            self.denied |= decided.status is ApprovalStatus.DENIED
            self.approved |= decided.status in (ApprovalStatus.APPROVED, ApprovalStatus.USED)

    async def check(self) -> None:
        """Assert that the call ran at most once, as approved, in time, and never after a refusal."""
        ran = self.world.ran
        (row,) = await self.workers[0].approvals.read([self.approval.id])
        assert len(ran) <= 1, ran
        if self.denied:
            assert ran == []
            assert row.status is ApprovalStatus.DENIED
        if not ran:
            return
        what, moment = ran[0]
        assert row.status is ApprovalStatus.USED, row.status
        assert orjson.loads(row.effective_arguments) == {"what": what}
        assert moment < row.expires_at
        assert row.decided_by == "boss"
        done = {said for said in self.told if '"done"' in said}
        assert len(done) <= 1, done
        assert all(f'"done":"{what}"' in said.replace(" ", "") for said in done)


async def _tell(kind: str, steps: list[Any]) -> None:
    async with database(kind) as open_store:
        world = World(open_store)
        workers = [await world.worker(), await world.worker()]
        try:
            approval = (await asked(workers[0], "milk"))[0]
            story = Story(world, workers, approval)
            for step in steps:
                await story.step(step)
            # In the end the client always comes back, several times and to both workers.
            await story.step([("repeat", 0, 0), ("repeat", 1, 0)])
            await story.check()
        finally:
            for worker in workers:
                await worker.stop()


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_order_of_events_runs_a_call_twice(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call runs at most once, with the approved bytes, in time, and never after a refusal or expiry."""
    if kind == "postgres":
        need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    @settings(
        deadline=None,
        max_examples=60 if kind == "sqlite" else 15,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(STEPS)
    def each(steps: list[Any]) -> None:
        asyncio.run(_tell(kind, steps))

    each()


async def _within(kind: str, act: Callable[[World, list[Worker]], Awaitable[None]]) -> None:
    async with database(kind) as open_store:
        world = World(open_store)
        workers = [await world.worker(), await world.worker()]
        try:
            await act(world, workers)
        finally:
            for worker in workers:
                await worker.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_wait_than_may(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 100 calls of a caller wait, however many turns ask at once, at however many workers."""
    if kind == "postgres":
        need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def act(world: World, workers: list[Worker]) -> None:
        async def turn(number: int) -> int:
            whats = [f"{number}.{seq}" for seq in range(random.Random(number).randint(1, 8))]
            return len(await asked(workers[number % 2], *whats, run_id=f"run_{number}"))

        told = await asyncio.gather(*(turn(number) for number in range(60)))
        for number in range(60, 80):
            told.append(await turn(number))
        waiting = await workers[0].store.count_waiting("alice", world.now)
        assert waiting == sum(told) == MOST_WAITING
        world.now += EXPIRES_S + 1
        assert len(await asked(workers[1], "milk", run_id="run_later")) == 1

    asyncio.run(_within(kind, act))


def test_equal_calls_of_a_turn_share_one_approval() -> None:
    """Equal calls of a turn wait for one decision; the ninth different call of a turn does not wait."""

    async def act(world: World, workers: list[Worker]) -> None:
        waiting = await asked(workers[0], "milk", *"abcdefgh", "milk")
        assert waiting[0] is waiting[9]
        assert sorted(waiting) == [0, 1, 2, 3, 4, 5, 6, 7, 9]

    asyncio.run(_within("sqlite", act))


@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_is_repeated_after_the_tool_has_changed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of a tool that has gone does not run, the model reads why, and approving again is no error."""
    if kind == "postgres":
        need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def act(world: World, workers: list[Worker]) -> None:
        approval = (await asked(workers[0], "milk"))[0]
        await workers[0].decide(approval.id, Verdict(True))
        gone = Resuming(identity("run_2"), POLICY, Catalog())
        told = (await workers[0].approvals.settle([approval.id], gone)).results[approval.id]
        assert isinstance(told, str)
        assert "has changed or was removed since the call was approved" in told
        again = await workers[1].approvals.decide(approval.id, Verdict(True), BOSS, "header")
        assert again.status is ApprovalStatus.SUPERSEDED
        assert await workers[1].decide(approval.id, Verdict(False)) is None
        assert await workers[1].decide(approval.id, Verdict(True, arguments={"what": "tea"})) is None
        assert "has changed or was removed" in str(await workers[1].go_on(approval.id))
        assert world.ran == []

    asyncio.run(_within(kind, act))


@pytest.mark.parametrize("kind", KINDS)
def test_what_became_of_a_call_that_was_approved(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approval has the outcome of its call: none before it runs, and unknown if its row is lost."""
    if kind == "postgres":
        need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def act(world: World, workers: list[Worker]) -> None:
        approval = (await asked(workers[0], "milk"))[0]
        decided = await workers[0].decide(approval.id, Verdict(True))
        assert decided is not None
        assert decided.outcome == ""
        await workers[0].go_on(approval.id)
        # A worker that stops writes what it has queued, the end of the call among it.
        await workers[0].stop()
        workers[0] = await world.worker()
        for worker in workers:
            (row,) = await worker.approvals.list(ApprovalFilter())
            assert (row.status, row.outcome) == (ApprovalStatus.USED, "success")
        lost = replace(approval, id="appr_" + "9" * 32, status=ApprovalStatus.USED, invocation_id="inv_lost")
        await workers[0].store.put_approvals([lost])
        assert (await workers[1].approvals.find(lost.id, BOSS)).outcome == "interrupted"

    asyncio.run(_within(kind, act))
