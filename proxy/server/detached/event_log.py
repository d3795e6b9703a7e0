"""The events of a background response, kept in memory for clients that follow it."""

import asyncio
from collections.abc import Sequence
from typing import Final

__all__ = ["MAX_LOG_BYTES", "EventLog"]

MAX_LOG_BYTES: Final = 16 << 20
"""The most bytes of events to keep per response; a longer one can be polled, but not streamed again."""


class EventLog:
    """Events as bytes, with their sequence numbers.  Belongs to one event loop.

    ``full`` says that they took more than ``max_bytes``; from then on the log keeps none.
    """

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.events: list[tuple[int, bytes]] = []
        self.ended = False
        self.full = False

    def put(self, number: int, event: bytes) -> None:
        """Add an event, and wake those that wait for it."""
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
        """Say that no more events will come."""
        self.ended = True
        self._wake()

    def since(self, place: int) -> Sequence[tuple[int, bytes]]:
        """The events from the position ``place`` on."""
        return self.events[place:]

    async def wait(self, place: int, at_most_s: float) -> None:
        """Wait for an event at the position ``place`` or the end, for at most ``at_most_s`` seconds."""
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
