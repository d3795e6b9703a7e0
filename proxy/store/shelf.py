"""Content that stays in memory: what may not be written, could not be, or has nowhere to go."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final, Generic, Literal, Protocol, TypeVar

from proxy.records import HiddenTurns, KeptResult, ResponseRecord, SuspendedTurn

__all__ = [
    "ContentPolicy",
    "Dated",
    "HiddenKey",
    "ResponseKey",
    "ResultKey",
    "Shelf",
    "hidden_shelf",
    "newest_two",
    "oldest_kept",
    "response_shelf",
    "result_shelf",
    "suspended_shelf",
]

ContentPolicy = Literal["all", "tools", "none"]
"""``store.content``.  Which runs had tool turns is the caller's to know: a store under ``all`` and
``tools`` keeps the content it is given, under ``none`` it writes none of it anywhere."""

ResponseKey = tuple[str, str]
"""A response's id and its caller: an id alone names nothing, for upstreams choose it."""

ResultKey = tuple[str, str]
"""The handle of a large result and its caller."""

HiddenKey = tuple[str, str]
"""A key of hidden turns and the variant: all variants of a key are found together."""

_DAY_S: Final = 86400.0
_MAX_RECORDS: Final = 1000
_MAX_BYTES: Final = 64 * 2**20


def oldest_kept(now: float, keep_days: float) -> float:
    """Content from before this time is past its days; ``keep_days`` of 0 sets no limit."""
    return now - keep_days * _DAY_S if keep_days > 0 else float("-inf")


class Dated(Protocol):
    """A record of a run and a caller, with the time from which its days count."""

    @property
    def run_id(self) -> str: ...

    @property
    def caller(self) -> str: ...

    @property
    def created_at(self) -> float: ...


_Key = TypeVar("_Key", bound=Hashable)
_Record = TypeVar("_Record", bound=Dated)


class Shelf(Generic[_Key, _Record]):
    """The newest records of one kind: so many, so many bytes of them, and none past its days.

    ``max_per_caller`` bounds how many are one caller's; 0: only the others do.
    ``oldest`` tells from when on content is kept at this moment.  ``group_of`` a key is what
    :meth:`find_all` goes by; where it is not given each key is a group of its own.
    """

    def __init__(
        self,
        key_of: Callable[[_Record], _Key],
        size_of: Callable[[_Record], int],
        oldest: Callable[[], float],
        *,
        group_of: Callable[[_Key], Hashable] | None = None,
        max_records: int = _MAX_RECORDS,
        max_bytes: int = _MAX_BYTES,
        max_per_caller: int = 0,
    ) -> None:
        self.key_of: Final = key_of
        self.group_of: Final[Callable[[_Key], Hashable]] = group_of or _itself
        self.oldest: Final = oldest
        self._size_of = size_of
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_per_caller = max_per_caller
        self._of_caller: Counter[str] = Counter()
        self._records: OrderedDict[_Key, _Record] = OrderedDict()
        self._groups: dict[Hashable, dict[_Key, None]] = {}
        self._bytes = 0

    def __contains__(self, key: _Key) -> bool:
        return key in self._records

    def put(self, record: _Record) -> None:
        """Keep a record in place of an earlier one of its key; the oldest make room."""
        key = self.key_of(record)
        self.drop(key)
        self._records[key] = record
        self._groups.setdefault(self.group_of(key), {})[key] = None
        self._bytes += self._size_of(record)
        self._of_caller[record.caller] += 1
        if self._max_per_caller and self._of_caller[record.caller] > self._max_per_caller:
            self.drop(next(key for key, each in self._records.items() if each.caller == record.caller))
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

    def find_all(self, group: Hashable) -> list[_Record]:
        """The records of a group, the first that was put first, less those whose days are over."""
        found = [self.find(key) for key in list(self._groups.get(group, ()))]
        return [record for record in found if record is not None]

    def drop(self, key: _Key) -> None:
        """Forget a key, known or not."""
        gone = self._records.pop(key, None)
        if gone is None:
            return
        self._bytes -= self._size_of(gone)
        self._of_caller[gone.caller] -= 1
        if not self._of_caller[gone.caller]:
            del self._of_caller[gone.caller]
        group = self.group_of(key)
        del self._groups[group][key]
        if not self._groups[group]:
            del self._groups[group]

    def drop_runs(self, run_ids: Collection[str]) -> None:
        """Forget what belongs to these runs."""
        for key in [key for key, record in self._records.items() if record.run_id in run_ids]:
            self.drop(key)


def _itself(key: Hashable) -> Hashable:
    return key


def suspended_shelf(
    oldest: Callable[[], float], *, max_bytes: int = _MAX_BYTES, max_per_caller: int = 0
) -> Shelf[str, SuspendedTurn]:
    """A shelf for suspended turns."""
    return Shelf(
        lambda record: record.key,
        lambda record: len(record.payload),
        oldest,
        max_bytes=max_bytes,
        max_per_caller=max_per_caller,
    )


def hidden_shelf(
    oldest: Callable[[], float], *, max_bytes: int = _MAX_BYTES, max_per_caller: int = 0
) -> Shelf[HiddenKey, HiddenTurns]:
    """A shelf for hidden turns, where the variants of a key are a group."""
    return Shelf(
        lambda record: (record.key, record.variant),
        lambda record: len(record.payload),
        oldest,
        group_of=lambda key: key[0],
        max_bytes=max_bytes,
        max_per_caller=max_per_caller,
    )


def newest_two(variants: Iterable[HiddenTurns]) -> list[HiddenTurns]:
    """Of the variants of one key the two that came last: more of them say nothing more."""
    return sorted(variants, key=lambda turns: (-turns.created_at, turns.variant))[:2]


def response_shelf(
    oldest: Callable[[], float], *, max_bytes: int = _MAX_BYTES, max_per_caller: int = 0
) -> Shelf[ResponseKey, ResponseRecord]:
    """A shelf for responses."""
    return Shelf(
        lambda record: (record.id, record.caller),
        lambda record: len(record.response) + len(record.input_items) + len(record.continuation),
        oldest,
        max_bytes=max_bytes,
        max_per_caller=max_per_caller,
    )


def result_shelf(
    oldest: Callable[[], float], *, max_bytes: int = _MAX_BYTES, max_per_caller: int = 0
) -> Shelf[ResultKey, KeptResult]:
    """A shelf for large results."""
    return Shelf(
        lambda record: (record.handle, record.caller),
        lambda record: len(record.content),
        oldest,
        max_bytes=max_bytes,
        max_per_caller=max_per_caller,
    )
