"""Waiting without falling silent: beats while work goes on, and nothing left behind."""

import asyncio

import pytest

from proxy.relay.run.keepalive import Keepalive, keeping_alive


async def test_work_that_is_quick_has_no_beat() -> None:
    """The result comes back as soon as it is there."""
    beats: list[bool] = []

    async def beat(silent: bool) -> None:
        beats.append(silent)

    async def work() -> int:
        return 7

    assert await keeping_alive(work(), 60, beat) == 7
    assert beats == []


async def test_beats_come_while_nothing_happens() -> None:
    """Each interval without news is a silent beat."""
    enough = asyncio.Event()
    beats: list[bool] = []

    async def beat(silent: bool) -> None:
        beats.append(silent)
        if len(beats) == 3:
            enough.set()

    await keeping_alive(enough.wait(), 0.01, beat)
    assert beats[:3] == [True, True, True]


async def test_news_wake_it_up() -> None:
    """A wake is a beat that has something to show, each time anew."""
    bell, shown = Keepalive(), asyncio.Event()
    beats: list[bool] = []

    async def beat(silent: bool) -> None:
        beats.append(silent)
        shown.set()

    async def work() -> str:
        for _ in range(2):
            bell.ring()
            await shown.wait()
            shown.clear()
        return "done"

    assert await keeping_alive(work(), 60, beat, bell) == "done"
    assert beats == [False, False]


async def test_a_client_that_has_gone_ends_the_work() -> None:
    """A beat that fails cancels the work, which has ended before the failure goes on."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def beat(silent: bool) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await keeping_alive(work(), 0.01, beat)
    assert ended == ["work"]


async def test_its_own_cancellation_ends_the_work() -> None:
    """Rule E4: when the caller is cancelled the work is too, before the caller goes on."""
    ended: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def beat(silent: bool) -> None:
        raise AssertionError("nobody waits that long")

    task = asyncio.ensure_future(keeping_alive(work(), 60, beat, Keepalive()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["work"]


async def test_a_failure_of_the_work_is_the_callers() -> None:
    """What the work raises is raised."""

    async def work() -> None:
        raise ValueError("no")

    async def beat(silent: bool) -> None:
        raise AssertionError("nothing to show")

    with pytest.raises(ValueError, match="no"):
        await keeping_alive(work(), 60, beat)


@pytest.mark.parametrize("fails", [False, True], ids=["a result", "a failure"])
async def test_a_result_that_nobody_takes_is_let_go_of(fails: bool) -> None:
    """Work that ended while its client left has somebody who closes what it brought."""
    let_go: list[int] = []
    ready = asyncio.Event()

    async def work() -> int:
        ready.set()
        if fails:
            raise ValueError
        return 7

    async def beat(silent: bool) -> None:
        await ready.wait()
        raise ConnectionResetError

    async def close(result: int) -> None:
        let_go.append(result)

    bell = Keepalive()
    bell.ring()
    with pytest.raises(ConnectionResetError):
        await keeping_alive(work(), 60, beat, bell, let_go=close)
    assert let_go == ([] if fails else [7])
