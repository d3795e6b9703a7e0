"""Access to SQLite: a connection with its own thread, transactions that run there, and what errors mean.

Switching to the thread and back costs more than most statements. So a group of writes is one function that
runs there from beginning to commit.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import aiosqlite

from proxy.store.rows import Insert, Row
from proxy.store.sql.writing.writer import WriteError
from proxy.store.sql.writing.writes import Batch

T = TypeVar("T")

_BUSY_S: Final = 1.0
_ROWS_AT_ONCE: Final = 64
_SIZES: Final = (32, 8, 3)
"""Numbers of rows in one execution; few, so that the statement cache of the connection holds them all."""
_FAILURES: Final = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_FULL: "disk full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_IOERR: "unreadable",
    sqlite3.SQLITE_CANTOPEN: "unreadable",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
    sqlite3.SQLITE_NOMEM: "out of memory",
}


PUT_OWNER: Final = (
    "INSERT INTO owners (id, pid, host, lock_file, started_at, seen_at, schema) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at"
)
"""Writes the row of the owner."""


# For any value that is no text and no number, SQLite's module looks for a method that converts it, and makes
# an error when it finds none, unless a function is registered for the type. Both return what they get.
sqlite3.register_adapter(type(None), {None: None}.__getitem__)
sqlite3.register_adapter(bytes, bytes)


def failure_of(error: sqlite3.Error) -> str | None:
    """Return one word for a fault of the whole database; ``None`` if a single row is at fault."""
    return _FAILURES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)


class SqliteConnection(aiosqlite.Connection):
    """A connection that can also run a function in its thread."""

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of ``work``; nothing else uses the connection meanwhile."""
        result: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return result

    async def transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of ``work``, which is committed as a whole or not at all; raises SQLite's errors.

        If the caller is cancelled, ``work`` continues in the thread, but is not committed.
        """
        given_up: list[bool] = []

        def waited_for(db: sqlite3.Connection) -> T:
            result = work(db)
            if given_up:
                raise asyncio.CancelledError
            return result

        try:
            return await self.run(lambda db: commit(db, waited_for))
        except asyncio.CancelledError:
            given_up.append(True)
            raise


def commit(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of ``work`` in a transaction; raises its errors and those of SQLite. Blocks."""
    try:
        db.execute("BEGIN IMMEDIATE")
        result = work(db)
        db.execute("COMMIT")
    except BaseException:  # Work that fails or was given up leaves nothing behind.
        db.rollback()  # Does nothing where no transaction is open.
        raise
    return result


def prepare(db: sqlite3.Connection) -> None:
    """Set up a new connection to a record."""
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA trusted_schema = OFF")


async def connect(path: Path) -> SqliteConnection:
    """Open a connection in autocommit mode; raises :class:`sqlite3.Error`."""

    def connector() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)

    db = SqliteConnection(connector, _ROWS_AT_ONCE)
    # If the disk never answers, the process must be able to exit without waiting for the thread.
    db._thread.daemon = True
    await db
    try:
        await db.run(prepare)
        await db.execute("PRAGMA secure_delete = ON")  # Deleted data leaves the file.
    except BaseException:  # Its thread would outlive a cancelled caller.
        await db.close()
        raise
    return db


class SqliteWriting:
    """The connection that writes, with the interface of :class:`~proxy.store.sql.writing.writer.Database`."""

    def __init__(self, db: SqliteConnection) -> None:
        self._db = db

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit in one transaction, which takes the write lock even if there is nothing to write."""

        with writing(batches) as work:
            await self._db.transaction(work)


@contextlib.contextmanager
def writing(batches: Sequence[Batch]) -> Iterator[Callable[[sqlite3.Connection], None]]:
    """Yield a function that executes a group of writes; errors inside become :class:`WriteError`."""

    def work(db: sqlite3.Connection) -> None:
        for statement, values in batches:
            _execute(db, statement, values)

    try:
        yield work
    except sqlite3.Error as error:
        raise WriteError(failure_of(error), str(error)) from error
    except (OverflowError, ValueError) as error:  # A value that cannot be bound.
        raise WriteError(None, type(error).__name__) from error


def _execute(db: sqlite3.Connection, statement: str, values: Sequence[Row]) -> None:
    """Execute a statement for each row, several rows at once if the statement allows it.

    Each execution releases the interpreter lock and must then get it back from the event loop's thread.
    """
    done = 0
    if isinstance(statement, Insert):
        for size in _SIZES:
            while len(values) - done >= size:
                many = statement.of_many(size)
                db.execute(many, [value for row in values[done : done + size] for value in row])
                done += size
    if done < len(values):
        db.executemany(statement, values[done:])
