"""Waiting without falling silent."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Beat", "keeping_alive"]

T = TypeVar("T")

Beat = Callable[[bool], Awaitable[None]]
"""Called when something is to be shown (``False``) or nothing was for a while (``True``)."""


async def keeping_alive(
    work: Coroutine[Any, Any, T], every_s: float, beat: Beat, wake: asyncio.Event | None = None
) -> T:
    """The result of ``work``; meanwhile ``beat`` is called every ``every_s`` seconds and on ``wake``.

    If the caller is cancelled, or ``beat`` fails because the client has gone, the work is
    cancelled and has ended before this returns.
    """
    task = asyncio.ensure_future(work)
    waker = asyncio.ensure_future(wake.wait()) if wake is not None else None
    try:
        while True:
            awaited: set[asyncio.Future[Any]] = {task} if waker is None else {task, waker}
            done, _ = await asyncio.wait(awaited, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if waker is not None and wake is not None and waker in done:
                wake.clear()
                waker = asyncio.ensure_future(wake.wait())
                await beat(False)
            if task in done:
                return task.result()
            if not done:
                await beat(True)
    finally:
        if waker is not None:
            waker.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
