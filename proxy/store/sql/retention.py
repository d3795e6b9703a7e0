"""What is deleted, and in which order, if a record exceeds ``store.max_bytes``.

Content goes first, the oldest of all kinds before newer content. But a record full of runs alone would leave
no room for current conversations. So content of the last day stays until the older runs are gone too. It goes
only if that does not free enough room.
"""

import math
from collections.abc import Iterable
from typing import Any, Final, Protocol

from proxy.base.caches import CacheSize, declare, text_bytes
from proxy.store.base import PurgeFilter
from proxy.store.rows import Row, clean_name
from proxy.store.seal import CONTENT, MESSAGES, NATIVE_CALLS, ContentTable
from proxy.store.sql.reports import DELETE_RUN, purge_query
from proxy.store.sql.request_rows import DROP_OLDEST, OVER_LIMIT

AT_ONCE: Final = 100
"""Rows of one kind deleted in one step: few enough that writes hardly wait and not too much is lost."""

SIZE_EVERY_S: Final = 60.0
"""The most seconds between two checks of the size."""

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
"""Finds the newest time among the oldest rows of all content, before a time given for each table."""


OF_RUNS: Final = (MESSAGES, NATIVE_CALLS)
"""Tables whose rows belong to a run, and through it to a caller."""

_TABLES: Final = {table.name: table for table in CONTENT}


class Keeper(Protocol):
    """A database during tidying; each call is a transaction of its own."""

    length: str
    """SQL for the size of a column in bytes, with ``{}`` in place of its name."""

    counts_runs: bool
    """Whether deleting runs without content reduces ``used``."""

    async def used(self) -> int:
        """Return the bytes that count towards the limit."""

    async def fetch(self, sql: str, values: Row) -> Iterable[Any]:
        """Return the rows of a query."""

    async def change(self, sql: str, values: Iterable[Row]) -> int:
        """Execute a statement once for each of ``values``; return how many rows changed."""


async def make_room(keeper: Keeper, max_bytes: int, now: float) -> bool:
    """Delete one step's worth if the record exceeds ``max_bytes``; return whether it may still exceed it."""
    if await keeper.used() <= max_bytes:
        return False
    yesterday = now - _DAY_S
    if await _drop_content(keeper, yesterday):
        return True
    if keeper.counts_runs:
        runs = await keeper.fetch(*purge_query(PurgeFilter(before=yesterday)))
        gone = await keeper.change(DELETE_RUN, [(row[0],) for row in runs])
        if gone + await keeper.change(DROP_OLDEST, [(yesterday,)]):
            return True
    return await _drop_content(keeper, float("inf"))


async def trim_requests(keeper: Keeper, most: int) -> bool:
    """Delete a batch of the oldest requests if there are more than ``most``; return whether more may remain.

    With ``most`` 0 there is no limit.
    """
    reach = list(await keeper.fetch(OVER_LIMIT, (most,))) if most else []
    # Rows of one moment go together, or the last of them would stay beyond the limit.
    return bool(reach) and await keeper.change(DROP_OLDEST, [(math.nextafter(reach[0][0], math.inf),)]) > 0


