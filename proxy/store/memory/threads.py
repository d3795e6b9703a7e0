"""What of the threads that upstreams keep is a stranger's text, in memory."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from proxy.caches import CacheSize, declare, text_bytes

__all__ = ["MemoryThreads"]

_MOST: Final = 100_000
_MAX_BYTES: Final = 32 * 2**20
_OVERHEAD_BYTES: Final = 400


class MemoryThreads:
    """:class:`~proxy.store.base.ThreadLog` for one process; the threads seen longest ago make room."""

    def __init__(self, clock: Callable[[], float], oldest: Callable[[], float]) -> None:
        self._clock = clock
        self._oldest = oldest
        self._known: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._bytes = 0
        declare("threads", self._cache_size)

    def put(self, ids: Sequence[str], caller: str, untrusted: str) -> None:
        """Note threads; one that is untrusted stays so."""
        for one in ids:
            known = self._known.pop((one, caller), None)
            earlier = ""
            if known is not None:
                earlier, _ = known
                self._bytes -= _size(one, caller, earlier)
            self._known[one, caller] = (earlier or untrusted, self._clock())
            self._bytes += _size(one, caller, earlier or untrusted)
        while len(self._known) > _MOST or self._bytes > _MAX_BYTES:
            (one, caller), (gone, _) = self._known.popitem(last=False)
            self._bytes -= _size(one, caller, gone)

    def find(self, ids: Sequence[str], caller: str) -> Mapping[str, str]:
        """What was noted and is not too old."""
        known = {one: self._known[one, caller] for one in ids if (one, caller) in self._known}
        return {one: untrusted for one, (untrusted, at) in known.items() if at >= self._oldest()}

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, _MAX_BYTES)


def _size(one: str, caller: str, untrusted: str) -> int:
    return _OVERHEAD_BYTES + text_bytes((one, caller, untrusted))
