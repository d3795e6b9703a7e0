"""Timeouts of one length that share one timer."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from waiting import LATE_S, PATIENCE_S

from proxy.relay.routing.deadlines import Deadlines


async def waits(deadlines: Deadlines, over: asyncio.Event) -> str:
    """Wait for the event: ``over`` if it came in time, ``late`` if the wait timed out."""
    try:
        async with asyncio.timeout(None) as patience:
            deadlines.begin(patience)
            try:
                await over.wait()
            finally:
                deadlines.end(patience)
    except TimeoutError:
        return "late"
    return "over"


async def test_each_of_many_waits_runs_out() -> None:
    """Every wait that takes too long times out, whenever it began."""
    deadlines = Deadlines(0.01)
    never = asyncio.Event()
    tasks = []
    for _ in range(5):
        tasks.append(asyncio.create_task(waits(deadlines, never)))
        await asyncio.sleep(0.003)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*tasks) == ["late"] * 5
        # When no wait is left there is no timer, and the next wait starts one.
        assert await waits(deadlines, never) == "late"


async def test_who_has_ended_is_left_alone() -> None:
    """A wait that ended in time does not delay the timeout of a wait that began after it."""
    deadlines = Deadlines(0.05)
    soon, never = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(waits(deadlines, soon))
    await asyncio.sleep(0)
    second = asyncio.create_task(waits(deadlines, never))
    soon.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await first == "over"
        assert await second == "late"
        # No timeout of the first wait is left that could still end it.
        await asyncio.sleep(0.06)


async def test_many_waits_have_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred waits need one timer of the event loop."""
    loop = asyncio.get_running_loop()
    timers = []

    def counted(call: Callable[..., asyncio.TimerHandle]) -> Callable[..., asyncio.TimerHandle]:
        def counting(*given: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(given)
            return call(*given, **more)

        return counting

    monkeypatch.setattr(loop, "call_later", counted(loop.call_later))
    monkeypatch.setattr(loop, "call_at", counted(loop.call_at))
    deadlines, over = Deadlines(LATE_S), asyncio.Event()
    tasks = [asyncio.create_task(waits(deadlines, over)) for _ in range(100)]
    await asyncio.sleep(0)
    over.set()
    assert await asyncio.gather(*tasks) == ["over"] * 100
    assert len([given for given in timers if "_ring" in repr(given[1])]) <= 2  # call_later is a call_at


def test_a_loop_that_is_gone_takes_its_timer_along() -> None:
    """Deadlines still work in a new event loop if the old loop ended during a wait."""
    deadlines = Deadlines(0.01)

    async def left_open() -> None:
        deadlines.begin(asyncio.timeout(None))

    asyncio.run(left_open())
    assert asyncio.run(waits(deadlines, asyncio.Event())) == "late"


async def test_who_runs_out_by_a_time_of_its_own_holds_up_nobody() -> None:
    """A wait that already timed out and ends slowly causes no error and delays no other timeout."""
    deadlines = Deadlines(0.02)
    never, both_due = asyncio.Event(), asyncio.Event()

    async def unhurried() -> str:
        try:
            async with asyncio.timeout(0) as patience:
                deadlines.begin(patience)
                try:
                    await never.wait()
                finally:
                    await both_due.wait()
                    deadlines.end(patience)
        except TimeoutError:
            return "late"
        return "over"

    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    first = asyncio.create_task(unhurried())
    second = asyncio.create_task(waits(deadlines, never))
    async with asyncio.timeout(PATIENCE_S):
        assert await second == "late"
        both_due.set()
        assert await first == "late"
    assert faults == []


async def test_without_a_bound_nothing_is_kept() -> None:
    """Without a bound no wait times out."""
    deadlines = Deadlines(None)
    over = asyncio.Event()
    task = asyncio.create_task(waits(deadlines, over))
    await asyncio.sleep(0.02)
    over.set()
    assert await task == "over"
