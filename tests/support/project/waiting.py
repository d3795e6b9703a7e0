"""Waiting for what has to come, with a bound so long that only a fault reaches it.

How slow a machine is must not decide a test.  Where one holds that something happens at once, whatever
would bring it about late by itself takes :data:`LATE_S`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

__all__ = ["LATE_S", "PATIENCE_S", "until"]

PATIENCE_S = 60.0
"""Seconds that a test waits for what it expects."""

LATE_S = 2 * PATIENCE_S
"""Seconds after which what a test waits for may happen by itself: later than any test waits."""


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until something is so that tells nobody; TimeoutError after :data:`PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)
