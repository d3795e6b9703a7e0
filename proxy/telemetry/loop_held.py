"""Measure with a timer for how long callbacks hold the event loop.

A long callback holds up all streams of a process. Measuring each callback would cost too much. So a timer
fires several times a second, and its delay shows how long the loop was held when it was due. On a busy
machine, other processes can delay the timer, too. So the result is at most the CPU time that the loop's
thread has used since.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 0.1


class LoopHeld:
    """Calls ``report`` with the seconds for which the loop was held, each time its timer fires."""

    def __init__(self, report: Callable[[float], None], *, every_s: float = EVERY_S) -> None:
        self._report = report
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._used = 0.0

    def start(self) -> None:
        """Start to measure the running loop."""
        self._wait(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._every_s
        self._used = time.thread_time()
        self._timer = loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        late = loop.time() - self._due
        self._report(max(0.0, min(late, time.thread_time() - self._used)))
        self._wait(loop)
