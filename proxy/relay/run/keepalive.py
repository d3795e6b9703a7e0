"""Waiting without falling silent."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Notifier", "OnTick", "with_keepalive"]

T = TypeVar("T")

OnTick = Callable[[bool], Awaitable[None]]
"""Called when something is to be shown (``False``) or nothing was for a while (``True``)."""


class Notifier:
    """Notified when there is something to show.  One waits for it at a time."""

    __slots__ = ("_notified", "_waiter")

    def __init__(self) -> None:
        self._notified = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """There is something to show."""
        self._notified = True
        self.wake()

    def wake(self, _: object = None) -> None:
        """End the waiting, whatever there is to show."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bool:
        """Whether it was notified since it was asked last."""
        notified, self._notified = self._notified, False
        return notified

    async def wait(self, at_most_s: float) -> None:
        """Return once it is notified or woken, or after so many seconds."""
        if self._notified:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(at_most_s, self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


async def with_keepalive(
    work: Coroutine[Any, Any, T],
    every_s: float,
    on_tick: OnTick,
    notifier: Notifier | None = None,
    *,
    discard: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """The result of ``work``.

    Meanwhile ``on_tick`` is called every ``every_s`` seconds, and when ``notifier`` is notified.

    If the caller is cancelled, or ``on_tick`` fails because the client has gone, the work is cancelled and
    has ended before this returns; ``discard`` gets a result that it had by then.
    """
    task = asyncio.get_running_loop().create_task(work)
    notifier = notifier or Notifier()
    task.add_done_callback(notifier.wake)
    try:
        while True:
            if not task.done():
                await notifier.wait(every_s)
            if notifier.take():
                await on_tick(False)
            elif not task.done():
                await on_tick(True)
            if task.done():
                return task.result()
    except BaseException:  # However the wait ends, nothing goes on that nobody waits for.
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if discard is not None and not task.cancelled() and task.exception() is None:
            await discard(task.result())
        raise
