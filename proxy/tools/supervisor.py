"""Runs one piece of a tool's work so that nothing it does reaches the rest of the process.

A tool may hang, swallow its cancellation or raise ``SystemExit``.  Its work runs in a task of its
own; a task that does not end when it is told to is counted against its tool for as long as it
lives, and a tool with too many of them is switched off.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["Supervisor", "ToolCrashed", "ToolTimedOut"]

T = TypeVar("T")


class ToolCrashed(Exception):
    """The work raised; ``cause`` is what.  Its text may hold arguments and goes to nobody."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(type(cause).__name__)


class ToolTimedOut(Exception):
    """The work did not end in time."""


class Supervisor:
    """Keeps the tasks of tools, and those that would not die."""

    def __init__(self, *, max_stuck: int = 3, grace_s: float = 0.25) -> None:
        self._max_stuck = max_stuck
        self._grace_s = grace_s
        self._abandoned: dict[str, set[asyncio.Task[object]]] = {}

    def stuck(self, tool: str) -> int:
        """Tasks of this tool that were told to end and have not."""
        return len(self._abandoned.get(tool, ()))

    def is_disabled(self, tool: str) -> bool:
        """Whether this tool has so many of them that it may not start another."""
        return self.stuck(tool) >= self._max_stuck

    async def run(self, tool: str, work: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """The result of ``work``, within ``timeout_s`` seconds.

        Raises :class:`ToolTimedOut`, or :class:`ToolCrashed` for anything that the work raised, a
        ``CancelledError`` of its own making too.  When the caller is cancelled the work is as well.
        """
        task = asyncio.create_task(_guarded(work))
        try:
            await _ended(task, timeout_s)
        except asyncio.CancelledError:
            self._abandon(tool, task)
            raise
        if not task.done():
            self._abandon(tool, task)
            await _ended(task, self._grace_s)
            raise ToolTimedOut
        if task.cancelled():
            raise ToolCrashed(asyncio.CancelledError())
        value, error = task.result()
        if error is not None:
            raise ToolCrashed(error)
        return value  # type: ignore[return-value]  # A value, as there was no error.

    async def end(self, timeout_s: float) -> int:
        """Tell every task left behind once more to end; how many have not after ``timeout_s``."""
        tasks = {task for tasks in self._abandoned.values() for task in tasks}
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=timeout_s)
        return len(tasks)

    def _abandon(self, tool: str, task: asyncio.Task[tuple[T | None, BaseException | None]]) -> None:
        """Cancel a task and count it until it has ended."""
        tasks = self._abandoned.setdefault(tool, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.cancel()


async def _ended(task: "asyncio.Task[T]", within_s: float) -> None:
    """Wait for the end of a task, so many seconds at most; it is left as it is."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    timer = loop.call_later(within_s, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        task.remove_done_callback(wake)


async def _guarded(work: Callable[[], Awaitable[T]]) -> tuple[T | None, BaseException | None]:
    """Run ``work`` and return what it raised.

    This is the boundary to code that may raise anything: asyncio lets SystemExit and
    KeyboardInterrupt of a task through to the event loop, where they would end the process.
    """
    try:
        return await work(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001
        return None, error
