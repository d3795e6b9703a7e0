"""How many requests begin in one turn of the event loop.

A request takes a hundred times what a piece of a stream does.  Where hundreds come at once, the streams
that are open would stand still until each of them has been sent upstream; so a few begin in each turn,
and between turns whatever has arrived is handed on.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Final

__all__ = ["FairScheduler"]

MOST_STARTED: Final = 8


class FairScheduler:
    """Lets :data:`MOST_STARTED` requests begin in each turn of the loop, in the order in which they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = MOST_STARTED
        self._counting = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> Awaitable[None] | None:
        """Begin now (``None``), or once what this gives is done."""
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
        """Another turn of the loop."""
        self._left = MOST_STARTED
        while self._waiting and self._left:
            waiter = self._waiting.popleft()
            if not waiter.done():  # cancelled: its client has gone
                waiter.set_result(None)
                self._left -= 1
        self._counting = bool(self._waiting)
        if self._counting:
            self._loop.call_soon(self._next)
