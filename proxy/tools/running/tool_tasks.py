"""Runs one piece of a tool's work so that nothing it does reaches the rest of the process.

A tool may hang, swallow its cancellation or raise ``SystemExit``.  Its work runs in a task of its
own; a task that was told to end and is still there once its tool's own time is over is counted
against the tool for as long as it lives, and a tool with too many of them is switched off.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

__all__ = ["ToolCrashed", "ToolTasks", "ToolTimedOut"]

T = TypeVar("T")

_WHAT_TO_DO = (
    "every call of it is refused until one of these tasks ends; correct the tool so that it ends in its time"
    " (no blocking call without a time-out, no swallowed cancellation), then start the server anew"
)

_TURNS = 8
"""Turns of the event loop after a tool's time, for work that had ended in it and was not looked at.

Another tool may have held the loop; a thread's result takes a few turns to get here.
"""


class ToolCrashed(Exception):
    """The work raised; ``cause`` is what.  Its text may hold arguments and goes to nobody."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(type(cause).__name__)


class ToolTimedOut(Exception):
    """The work did not end in time."""


class ToolTasks:
    """Keeps the tasks of tools, and those that would not die."""

    def __init__(self, *, max_stuck: int = 3, grace_s: float = 0.25) -> None:
        self._max_stuck = max_stuck
        self._grace_s = grace_s
        self._abandoned: set[asyncio.Task[object]] = set()
        self._stuck: dict[str, set[asyncio.Task[object]]] = {}
        self._logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    def stuck(self, tool: str) -> int:
        """Tasks of this tool that were told to end and have not, though all of its time is over."""
        return len(self._stuck.get(tool, ()))

    def is_disabled(self, tool: str) -> bool:
        """Whether this tool has so many of them that it may not start another."""
        return self.stuck(tool) >= self._max_stuck

    async def run(self, tool: str, work: Callable[[], Awaitable[T]], timeout_s: float, *, own_s: float) -> T:
        """The result of ``work``, within ``timeout_s`` seconds.

        ``own_s`` is how many seconds the tool may take by itself, however little of it this caller
        has left or waits for: what ends within them, and the grace, has done nothing wrong.

        Raises :class:`ToolTimedOut`, or :class:`ToolCrashed` for anything that the work raised, a
        ``CancelledError`` of its own making too.  When the caller is cancelled the work is as well.
        """
        over_at = asyncio.get_running_loop().time() + own_s + self._grace_s
        task = asyncio.create_task(_guarded(work))
        try:
            await _ended(task, timeout_s)
            for _ in range(_TURNS):
                if task.done():
                    break
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._abandon(tool, task, over_at)
            raise
        if not task.done():
            self._abandon(tool, task, over_at)
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
        tasks = set(self._abandoned)
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=timeout_s)
        return len(tasks)

    def _abandon(
        self, tool: str, task: asyncio.Task[tuple[T | None, BaseException | None]], over_at: float
    ) -> None:
        """Cancel a task, and count it from ``over_at`` on, a time of the loop's, if it has not ended then.

        Not before: a thread cannot be cancelled, and clients that leave say nothing about a tool.
        """
        if task.done():
            return
        self._abandoned.add(task)
        timer = asyncio.get_running_loop().call_at(over_at, self._count, tool, task)

        def ended(_: object) -> None:
            timer.cancel()
            self._abandoned.discard(task)
            self._uncount(tool, task)

        task.add_done_callback(ended)
        task.cancel()

    def _count(self, tool: str, task: asyncio.Task[object]) -> None:
        """A task that has outlived its tool's time; say so when it is the one too many."""
        if task.done():
            return
        tasks = self._stuck.setdefault(tool, set())
        tasks.add(task)
        if len(tasks) == self._max_stuck:
            self._logger.error("tool_switched_off", tool=tool, stuck=len(tasks), hint=_WHAT_TO_DO)

    def _uncount(self, tool: str, task: asyncio.Task[object]) -> None:
        """A task that has ended after all; say so where its tool may run again."""
        tasks = self._stuck.get(tool, set())
        if task in tasks:
            tasks.remove(task)
            if len(tasks) == self._max_stuck - 1:
                self._logger.warning("tool_switched_on", tool=tool, stuck=len(tasks))


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
    # Whatever else the work raises is its result.
    except BaseException as error:  # noqa: BLE001
        return None, error
