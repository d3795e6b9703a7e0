"""The log of a run's events, which its readers follow: the port, and the logs of this process.

A run writes its events to one log. Readers get them from any place on, the earlier ones at once and the
others as they come. Without Redis only the process that has the run reads its log.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

MAX_LOG_BYTES: Final = 16 << 20
MAX_EVENTS: Final = 100_000
"""The most bytes and events of one log. A longer log keeps none of its events."""
_MAX_TOTAL: Final = 128 << 20
"""The most bytes of all logs of this process. Ended logs make room for others, the oldest first."""
KEEP_S: Final = 600.0
"""Seconds for which a log can be read after its end, unless its run says otherwise.

Source: OpenAI's guide "Background mode" keeps the data of a background response for roughly 10 minutes.
"""

Event = tuple[int, bytes]
"""A number that the run chose, such as a sequence number, and bytes."""


class LogGone(Exception):
    """A log cannot be read here: it has expired or was too long, its process died, or Redis does not
    answer."""


class LogReader(Protocol):
    """Reads one log from its first event on."""

    @property
    def end(self) -> bool | None:
        """``None`` while the log goes on. After its last event: whether its run has ended, too.

        ``False`` says that the run was broken off, or that another process goes on with it.
        """

    async def next(self, wait_s: float) -> Sequence[Event]:
        """Return the next events, or none if none comes within ``wait_s`` seconds. Raises
        :class:`LogGone`."""


class EventLogs(Protocol):
    """The logs that this process writes and reads. One per process."""

    def open(self, name: str, *, keep_s: float = KEEP_S, max_bytes: int = MAX_LOG_BYTES) -> "EventLog":
        """Begin a log that this process writes; it can be read for ``keep_s`` seconds after its end."""

    def reader(self, name: str) -> AbstractAsyncContextManager[LogReader]:
        """Return a reader of a log, of any process if the logs are shared."""

    async def is_read(self, name: str) -> bool:
        """Return whether somebody reads a log of this process."""

    def drop(self, name: str) -> None:
        """Forget a log of this process."""

    async def aclose(self) -> None:
        """Hand on what is not handed on yet, and close."""


class EventLog:
    """The events of one run. Belongs to one event loop.

    ``full`` is true once there are too many events. From then on, the log keeps none. Each of ``on_change``
    is called after each change, ``room`` with the bytes that were added or dropped; it returns whether there
    is room.
    """

    def __init__(
        self,
        max_bytes: int = MAX_LOG_BYTES,
        room: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._max_bytes = max_bytes
        self.on_change: list[Callable[[], None]] = []
        self._room = room
        self._size = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.events: list[Event] = []
        self.end: bool | None = None
        self.full = False

    def put(self, number: int, event: bytes) -> None:
        """Add an event, and wake all tasks that wait for it."""
        if self.full or self.end is not None:
            return
        self._size += len(event)
        self.events.append((number, event))
        has_room = self._room(len(event))
        if not has_room or self._size > self._max_bytes or len(self.events) > MAX_EVENTS:
            self.forget()
        else:
            self._wake()

    def forget(self) -> None:
        """Drop all events; the log can no longer be read."""
        self.full = True
        self.events.clear()
        self.leave_room()
        self._wake()

    def leave_room(self) -> None:
        """Count the bytes no longer: only those who read the log now still hold it."""
        self._room(-self._size)
        self._size = 0

    def close(self, *, ended: bool = True) -> None:
        """Mark the log as complete; ``ended`` says whether its run has ended, too."""
        if self.end is None:
            self.end = ended
            self._wake()

    async def wait(self, place: int, at_most_s: float) -> None:
        """Wait until there is an event at index ``place`` or the log ends, for at most ``at_most_s``
        seconds."""
        if len(self.events) > place or self.end is not None or self.full:
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
        for changed in self.on_change:
            changed()


class _Reader:
    """A :class:`LogReader` of a log in this process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._place = 0

    @property
    def end(self) -> bool | None:
        return self._log.end if self._place >= len(self._log.events) else None

    async def next(self, wait_s: float) -> Sequence[Event]:
        await self._log.wait(self._place, wait_s)
        if self._log.full:
            raise LogGone
        events = self._log.events[self._place :]
        self._place += len(events)
        return events


class LocalLogs:
    """The logs of this process alone; :class:`EventLogs` without Redis.

    A log that has lost its events is forgotten at once.
    """

    def __init__(self, dropped: Callable[[str], object] = lambda _: None) -> None:
        """``dropped`` is called with the name of each log that is forgotten."""
        self._dropped = dropped
        self._logs: dict[str, EventLog] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._readers: dict[str, int] = {}
        self._used = 0

    def open(self, name: str, *, keep_s: float = KEEP_S, max_bytes: int = MAX_LOG_BYTES) -> EventLog:
        log = self._logs[name] = EventLog(max_bytes, self._uses)
        log.on_change.append(lambda: self._changed(name, keep_s))
        return log

    def get(self, name: str) -> EventLog | None:
        """Return a log of this process that can still be read."""
        return self._logs.get(name)

    @asynccontextmanager
    async def reader(self, name: str) -> AsyncIterator[LogReader]:
        log = self._logs.get(name)
        self._readers[name] = self._readers.get(name, 0) + 1
        try:
            yield _Reader(log) if log is not None else GONE
        finally:
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._readers[name]

    async def is_read(self, name: str) -> bool:
        return name in self._readers

    def drop(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        if (log := self._logs.pop(name, None)) is not None:
            log.leave_room()
            self._dropped(name)

    async def aclose(self) -> None:
        for name in list(self._logs):
            self.drop(name)

    def _changed(self, name: str, keep_s: float) -> None:
        log = self._logs.get(name)
        if log is not None and log.full:
            self.drop(name)
        elif log is not None and log.end is not None and name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(keep_s, self.drop, name)

    def _uses(self, added: int) -> bool:
        self._used += added
        while self._used > _MAX_TOTAL and self._timers:
            self.drop(next(iter(self._timers)))
        return self._used <= _MAX_TOTAL


class _Gone:
    """A :class:`LogReader` of a log that is not here."""

    end = None

    async def next(self, wait_s: float) -> Sequence[Event]:
        raise LogGone


GONE: Final = _Gone()
