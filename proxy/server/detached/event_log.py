"""The events of a response in the background, kept for whoever follows it."""

import asyncio
from collections.abc import Sequence
from typing import Final

__all__ = ["MAX_LOG_BYTES", "EventLog"]

MAX_LOG_BYTES: Final = 16 << 20
"""Bytes of events that are kept of one response; what is longer can be polled, and not streamed again."""


class EventLog:
    """Events by their sequence numbers, as bytes.  Belongs to one event loop.

    ``full`` says that it was longer than :data:`MAX_LOG_BYTES`; from then on there are no events.
    """

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.events: list[tuple[int, bytes]] = []
        self.ended = False
        self.full = False

    def put(self, number: int, event: bytes) -> None:
        """Keep an event, and tell whoever waits."""
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
        """There will be no other event."""
        self.ended = True
        self._wake()

    def since(self, place: int) -> Sequence[tuple[int, bytes]]:
        """The events from a place in the log on."""
        return self.events[place:]

    async def wait(self, place: int, at_most_s: float) -> None:
        """Return when there is an event at that place, or none will come, or after so many seconds."""
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
