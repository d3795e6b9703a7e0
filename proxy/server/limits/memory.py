"""The memory in which the library ``limits`` counts: bounded, and without a task behind each hit."""

import time
from collections import OrderedDict
from typing import Final, TypeVar

from limits.aio.storage.memory import Entry, MemoryStorage
from proxy.base.caches import CacheSize, declare

MOST_COUNTERS: Final = 100_000
"""The most counters. Callers may be addresses, and there are many of those: past this number the least
recently used counter is forgotten. A counter in use is never forgotten: otherwise a client that mints many
tokens could reset its key's counter."""

MOST_STAMPS: Final = 1_000_000
"""The most hits that are remembered for all callers together, each with its time. A single limit that is
larger has room for twice its amount. Past this number the least recently used counters are forgotten."""

_COUNTER_BYTES: Final = 1200
_STAMP_BYTES: Final = 160

_Value = TypeVar("_Value")


class _Recent(OrderedDict[str, _Value]):
    """A dict in the order of its last ``get``. The library gets every counter that it reads or adds to."""

    def get(self, key: str, default: _Value) -> _Value:  # type: ignore[override]
        if key not in self:
            return default
        self.move_to_end(key)
        return self[key]


class BoundedMemory(MemoryStorage):
    """The library's storage in memory, with bounds in place of its background task.

    The library starts that task after a hit. It visits each counter of each caller in a thread of its own,
    and between two of its visits the memory has no bound.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: _Recent[list[Entry]] = _Recent()
        self.expirations: _Recent[float] = _Recent()
        self._sweep_at = 1024
        self._most_stamps = MOST_STAMPS
        self._stamps = 0
        """An upper bound of the remembered hits, which are counted when it is too high."""
        declare("limit_counters", self._cache_size)

    async def _MemoryStorage__schedule_expiry(self) -> None:
        """Make room before a use is counted if there are too many counters; replaces the library's task."""
        if self.size >= self._sweep_at:
            self._make_room()

    def count(self, key: str, limit: int, expiry: int, amount: int = 1) -> tuple[bool, float, int]:
        """Count a hit if the window has room, as the library does, which locks and searches for that.

        Return whether it has, the time of the oldest hit in it in seconds, and the number of hits in it.
        """
        if self.size >= self._sweep_at or self._stamps > self._most_stamps:
            self._make_room()
        events, now = self.events.get(key, []), time.time()
        while events and events[-1].atime < now - expiry:
            events.pop()  # It can refuse no other hit.
        if taken := len(events) + amount <= limit:
            events[:0] = [Entry(expiry)] * amount
            self.events[key] = events
            self._stamps += amount
            self._most_stamps = max(self._most_stamps, 2 * limit)
        return taken, events[-1].atime if events else now, len(events)

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count a hit if the window has room; return whether it has."""
        return self.count(key, limit, expiry, amount)[0]

    @property
    def size(self) -> int:
        """The number of counters."""
        return len(self.events) + len(self.expirations)

    def _make_room(self) -> None:
        """Forget what has expired; then the least recently used counters, a tenth at once."""
        now = time.time()
        for key, entries in list(self.events.items()):
            while entries and entries[-1].expiry < now:
                entries.pop()
            if not entries:
                self._forget(key)
        for key in [key for key, end in self.expirations.items() if end <= now]:
            self._forget(key)
        self._stamps = self._counted()
        while self.size > 0.9 * MOST_COUNTERS or self._stamps > 0.9 * self._most_stamps:
            larger = self.events if len(self.events) >= len(self.expirations) else self.expirations
            if self._stamps > 0.9 * self._most_stamps:
                larger = self.events
            oldest = next(iter(larger))
            self._stamps -= len(self.events[oldest]) if oldest in self.events else 0
            self._forget(oldest)
        self._sweep_at = min(max(1024, 2 * self.size), MOST_COUNTERS)

    def _forget(self, key: str) -> None:
        for held in (self.events, self.expirations, self.storage, self.locks):
            held.pop(key, None)

    def _counted(self) -> int:
        return sum(map(len, self.events.values()))

    def _cache_size(self) -> CacheSize:
        most = _COUNTER_BYTES * (MOST_COUNTERS + 1) + _STAMP_BYTES * (self._most_stamps + 1)
        return CacheSize(_COUNTER_BYTES * self.size + _STAMP_BYTES * self._counted(), most)
