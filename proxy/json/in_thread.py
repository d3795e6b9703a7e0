"""Run long work on large texts in a thread, so that the event loop can serve other requests.

To parse, copy or search megabytes takes tens of milliseconds. On the event loop, this would block all other
requests. A Python thread does not run in parallel with the loop, but the interpreter switches between them
after every long step.
"""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 1024 * 1024
"""The size in bytes above which work on a text goes to a thread. A text of this size can be copied and
searched up to ten times in less than 20 ms."""

LARGE_EVENT_BYTES: Final = 64 * 1024
"""The same for an event whose JSON values are not counted. Even with as many values as it can hold, such an
event is parsed in less than 20 ms. A change of thread takes a tenth of a millisecond."""


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work`` in a thread, and return its result or raise its exception.

    A thread cannot be stopped. So a cancelled caller still waits until the work ends; until then no other
    code may use the same data.
    """
    done = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done})
        if not done.cancelled():
            done.exception()
        raise
