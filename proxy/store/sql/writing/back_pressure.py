"""Lets runs wait while the database does not keep up with their writes, so that none is lost.

Runs wait only as long as groups are committed. If the database fails or stands still, nobody waits for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from proxy.base.hard_timeout import ends_in_time

_WRITES_OF_RUN: Final = 8
"""About the most writes that a run adds until it waits again."""


class BackPressure:
    """The runs that wait, in order.

    ``progress`` returns the number of committed groups; if it stays the same for ``stalls_after_s`` seconds,
    the database stands still, and nobody waits until it changes. ``crowded`` says whether runs have to wait.
    """

    def __init__(self, progress: Callable[[], int], stalls_after_s: float) -> None:
        self.crowded = False
        self._progress = progress
        self._stalls_after_s = stalls_after_s
        self._stalled_at: int | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._watch: asyncio.Task[None] | None = None

    def begin(self, failure: str | None) -> None:
        """Let runs wait from now on, unless the database fails or stands still."""
        if not self.crowded:
            self.crowded = failure is None and self._stalled_at != self._progress()

    def ease(self, room: int) -> None:
        """Let as many runs on as there is room for their writes, after a commit."""
        for _ in range(-(-room // _WRITES_OF_RUN)):
            if not self._next():
                break
        self.crowded = room <= 0 or bool(self._waiting)

    def end(self) -> None:
        """Let all runs on."""
        while self._next():
            pass
        self.crowded = False

    async def wait(self, within_s: float) -> None:
        """Wait for room, at most ``within_s`` seconds; never raises."""
        if not self.crowded:
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if self._watch is None:
            self._watch = loop.create_task(self._see_progress(), name="record-progress")
        timer = loop.call_later(within_s, _let_on, turn)
        try:
            await turn
        finally:
            timer.cancel()

    def _next(self) -> bool:
        """Let the first run on that still waits; return whether there was one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    async def _see_progress(self) -> None:
        """Watch the database while runs wait."""
        try:
            while self._waiting:
                first = self._waiting[0]
                if first.done():
                    self._waiting.popleft()
                elif not await ends_in_time(first, self._stalls_after_s, self._progress):
                    self._stalled_at = self._progress()
                    self.end()
        finally:
            self._watch = None


def _let_on(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
