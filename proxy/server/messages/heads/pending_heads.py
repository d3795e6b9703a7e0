"""Limit the number and the size of incomplete request heads.

A client is not authenticated while its head arrives, so anyone who reaches the port can begin many heads.
All heads together hold at most ``most * MAX_HEAD_BYTES`` bytes.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

MAX_HEAD_BYTES: Final = 64 * 1024
"""The most bytes of a head, including its request line."""


class PendingHeads:
    """Counts the pending heads of one process."""

    def __init__(self, most: int = 1024, most_per_address: int = 512) -> None:
        """Allow ``most`` pending heads in the process, and ``most_per_address`` from one address."""
        self._most = most
        self._most_per_address = most_per_address
        self._count = 0
        self._by_address: dict[str, int] = {}

    @property
    def count(self) -> int:
        """The number of pending heads."""
        return self._count

    def begin(self, address: str) -> bool:
        """Count one more head from ``address``; return ``False``, without counting, if there are too many.

        An empty ``address`` stands for a proxy that the operator trusts: many clients come from it.
        """
        of_address = self._by_address.get(address, 0)
        if self._count >= self._most or (address and of_address >= self._most_per_address):
            return False
        self._count += 1
        self._by_address[address] = of_address + 1
        return True

    def end(self, address: str) -> None:
        """Stop counting a head from ``address`` that is complete or was given up."""
        self._count -= 1
        left = self._by_address.pop(address) - 1
        if left:
            self._by_address[address] = left


class PendingHead:
    """The head of one connection, from its first byte until it is complete.

    ``size`` is the number of bytes so far. ``timer`` ends the wait for the rest; it is ``None`` while the
    connection answers an earlier request.
    """

    __slots__ = ("_address", "_heads", "size", "timer")

    def __init__(self, heads: PendingHeads, address: str) -> None:
        """Create a head that ``heads`` has counted for ``address``."""
        self._heads = heads
        self._address = address
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Stop waiting for the head, and stop counting it."""
        self._heads.end(self._address)
        if self.timer is not None:
            self.timer.cancel()


class OncePerMinute:
    """Allows one log line per minute, and counts the events that it stands for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at = float("-inf")
        self._count = 0

    def counted(self) -> int:
        """Count an event; return the number of events since the last line, or 0 if no line is due."""
        self._count += 1
        now = self._clock()
        if now - self._said_at < 60:
            return 0
        count, self._count, self._said_at = self._count, 0, now
        return count
