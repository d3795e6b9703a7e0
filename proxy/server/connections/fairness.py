"""Limit how many requests begin in one turn of the event loop.

Starting a request takes a hundred times as long as passing on a piece of a stream. If hundreds of requests
arrived at once, the open streams would stall until all of them had been sent upstream. So only a few begin
in each turn, and the loop passes on other data between turns.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Final

MOST_STARTED: Final = 8


class FairScheduler:
    """Lets :data:`MOST_STARTED` requests begin in each turn of the loop, in the order of their arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = MOST_STARTED
        self._counting = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> Awaitable[None] | None:
        """Return ``None`` if the request may begin now, else an awaitable that ends when it may begin."""
        if not self._counting:
            self._counting = True
            self._loop.call_soon(self._next)
        if self._left and not self._waiting:
            self._left -= 1
            return None
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def _next(self) -> None:
        """Let waiting requests begin in a new turn of the loop."""
        self._left = MOST_STARTED
        while self._waiting and self._left:
            waiter = self._waiting.popleft()
            if not waiter.done():  # Cancelled: its client has gone.
                waiter.set_result(None)
                self._left -= 1
        self._counting = bool(self._waiting)
        if self._counting:
            self._loop.call_soon(self._next)
