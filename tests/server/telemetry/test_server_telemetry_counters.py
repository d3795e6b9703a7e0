"""Counters of limits: what holds for those in memory and for those in Redis, by the clock of a test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import limits.storage.memory
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from redis_server import SERVER, need_redis, own_prefix

from proxy.server.limits.memory import MOST_COUNTERS, MemoryCounters
from proxy.server.limits.rules import SLOTS, Counters, Limit, LimitVerdict

REQUESTS = Limit("requests", 3, 60)
TOKENS = Limit("tokens", 100, 60)
DAY = Limit("tokens", 1000, 86400)


@dataclass
class Clock:
    """A clock that stands still until the test moves it."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rig:
    """Counters with a clock, and short ways to ask them."""

    counters: Counters
    clock: Clock = field(default_factory=Clock)

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


def redis_counters(clock: Callable[[], float] | None, prefix: str) -> Counters:
    from proxy.server.limits.redis import RedisCounters

    return RedisCounters(SERVER, clock=clock, prefix=prefix)


@pytest.fixture(params=["memory", "redis"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    clock = Clock()
    if request.param == "memory":
        yield Rig(MemoryCounters(clock), clock)
        return
    async with own_prefix() as prefix:
        counters = redis_counters(clock, prefix)
        yield Rig(counters, clock)
        await counters.aclose()


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
    rig.clock.now += 20
    assert await rig.lets_in(REQUESTS)
    assert await rig.lets_in(REQUESTS)
    rig.clock.now += 40
    assert not await rig.lets_in(REQUESTS)
    rig.clock.now += 0.01
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
    rig.clock.now += 11
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
    rig.clock.now += 20
    (limit_status,) = (await rig.take(REQUESTS)).limit_statuses
    assert limit_status.left == 1
    assert limit_status.reset_s == pytest.approx(40)


async def test_tokens_are_counted_with_debt(rig: Rig) -> None:
    """A request below the limit may use more than is left; then none is admitted until enough has expired."""
    assert await rig.lets_in(spending=[TOKENS])
    rig.counters.spend("a", [(TOKENS, 99)])
    assert await rig.lets_in(spending=[TOKENS])
    rig.clock.now += 30
    rig.counters.spend("a", [(TOKENS, 500)])
    refused = await rig.take(spending=[TOKENS])
    assert refused.refused == TOKENS
    assert 60 <= refused.wait_s <= 60 * (1 + 2 / SLOTS)
    assert refused.limit_statuses[0].left == 0
    rig.clock.now += 31
    assert not await rig.lets_in(spending=[TOKENS])
    rig.clock.now += refused.wait_s - 31 + 0.01
    verdict = await rig.take(spending=[TOKENS])
    assert verdict.refused is None
    assert verdict.limit_statuses[0].left == 100


async def test_debt_is_forgotten_part_by_part(rig: Rig) -> None:
    """Use expires part by part, and the wait ends when the rest is below the limit."""
    for _ in range(5):
        rig.counters.spend("a", [(TOKENS, 30)])
        rig.clock.now += 6
        await rig.take(spending=[TOKENS])  # This counts the pending use at this time.
    refused = await rig.take(spending=[TOKENS])
    assert refused.refused == TOKENS
    rig.clock.now += refused.wait_s + 0.01
    verdict = await rig.take(spending=[TOKENS])
    assert verdict.refused is None
    assert verdict.limit_statuses[0].left == 10


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
        rig.clock.now += 86400
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
    steps: Sequence[tuple[str, int]], counters: Counters, clock: Clock
) -> list[tuple[str, float, int]]:
    """Play steps on two limits; return what was admitted, refused or spent, when, and what was left."""
    happened: list[tuple[str, float, int]] = []
    for step, number in steps:
        if step == "pass":
            clock.now += number / 4
        elif step == "spend":
            counters.spend("a", [(Limit("tokens", 200, 8), number)])
            # This counts the pending use before time goes on.
            await counters.take("a", (), (Limit("tokens", 200, 8),), None, "")
            happened.append(("spend", clock.now, number))
        else:
            verdict = await counters.take(
                "a", (Limit("requests", 3, 5),), (Limit("tokens", 200, 8),), None, ""
            )
            kind = "in" if verdict.refused is None else verdict.refused.kind
            happened.append(
                (kind, clock.now, sum(limit_status.left for limit_status in verdict.limit_statuses))
            )
    return happened


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_no_window_ever_holds_more_than_the_limit(steps: list[tuple[str, int]]) -> None:
    """No window has more requests than the limit, and none is admitted while the tokens exceed theirs."""
    clock = Clock(0.0)
    happened = asyncio.run(_play(steps, MemoryCounters(clock), clock))
    accepted = [when for kind, when, _ in happened if kind == "in"]
    for when in accepted:
        assert sum(when - 5 <= other <= when for other in accepted) <= 3
    for place, (kind, when, _) in enumerate(happened):
        before = happened[:place]
        spent = [(then, number) for other, then, number in before if other == "spend"]
        if kind == "in":
            assert sum(number for then, number in spent if then >= when - 8) < 200
        elif kind == "tokens":
            # Use may expire late, by at most one part of the window, but never early.
            assert sum(number for then, number in spent if then >= when - 8 * (1 + 1 / SLOTS)) >= 200
        elif kind == "requests":
            assert sum(when - 5 <= then <= when for other, then, _ in before if other == "in") >= 3


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_the_window_is_that_of_the_library(waits: list[int], amount: int) -> None:
    """A limit admits and refuses exactly as the moving window of the library ``limits`` does."""
    clock = Clock(0.0)

    class Time:
        time = staticmethod(clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits.storage.memory, "time", Time)
        storage = MemoryStorage()
        storage.timer.cancel()
        patch.setattr(storage, "_MemoryStorage__schedule_expiry", lambda: None)
        window, item = MovingWindowRateLimiter(storage), RateLimitItemPerSecond(amount, 2)
        counters = MemoryCounters(clock)
        for wait in waits:
            clock.now += wait / 4
            ours = asyncio.run(counters.take("a", (Limit("requests", amount, 2),), (), None, ""))
            assert (ours.refused is None) == window.hit(item, "a")


@given(STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_redis_counts_as_memory_does(steps: list[tuple[str, int]]) -> None:
    """Redis and memory come to the same verdicts, with the same amounts left."""
    need_redis()
    ours, theirs = Clock(), Clock()

    async def both() -> None:
        async with own_prefix() as prefix:
            counters = redis_counters(theirs, prefix)
            try:
                assert await _play(steps, MemoryCounters(ours), ours) == await _play(steps, counters, theirs)
            finally:
                await counters.aclose()

    asyncio.run(both())


# ---------------------------------------------------------------- memory


async def test_memory_forgets_callers_that_are_gone() -> None:
    """The memory drops the counters of callers that have used nothing for a window."""
    clock = Clock()
    counters = MemoryCounters(clock)
    for number in range(5000):
        await counters.take(f"10.0.{number}", (REQUESTS,), (), None, "")
        counters.spend(f"10.0.{number}", [(TOKENS, 1)])
    clock.now += 3600
    for number in range(20000):
        await counters.take(f"late.{number}", (REQUESTS,), (), None, "")
        clock.now += 1
    assert counters.size < 5000


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of new callers pushes out the oldest counters, so that memory stays bounded."""
    monkeypatch.setattr("proxy.server.limits.memory.MOST_COUNTERS", 2000)
    assert MOST_COUNTERS >= 10_000
    counters = MemoryCounters(Clock())
    for number in range(10_000):
        await counters.take(f"10.0.{number}", (REQUESTS,), (), None, "")
    assert counters.size <= 2000
    assert (await counters.take("10.0.9999", (REQUESTS,), (), None, "")).limit_statuses[0].left == 1


async def test_a_flood_does_not_empty_a_counter_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of new callers, as tokens of a key can be, does not reset the key's own counters."""
    monkeypatch.setattr("proxy.server.limits.memory.MOST_COUNTERS", 2000)
    counters = MemoryCounters(Clock())
    counters.spend("key", [(DAY, 1000)])
    for number in range(6000):
        await counters.take(f"key/{number}", (REQUESTS,), (), None, "")
        counters.spend(f"key/{number}", [(TOKENS, 1)])
        verdict = await counters.take("key", (REQUESTS,), (DAY,), None, "")
        assert verdict.refused is not None
    assert (await counters.take("key", (REQUESTS,), (DAY,), None, "")).refused == DAY


async def test_what_was_spent_takes_no_more_memory_than_parts() -> None:
    """However many small amounts are spent, memory has at most one number for each part of the window."""
    clock = Clock()
    counters = MemoryCounters(clock)
    for _ in range(20_000):
        counters.spend("a", [(DAY, 1)])
        clock.now += 60
    (spent,) = counters._spent.values()
    assert len(spent.slots) <= SLOTS + 2
    assert spent.total == pytest.approx(1440, rel=0.02)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, 3]), st.sampled_from([0.0, 0.5, 4.0, 30.0])),
        max_size=40,
    )
)
def test_what_is_let_in_at_once_is_what_would_be_let_in(steps: list[tuple[str, int, float]]) -> None:
    """``try_hit`` counts, refuses and reports exactly as ``take`` does."""
    clock = Clock()
    limits = (Limit("requests", 3, 10), Limit("requests", 5, 60), Limit("requests", 3, 10))
    quick, plain = MemoryCounters(clock), MemoryCounters(clock)

    async def go() -> None:
        for caller, many, wait in steps:
            clock.now += wait
            hits = limits[:many]
            wanted = await plain.take(caller, hits, (), None, "")
            limit_statuses = quick.try_hit(caller, hits)
            if limit_statuses is None:
                assert await quick.take(caller, hits, (), None, "") == wanted
            else:
                assert wanted.refused is None
                assert limit_statuses == wanted.limit_statuses

    asyncio.run(go())
