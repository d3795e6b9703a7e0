"""Long work on large texts, done in a thread so that the event loop can serve other requests.

To parse, copy or search megabytes takes tens of milliseconds, in which a loop that did it itself would serve
nobody.  A thread of Python's does not run beside the loop, but the interpreter changes between them after
every step that is long in itself.
"""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

__all__ = ["LARGE_BYTES", "LARGE_EVENT_BYTES", "in_thread"]

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 1024 * 1024
"""Of a text that is copied and searched, up to ten times, in less than 20 ms."""

LARGE_EVENT_BYTES: Final = 64 * 1024
"""Of a text whose values are not counted: with as many as it can hold it is parsed in less than 20 ms.  A
change of thread takes a tenth of a millisecond."""


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work`` in a thread, and return or raise what it does.

    A thread cannot be stopped.  So a cancelled caller still waits for the end of the work; until then nobody
    else may use the same data.
    """
    done = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done})
        if not done.cancelled():
            done.exception()
        raise
