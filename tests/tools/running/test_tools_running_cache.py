"""Cached results, sharing of equal concurrent calls, and limits of concurrency."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs
from runner_kit import MakeCall, MakeRunner, MemoryLog, StillTime

from proxy.base.errors import ConfigError, ToolFailure
from proxy.toolbox.clock import FixedClock
from proxy.tools import CacheControl, CallContext, Redaction, tool
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.access.single_flight import SingleFlight, WorkCancelled
from proxy.tools.contract.results.results import Output
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.cache import ResultCache, cache_key
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import Runner
from proxy.tools.running.tasks.concurrency import Slots

READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction(output=("*",))}
NOW = datetime(2026, 11, 21, 13, 5, tzinfo=UTC)


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")


class Clock:
    """Monotonic seconds and wall-clock seconds, which the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.day = 1000.0


@pytest.fixture
def clock() -> Clock:
    """A new clock."""
    return Clock()


def make_cache(clock: Clock, **options: Any) -> ResultCache:
    """Make a cache that uses this clock."""
    return ResultCache(monotonic=lambda: clock.seconds, wall=lambda: clock.day, **options)


def output(text: str) -> Output:
    """An output with this text."""
    return Output(text, text, len(text), redacted=text)


def test_kept_until_its_time(clock: Clock) -> None:
    """The cache keeps a result exactly for its time-to-live."""
    cache = make_cache(clock)
    cache.put("k", output("a"), 5.0, None)
    clock.seconds = 4.9
    kept = cache.get("k")
    assert kept is not None
    assert kept.text == "a"
    clock.seconds = 5.0
    assert cache.get("k") is None
    assert len(cache) == 0


def test_never_past_its_moment(clock: Clock) -> None:
    """A result expires at its own expiry time, even if its time-to-live is longer."""
    cache = make_cache(clock)
    cache.put("k", output("a"), 1e6, 1001.0)
    clock.day = 1000.9
    assert cache.get("k") is not None
    clock.day = 1001.0
    assert cache.get("k") is None
    cache.put("k", output("a"), 1e6, 999.0)
    assert len(cache) == 0


def test_bounded_in_number_and_bytes(clock: Clock) -> None:
    """The cache evicts the least recently used results, and does not keep one that is too large."""
    cache = make_cache(clock, max_entries=2)
    for key in "ab":
        cache.put(key, output(key), 9, None)
    cache.get("a")
    cache.put("c", output("c"), 9, None)
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    small = make_cache(clock, max_bytes=40_000)
    small.put("big", output("x" * 5000), 9, None)
    assert len(small) == 0
    for number in range(100):
        small.put(str(number), output("x" * 1000), 9, None)
    assert 0 < len(small) <= 40_000 // 4000


def test_key_parts_do_not_run_together() -> None:
    """Different lists of parts give different keys, even if their joined text is equal."""
    assert cache_key("ab", "c") != cache_key("a", "bc") != cache_key("a", "b", "c")
    assert cache_key("\ud800") != cache_key("\ud801")


class Fetcher:
    """A cached tool that counts its executions and can be made to wait."""

    def __init__(self, **options: Any) -> None:
        self.times = 0
        self.contexts: list[CallContext] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.cancelled = 0

        @tool(name="fetch", **{"cache_ttl_s": 60, **READ, **options})
        async def fetch(q: str, call: CallContext, n: int = 1) -> dict[str, Any]:
            """Fetch."""
            self.times += 1
            self.contexts.append(call)
            self.began.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if q == "fail":
                raise ToolFailure("no luck")
            if q == "crash":
                raise KeyError(q)
            return {"q": q, "times": self.times}

        self.tool = fetch


