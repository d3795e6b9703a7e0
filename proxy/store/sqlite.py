"""The record in one SQLite file.

Two connections, each in a thread of its own, so that the event loop never waits for a disk: one
that alone writes, in groups (:mod:`proxy.store.writer`), and one that reads.  Runs, turns and
invocations stay until they are purged; content (messages, suspended and hidden turns, responses)
goes after ``keep_days``.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import aiosqlite

from proxy.errors import StoreUnavailable
from proxy.store import rows
from proxy.store.migrate import migrate_sqlite, store_error
from proxy.store.owners import OwnerLock, proven_dead
from proxy.store.retention import SIZE_EVERY_S, make_room
from proxy.store.seal import CONTENT, Seal
from proxy.store.shelf import ContentPolicy
from proxy.store.sql import END_OWNER, INTERRUPT, SqlStore, Synchronous
from proxy.store.writer import Batch, GroupWriter, WriteError, WriterHooks

__all__ = ["SqliteStore"]

_log = logging.getLogger(__name__)

_BUSY_S: Final = 1.0
_TIDY_ROWS: Final = 500
_TIDY_RETRY_S: Final = 5.0

_PUT_OWNER: Final = (
    "INSERT INTO owners (id, pid, host, lock_file, started_at, seen_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at"
)
_FAILURES: Final = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_IOERR: "unreadable",
    sqlite3.SQLITE_CANTOPEN: "unreadable",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
    sqlite3.SQLITE_NOMEM: "out of memory",
}


def _failure_of(error: sqlite3.Error) -> str | None:
    return _FAILURES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)


class SqliteStore(SqlStore):
    """:class:`~proxy.store.base.Store` in a SQLite file of mode 0600.

    With ``reap`` the store looks after the file: at its start, and every ``tidy_every_s`` seconds,
    it marks what dead owners left open as ``interrupted`` and deletes content past its days, and
    what makes the file larger than ``max_bytes`` (0: no bound; see :mod:`proxy.store.retention`).
    Only the server does that; other commands leave a file as it is, and one that only reads writes
    no row.
    """

    def __init__(
        self,
        path: Path,
        *,
        content: ContentPolicy = "tools",
        keep_days: float = 30,
        synchronous: Synchronous = "normal",
        clock: Callable[[], float] = time.time,
        reap: bool = False,
        seal: Seal | None = None,
        max_bytes: int = 0,
        lock_timeout_s: float = 5.0,
        max_queued: int = 10_000,
        max_queued_bytes: int = 64 * 2**20,
        tidy_every_s: float = 3600.0,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._synchronous = synchronous
        self._reap = reap
        self._lock_timeout_s = lock_timeout_s
        self._owner = OwnerLock(self.path)
        self._max_bytes = max_bytes
        self._tidy_every_s = min(tidy_every_s, SIZE_EVERY_S) if max_bytes else tidy_every_s
        self._started_at = clock()
        writer = GroupWriter(
            WriterHooks(self._introduce, self._tidy),
            max_writes=max_queued,
            max_bytes=max_queued_bytes,
            lock_timeout_s=lock_timeout_s,
        )
        super().__init__(writer, self._owner.id, content=content, keep_days=keep_days, clock=clock, seal=seal)
        self._db: aiosqlite.Connection | None = None
        self._reader: aiosqlite.Connection | None = None
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        """Open, migrate, and with ``reap`` mark what dead owners left open.

        Raises :class:`~proxy.errors.StoreTooNew`, :class:`~proxy.errors.StoreUnavailable` or
        :class:`~proxy.errors.StoreError` as :func:`~proxy.store.migrate.migrate_sqlite` does, and
        the last also for content that another key has sealed.
        """
        report = await asyncio.to_thread(migrate_sqlite, self.path, clock=self._clock)
        if report.copy is not None:
            _log.warning("the record has schema %d now; a copy of it is kept: %s", report.after, report.copy)
        tidy_in_s: float | None = None
        try:
            self._db = await self._connect()
            self._reader = await self._connect()
            await self._reader.execute("PRAGMA query_only = ON")
            await self._check_seal()
            await self._db.execute(f"PRAGMA synchronous = {self._synchronous}")
            await self._db.execute("PRAGMA fullfsync = ON")
            await self._db.execute("PRAGMA secure_delete = ON")  # expired content leaves the file
            await self._db.execute("PRAGMA journal_size_limit = 67108864")
            if self._reap:
                tidy_in_s = await self._tidy()
        except sqlite3.Error as error:
            await self._disconnect()
            raise store_error(error, self.path) from error
        except BaseException:
            await self._disconnect()
            raise
        self._writer.start(_Writing(self._db), tidy_in_s=tidy_in_s)

    async def aclose(self) -> None:
        """Write what is queued, within the lock time-out, and close.  Idempotent.

        Rows that are still open become ``interrupted``: nobody is left to close them.
        """
        written = await self._writer.aclose(self._lock_timeout_s)
        ended = False
        if self._db is not None and self._writer.prepared and written:
            try:
                async with _transaction(self._db):
                    await self._db.execute(END_OWNER, (self._clock(), self._owner.id))
                    await self._interrupt(self._db)
                ended = True
            except sqlite3.Error as error:
                _log.warning("the record could not be closed in order: %s", store_error(error, self.path))
        self._owner.release(remove=ended)
        await self._disconnect()

    async def _connect(self) -> aiosqlite.Connection:
        db = await aiosqlite.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            await db.execute("PRAGMA foreign_keys = ON")
            await db.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            await db.close()
            raise
        return db

    async def _disconnect(self) -> None:
        async with self._reading:  # whoever still reads may finish
            reader, self._reader = self._reader, None
        writer, self._db = self._db, None
        for db in (reader, writer):
            if db is not None:
                try:
                    await db.close()
                except sqlite3.Error as error:
                    _log.warning("the record did not close: %s", store_error(error, self.path))

    @contextlib.asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[aiosqlite.Connection]:
        """The reader, with one consistent view of the file for all that is read inside."""
        async with self._reading:
            db = self._reader
            if db is None:
                raise StoreUnavailable("the record is closed")
            try:
                async with _transaction(db, "DEFERRED"):
                    yield db
            except sqlite3.Error as error:
                raise store_error(error, self.path) from error

    async def _introduce(self) -> Sequence[tuple[str, rows.Row]]:
        """Take the owner's lock, then say who writes; again later, as a sign of life."""
        await asyncio.to_thread(self._owner.acquire)
        owner = self._owner
        row = (owner.id, owner.pid, owner.host, owner.name, self._started_at, self._clock())
        return [(_PUT_OWNER, row)]

    async def _tidy(self) -> float:
        """Reap and expire one batch; the seconds after which to do so again."""
        db = self._db
        if db is None:
            return self._tidy_every_s
        try:
            await self._reap_owners(db)
            more = await self._expire(db)
            if not more and self._max_bytes:
                more = await make_room(_Keeper(db), self._max_bytes, self._clock())
            if not more:
                await db.execute_fetchall(f"PRAGMA incremental_vacuum({_TIDY_ROWS})")
        except sqlite3.Error as error:
            if _failure_of(error) is None:
                raise
            _log.warning("the record could not be tidied: %s", store_error(error, self.path))
            return min(_TIDY_RETRY_S, self._tidy_every_s)
        return 0.0 if more else self._tidy_every_s

    async def _reap_owners(self, db: aiosqlite.Connection) -> None:
        """Mark what dead owners left open (rule R1); an owner in doubt is left alone."""
        others = await db.execute_fetchall(
            "SELECT id, lock_file FROM owners WHERE ended_at IS NULL AND id <> ?", (self._owner.id,)
        )
        for owner_id, lock_file in others:
            # The lock file is on a local disk and nobody waits for a lock here.
            with proven_dead(self.path, lock_file) as dead:
                if dead:
                    async with _transaction(db):
                        await db.execute(END_OWNER, (self._clock(), owner_id))
                        interrupted = await self._interrupt(db)
                    _log.warning("an earlier process died: %d rows are now interrupted", interrupted)

    async def _interrupt(self, db: aiosqlite.Connection) -> int:
        now = self._clock()
        return sum([(await db.execute(statement, (now,))).rowcount for statement in INTERRUPT])

    async def _expire(self, db: aiosqlite.Connection) -> bool:
        """Delete one batch of content past its days; whether a batch was full."""
        if self._keep_days <= 0:
            return False
        oldest = self._oldest_kept()
        full = False
        for table in (each.name for each in CONTENT):
            gone = await db.execute(
                f"DELETE FROM {table} WHERE rowid IN "
                f"(SELECT rowid FROM {table} WHERE created_at < ? LIMIT {_TIDY_ROWS})",
                (oldest,),
            )
            full = full or gone.rowcount >= _TIDY_ROWS
        return full