class CallerCap:
    """Limits the records of each kind of content of one caller, by number and by bytes; 0 means no limit.

    Only callers that were served since the last time are checked, each through an index, so the cost does not
    grow with the record. A caller's bytes are measured only after it wrote a tenth of its limit, so reading
    costs no more than writing did. If very many callers are served at once, some are not noted; they are
    checked after their next request.
    """

    def __init__(self, most: int, max_bytes: int = 0) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._noted: dict[tuple[str, str], int] = {}
        self._written: dict[tuple[str, str], int] = {}
        self._bytes = 0
        declare("callers_to_trim", self._cache_size)

    def note(self, table: ContentTable[Any], whose: str, size: int) -> None:
        """Note that a caller got one more record. For a table without callers, ``whose`` is the run id."""
        place = (table.name, clean_name(whose))
        if place in self._noted:
            self._noted[place] += size
        elif len(self._noted) < _MOST_NOTED and self._bytes < _MAX_NOTED_BYTES:
            self._noted[place] = size
            self._bytes += _size(place)

    async def trim(self, keeper: Keeper) -> bool:
        """Delete the oldest records of one caller that has too many; return whether more may remain."""
        while self._noted:
            place = next(iter(self._noted))
            table, size = _TABLES[place[0]], self._noted[place]
            caller: str | None = place[1]
            if table in OF_RUNS:
                callers = list(await keeper.fetch("SELECT caller FROM runs WHERE id = ?", (caller,)))
                caller = callers[0][0] if callers else None
            trimmed = caller is not None and await self._trim(keeper, table, caller, size)
            if place in self._noted:
                del self._noted[place]
                self._bytes -= _size(place)
            if trimmed:
                return bool(self._noted)
        return False

    async def _trim(self, keeper: Keeper, table: ContentTable[Any], caller: str, size: int) -> bool:
        reach: list[Any] = []
        if self._most and table not in OF_RUNS:
            reach += await keeper.fetch(
                f"SELECT created_at FROM {table.name} WHERE caller = ? "
                "ORDER BY created_at DESC LIMIT 1 OFFSET ?",
                (caller, self._most),
            )
        if self._max_bytes:
            written = self._written.pop((table.name, caller), 0) + size
            if written > self._max_bytes // 10:
                reach += await keeper.fetch(_past_bytes(table, keeper.length), (caller, self._max_bytes))
            else:
                if len(self._written) >= _MOST_NOTED:
                    del self._written[next(iter(self._written))]
                self._written[table.name, caller] = written
        if not reach:
            return False
        of_caller = f"DELETE FROM {table.name} WHERE {_whose(table)} AND created_at <= ?"
        await keeper.change(of_caller, [(caller, max(row[0] for row in reach))])
        return True

    def _cache_size(self) -> CacheSize:
        # The last entry may exceed the limit, and a caller may be in both dictionaries.
        held = self._bytes + sum(map(_size, self._written))
        return CacheSize(held, 2 * (_MAX_NOTED_BYTES + 2**20) + _MOST_NOTED * _NOTED_BYTES)


def _whose(table: ContentTable[Any]) -> str:
    return "run_id IN (SELECT id FROM runs WHERE caller = ?)" if table in OF_RUNS else "caller = ?"


def _past_bytes(table: ContentTable[Any], length: str) -> str:
    """Return the query for the time of the newest row beyond a caller's limit, counted from the newest."""
    size = row_size(table, length)
    return (
        f"SELECT created_at FROM (SELECT created_at, sum({size}) OVER (ORDER BY created_at DESC) AS total "
        f"FROM {table.name} WHERE {_whose(table)}) AS sized WHERE total > ? "
        "ORDER BY created_at DESC LIMIT 1"
    )


def row_size(table: ContentTable[Any], length: str) -> str:
    """Return the SQL expression for the size of a row; ``length`` is that for the size of a column."""
    return " + ".join(["100", *(f"coalesce({length.format(column)}, 0)" for column in table.sealed)])


def _size(place: tuple[str, str]) -> int:
    return _NOTED_BYTES + text_bytes(place[1:])


async def _drop_content(keeper: Keeper, before: float) -> bool:
    ((reach,),) = await keeper.fetch(_REACH, (before,) * len(CONTENT))
    if reach is None:
        return False
    gone = [await keeper.change(_drop(table), [(reach,)]) for table in CONTENT]
    return sum(gone) > 0


def _drop(table: ContentTable[Any]) -> str:
    key = ", ".join(table.key)
    return (
        f"DELETE FROM {table.name} WHERE ({key}) IN "
        f"(SELECT {key} FROM {table.name} WHERE created_at <= ? ORDER BY created_at LIMIT {AT_ONCE})"
    )


def content_size() -> str:
    """Return the query for the size of all content in bytes, which measures values without reading them."""
    sums = []
    for table in CONTENT:
        size = row_size(table, "octet_length({})")
        sums.append(f"SELECT coalesce(sum({size}), 0) AS bytes FROM {table.name}")
    return f"SELECT sum(bytes) FROM ({' UNION ALL '.join(sums)}) AS kinds"
