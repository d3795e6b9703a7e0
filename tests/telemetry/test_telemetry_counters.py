"""Counters of limits: what holds for those in memory and for those in Redis, by the clock of a test."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limit_clock import LimitClock, limit_clock
from redis_server import SERVER, need_redis, own_prefix

from proxy.rights.limit_rules import Limit, LimitVerdict
from proxy.server.limits.counters import Counters
from proxy.server.limits.memory import MOST_COUNTERS, BoundedMemory
from proxy.server.limits.redis import RedisCounters

REQUESTS = Limit("requests", 3, 60)
TOKENS = Limit("tokens", 100, 60)
DAY = Limit("tokens", 1000, 86400)


@dataclass
class Rig:
    """Counters with a clock, and short ways to ask them."""

    counters: Counters
    clock: LimitClock
    prefix: str = ""

    async def take(
        self,
        *hits: Limit,
        spending: Sequence[Limit] = (),
        caller: str = "a",
        streams: int | None = None,
        lease: str = "",
    ) -> LimitVerdict:
        return await self.counters.take(caller, hits, spending, streams, lease)

    async def lets_in(self, *hits: Limit, **more: Any) -> bool:
        return (await self.take(*hits, **more)).refused is None

    async def move(self, seconds: float) -> None:
        await self.clock.move(seconds, self.prefix)


@pytest.fixture
def clock() -> Iterator[LimitClock]:
    with limit_clock() as made:
        yield made


@pytest.fixture(params=["memory", "redis"])
async def rig(request: pytest.FixtureRequest, clock: LimitClock) -> AsyncIterator[Rig]:
    if request.param == "memory":
        yield Rig(Counters(), clock)
        return
    async with own_prefix() as prefix:
        counters = RedisCounters(SERVER, prefix=prefix)
        yield Rig(counters, clock, prefix)
        await counters.aclose()


def memory_of(counters: Counters) -> BoundedMemory:
    """Return where counters in memory count."""
    storage = counters._windows.hits.storage
    assert isinstance(storage, BoundedMemory)
    return storage


async def test_a_limit_is_per_caller_and_kind(rig: Rig) -> None:
    """A refusal has the spent limit and the wait; other callers and other kinds are not affected."""
    assert [await rig.lets_in(REQUESTS) for _ in range(3)] == [True] * 3
    refused = await rig.take(REQUESTS)
    assert refused.refused == REQUESTS
    assert refused.wait_s == pytest.approx(60, abs=0.01)
    assert await rig.lets_in(REQUESTS, caller="b")
    assert await rig.lets_in(Limit("tool_calls", 3, 60))


async def test_the_window_moves(rig: Rig) -> None:
    """A place is free again once the hit that took it is older than the window, and not before."""
    assert await rig.lets_in(REQUESTS)
    await rig.move(20)
    assert await rig.lets_in(REQUESTS)
    assert await rig.lets_in(REQUESTS)
    await rig.move(40)
    assert not await rig.lets_in(REQUESTS)
    await rig.move(0.01)
    assert await rig.lets_in(REQUESTS)
    assert not await rig.lets_in(REQUESTS)


async def test_what_is_refused_is_counted_by_none(rig: Rig) -> None:
    """A request that one of several limits refuses counts for none, and is told the longest wait."""
    short, long = Limit("requests", 1, 10), Limit("requests", 2, 1000)
    assert await rig.lets_in(short, long)
    for _ in range(5):
        refused = await rig.take(short, long)
        assert refused.refused == short
        assert [limit_status.left for limit_status in refused.limit_statuses] == [0, 1]
    await rig.move(11)
    assert await rig.lets_in(short, long)
    refused = await rig.take(short, long)
    assert refused.refused == long
    assert refused.wait_s == pytest.approx(989, abs=0.01)


async def test_standings_say_what_is_left(rig: Rig) -> None:
    """The status of a limit has what is left after this request, and when its oldest use expires."""
    verdict = await rig.take(REQUESTS)
    (limit_status,) = verdict.limit_statuses
    assert (limit_status.limit, limit_status.left) == (REQUESTS, 2)
    assert limit_status.reset_s == pytest.approx(60)
    await rig.move(20)
    (limit_status,) = (await rig.take(REQUESTS)).limit_statuses
    assert limit_status.left == 1
    assert limit_status.reset_s == pytest.approx(40)


async def test_tokens_are_counted_with_debt(rig: Rig) -> None:
    """A request below the limit may use more than is left; then none is admitted until the window ends."""
    assert await rig.lets_in(spending=[TOKENS])
    rig.counters.spend("a", [(TOKENS, 99)])
    assert await rig.lets_in(spending=[TOKENS])
    await rig.move(30)
    rig.counters.spend("a", [(TOKENS, 500)])
    refused = await rig.take(spending=[TOKENS])
    assert refused.refused == TOKENS
    assert 29 <= refused.wait_s <= 31
    assert refused.limit_statuses[0].left == 0
    await rig.move(28)
    assert not await rig.lets_in(spending=[TOKENS])
    await rig.move(3)
    verdict = await rig.take(spending=[TOKENS])
    assert verdict.refused is None
    assert verdict.limit_statuses[0].left == 100


async def test_a_window_of_tokens_begins_with_their_first_use(rig: Rig) -> None:
    """What was used counts until the limit's time has passed since the first use, then none of it does."""
    for _ in range(3):
        rig.counters.spend("a", [(TOKENS, 30)])
        assert await rig.lets_in(spending=[TOKENS])  # This counts the pending use at this time.
        await rig.move(15)
    assert (await rig.take(spending=[TOKENS])).limit_statuses[0].left == 10
    await rig.move(16)
    rig.counters.spend("a", [(TOKENS, 1)])
    assert (await rig.take(spending=[TOKENS])).limit_statuses[0].left == 99


