"""Waits for work and keeps the client's connection alive meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

OnTick = Callable[[bool], Awaitable[None]]
"""Called with ``False`` if there is something to show, and with ``True`` after a silent interval."""


class Notifier:
    """An event flag: says that there is something to show. Only one task may wait for it at a time."""

    __slots__ = ("_notified", "_waiter")

    def __init__(self) -> None:
        self._notified = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Set the flag and wake the waiting task."""
        self._notified = True
        self.wake()

    def wake(self, _: object = None) -> None:
        """End the wait without setting the flag."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bool:
        """Return whether the flag was set, and clear it."""
        notified, self._notified = self._notified, False
        return notified

    async def wait(self, at_most_s: float) -> None:
        """Return as soon as the flag is set or :meth:`wake` is called, at the latest after ``at_most_s``
        seconds."""
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


class SilenceTimer:
    """A timer that calls ``on_silence`` before ``after_s`` seconds have passed without anything being sent.

    Whoever sends sets ``quiet`` to 0, which costs less than to note the time. It counts half intervals, so
    after two of them the silence is not longer than ``after_s``.
    """

    __slots__ = ("_after_s", "_on_silence", "_timer", "quiet", "runs")

    def __init__(self) -> None:
        self._after_s = 0.0
        self._on_silence: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.quiet = 0
        self.runs = False

    def start(self, after_s: float, on_silence: Callable[[], None]) -> None:
        """Start the timer; it runs until :meth:`stop`. ``on_silence`` may stop it."""
        self._after_s, self._on_silence = after_s, on_silence
        self.quiet, self.runs = 0, True
        self._arm()

    def stop(self) -> None:
        """Stop the timer; do nothing if it does not run."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._on_silence = None
        self.runs = False

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._after_s / 2, self._tick)

    def _tick(self) -> None:
        self._arm()
        self.quiet += 1
        if self.quiet > 1 and self._on_silence is not None:
            self._on_silence()


async def with_keepalive(
    work: Coroutine[Any, Any, T],
    every_s: float,
    on_tick: OnTick,
    notifier: Notifier | None = None,
    *,
    discard: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """Return the result of ``work``.

    Until then call ``on_tick`` every ``every_s`` seconds, and each time ``notifier`` is notified.

    If the caller is cancelled, or ``on_tick`` fails because the client has gone, ``work`` is cancelled and
    has ended before this function raises. If ``work`` had a result by then, ``discard`` gets it.
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
    except BaseException:  # However the wait ends, the work must not go on unattended.
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if discard is not None and not task.cancelled() and task.exception() is None:
            await discard(task.result())
        raise
