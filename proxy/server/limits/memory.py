"""Counters in the memory of this process: cheap and exact; they end with the process."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from proxy.caches import CacheSize, declare
from proxy.server.limits.rules import SLOTS, Limit, LimitStatus, Verdict

__all__ = ["MemoryCounters"]

MOST_COUNTERS: Final = 100_000
"""The most counters. Callers may be addresses, and there are many of those: past this number the least
recently used counter is forgotten. A counter in use is never forgotten: otherwise a client that mints many
tokens could reset its key's counter."""

MOST_STAMPS: Final = 2_000_000
"""The most hits that are remembered for all callers together, each with its time. A single limit that is
larger has room for twice its amount. Past this number the least recently used counters are forgotten."""

_COUNTER_BYTES: Final = 1200
_STAMP_BYTES: Final = 40
_SLOT_STAMPS: Final = 4
"""The memory of a part of a window, in hits."""

_STREAM_WAIT_S: Final = 1.0


class _Hits:
    """A moving window, like that of ``limits``: a hit counts until it is older than the window."""

    __slots__ = ("times", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.times: deque[float] = deque()

    def count(self, now: float) -> int:
        """Return the number of hits within the window."""
        times, oldest = self.times, now - self.window
        while times and times[0] < oldest:
            times.popleft()
        return len(times)

    def idle(self, now: float) -> bool:
        return not self.times or self.times[-1] < now - self.window


class _Spent:
    """The use within a window, by the part of the window in which it happened."""

    __slots__ = ("slots", "total", "width")

    def __init__(self, window: int) -> None:
        self.width = window / SLOTS
        self.slots: deque[list[int]] = deque()
        self.total = 0

    def sum(self, now: float) -> int:
        """Return the amount that was spent within the window."""
        slots, oldest = self.slots, int(now // self.width) - SLOTS
        while slots and slots[0][0] < oldest:
            self.total -= slots.popleft()[1]
        return self.total

    def add(self, now: float, amount: int) -> None:
        slot = int(now // self.width)
        self.total += amount
        if self.slots and self.slots[-1][0] >= slot:
            self.slots[-1][1] += amount
        else:
            self.slots.append([slot, amount])

    def leaves_in(self, slot: int, now: float) -> float:
        """Return the seconds until the use in a part of the window no longer counts."""
        return max((slot + SLOTS + 1) * self.width - now, 0.001)

    def wait(self, now: float, limit: int) -> float:
        """Return the seconds until less than ``limit`` counts."""
        left = self.total
        for slot, amount in self.slots:
            left -= amount
            if left < limit:
                return self.leaves_in(slot, now)
        return 0.0

    def idle(self, now: float) -> bool:
        return not self.slots or self.slots[-1][0] < int(now // self.width) - SLOTS


class MemoryCounters:
    """The :class:`~proxy.server.limits.rules.Counters` in this process. ``clock`` returns monotonic
    seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hits: OrderedDict[tuple[str, Limit], _Hits] = OrderedDict()
        self._spent: OrderedDict[tuple[str, Limit], _Spent] = OrderedDict()
        self._open: dict[str, int] = {}
        self._sweep_at = 1024
        self._most_stamps = MOST_STAMPS
        self._stamps = 0
        """An upper bound of the remembered hits; when it is too high, they are counted again without expired
        ones."""
        declare("limit_counters", self._cache_size)

    async def take(
        self, caller: str, hits: Sequence[Limit], spending: Sequence[Limit], streams: int | None, lease: str
    ) -> Verdict:
        """Count one against all of ``hits``, or none; see :class:`~proxy.server.limits.rules.Counters`."""
        now = self._clock()
        refused: Limit | None = None
        longest = 0.0
        limit_statuses = []
        taken = []
        for limit in hits:
            key = (caller, limit)
            window = self._hits.get(key)
            if window is None:
                self._make_room()
                window = self._hits[key] = _Hits(limit.seconds)
                self._most_stamps = max(self._most_stamps, 2 * limit.amount)
            else:
                self._hits.move_to_end(key)
            count = window.count(now)
            if count >= limit.amount:
                wait = max(window.times[count - limit.amount] + limit.seconds - now, 0.001)
                if wait > longest:
                    refused, longest = limit, wait
            taken.append((limit, window, count))
        for limit in spending:
            spent = self._spent.get((caller, limit))
            if spent is not None:
                self._spent.move_to_end((caller, limit))
            left = limit.amount - (spent.sum(now) if spent is not None else 0)
            reset = spent.leaves_in(spent.slots[0][0], now) if spent is not None and spent.slots else 0.0
            if left <= 0 and spent is not None and (wait := spent.wait(now, limit.amount)) > longest:
                refused, longest = limit, wait
            limit_statuses.append(LimitStatus(limit, max(left, 0), reset))
        if streams is not None and self._open.get(caller, 0) >= streams and longest < _STREAM_WAIT_S:
            refused, longest = Limit("concurrent_streams", streams, 0), _STREAM_WAIT_S
        for limit, window, count in taken:
            if refused is None:
                if not window.times:
                    self._hits[caller, limit] = window  # Making room may have swept it as idle.
                window.times.append(now)
                self._stamps += 1
                count += 1
            reset = window.times[0] + limit.seconds - now if window.times else 0.0
            left = limit.amount - count
            limit_statuses.append(LimitStatus(limit, left if left > 0 else 0, reset if reset > 0.0 else 0.0))
        if self._stamps > self._most_stamps:
            self._shed(now)
        if refused is None and streams is not None:
            self._open[caller] = self._open.get(caller, 0) + 1
        return Verdict(refused, longest, limit_statuses)

    def try_hit(self, caller: str, hits: Sequence[Limit]) -> Sequence[LimitStatus] | None:
        """Count one against all of ``hits`` if each has counted before and has room now."""
        now = self._clock()
        known = []
        for limit in hits:
            key = (caller, limit)
            window = self._hits.get(key)
            if window is None or (count := window.count(now)) >= limit.amount:
                return None
            known.append((key, window, limit.amount - count - 1))
        limit_statuses = []
        for key, window, left in known:
            self._hits.move_to_end(key)
            times, limit = window.times, key[1]
            times.append(now)
            limit_statuses.append(LimitStatus(limit, left, times[0] + limit.seconds - now))
        self._stamps += len(known)
        if self._stamps > self._most_stamps:
            self._shed(now)
        return limit_statuses

    def spend(self, caller: str, spent: Sequence[tuple[Limit, int]]) -> None:
        """Count the use, also past the limit."""
        now = self._clock()
        for limit, amount in spent:
            counter = self._spent.get((caller, limit))
            if counter is None:
                self._make_room()
                counter = self._spent[caller, limit] = _Spent(limit.seconds)
            counter.sum(now)
            counter.add(now, amount)
            self._stamps += _SLOT_STAMPS
        if self._stamps > self._most_stamps:
            self._shed(now)

    def release(self, caller: str, lease: str) -> None:
        """Give one place back."""
        left = self._open.get(caller, 0) - 1
        if left > 0:
            self._open[caller] = left
        else:
            self._open.pop(caller, None)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    @property
    def size(self) -> int:
        """The number of counters."""
        return len(self._hits) + len(self._spent)

    def _shed(self, now: float) -> None:
        """Count the remembered hits again; then forget the least recently used counters, a tenth at once."""
        for window in self._hits.values():
            window.count(now)
        for spent in self._spent.values():
            spent.sum(now)
        self._stamps = self._counted()
        while self._stamps > 0.9 * self._most_stamps and self.size > 1:
            if self._hits and (len(self._hits) >= len(self._spent) or len(self._spent) <= 1):
                self._stamps -= len(self._hits.popitem(last=False)[1].times)
            else:
                self._stamps -= _SLOT_STAMPS * len(self._spent.popitem(last=False)[1].slots)

    def _counted(self) -> int:
        hits = sum(len(window.times) for window in self._hits.values())
        return hits + _SLOT_STAMPS * sum(len(spent.slots) for spent in self._spent.values())

    def _cache_size(self) -> CacheSize:
        most = _COUNTER_BYTES * (MOST_COUNTERS + 1) + _STAMP_BYTES * (self._most_stamps + 1)
        return CacheSize(_COUNTER_BYTES * self.size + _STAMP_BYTES * self._counted(), most)

    def _make_room(self) -> None:
        """Forget idle counters, each time their number has doubled."""
        if self.size < self._sweep_at:
            return
        now = self._clock()
        self._hits = OrderedDict((key, each) for key, each in self._hits.items() if not each.idle(now))
        self._spent = OrderedDict((key, each) for key, each in self._spent.items() if not each.idle(now))
        # A tenth at once, so that a flood of new callers does not cause this for each of them.
        while self.size > 0.9 * MOST_COUNTERS:
            larger: OrderedDict[tuple[str, Limit], Any] = (
                self._hits if len(self._hits) >= len(self._spent) else self._spent
            )
            larger.popitem(last=False)
        self._sweep_at = min(max(1024, 2 * self.size), MOST_COUNTERS)
