"""Tidying of a SQLite database, in a file or in memory."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from proxy.store import rows
from proxy.store.sql.base import SqlReader
from proxy.store.sql.tables.effects import FORGET_RESULTS

T = TypeVar("T")

TIDY_ROWS: Final = 500
"""Rows of one table deleted in one step."""

TIDY_RETRY_S: Final = 5.0


class TidiedDatabase(SqlReader, Protocol):
    """A connection that can run a function in one transaction."""

    def transaction(self, work: Callable[[sqlite3.Connection], T]) -> Awaitable[T]:
        """Return the result of ``work``, which is committed as a whole or not at all."""


class SqliteKeeper:
    """The database during tidying; free pages do not count as used."""

    counts_runs = True
    length = "length(CAST({} AS BLOB))"

    def __init__(self, db: TidiedDatabase) -> None:
        self._db = db

    async def used(self) -> int:
        pages, free, size = [
            int(row[0])
            for pragma in ("page_count", "freelist_count", "page_size")
            for row in await self._db.execute_fetchall(f"PRAGMA {pragma}")
        ]
        return (pages - free) * size

    async def fetch(self, sql: str, values: rows.Row) -> Iterable[Any]:
        return await self._db.execute_fetchall(sql, values)

    async def change(self, sql: str, values: Iterable[rows.Row]) -> int:
        return await self._db.transaction(lambda db: db.executemany(sql, values).rowcount)


def expire(db: sqlite3.Connection, expiring: Sequence[tuple[str, float]], oldest_kept: float) -> bool:
    """Delete one batch of expired rows from each table; return whether a batch was full.

    ``expiring`` names each table and the time from which on its rows stay.
    """
    full = False
    for table, oldest in expiring:
        gone = db.execute(
            f"DELETE FROM {table} WHERE rowid IN "
            f"(SELECT rowid FROM {table} WHERE created_at < ? LIMIT {TIDY_ROWS})",
            (oldest,),
        )
        full = full or gone.rowcount >= TIDY_ROWS
    db.execute(FORGET_RESULTS, (oldest_kept,))
    return full
