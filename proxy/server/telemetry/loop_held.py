"""How long the event loop is kept from everybody by what runs on it, as a timer finds it.

A callback that takes long holds up all streams of a process.  Each one cannot be measured for nothing, so a
timer goes off a few times a second: how late it is says how long the loop was held when it was due.  On a
busy machine a timer is late because other processes run; so no more counts than the loop's thread has used
of the processor since.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LoopHeld"]

EVERY_S: Final = 0.1


class LoopHeld:
    """Tells ``report`` how long the loop was held, in seconds, whenever its timer goes off."""

    def __init__(self, report: Callable[[float], None], *, every_s: float = EVERY_S) -> None:
        self._report = report
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._used = 0.0

    def start(self) -> None:
        """Begin on the loop that runs."""
        self._wait(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more."""
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
