"""Results too large for the model to read at once, kept whole for a while and read in pages.

They are content (rule R3): in memory, and where the record keeps content also there, so that a handle
is good at any worker and after a restart.  A handle is 128 random bits and good for the caller it was
made for; anybody else's is unknown.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from proxy.caches import CacheSize, declare
from proxy.records import RESULTS_KEPT_S, KeptResult, KeptResults

__all__ = ["READ_RESULT", "Page", "ResultShelf"]

READ_RESULT = "core__read_result"
"""The tool that reads pages; without it allowed nothing is kept."""


_OVERHEAD_BYTES = 500
"""What a kept result takes beside its text."""


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of a result: characters ``start`` to ``end`` of ``total``.

    ``untrusted`` says that it is a stranger's text.
    """

    text: str
    start: int
    end: int
    total: int
    untrusted: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """One result."""

    caller: str
    text: str
    untrusted: bool
    digest: bytes
    dies_at: float
    size: int


class ResultShelf:
    """Large results by handle, the oldest going first; bounded in bytes, number and time.

    Args:
        max_bytes: characters times four of all results together; one caller has at most a quarter.
        max_per_caller: results of one caller.
        keep_s: seconds that a result is kept.
        record: where other processes find results, if there are any; ``now`` tells it the time of day.
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

    def keep(self, caller: str, text: str, *, untrusted: bool, run_id: str = "") -> str | None:
        """A handle for ``text``, a result of ``run_id``; ``None`` where it is too large to be kept.

        The same text of the same caller keeps its handle.
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
            self._record.put_result(KeptResult(handle, run_id, caller, text, untrusted, self._now()))
        return handle

    async def read(self, caller: str, handle: str, offset: int, max_bytes: int) -> Page | None:
        """At most ``max_bytes`` of UTF-8 from character ``offset`` on; ``None`` for an unknown handle.

        Past the end the page is empty.  Raises :class:`~proxy.errors.StoreError` where the record
        would have to be asked and cannot be read.
        """
        self._drop_old()
        kept = self._kept.get(handle)
        if kept is not None:
            return _page(kept.text, kept.untrusted, offset, max_bytes) if kept.caller == caller else None
        if self._record is None:
            return None
        found = await self._record.find_result(handle, caller)
        return _page(found.content, found.untrusted, offset, max_bytes) if found is not None else None

    def _drop_old(self) -> None:
        """Forget what has been kept long enough; entries stand in the order of their end."""
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


def _page(whole: str, untrusted: bool, offset: int, max_bytes: int) -> Page:
    start = min(max(offset, 0), len(whole))
    piece = whole[start : start + max_bytes].encode("utf-8", "replace")[:max_bytes]
    text = piece.decode("utf-8", "ignore")  # A character cut in two goes to the next page.
    return Page(text, start, start + len(text), len(whole), untrusted)
