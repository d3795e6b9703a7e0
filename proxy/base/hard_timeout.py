"""Wait with a deadline that holds even if the awaited code ignores its cancellation.

``asyncio.timeout`` cancels a task and then waits until it ends. The task may be a rollback in a thread that
hangs on its disk, or the reset of a connection to a frozen server. Code that must answer a client cannot
wait for that.

The deadlines count only time in which this process could have noticed an answer. The event loop of a busy
process may come round once in half a second; an answer that waits for that is not late.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_STEPS: Final = 20
"""A deadline passes in this number of steps; one that takes longer, because the loop is busy, counts once."""


async def ends_in_time(
    work: "asyncio.Future[Any]", within_s: float, progress: Callable[[], object] | None = None
) -> bool:
    """Wait until ``work`` ends, at most ``within_s`` seconds; return whether it has ended.

    The time starts anew whenever the value that ``progress`` returns has changed. Neither the end of the
    time nor a cancelled caller cancels ``work``.
    """
    before = progress() if progress is not None else None
    left = _STEPS
    while left and not work.done():
        await asyncio.wait({work}, timeout=within_s / _STEPS)
        left -= 1
        if progress is not None and (now := progress()) != before:
            before, left = now, _STEPS
    return work.done()


class HardTimeout:
    """Waits for work of one owner, with a deadline. It cancels work past its deadline, and does not wait
    for the work to end."""

    def __init__(self) -> None:
        self._left: set[asyncio.Task[Any]] = set()

    async def run(
        self, work: Coroutine[Any, Any, T], within_s: float, progress: Callable[[], object] | None = None
    ) -> T:
        """Return the result of ``work``; raise :class:`TimeoutError` after ``within_s`` seconds.

        ``progress`` is that of :func:`ends_in_time`.
        """
        task = asyncio.get_running_loop().create_task(work)
        try:
            if await ends_in_time(task, within_s, progress):
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
