"""What goes, and in which order, where a record is over its bytes (``store.max_bytes``).

Content goes first, the oldest of all kinds before the rest.  But a record of nothing but runs would
leave no room for what conversations need now.  So content of the last day stays until runs from
before it have gone too, and only goes where those do not make room enough.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol

from proxy.caches import CacheSize, declare, text_bytes
from proxy.store.base import PurgeFilter
from proxy.store.rows import Row, clean_name
from proxy.store.seal import CONTENT, ContentTable
from proxy.store.sql_reports import DELETE_RUN, purge_query

__all__ = ["AT_ONCE", "SIZE_EVERY_S", "CallerCap", "Keeper", "content_size", "make_room"]

AT_ONCE: Final = 100
"""Rows of one kind that go in one step: few enough that writes hardly wait, and not too much is cut."""

SIZE_EVERY_S: Final = 60.0
"""How often the size is looked at, at least."""

_DAY_S: Final = 86400.0
_MOST_NOTED: Final = 10_000
_MAX_NOTED_BYTES: Final = 8 * 2**20
_NOTED_BYTES: Final = 300

_OLDEST: Final = " UNION ALL ".join(
    f"SELECT created_at FROM (SELECT created_at FROM {table.name} WHERE created_at < ? "
    f"ORDER BY created_at LIMIT {AT_ONCE}) AS oldest_{table.name}"
    for table in CONTENT
)
_REACH: Final = (
    f"SELECT max(created_at) FROM (SELECT created_at FROM ({_OLDEST}) AS each_kind "
    f"ORDER BY created_at LIMIT {AT_ONCE}) AS all_kinds"
)
"""Up to when the oldest rows of all content reach, of those before a time that is given for each table."""


class Keeper(Protocol):
    """The database as it is tidied, each call in a transaction of its own."""

    counts_runs: bool
    """Whether ``used`` becomes less where runs without content go."""

    async def used(self) -> int:
        """The bytes that count against the bound."""
        ...

    async def fetch(self, sql: str, values: Row) -> Iterable[Any]:
        """The rows of a query."""
        ...

    async def change(self, sql: str, values: Iterable[Row]) -> int:
        """How many rows a statement changed, executed once for each of ``values``."""
        ...


async def make_room(keeper: Keeper, max_bytes: int, now: float) -> bool:
    """Delete one step's worth where the record is over ``max_bytes``; whether it may be over still."""
    if await keeper.used() <= max_bytes:
        return False
    yesterday = now - _DAY_S
    if await _drop_content(keeper, yesterday):
        return True
    if keeper.counts_runs:
        found = await keeper.fetch(*purge_query(PurgeFilter(before=yesterday)))
        if await keeper.change(DELETE_RUN, [(row[0],) for row in found]):
            return True
    return await _drop_content(keeper, float("inf"))


class CallerCap:
    """How many records of each kind of content one caller has, at most; 0: as many as there are.

    Only callers that were served since the last time are looked at, each by an index, so that the
    cost does not grow with the record.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._noted: dict[tuple[str, str], None] = {}
        self._bytes = 0
        declare("callers_to_trim", self._cache_size)

    def note(self, table: ContentTable, caller: str) -> None:
        """A caller has got one record more; remembered for a bounded number of them."""
        if not self._most or len(self._noted) >= _MOST_NOTED or self._bytes >= _MAX_NOTED_BYTES:
            return
        place = (table.name, clean_name(caller))
        if place not in self._noted:
            self._noted[place] = None
            self._bytes += _size(place)

    async def trim(self, keeper: Keeper) -> bool:
        """Delete the oldest of one caller's that has too many; whether there may be more to do."""
        while self._noted:
            name, caller = place = next(iter(self._noted))
            found = list(
                await keeper.fetch(
                    f"SELECT created_at FROM {name} WHERE caller = ? "
                    "ORDER BY created_at DESC LIMIT 1 OFFSET ?",
                    (caller, self._most),
                )
            )
            if found:
                await keeper.change(
                    f"DELETE FROM {name} WHERE caller = ? AND created_at <= ?", [(caller, found[0][0])]
                )
            if place in self._noted:
                del self._noted[place]
                self._bytes -= _size(place)
            if found:
                return bool(self._noted)
        return False

    def _cache_size(self) -> CacheSize:
        # The last that was noted may be longer than what was left.
        return CacheSize(self._bytes, _MAX_NOTED_BYTES + 2**20)


def _size(place: tuple[str, str]) -> int:
    return _NOTED_BYTES + text_bytes(place[1:])


async def _drop_content(keeper: Keeper, before: float) -> bool:
    ((reach,),) = await keeper.fetch(_REACH, (before,) * len(CONTENT))
    if reach is None:
        return False
    gone = [await keeper.change(_drop(table), [(reach,)]) for table in CONTENT]
    return sum(gone) > 0


def _drop(table: ContentTable) -> str:
    key = ", ".join(table.key)
    return (
        f"DELETE FROM {table.name} WHERE ({key}) IN "
        f"(SELECT {key} FROM {table.name} WHERE created_at <= ? ORDER BY created_at LIMIT {AT_ONCE})"
    )


def content_size() -> str:
    """The query for the bytes of all content; its texts and payloads are measured, not read."""
    sums = []
    for table in CONTENT:
        size = " + ".join(["100", *(f"coalesce(octet_length({column}), 0)" for column in table.sealed)])
        sums.append(f"SELECT coalesce(sum({size}), 0) AS bytes FROM {table.name}")
    return f"SELECT sum(bytes) FROM ({' UNION ALL '.join(sums)}) AS kinds"
