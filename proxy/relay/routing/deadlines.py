"""Time-outs of one length, kept by one timer of the loop's.

A timer for each of many streams is most of a kilobyte that is hardly ever needed.  Time-outs of one
length run out in the order in which they began, so one timer for the oldest will do.
"""

import asyncio

__all__ = ["Deadlines"]


class Deadlines:
    """Gives each :class:`asyncio.Timeout` that is handed to it ``seconds``; ``None`` is no bound.

    ``seconds`` count from :meth:`begin`; a time-out that is entered begins without a time of its own
    (``asyncio.timeout(None)``), and has to :meth:`end` before it is left.
    """

    __slots__ = ("_loop", "_open", "_timer", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._open: dict[asyncio.Timeout, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, timeout: asyncio.Timeout) -> None:
        """From now on the time runs."""
        if self.seconds is None:
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # A timer of a loop that is gone would never ring.
            self._loop, self._timer = loop, None
            self._open.clear()
        self._open[timeout] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._ring)

    def end(self, timeout: asyncio.Timeout) -> None:
        """It needs no more; may be called again, and for one that never began."""
        self._open.pop(timeout, None)

    def _ring(self) -> None:
        """Expire what is due, then wait for the next."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        due = []
        for timeout, when in self._open.items():
            if when > now:
                self._timer = loop.call_at(when, self._ring)
                break
            due.append(timeout)
        for timeout in due:
            del self._open[timeout]
            # One that has run out by a time of its own may take a while to end, and cannot be set anew.
            if not timeout.expired():
                timeout.reschedule(now)
