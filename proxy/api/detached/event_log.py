"""Keep the events of a background response in memory for clients that follow it."""

import asyncio
from collections.abc import Sequence
from typing import Final

MAX_LOG_BYTES: Final = 16 << 20
"""The largest number of bytes of events to keep per response. Clients can only poll a longer response."""


class EventLog:
    """The events of one response as bytes, with their sequence numbers. Belongs to one event loop.

    ``full`` is true once the events take more than ``max_bytes``. From then on, the log keeps no events.
    """

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.events: list[tuple[int, bytes]] = []
        self.ended = False
        self.full = False

    def put(self, number: int, event: bytes) -> None:
        """Add an event, and wake all tasks that wait for it."""
        if self.full:
            return
        self._size += len(event)
        if self._size > self._max_bytes:
            self.full = True
            self.events.clear()
        else:
            self.events.append((number, event))
        self._wake()

    def end(self) -> None:
        """Mark the log as complete: no more events follow."""
        self.ended = True
        self._wake()

    def since(self, place: int) -> Sequence[tuple[int, bytes]]:
        """Return the events from index ``place`` on."""
        return self.events[place:]

    async def wait(self, place: int, at_most_s: float) -> None:
        """Wait until there is an event at index ``place`` or the log ends, for at most ``at_most_s``
        seconds."""
        if len(self.events) > place or self.ended or self.full:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=at_most_s)
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
