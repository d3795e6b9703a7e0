"""Content that stays in memory: it must not be written, could not be written, or no database can store it."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
from operator import attrgetter, itemgetter
from typing import Final, Generic, Literal, Protocol, TypeVar

from msgspec import Struct, field

from proxy.base.caches import CacheSize, declare, text_bytes
from proxy.records.rows import HiddenTurns, KeptResult, ResponseRecord, SuspendedTurn

ContentPolicy = Literal["all", "tools", "none"]
"""The values of ``store.content``. Under ``all`` and ``tools``, a store keeps all content it receives; the
caller knows which runs had tool turns. Under ``none``, it writes no content anywhere."""

ResponseKey = tuple[str, str]
"""A response's id and its caller. The id alone is not unique, because upstreams choose it."""

ResultKey = tuple[str, str]
"""The handle of a large result and its caller."""

HiddenKey = tuple[str, str]
"""A key of hidden turns and the variant; all variants of a key are found together."""

_DAY_S: Final = 86400.0
_MAX_RECORDS: Final = 1000
_MAX_BYTES: Final = 64 * 2**20

_OVERHEAD_BYTES: Final = 800
"""Bytes of memory that a record takes besides its content, for names and entries in the shelf's own lists."""


def oldest_kept(now: float, keep_days: float) -> float:
    """Return the time before which content is too old to be kept; ``keep_days`` of 0 sets no limit."""
    return now - keep_days * _DAY_S if keep_days > 0 else float("-inf")


class Dated(Protocol):
    """A record of a run and a caller, with the time from which its retention counts."""

    @property
    def run_id(self) -> str: ...

    @property
    def caller(self) -> str: ...

    @property
    def created_at(self) -> float: ...


_Key = TypeVar("_Key", bound=Hashable)
_Record = TypeVar("_Record", bound=Dated)


class _Share(Struct, Generic[_Key], eq=False):
    """The keys of one caller's records, the oldest first, and their size in bytes."""

    keys: dict[_Key, None] = field(default_factory=dict)
    size: int = 0


class Shelf(Generic[_Key, _Record]):
    """The newest records of one kind, limited by number, bytes and age.

    If there is no room, the shelf drops the oldest record of the largest holder: of the client key that holds
    the most with all its end users, and there of the end user who holds the most. So callers with less than
    an equal share lose nothing because of others.

    ``max_per_caller`` limits the records of one caller; 0 means that only the other limits apply. ``name`` is
    the name of the cache in the metrics. ``oldest`` returns the time from which content is kept now.
    ``group_of`` returns the group of a key, which :meth:`find_all` searches; by default, each key is its own
    group.
    """

    def __init__(
        self,
        name: str,
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
        self._shares: dict[str, dict[str, _Share[_Key]]] = {}
        self.records: Final[OrderedDict[_Key, _Record]] = OrderedDict()
        self._groups: dict[Hashable, dict[_Key, None]] = {}
        self._bytes = 0
        declare(name, self._cache_size)

    def __contains__(self, key: _Key) -> bool:
        return key in self.records

    def put(self, record: _Record) -> None:
        """Store a record and replace the earlier one with its key, unless it alone exceeds the limit."""
        key = self.key_of(record)
        self.drop(key)
        size = self._bytes_of(record)
        if size > self._max_bytes:
            return
        self.records[key] = record
        self._groups.setdefault(self.group_of(key), {})[key] = None
        self._bytes += size
        share = self._shares.setdefault(_key_of(record.caller), {}).setdefault(record.caller, _Share())
        share.keys[key] = None
        share.size += size
        if 0 < self._max_per_caller < len(share.keys):
            self.drop(next(iter(share.keys)))
        oldest = self.oldest()
        while self.records:
            first, waiting = next(iter(self.records.items()))
            if waiting.created_at >= oldest:
                break
            self.drop(first)
        while len(self.records) > self._max_records:
            self.drop(self._oldest_of_most(lambda share: len(share.keys)))
        while self._bytes > self._max_bytes:
            self.drop(self._oldest_of_most(lambda share: share.size))

    def find(self, key: _Key) -> _Record | None:
        """Return the record with that key, unless it is too old."""
        record = self.records.get(key)
        if record is not None and record.created_at < self.oldest():
            self.drop(key)
            return None
        return record

    def find_all(self, group: Hashable) -> list[_Record]:
        """Return the records of a group in the order in which they were put, without expired ones."""
        if (keys := self._groups.get(group)) is None:
            return []
        records = [self.find(key) for key in list(keys)]
        return [record for record in records if record is not None]

    def drop(self, key: _Key) -> None:
        """Drop the record with a key, if there is one."""
        gone = self.records.pop(key, None)
        if gone is None:
            return
        size = self._bytes_of(gone)
        self._bytes -= size
        callers = self._shares[_key_of(gone.caller)]
        share = callers[gone.caller]
        share.size -= size
        del share.keys[key]
        if not share.keys:
            del callers[gone.caller]
            if not callers:
                del self._shares[_key_of(gone.caller)]
        group = self.group_of(key)
        del self._groups[group][key]
        if not self._groups[group]:
            del self._groups[group]

    def drop_runs(self, run_ids: Collection[str]) -> None:
        """Drop all records of these runs."""
        for key in [key for key, record in self.records.items() if record.run_id in run_ids]:
            self.drop(key)

    def _bytes_of(self, record: _Record) -> int:
        return self._size_of(record) + _OVERHEAD_BYTES

    def _oldest_of_most(self, amount: Callable[[_Share[_Key]], int]) -> _Key:
        """Return the key of the oldest record of the largest holder; the shelf must not be empty."""
        callers = max(self._shares.values(), key=lambda callers: sum(map(amount, callers.values())))
        return next(iter(max(callers.values(), key=amount).keys))

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, self._max_bytes)


def _key_of(caller: str) -> str:
    return caller.partition("/")[0]


def _itself(key: Hashable) -> Hashable:
    return key


def newest_first(variants: Iterable[HiddenTurns]) -> list[HiddenTurns]:
    """Return hidden turns, the newest first. Of one key the first two are enough: more change nothing."""
    return sorted(variants, key=lambda turns: (-turns.created_at, turns.variant))


suspended_shelf = partial(
    Shelf[str, SuspendedTurn], "waiting_turns", attrgetter("key"), lambda record: len(record.payload)
)
hidden_shelf = partial(
    Shelf[HiddenKey, HiddenTurns],
    "hidden_turns",
    attrgetter("key", "variant"),
    lambda record: len(record.payload),
    group_of=itemgetter(0),
)
"""The variants of a key form a group."""
response_shelf = partial(
    Shelf[ResponseKey, ResponseRecord],
    "responses",
    attrgetter("id", "caller"),
    lambda record: len(record.response) + len(record.input_items) + len(record.continuation),
)
result_shelf = partial(
    Shelf[ResultKey, KeptResult],
    "large_results",
    attrgetter("handle", "caller"),
    lambda record: text_bytes((record.content,)),
)
