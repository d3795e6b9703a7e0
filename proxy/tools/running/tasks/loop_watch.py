"""Detect a tool that blocks the event loop.

Two times count: the CPU time that the tool uses in the loop's thread, and the time for which it makes the
thread wait (``time.sleep``, a blocking read). On a busy machine a step may also take long because other
processes run; that does not count.
"""

import sys
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, TypeVar

if sys.platform == "linux":  # Only Linux counts the waits of one thread.
    from resource import RUSAGE_THREAD, getrusage

T = TypeVar("T")

MAX_STEP_S = 0.1
"""The longest step between two of a tool's ``await``s, in seconds, that is not reported."""


class ThreadUse(NamedTuple):
    """The use of a thread so far: wall-clock seconds, CPU seconds, and the number of voluntary context
    switches, in which it waited for something."""

    wall_s: float
    cpu_s: float
    waits: int


def thread_use() -> ThreadUse:
    """Return the use of the calling thread."""
    waits = getrusage(RUSAGE_THREAD).ru_nvcsw if sys.platform == "linux" else 0
    return ThreadUse(time.perf_counter(), time.thread_time(), waits)


def blocked_s(began: ThreadUse, ended: ThreadUse) -> float:
    """Return the seconds for which a step itself blocked the loop.

    If the step waited for something, all its time counts. Otherwise only its CPU time counts, because other
    processes may have delayed it.
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

    If the longest step was longer than ``max_step_s``, ``report`` gets its seconds, once, at the end. Tasks
    that the work starts are not measured.
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
            # The work must get every exception that is thrown in, above all a cancellation.
            except BaseException as error:  # noqa: BLE001
                sent, thrown = None, error
    finally:
        work.close()
        if longest > max_step_s:
            report(longest)
