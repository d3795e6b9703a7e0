"""Keep results that are too large for one read, so that the model can read them in pages.

The results are content (rule R3). They are in memory, and also in the record if it keeps content; then a
handle works at any worker and after a restart. A handle has 128 random bits and works only for the caller
it was made for; for other callers it is unknown.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from proxy.base.caches import CacheSize, declare
from proxy.records.rows import RESULTS_KEPT_S, KeptResult, KeptResults

READ_RESULT = "core__read_result"
"""The tool that reads pages; nothing is kept unless it is allowed."""


_OVERHEAD_BYTES = 500
"""The bytes that a kept result takes beside its text."""


class Page(Struct, frozen=True):
    """A piece of a result: characters ``start`` to ``end`` of ``total``.

    ``untrusted`` has the sources of the text if they are untrusted (:func:`proxy.records.rows.join_sources`).
    """

    text: str
    start: int
    end: int
    total: int
    untrusted: str


class _Kept(Struct, frozen=True):
    """A kept result."""

    caller: str
    text: str
    untrusted: str
    digest: bytes
    dies_at: float
    size: int


class PagedResults:
    """Large results by handle, bounded in bytes, number and time; the oldest are evicted first.

    Args:
        max_bytes: the limit for all results, at four bytes per character; one caller gets at most a quarter.
        max_per_caller: the largest number of results of one caller.
        keep_s: the seconds for which a result is kept.
        record: where other processes find the results, or ``None``; ``now`` gives it the time of day.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 64 << 20,
        max_per_caller: int = 32,
        keep_s: float = RESULTS_KEPT_S,
        clock: Callable[[], float] = time.monotonic,
        record: KeptResults | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_per_caller = max_per_caller
        self._keep_s = keep_s
        self._clock = clock
        self._record = record
        self._now = now
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        declare("paged_results", self._cache_size)

    def keep(self, caller: str, text: str, *, untrusted: str, run_id: str = "") -> str | None:
        """Keep ``text``, a result of ``run_id``, and return its handle; ``None`` if it is too large to keep.

        ``untrusted`` are the sources of the text, or empty. The record keeps only whether there are some.
        The same text of the same caller gets the same handle again.
        """
        size = 4 * len(text) + _OVERHEAD_BYTES
        if size > self._max_bytes // 4:
            return None
        self._drop_old()
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        own = [(handle, kept) for handle, kept in self._kept.items() if kept.caller == caller]
        for handle, kept in own:
            if kept.digest == digest and kept.untrusted == untrusted:
                return handle
        used = sum(kept.size for _, kept in own)
        while own and (len(own) >= self._max_per_caller or used + size > self._max_bytes // 4):
            handle, kept = own.pop(0)
            used -= kept.size
            self._remove(handle)
        while self._kept and self._bytes + size > self._max_bytes:
            self._remove(next(iter(self._kept)))
        handle = f"res_{secrets.token_hex(16)}"
        self._kept[handle] = _Kept(caller, text, untrusted, digest, self._clock() + self._keep_s, size)
        self._bytes += size
        if self._record is not None:
            self._record.put_result(KeptResult(handle, run_id, caller, text, bool(untrusted), self._now()))
        return handle

    async def read(self, caller: str, handle: str, offset: int, max_bytes: int) -> Page | None:
        """Return at most ``max_bytes`` of UTF-8 from character ``offset``; ``None`` for an unknown handle.

        Past the end the page is empty. Raises :class:`~proxy.base.errors.StoreError` if the result is not in
        memory and the record cannot be read.
        """
        self._drop_old()
        kept = self._kept.get(handle)
        if kept is not None:
            return _page(kept.text, kept.untrusted, offset, max_bytes) if kept.caller == caller else None
        if self._record is None:
            return None
        record = await self._record.find_result(handle, caller)
        if record is None:
            return None
        return _page(record.content, READ_RESULT if record.untrusted else "", offset, max_bytes)

    def _drop_old(self) -> None:
        """Remove expired entries; the entries are in the order of their expiry."""
        now = self._clock()
        while self._kept:
            handle, kept = next(iter(self._kept.items()))
            if kept.dies_at > now:
                return
            self._remove(handle)

    def _remove(self, handle: str) -> None:
        self._bytes -= self._kept.pop(handle).size

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, self._max_bytes)


def _page(whole: str, untrusted: str, offset: int, max_bytes: int) -> Page:
    start = min(max(offset, 0), len(whole))
    piece = whole[start : start + max_bytes].encode("utf-8", "replace")[:max_bytes]
    text = piece.decode("utf-8", "ignore")  # A character that was cut in two goes to the next page.
    return Page(text, start, start + len(text), len(whole), untrusted)
