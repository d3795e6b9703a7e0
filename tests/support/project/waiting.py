"""Waits for expected events, with a limit so long that only a fault reaches it.

The speed of a machine must not decide a test. If a test checks that something happens at once, each timer
that would cause it later takes :data:`LATE_S`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

PATIENCE_S = 60.0
"""Seconds that a test waits for an expected event."""

LATE_S = 2 * PATIENCE_S
"""The value of a timer that must not cause the event that a test waits for: longer than any test waits."""


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Poll a condition that notifies nobody until it holds; TimeoutError after :data:`PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)