class _Keeper:
    """The file as it is tidied; pages that are free for other rows do not count."""

    counts_runs = True

    def __init__(self, db: aiosqlite.Connection) -> None:
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
        async with _transaction(self._db):
            return (await self._db.executemany(sql, values)).rowcount


class _Writing:
    """The connection that writes, in autocommit mode outside of a group."""

    def __init__(self, db: aiosqlite.Connection) -> None:
        self._db = db

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit in one transaction, which takes the write lock even where it has nothing to write."""
        try:
            async with _transaction(self._db):
                for statement, values in batches:
                    await self._db.executemany(statement, values)
        except sqlite3.Error as error:
            raise WriteError(_failure_of(error), str(error)) from error
        except (OverflowError, ValueError) as error:  # a value that cannot be bound
            raise WriteError(None, type(error).__name__) from error


@contextlib.asynccontextmanager
async def _transaction(db: aiosqlite.Connection, kind: str = "IMMEDIATE") -> AsyncIterator[None]:
    try:
        await db.execute(f"BEGIN {kind}")
        yield
        await db.execute("COMMIT")
    except BaseException:
        # Whoever was cancelled left a statement running in the connection's thread.  This one runs
        # after it, whatever it was, and does nothing where no transaction is open.
        await db.rollback()
        raise
