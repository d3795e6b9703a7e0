"""Cache results of tools that set ``cache_ttl_s``.

A key contains everything that a result depends on, also the caller: no caller ever gets another caller's
result. Failures are not cached. A record that seals its content also keeps results for other processes, and
for this one after a restart.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import orjson
from msgspec import Struct

from proxy.base.caches import CacheSize, declare, value_bytes
from proxy.base.errors import StoreError
from proxy.records.rows import KeptResult, KeptResults
from proxy.tools.access.single_flight import SingleFlight
from proxy.tools.contract.results.results import Output

T = TypeVar("T")

_ENTRY_OVERHEAD = 512
"""Roughly the bytes that an entry takes beside its text and images."""


_SHARED_FROM_S = 60.0
"""The shortest ``cache_ttl_s`` in seconds for which a result is worth a row of the record."""

_MOST_SHARED = 256 << 10
"""The most characters of a result in the record; the record bounds what each caller keeps."""


def cache_key(*parts: str) -> str:
    """Return the SHA-256, in hex, of these parts and of their boundaries."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


class _Entry(Struct, frozen=True):
    """A cached result. ``dies_at`` is in monotonic seconds, ``until`` in seconds since the epoch."""

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
        record: where other processes find the results; ``None`` for none. It must seal them, because they
            are personal.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        max_entries: int = 1024,
        max_bytes: int = 32 << 20,
        record: KeptResults | None = None,
    ) -> None:
        self._record = record
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

    async def find(self, key: str, caller: str) -> Output | None:
        """Return a caller's result that is on record, and cache it; ``None`` if there is none."""
        if self._record is None:
            return None
        try:
            kept = await self._record.find_result(_handle(key), caller)
        except StoreError:
            return None  # The tool itself can answer.
        if kept is None:
            return None
        fields = orjson.loads(kept.content)
        until = fields.pop("until")
        if (left_s := until - self._wall()) <= 0:
            return None
        output = Output(value=None, **fields | {"notes": tuple(fields["notes"])})
        self.put(key, output, left_s, until)
        return output

    def share(
        self, key: str, output: Output, ttl_s: float, until: float | None, *, caller: str, run_id: str
    ) -> None:
        """Put a caller's result on record, as :meth:`put` caches it, unless it is short-lived or large."""
        now = self._wall()
        ends = now + ttl_s if until is None else min(now + ttl_s, until)
        if self._record is None or output.images or ends - now < _SHARED_FROM_S:
            return
        fields = {name: getattr(output, name) for name in _SHARED}
        try:
            content = orjson.dumps({"until": ends, **fields}).decode()
        except orjson.JSONEncodeError:
            return  # A lone surrogate, which no record can keep.
        if len(content) <= _MOST_SHARED:
            self._record.put_result(
                KeptResult(_handle(key), run_id, caller, content, bool(output.untrusted), time.time())
            )

    def __len__(self) -> int:
        return len(self._entries)

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, self._max_bytes)


_SHARED = ("text", "size", "truncated", "redacted", "untrusted", "notes", "note_bytes")
"""The fields of an output that the record keeps; see :class:`Output`."""


def _handle(key: str) -> str:
    return f"cache_{key}"
