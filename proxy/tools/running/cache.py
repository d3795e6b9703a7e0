"""Results that may be given out again.

A key names everything that a result depends on, the caller among it: no caller ever gets what was
fetched for another.  Failures are not kept.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from proxy.caches import CacheSize, declare, value_bytes
from proxy.tools.access.single_flight import SingleFlight
from proxy.tools.contract.results import Output

__all__ = ["ResultCache", "cache_key"]

T = TypeVar("T")

_ENTRY_OVERHEAD = 512
"""Bytes that an entry takes beside its text and images, roughly."""


def cache_key(*parts: str) -> str:
    """SHA-256 over parts of which none can run into the next."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A kept result.  ``dies_at`` is monotonic, ``until`` the time of day, both in seconds."""

    output: Output
    dies_at: float
    until: float | None
    size: int


class ResultCache:
    """Results by key, the least used going first, bounded in number and bytes.

    Args:
        monotonic: seconds that never jump, for how long a result has been kept.
        wall: seconds since the epoch, for results that are good until a moment.
        max_entries, max_bytes: bounds of the whole.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        max_entries: int = 1024,
        max_bytes: int = 32 << 20,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0
        self.flights: SingleFlight[Output] = SingleFlight()
        declare("tool_results", self._cache_size)

    def get(self, key: str) -> Output | None:
        """The result of this key that is still good."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._monotonic() >= entry.dies_at or (entry.until is not None and self._wall() >= entry.until):
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.output

    def put(self, key: str, output: Output, ttl_s: float, until: float | None) -> None:
        """Keep a result for ``ttl_s`` seconds, and not past the moment ``until``."""
        self._remove(key)
        size = 4 * len(output.text) + sum(len(image.url) for image in output.images) + _ENTRY_OVERHEAD
        size += value_bytes(output.redacted)
        if ttl_s <= 0 or size > self._max_bytes // 4 or (until is not None and self._wall() >= until):
            return
        # What redaction has looked at is not needed again; what it let through is kept.
        self._entries[key] = _Entry(output.without_value(), self._monotonic() + ttl_s, until, size)
        self._bytes += size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def __len__(self) -> int:
        return len(self._entries)

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, self._max_bytes)