async def test_a_race_for_the_last_place_counts_no_other_limit(rig: Rig) -> None:
    """Of requests that come together, those that the tighter limit refuses do not count for the wider one."""
    tight, wide = Limit("requests", 3, 60), Limit("requests", 100, 3600)
    verdicts = await asyncio.gather(*(rig.take(wide, tight) for _ in range(20)))
    assert sum(verdict.refused is None for verdict in verdicts) == 3
    assert {verdict.refused for verdict in verdicts} == {None, tight}
    assert [status.left for status in (await rig.take(wide, tight)).limit_statuses] == [97, 0]


async def test_spent_tokens_refuse_before_a_request_is_counted(rig: Rig) -> None:
    """A request that is refused for tokens does not count for the limit of requests."""
    rig.counters.spend("a", [(TOKENS, 100)])
    for _ in range(4):
        assert (await rig.take(REQUESTS, spending=[TOKENS])).refused == TOKENS
    assert await rig.lets_in(REQUESTS)


async def test_open_streams_of_a_caller(rig: Rig) -> None:
    """A caller has a number of places for open streams; a released one is free again."""
    assert await rig.lets_in(streams=2, lease="1")
    assert await rig.lets_in(streams=2, lease="2")
    refused = await rig.take(REQUESTS, streams=2, lease="3")
    assert refused.refused == Limit("concurrent_streams", 2, 0)
    assert refused.wait_s == 1
    assert refused.limit_statuses[0].left == 3
    assert await rig.lets_in(streams=2, lease="4", caller="b")
    rig.counters.release("a", "1")
    assert await rig.lets_in(streams=2, lease="5")
    assert not await rig.lets_in(streams=2, lease="6")


async def test_many_at_once_never_pass_the_limit(rig: Rig) -> None:
    """However many requests ask at the same time, no more than the limit are admitted."""
    limit = Limit("requests", 10, 3600)
    results = await asyncio.gather(*(rig.lets_in(limit) for _ in range(300)))
    assert sum(results) == 10


async def test_long_windows_and_large_sums_stay_exact(rig: Rig) -> None:
    """Billionths of a currency add up without rounding, also over a week."""
    limit = Limit("cost", 5_000_000_000_000, 2592000)
    for _ in range(7):
        rig.counters.spend("a", [(limit, 123_456_789_123)])
        await rig.take(spending=[limit])  # This counts the pending use at this time.
        await rig.move(86400)
    verdict = await rig.take(spending=[limit])
    assert verdict.limit_statuses[0].left == 5_000_000_000_000 - 7 * 123_456_789_123


# ---------------------------------------------------------------- properties

STEP = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 40)),
    st.tuples(st.just("take"), st.just(0)),
    st.tuples(st.just("spend"), st.integers(1, 150)),
)
STEPS = st.lists(STEP, max_size=60)


async def _play(
    steps: Sequence[tuple[str, int]], counters: Counters, clock: LimitClock, prefix: str = ""
) -> list[tuple[str, float, int]]:
    """Play steps on two limits; return what was admitted, refused or spent, when, and what was left."""
    happened: list[tuple[str, float, int]] = []
    requests, tokens = Limit("requests", 3, 5000), Limit("tokens", 200, 8000)
    for step, number in steps:
        if step == "pass":
            # No multiple of this is a window, so that rounding decides nothing.
            await clock.move(number * 251, prefix)
        elif step == "spend":
            counters.spend("a", [(tokens, number)])
            # This counts the pending use before time goes on.
            await counters.take("a", (), (tokens,), None, "")
            happened.append(("spend", clock.now, number))
        else:
            verdict = await counters.take("a", (requests,), (tokens,), None, "")
            kind = "in" if verdict.refused is None else verdict.refused.kind
            happened.append(
                (kind, clock.now, sum(limit_status.left for limit_status in verdict.limit_statuses))
            )
    return happened


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_no_window_ever_holds_more_than_the_limit(steps: list[tuple[str, int]]) -> None:
    """No window has more requests than the limit, and none is admitted while the tokens exceed theirs."""
    with limit_clock(0.0) as clock:
        happened = asyncio.run(_play(steps, Counters(), clock))
    accepted = [when for kind, when, _ in happened if kind == "in"]
    for when in accepted:
        assert sum(when - 5000 <= other <= when for other in accepted) <= 3
    began, used = -8000.0, 0
    for place, (kind, when, number) in enumerate(happened):
        if when >= began + 8000:
            used = 0
        if kind == "spend":
            began, used = (began if used else when), used + number
        else:
            counted = sum(when - 5000 <= then for other, then, _ in happened[:place] if other == "in")
            assert {"in": used < 200 and counted < 3, "tokens": used >= 200, "requests": counted >= 3}[kind]


