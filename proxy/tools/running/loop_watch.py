"""Notices a tool that keeps the event loop from everybody else.

What counts is what the tool does with the loop's thread: the processor time that it takes, and the
time in which it makes the thread wait (``time.sleep``, a blocking read).  On a busy machine a step may
take long because other processes run; that is not the tool's doing.
"""

import sys
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, TypeVar

if sys.platform == "linux":  # It alone counts the waits of one thread.
    from resource import RUSAGE_THREAD, getrusage

__all__ = ["MAX_STEP_S", "ThreadUse", "blocked_s", "thread_use", "watch_steps"]

T = TypeVar("T")

MAX_STEP_S = 0.1
"""Seconds between two of a tool's own ``await``s before it is named."""


class ThreadUse(NamedTuple):
    """What the current thread has used so far: seconds passed, processor seconds, and how often it gave
    the processor away to wait for something."""

    wall_s: float
    cpu_s: float
    waits: int


def thread_use() -> ThreadUse:
    """The use of the thread that calls."""
    waits = getrusage(RUSAGE_THREAD).ru_nvcsw if sys.platform == "linux" else 0
    return ThreadUse(time.perf_counter(), time.thread_time(), waits)


def blocked_s(began: ThreadUse, ended: ThreadUse) -> float:
    """Seconds for which a step kept the loop, by its own doing.

    A step that waited is counted with its waits; one that was only made to wait, by its processor time.
    """
    if ended.waits != began.waits:
        return ended.wall_s - began.wall_s
    return ended.cpu_s - began.cpu_s


@types.coroutine
def watch_steps(
    work: Coroutine[Any, Any, T],
    report: Callable[[float], None],
    *,
    max_step_s: float = MAX_STEP_S,
    read: Callable[[], ThreadUse] = thread_use,
) -> Generator[Any, Any, T]:
    """Run a coroutine as ``await`` does, and measure each step between two of its waits.

    ``report`` gets the seconds of the longest step, once, at the end, if that was too long.  Tasks
    that the work starts are not seen.
    """
    longest = 0.0
    sent: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            began = read()
            try:
                awaited = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                longest = max(longest, blocked_s(began, read()))
            try:
                sent, thrown = (yield awaited), None
            # Whatever is thrown in, a cancellation first of all, is for the work to see.
            except BaseException as error:  # noqa: BLE001
                sent, thrown = None, error
    finally:
        work.close()
        if longest > max_step_s:
            report(longest)