async def test_equal_calls_get_the_kept_result(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Calls with equal arguments run once, however written; the row of the second one says "cached"."""
    fetcher = Fetcher()
    runner = await make_runner([fetcher.tool])
    first = await runner.run(call("fetch", '{"q":"a","n":1}'), context)
    later = structs.replace(context, run_id="run_2", ledger=RunLedger())
    second = await runner.run(call("fetch", ' {"n":1, "q":"\\u0061"}', 3), later)
    assert (first.content, first.redacted) == (second.content, second.redacted)
    assert second.call_id == "call_3"
    assert fetcher.times == 1
    assert [row.decision for row in log.closed] == [
        'allowed: policy.allow has "*"',
        'allowed: policy.allow has "*"; cached',
    ]
    assert (log.closed[1].run_id, log.closed[1].status, log.closed[1].result_bytes) == (
        "run_2",
        "success",
        len(first.content),
    )


async def test_no_caller_gets_what_was_fetched_for_another(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """A cached result is not given to another caller or for other arguments."""
    fetcher = Fetcher()
    runner = await make_runner([fetcher.tool])
    await runner.run(call("fetch", '{"q":"a"}'), context)
    await runner.run(call("fetch", '{"q":"a"}'), structs.replace(context, caller="other", ledger=RunLedger()))
    await runner.run(call("fetch", '{"q":"b"}', 1), context)
    assert fetcher.times == 3
    assert [one.caller for one in fetcher.contexts] == ["open", "other", "open"]


@pytest.mark.parametrize(
    "other",
    [{"digest": "another"}, {"connection": "another"}, {"caller": "another"}, {"max_result_bytes": 999}, {}],
)
@pytest.mark.parametrize("at_once", [False, True])
async def test_what_makes_a_call_another_one(
    log: MemoryLog, context: RunContext, call: MakeCall, other: dict[str, Any], at_once: bool
) -> None:
    """Rules R5, T9: a call of another caller, connection, definition or size limit is not shared."""
    fetcher = Fetcher()
    provider = FunctionProvider("t", [fetcher.tool])
    (spec,) = provider.specs
    registry = await Registry.load([provider])
    runner = Runner(registry, Policy(allow=("*",)), log, None, FixedClock(NOW))
    if at_once:
        fetcher.go_on.clear()
    first = asyncio.create_task(runner.run(call("fetch", '{"q":"a"}'), context))
    await fetcher.began.wait()
    if not at_once:
        await first
    caller = other.get("caller", context.caller)
    changed = replace(spec, **{name: value for name, value in other.items() if name != "caller"})
    registry.replace([(changed, provider)])
    later = structs.replace(context, run_id="run_2", caller=caller, ledger=RunLedger())
    second = asyncio.create_task(runner.run(call("fetch", '{"q":"a"}'), later))
    await until(lambda: len(log.opened) == 2)
    await until(lambda: second.done() or fetcher.times == 2 or not other)
    fetcher.go_on.set()
    results = [await first, await second]
    assert [result.ok for result in results] == [True, True]
    assert fetcher.times == (2 if other else 1)


async def test_ten_equal_calls_at_once_make_one(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Ten equal concurrent calls share one execution, and their rows say so."""
    fetcher = Fetcher()
    fetcher.go_on.clear()
    runner = await make_runner([fetcher.tool], max_parallel=10)
    calls = [call("fetch", '{"q":"a"}', seq) for seq in range(10)]
    task = asyncio.create_task(runner.run_many(calls, context))
    await fetcher.began.wait()
    fetcher.go_on.set()
    results = await task
    assert fetcher.times == 1
    assert {one.content for one in results} == {'{"q":"a","times":1}'}
    assert len(log.closed) == 10
    assert sum("shared" in row.decision for row in log.closed) == 9


@pytest.mark.parametrize(("query", "words"), [("fail", "no luck"), ("crash", "the tool failed")])
async def test_failures_are_not_kept(
    make_runner: MakeRunner, context: RunContext, call: MakeCall, query: str, words: str
) -> None:
    """All calls that share an execution get its failure; a later call runs the tool again."""
    fetcher = Fetcher()
    runner = await make_runner([fetcher.tool])
    calls = [call("fetch", json.dumps({"q": query}), seq) for seq in range(3)]
    results = await runner.run_many(calls, context)
    assert {one.safe_message for one in results} == {words}
    assert fetcher.times == 1
    again = await runner.run(replace(calls[0], index=7), context)
    assert (again.safe_message, fetcher.times) == (words, 2)


async def test_a_cancelled_leader_leaves_its_followers_alone(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule E4: cancelling the call that started a shared execution does not affect the other calls."""
    fetcher = Fetcher()
    fetcher.go_on.clear()
    runner = await make_runner([fetcher.tool])
    leader = asyncio.create_task(runner.run(call("fetch", '{"q":"a"}'), context))
    await fetcher.began.wait()
    follower = asyncio.create_task(runner.run(call("fetch", '{"q":"a"}', 1), context))
    await until(lambda: len(log.opened) == 2)
    leader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    fetcher.go_on.set()
    assert (await follower).ok
    assert (fetcher.times, fetcher.cancelled) == (1, 0)
    assert [row.status for row in log.closed] == ["cancelled", "success"]


async def test_nobody_waiting_ends_the_work(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule E4: if all waiting calls are cancelled, the tool is cancelled, and a new call runs it again."""
    fetcher = Fetcher()
    fetcher.go_on.clear()
    runner = await make_runner([fetcher.tool])
    tasks = [asyncio.create_task(runner.run(call("fetch", '{"q":"a"}', seq), context)) for seq in range(2)]
    await fetcher.began.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    fetcher.go_on.set()
    assert (await runner.run(call("fetch", '{"q":"a"}', 5), context)).ok
    assert (fetcher.times, fetcher.cancelled) == (2, 1)


async def test_a_follower_waits_no_longer_than_its_own_run(
    still_time: StillTime, make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: a call waits for a shared execution only for the time of its run; the execution goes on."""
    fetcher = Fetcher()
    fetcher.go_on.clear()
    runner = await make_runner([fetcher.tool])
    leader = asyncio.create_task(runner.run(call("fetch", '{"q":"a"}'), context))
    await fetcher.began.wait()
    short = await runner.run(call("fetch", '{"q":"a"}', 1), context, budget_s=0.01)
    assert short.error_code == "timeout"
    fetcher.go_on.set()
    assert (await leader).ok
    assert fetcher.times == 1


async def test_a_shared_execution_has_the_tools_own_time(
    still_time: StillTime, make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """If the run of the first call is out of time, the shared execution goes on for the other calls."""
    fetcher = Fetcher()
    fetcher.go_on.clear()
    runner = await make_runner([fetcher.tool])
    leader = asyncio.create_task(runner.run(call("fetch", '{"q":"a"}'), context, budget_s=0.02))
    await fetcher.began.wait()
    follower = asyncio.create_task(runner.run(call("fetch", '{"q":"a"}', 1), context))
    assert (await leader).error_code == "timeout"
    fetcher.go_on.set()
    assert (await follower).ok


@pytest.mark.parametrize(
    ("how", "times"),
    [("never", 2), ("past", 2), ("later", 1), ("earliest", 2), ("nothing", 1)],
)
async def test_a_tool_shortens_the_life_of_one_result(
    make_runner: MakeRunner, context: RunContext, call: MakeCall, how: str, times: int
) -> None:
    """A tool can shorten the time in the cache with ``CacheControl``, but not extend it."""
    runs = 0

    @tool(cache_ttl_s=60, **READ)
    async def offers(cache: CacheControl) -> int:
        """Give offers."""
        nonlocal runs
        runs += 1
        if how == "never":
            cache.no_store()
        elif how == "past":
            cache.expire_at(NOW)
        elif how == "later":
            cache.expire_at(NOW + timedelta(hours=1))
        elif how == "earliest":
            cache.expire_at(NOW - timedelta(seconds=1))
            cache.expire_at(NOW + timedelta(hours=1))
        return runs

    runner = await make_runner([offers])
    for seq in range(2):
        assert (await runner.run(call("offers", "{}", seq), context)).ok
    assert runs == times


def test_cache_control_takes_aware_moments_only() -> None:
    """``CacheControl`` refuses a time without a zone."""
    with pytest.raises(ValueError, match="aware"):
        CacheControl().expire_at(datetime(2026, 1, 1))


async def test_a_policy_with_other_bounds_gets_its_own(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """A result truncated for one policy is not served from the cache under a policy with another limit."""

    @tool(cache_ttl_s=60, **READ)
    async def tell() -> str:
        """Tell."""
        return "x" * 1000

    runner = await make_runner([tell])
    small = await runner.run(call("tell"), context, policy=Policy(allow=("*",), max_result_bytes=300))
    large = await runner.run(call("tell", "{}", 1), context)
    assert (len(small.content), small.truncated) == (300, True)
    assert (len(large.content), large.truncated) == (1000, False)


async def test_only_read_only_tools_are_cached() -> None:
    """Rule R5: a tool with an effect and a ``cache_ttl_s`` does not load."""
    for effect in ("state_change", "external_side_effect"):

        @tool(effect=effect, redaction=Redaction(), cache_ttl_s=1)
        async def act() -> None:
            """Act."""

        with pytest.raises(ConfigError, match="cache_ttl_s is for read_only"):
            await Registry.load([FunctionProvider("t", [act])])


async def test_flight_that_is_cancelled_from_outside() -> None:
    """If the shared work is cancelled, its waiter gets ``WorkCancelled`` and is not cancelled itself."""
    flights: SingleFlight[int] = SingleFlight()
    tasks: list[asyncio.Task[Any]] = []

    async def work() -> int:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await asyncio.Event().wait()
        return 1

    waiter = asyncio.create_task(flights.run("k", work))
    await until(lambda: bool(tasks))
    tasks[0].cancel()
    with pytest.raises(WorkCancelled):
        await waiter
    assert not flights.is_under_way("k")


async def test_slots_bound_the_process_and_each_caller() -> None:
    """No more calls run at once than there are slots, in all and for each caller."""
    slots = Slots(4, 2)
    now: dict[str, int] = {}
    most: dict[str, int] = {}

    async def work(caller: str) -> None:
        async with slots.take(caller):
            for name in (caller, "all"):
                now[name] = now.get(name, 0) + 1
                most[name] = max(most.get(name, 0), now[name])
            for _ in range(3):
                await asyncio.sleep(0)
            for name in (caller, "all"):
                now[name] -= 1

    await asyncio.gather(*(work(caller) for caller in "aaaaaaaabbbcccccc"))
    assert most == {"a": 2, "b": 2, "c": 2, "all": 4}
    assert slots._callers == {}


async def test_a_full_house_is_rate_limited(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: a call that gets no slot within its timeout is rate_limited; a retry later may succeed."""
    go_on = asyncio.Event()

    @tool(**READ)
    async def wait() -> str:
        """Wait."""
        await go_on.wait()
        return "done"

    @tool(timeout_s=0.5, **READ)
    async def quick() -> str:
        """Be quick."""
        return "done"

    runner = await make_runner([wait, quick], max_read_only_per_caller=1)
    first = asyncio.create_task(runner.run(call("wait"), context))
    await until(lambda: bool(runner._executor._slots._callers))
    second = await runner.run(call("quick", "{}", 1), context)
    assert second.error_code == "rate_limited"
    other = structs.replace(context, caller="other", ledger=RunLedger())
    assert (await runner.run(call("quick"), other)).ok
    go_on.set()
    assert (await first).ok
    assert (await runner.run(call("quick", "{}", 2), context)).ok
