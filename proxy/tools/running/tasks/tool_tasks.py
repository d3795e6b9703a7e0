"""Run a tool's code in a task of its own, so that it cannot harm the rest of the process.

A tool may hang, swallow its cancellation or raise ``SystemExit``. A task is stuck if it was cancelled and
still runs after its tool's own time limit. A tool with too many stuck tasks is switched off until some end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

T = TypeVar("T")

_WHAT_TO_DO = (
    "the proxy refuses every call of this tool until one of these tasks ends; correct the tool so that it"
    " ends in time (no blocking call without a time-out, no swallowed cancellation), then restart the proxy"
)

_TURNS = 8
"""Extra iterations of the event loop after the time limit, for work that ended in time but is not seen yet.

Another tool may have blocked the loop, and a thread's result takes a few iterations to arrive.
"""


class ToolCrashed(Exception):
    """The work raised ``cause``. The text of ``cause`` may contain arguments, so it is never shown."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(type(cause).__name__)


class ToolTimedOut(Exception):
    """The work did not end in time."""


class ToolTasks:
    """The tasks of tools; it counts those that do not end."""

    def __init__(self, *, max_stuck: int = 3, grace_s: float = 0.25) -> None:
        self._max_stuck = max_stuck
        self._grace_s = grace_s
        self._abandoned: set[asyncio.Task[object]] = set()
        self._stuck: dict[str, set[asyncio.Task[object]]] = {}
        self._logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    def stuck(self, tool: str) -> int:
        """Return how many cancelled tasks of this tool still run after its time limit."""
        return len(self._stuck.get(tool, ()))

    def is_disabled(self, tool: str) -> bool:
        """Return whether this tool has so many stuck tasks that it may not start another."""
        return self.stuck(tool) >= self._max_stuck

    async def run(self, tool: str, work: Callable[[], Awaitable[T]], timeout_s: float, *, own_s: float) -> T:
        """Return the result of ``work`` within ``timeout_s`` seconds.

        ``own_s`` is the tool's own time limit in seconds, even if this caller has less time left. A task
        that ends within it, plus a grace period, does not count as stuck.

        Raises :class:`ToolTimedOut`, or :class:`ToolCrashed` for anything that the work raised, also for a
        ``CancelledError`` that it raised itself. If the caller is cancelled, the work is cancelled too.
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
        """Cancel every abandoned task once more; return how many still run after ``timeout_s`` seconds."""
        tasks = set(self._abandoned)
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=timeout_s)
        return len(tasks)

    def _abandon(
        self, tool: str, task: asyncio.Task[tuple[T | None, BaseException | None]], over_at: float
    ) -> None:
        """Cancel a task; if it still runs at ``over_at``, a time of the loop's clock, count it as stuck.

        It is not counted earlier, because a thread cannot be cancelled and a client that leaves is not a
        fault of the tool.
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
        """Count a task that still runs after its tool's time limit; log if the tool is now switched off."""
        if task.done():
            return
        tasks = self._stuck.setdefault(tool, set())
        tasks.add(task)
        if len(tasks) == self._max_stuck:
            self._logger.error("tool_switched_off", tool=tool, stuck=len(tasks), hint=_WHAT_TO_DO)

    def _uncount(self, tool: str, task: asyncio.Task[object]) -> None:
        """Remove a stuck task that has ended; log if its tool may run again."""
        tasks = self._stuck.get(tool, set())
        if task in tasks:
            tasks.remove(task)
            if len(tasks) == self._max_stuck - 1:
                self._logger.warning("tool_switched_on", tool=tool, stuck=len(tasks))


async def _ended(task: "asyncio.Task[T]", within_s: float) -> None:
    """Wait for the end of a task, at most ``within_s`` seconds, without cancelling it."""
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
    """Run ``work`` and return its value, or what it raised.

    Without this boundary, asyncio would pass a task's SystemExit or KeyboardInterrupt on to the event loop,
    and it would end the process.
    """
    try:
        return await work(), None
    except asyncio.CancelledError:
        raise
    # Whatever else the work raises is its outcome.
    except BaseException as error:  # noqa: BLE001
        return None, error
