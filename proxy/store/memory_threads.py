"""What of the threads that upstreams keep is a stranger's text, in memory."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

__all__ = ["MemoryThreads"]

_MOST: Final = 100_000


class MemoryThreads:
    """:class:`~proxy.store.base.ThreadLog` for one process; the threads seen longest ago make room."""

    def __init__(self, clock: Callable[[], float], oldest: Callable[[], float]) -> None:
        self._clock = clock
        self._oldest = oldest
        self._known: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def put(self, ids: Sequence[str], caller: str, untrusted: str) -> None:
        """Note threads; one that is untrusted stays so."""
        for one in ids:
            earlier, _ = self._known.pop((one, caller), ("", 0.0))
            self._known[one, caller] = (earlier or untrusted, self._clock())
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def find(self, ids: Sequence[str], caller: str) -> Mapping[str, str]:
        """What was noted and is not too old."""
        known = {one: self._known[one, caller] for one in ids if (one, caller) in self._known}
        return {one: untrusted for one, (untrusted, at) in known.items() if at >= self._oldest()}
