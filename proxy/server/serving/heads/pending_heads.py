"""A bound on incomplete request heads: on their number and their bytes.

While a head arrives, the client is not authenticated, so everybody who reaches the port can begin as many
heads as they like.  The bound on all of them is ``most * MAX_HEAD_BYTES``.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["MAX_HEAD_BYTES", "OncePerMinute", "PendingHead", "PendingHeads"]

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a whole head, its request line included."""


class PendingHeads:
    """Counts the pending heads of one process."""

    def __init__(self, most: int = 1024, most_per_address: int = 512) -> None:
        """``most`` in the process, ``most_per_address`` from one address of a client."""
        self._most = most
        self._most_per_address = most_per_address
        self._count = 0
        self._by_address: dict[str, int] = {}

    @property
    def count(self) -> int:
        """How many there are now."""
        return self._count

    def begin(self, address: str) -> bool:
        """Count one more from ``address``; false, and nothing is counted, where there are too many.

        An empty ``address`` is a proxy's that the operator trusts: many clients come from it.
        """
        of_address = self._by_address.get(address, 0)
        if self._count >= self._most or (address and of_address >= self._most_per_address):
            return False
        self._count += 1
        self._by_address[address] = of_address + 1
        return True

    def end(self, address: str) -> None:
        """One from ``address`` is whole, or given up."""
        self._count -= 1
        left = self._by_address.pop(address) - 1
        if left:
            self._by_address[address] = left


class PendingHead:
    """The head of one connection, from its first byte until it is whole; ``size`` is what came of it.

    ``timer`` ends the wait for the rest, ``None`` while the connection answers an earlier request.
    """

    __slots__ = ("_address", "_heads", "size", "timer")

    def __init__(self, heads: PendingHeads, address: str) -> None:
        """One that ``heads`` has counted for ``address``."""
        self._heads = heads
        self._address = address
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """It is whole, or nobody waits for it any more."""
        self._heads.end(self._address)
        if self.timer is not None:
            self.timer.cancel()


class OncePerMinute:
    """Lets a line into the log once a minute, and counts what it stands for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at = float("-inf")
        self._count = 0

    def counted(self) -> int:
        """How many times this was asked since a line was written, this time too; 0: write none now."""
        self._count += 1
        now = self._clock()
        if now - self._said_at < 60:
            return 0
        count, self._count, self._said_at = self._count, 0, now
        return count
