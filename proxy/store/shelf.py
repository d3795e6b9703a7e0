"""Content that stays in memory: what may not be written, could not be, or has nowhere to go."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Literal, Protocol, TypeVar

from proxy.records import ResponseRecord, SuspendedTurn

__all__ = [
    "ContentPolicy",
    "Dated",
    "ResponseKey",
    "Shelf",
    "oldest_kept",
    "response_shelf",
    "suspended_shelf",
]

ContentPolicy = Literal["all", "tools", "none"]
"""``store.content``.  Which runs had tool turns is the caller's to know: a store under ``all`` and
``tools`` keeps the content it is given, under ``none`` it writes none of it anywhere."""

ResponseKey = tuple[str, str]
"""A response's id and its caller: an id alone names nothing, for upstreams choose it."""

_DAY_S: Final = 86400.0
_MAX_RECORDS: Final = 1000
_MAX_BYTES: Final = 64 * 2**20


def oldest_kept(now: float, keep_days: float) -> float:
    """Content from before this time is past its days; ``keep_days`` of 0 sets no limit."""
    return now - keep_days * _DAY_S if keep_days > 0 else float("-inf")


class Dated(Protocol):
    """A record with the time from which its days count."""

    @property
    def created_at(self) -> float: ...


_Key = TypeVar("_Key", bound=Hashable)
_Record = TypeVar("_Record", bound=Dated)


class Shelf(Generic[_Key, _Record]):
    """The newest records of one kind: so many, so many bytes of them, and none past its days.

    ``oldest`` tells from when on content is kept at this moment.
    """

    def __init__(
        self,
        key_of: Callable[[_Record], _Key],
        size_of: Callable[[_Record], int],
        oldest: Callable[[], float],
        *,
        max_records: int = _MAX_RECORDS,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self.key_of: Final = key_of
        self.oldest: Final = oldest
        self._size_of = size_of
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: OrderedDict[_Key, _Record] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: _Key) -> bool:
        return key in self._records

    def put(self, record: _Record) -> None:
        """Keep a record in place of an earlier one of its key; the oldest make room."""
        key = self.key_of(record)
        self.drop(key)
        self._records[key] = record
        self._bytes += self._size_of(record)
        oldest = self.oldest()
        while self._records:
            first, waiting = next(iter(self._records.items()))
            within = len(self._records) <= self._max_records and self._bytes <= self._max_bytes
            if within and waiting.created_at >= oldest:
                return
            self.drop(first)

    def find(self, key: _Key) -> _Record | None:
        """The record of that key, unless its days are over."""
        record = self._records.get(key)
        if record is not None and record.created_at < self.oldest():
            self.drop(key)
            return None
        return record

    def drop(self, key: _Key) -> None:
        """Forget a key, known or not."""
        gone = self._records.pop(key, None)
        if gone is not None:
            self._bytes -= self._size_of(gone)


def suspended_shelf(oldest: Callable[[], float], *, max_bytes: int = _MAX_BYTES) -> Shelf[str, SuspendedTurn]:
    """A shelf for suspended turns."""
    return Shelf(lambda record: record.key, lambda record: len(record.payload), oldest, max_bytes=max_bytes)


def response_shelf(
    oldest: Callable[[], float], *, max_bytes: int = _MAX_BYTES
) -> Shelf[ResponseKey, ResponseRecord]:
    """A shelf for responses."""
    return Shelf(
        lambda record: (record.id, record.caller),
        lambda record: len(record.response) + len(record.input_items) + len(record.continuation),
        oldest,
        max_bytes=max_bytes,
    )
