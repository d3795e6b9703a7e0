"""Waiting with a deadline that holds even if the awaited code ignores its cancellation.

``asyncio.timeout`` cancels and then waits for the end of what it cancelled: for a rollback in a thread that
hangs on its disk, for the reset of a connection whose server is frozen.  Who must answer a client cannot.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

__all__ = ["HardTimeout"]

T = TypeVar("T")

_GRACE_S: Final = 0.05
"""For what is here already while this process was busy with something else."""


class HardTimeout:
    """Waits for work of one owner, with a deadline.  Work past its deadline is cancelled, and the caller does
    not wait for its end."""

    def __init__(self) -> None:
        self._left: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        """What ``work`` comes to; raises :class:`TimeoutError` after so many seconds."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            for patience_s in (within_s, _GRACE_S):
                await asyncio.wait({task}, timeout=patience_s)
                if task.done():
                    return task.result()
            raise TimeoutError
        finally:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(self._over)

    def close(self) -> None:
        """Cancel again what has not ended."""
        for task in self._left:
            task.cancel()

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # Nobody else looks at it.
