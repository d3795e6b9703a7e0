"""Timeouts of one length that share a single timer of the event loop.

A timer for each of many streams takes most of a kilobyte and is hardly ever needed. Timeouts of one length
expire in the order in which they began, so one timer for the oldest is enough.
"""

import asyncio


class Deadlines:
    """Limits each :class:`asyncio.Timeout` that it gets to ``seconds``; ``None`` means no limit.

    ``seconds`` count from :meth:`begin`. The timeout must be created without a time of its own
    (``asyncio.timeout(None)``), and must :meth:`end` before its block ends.
    """

    __slots__ = ("_loop", "_open", "_timer", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._open: dict[asyncio.Timeout, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, timeout: asyncio.Timeout) -> None:
        """Start the time of a timeout."""
        if self.seconds is None:
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # A timer of a closed loop would never fire.
            self._loop, self._timer = loop, None
            self._open.clear()
        self._open[timeout] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._ring)

    def end(self, timeout: asyncio.Timeout) -> None:
        """Forget a timeout; may be called again, and for one that never began."""
        self._open.pop(timeout, None)

    def _ring(self) -> None:
        """Expire the timeouts that are due, then set the timer for the next."""
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
            # A timeout that has expired by itself may take a while to end, and cannot be rescheduled.
            if not timeout.expired():
                timeout.reschedule(now)
