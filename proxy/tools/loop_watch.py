"""Notices a tool that keeps the event loop from everybody else."""

import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

__all__ = ["MAX_STEP_S", "watch_steps"]

T = TypeVar("T")

MAX_STEP_S = 0.1
"""Seconds between two of a tool's own ``await``s before it is named."""


@types.coroutine
def watch_steps(
    work: Coroutine[Any, Any, T],
    report: Callable[[float], None],
    *,
    max_step_s: float = MAX_STEP_S,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[Any, Any, T]:
    """Run a coroutine as ``await`` does, and time each step between two of its waits.

    ``report`` gets the seconds of the longest step, once, at the end, if that was too long.  Tasks
    that the work starts are not seen.
    """
    longest = 0.0
    sent: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            began = clock()
            try:
                awaited = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                longest = max(longest, clock() - began)
            try:
                sent, thrown = (yield awaited), None
            # Whatever is thrown in, a cancellation first of all, is for the work to see.
            except BaseException as error:  # noqa: BLE001
                sent, thrown = None, error
    finally:
        work.close()
        if longest > max_step_s:
            report(longest)
