"""How a SQLite database is tidied, in a file or in memory."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from proxy.store import rows
from proxy.store.sql.base import SqlReader
from proxy.store.sql.effects import FORGET_RESULTS

__all__ = ["TIDY_RETRY_S", "TIDY_ROWS", "SqliteKeeper", "TidiedDatabase", "expire"]

T = TypeVar("T")

TIDY_ROWS: Final = 500
"""Rows of one table that go in one step."""

TIDY_RETRY_S: Final = 5.0


class TidiedDatabase(SqlReader, Protocol):
    """A connection that does several things as a whole."""

    def transaction(self, work: Callable[[sqlite3.Connection], T]) -> Awaitable[T]:
        """What ``work`` comes to, with all of it committed or nothing."""
        ...


class SqliteKeeper:
    """The database as it is tidied; pages that are free for other rows do not count."""

    counts_runs = True
    length = "length(CAST({} AS BLOB))"

    def __init__(self, db: TidiedDatabase) -> None:
        self._db = db

    async def used(self) -> int:
        """The bytes of the pages in use."""
        pages, free, size = [
            int(row[0])
            for pragma in ("page_count", "freelist_count", "page_size")
            for row in await self._db.execute_fetchall(f"PRAGMA {pragma}")
        ]
        return (pages - free) * size

    async def fetch(self, sql: str, values: rows.Row) -> Iterable[Any]:
        """The rows of a query."""
        return await self._db.execute_fetchall(sql, values)

    async def change(self, sql: str, values: Iterable[rows.Row]) -> int:
        """How many rows a statement changed."""
        return await self._db.transaction(lambda db: db.executemany(sql, values).rowcount)


def expire(db: sqlite3.Connection, expiring: Sequence[tuple[str, float]], oldest_kept: float) -> bool:
    """Delete one batch of what is past its time; whether a batch was full.

    ``expiring`` names each table with the time from which on its rows stay.
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
