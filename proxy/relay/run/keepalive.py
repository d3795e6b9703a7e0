"""Waiting without falling silent."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Beat", "Keepalive", "keeping_alive"]

T = TypeVar("T")

Beat = Callable[[bool], Awaitable[None]]
"""Called when something is to be shown (``False``) or nothing was for a while (``True``)."""


class Keepalive:
    """Rung when there is something to show.  One waits for it at a time."""

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """There is something to show."""
        self._rung = True
        self.wake()

    def wake(self, _: object = None) -> None:
        """End the waiting, whatever there is to show."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bool:
        """Whether it was rung since it was asked last."""
        rung, self._rung = self._rung, False
        return rung

    async def wait(self, at_most_s: float) -> None:
        """Return once it is rung or woken, or after so many seconds."""
        if self._rung:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(at_most_s, self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


async def keeping_alive(
    work: Coroutine[Any, Any, T],
    every_s: float,
    beat: Beat,
    bell: Keepalive | None = None,
    *,
    let_go: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """The result of ``work``; meanwhile ``beat`` is called every ``every_s`` seconds and when ``bell`` rings.

    If the caller is cancelled, or ``beat`` fails because the client has gone, the work is
    cancelled and has ended before this returns; ``let_go`` gets a result that it had by then.
    """
    task = asyncio.get_running_loop().create_task(work)
    bell = bell or Keepalive()
    task.add_done_callback(bell.wake)
    try:
        while True:
            if not task.done():
                await bell.wait(every_s)
            if bell.take():
                await beat(False)
            elif not task.done():
                await beat(True)
            if task.done():
                return task.result()
    except BaseException:  # However the wait ends, nothing goes on that nobody waits for.
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if let_go is not None and not task.cancelled() and task.exception() is None:
            await let_go(task.result())
        raise
