"""Wait with a deadline that holds even if the awaited code ignores its cancellation.

``asyncio.timeout`` cancels a task and then waits until it ends.  The task may be a rollback in a thread that
hangs on its disk, or the reset of a connection to a frozen server.  Code that must answer a client cannot
wait for that.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

__all__ = ["HardTimeout"]

T = TypeVar("T")

_GRACE_S: Final = 0.05
"""Extra seconds for a result that is already there, but that this process was too busy to notice."""


class HardTimeout:
    """Waits for work of one owner, with a deadline.  It cancels work past its deadline, and does not wait
    for the work to end."""

    def __init__(self) -> None:
        self._left: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        """Return the result of ``work``; raise :class:`TimeoutError` after ``within_s`` seconds."""
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
        """Cancel again all work that has not ended."""
        for task in self._left:
            task.cancel()

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # Nobody else reads it; asyncio would log it.
