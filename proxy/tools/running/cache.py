"""Cache results of tools that set ``cache_ttl_s``.

A key contains everything that a result depends on, also the caller: no caller ever gets another caller's
result.  Failures are not cached.
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
"""Roughly the bytes that an entry takes beside its text and images."""


def cache_key(*parts: str) -> str:
    """Return the SHA-256, in hex, of these parts and of their boundaries."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached result.  ``dies_at`` is in monotonic seconds, ``until`` in seconds since the epoch."""

    output: Output
    dies_at: float
    until: float | None
    size: int


class ResultCache:
    """Results by key, bounded in number and bytes; the least recently used are evicted first.

    Args:
        monotonic: returns monotonic seconds, for the age of a result.
        wall: returns seconds since the epoch, for results that expire at a fixed time.
        max_entries, max_bytes: the limits of the whole cache.
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
        """Return the result for this key, or ``None`` if there is none or it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._monotonic() >= entry.dies_at or (entry.until is not None and self._wall() >= entry.until):
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.output

    def put(self, key: str, output: Output, ttl_s: float, until: float | None) -> None:
        """Cache a result for ``ttl_s`` seconds, but not beyond the time ``until``."""
        self._remove(key)
        size = 4 * len(output.text) + sum(len(image.url) for image in output.images) + _ENTRY_OVERHEAD
        size += value_bytes(output.redacted)
        if ttl_s <= 0 or size > self._max_bytes // 4 or (until is not None and self._wall() >= until):
            return
        # The input of redaction is not needed again; its output is kept.
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
