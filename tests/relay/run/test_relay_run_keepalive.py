"""Keepalive while work goes on: ticks for the client, and nothing left running or open."""

import asyncio

import pytest

from proxy.relay.run.keepalive import Notifier, with_keepalive


async def test_work_that_is_quick_has_no_beat() -> None:
    """Work that ends before the first interval causes no tick."""
    beats: list[bool] = []

    async def on_tick(silent: bool) -> None:
        beats.append(silent)

    async def work() -> int:
        return 7

    assert await with_keepalive(work(), 60, on_tick) == 7
    assert beats == []


async def test_beats_come_while_nothing_happens() -> None:
    """Each interval without news causes a silent tick."""
    enough = asyncio.Event()
    beats: list[bool] = []

    async def on_tick(silent: bool) -> None:
        beats.append(silent)
        if len(beats) == 3:
            enough.set()

    await with_keepalive(enough.wait(), 0.01, on_tick)
    assert beats[:3] == [True, True, True]


async def test_news_wake_it_up() -> None:
    """Each notification causes a tick at once, which is not silent."""
    notifier, shown = Notifier(), asyncio.Event()
    beats: list[bool] = []

    async def on_tick(silent: bool) -> None:
        beats.append(silent)
        shown.set()

    async def work() -> str:
        for _ in range(2):
            notifier.notify()
            await shown.wait()
            shown.clear()
        return "done"

    assert await with_keepalive(work(), 60, on_tick, notifier) == "done"
    assert beats == [False, False]


async def test_a_client_that_has_gone_ends_the_work() -> None:
    """If a tick fails, the work is cancelled and has ended before the error is raised."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def on_tick(silent: bool) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await with_keepalive(work(), 0.01, on_tick)
    assert ended == ["work"]


async def test_its_own_cancellation_ends_the_work() -> None:
    """Rule E4: if the caller is cancelled, the work is cancelled and ends before the caller goes on."""
    ended: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def on_tick(silent: bool) -> None:
        raise AssertionError("nobody waits that long")

    task = asyncio.ensure_future(with_keepalive(work(), 60, on_tick, Notifier()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["work"]


async def test_a_failure_of_the_work_is_the_callers() -> None:
    """The caller gets the error that the work raises."""

    async def work() -> None:
        raise ValueError("no")

    async def on_tick(silent: bool) -> None:
        raise AssertionError("nothing to show")

    with pytest.raises(ValueError, match="no"):
        await with_keepalive(work(), 60, on_tick)


@pytest.mark.parametrize("fails", [False, True], ids=["a result", "a failure"])
async def test_a_result_that_nobody_takes_is_let_go_of(fails: bool) -> None:
    """If the client leaves as the work ends, ``discard`` gets the result, so that it can be closed."""
    discard: list[int] = []
    ready = asyncio.Event()

    async def work() -> int:
        ready.set()
        if fails:
            raise ValueError
        return 7

    async def on_tick(silent: bool) -> None:
        await ready.wait()
        raise ConnectionResetError

    async def close(result: int) -> None:
        discard.append(result)

    notifier = Notifier()
    notifier.notify()
    with pytest.raises(ConnectionResetError):
        await with_keepalive(work(), 60, on_tick, notifier, discard=close)
    assert discard == ([] if fails else [7])