@given(STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_redis_counts_as_memory_does(steps: list[tuple[str, int]]) -> None:
    """Redis and memory come to the same verdicts, with the same amounts left."""
    need_redis()

    async def in_redis(clock: LimitClock) -> list[tuple[str, float, int]]:
        async with own_prefix() as prefix:
            counters = RedisCounters(SERVER, prefix=prefix)
            try:
                return await _play(steps, counters, clock, prefix)
            finally:
                await counters.aclose()

    with limit_clock() as ours:
        wanted = asyncio.run(_play(steps, Counters(), ours))
    with limit_clock() as theirs:
        assert asyncio.run(in_redis(theirs)) == wanted


# ---------------------------------------------------------------- memory


async def test_memory_forgets_callers_that_are_gone(clock: LimitClock) -> None:
    """The memory drops the counters of callers that have used nothing for a window."""
    counters = Counters()
    for number in range(3000):
        counters.spend(f"10.0.{number}", [(TOKENS, 1)])
        await counters.take(f"10.0.{number}", (REQUESTS,), (TOKENS,), None, "")
    await clock.move(3600)
    for number in range(8000):
        await counters.take(f"late.{number}", (REQUESTS,), (), None, "")
        clock.now += 1
    memory = memory_of(counters)
    assert memory.size < 3000
    assert len(memory.locks) + len(memory.storage) <= 2 * memory.size


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of new callers pushes out the oldest counters, so that memory stays bounded."""
    monkeypatch.setattr("proxy.server.limits.memory.MOST_COUNTERS", 2000)
    assert MOST_COUNTERS >= 10_000
    counters = Counters()
    for number in range(10_000):
        await counters.take(f"10.0.{number}", (REQUESTS,), (), None, "")
    assert memory_of(counters).size <= 2000
    assert len(memory_of(counters).locks) <= 2000
    assert (await counters.take("10.0.9999", (REQUESTS,), (), None, "")).limit_statuses[0].left == 1


async def test_a_flood_does_not_empty_a_counter_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of new callers, as tokens of a key can be, does not reset the key's own counters."""
    monkeypatch.setattr("proxy.server.limits.memory.MOST_COUNTERS", 2000)
    counters = Counters()
    counters.spend("key", [(DAY, 1000)])
    for number in range(6000):
        await counters.take(f"key/{number}", (REQUESTS,), (), None, "")
        counters.spend(f"key/{number}", [(DAY, 1)])
        verdict = await counters.take("key", (REQUESTS,), (DAY,), None, "")
        assert verdict.refused is not None
    assert (await counters.take("key", (REQUESTS,), (DAY,), None, "")).refused == DAY


async def test_a_counter_remembers_no_more_hits_than_its_limit(clock: LimitClock) -> None:
    """However long a caller goes on, its counter holds as many hits as the limit has places."""
    counters = Counters()
    for _ in range(100):
        assert (await counters.take("a", (REQUESTS,), (), None, "")).refused is None
        clock.now += 30
    assert memory_of(counters)._counted() == 3


async def test_memory_starts_no_task_and_no_thread() -> None:
    """Counting in memory leaves nothing running behind a request: no task, no thread, no timer."""
    import threading

    counters = Counters()
    tasks, threads = asyncio.all_tasks(), threading.active_count()
    for number in range(50):
        await counters.take(f"c{number}", (REQUESTS,), (TOKENS,), 2, "x")
    assert asyncio.all_tasks() == tasks
    assert threading.active_count() == threads


async def test_what_many_used_is_owed_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use that waits to be counted is bounded in callers; what is beyond is lost, and counted as that."""
    monkeypatch.setattr("proxy.server.limits.counters._MOST_OWED", 10)
    counters = Counters()
    for number in range(12):
        counters.spend(f"c{number}", [(TOKENS, 1)])
    await counters.aclose()
    assert counters.lost == 2
    assert (await counters.take("c9", (), (TOKENS,), None, "")).limit_statuses[0].left == 99
    assert (await counters.take("c11", (), (TOKENS,), None, "")).limit_statuses[0].left == 100
