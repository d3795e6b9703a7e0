"""The record in one SQLite file.

It has three connections, each in its own thread, so that the event loop never waits for a disk. One writes,
in groups (:mod:`.writer`). One answers look-ups, in batches (:mod:`.look_ups`), and
one reads reports, which may take long. Runs, turns and invocations stay until they are purged.
Content is deleted after ``keep_days``, large results sooner: messages, calls as the upstream sent them,
suspended and hidden turns, responses, large results.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from proxy.base.errors import StoreUnavailable
from proxy.base.hard_timeout import HardTimeout
from proxy.records.words import fts5_query
from proxy.store import rows
from proxy.store.key_mark import KeyMark, path_beside
from proxy.store.look_ups import Answer, Query, QueryBatch
from proxy.store.options import DEFAULTS, StoreOptions
from proxy.store.sql.migrate import latest_schema, migrate_sqlite, store_error
from proxy.store.sql.retention import make_room, trim_requests
from proxy.store.sql.store import END_OWNER, INTERRUPT, SqlStore
from proxy.store.sql.tables.run_texts import STILL_WAITS
from proxy.store.sqlite.db import PUT_OWNER, SqliteConnection, SqliteWriting, connect, failure_of
from proxy.store.sqlite.owners import OwnerLock, lock_folder, proven_dead, refuse_older
from proxy.store.sqlite.tidying import TIDY_RETRY_S, TIDY_ROWS, SqliteKeeper, expire
from proxy.store.tokens import file_lock

_log = logging.getLogger(__name__)

_SCRUB_PAUSE_S: Final = 0.1
_CLOSE_S: Final = 2.0
"""Seconds to close a file after all writes."""

_FORGET_WORDS: Final = (
    "INSERT INTO run_words (run_words, rowid, words) SELECT 'delete', id, words FROM words_gone",
    "DELETE FROM words_gone",
)
_ADD_WORDS: Final = (
    f"INSERT INTO run_words (rowid, words) SELECT id, words FROM run_texts WHERE run_id IN ({STILL_WAITS})"
)
_MERGE_WORDS: Final = "INSERT INTO run_words (run_words, rank) VALUES ('merge', -500)"
"""Writes a few pages of the index of words anew without the words of deleted runs, which FTS5 only marks
(https://www.sqlite.org/fts5.html#the_merge_command)."""
_DROP_WORDS: Final = "INSERT INTO run_words (run_words) VALUES ('optimize')"
"""Does that for the whole index."""


class SqliteStore(SqlStore):
    """:class:`~proxy.store.base.Store` in a SQLite file of mode 0600.

    With ``reap`` the store maintains the file, at its start and every ``tidy_every_s`` seconds. It marks what
    dead owners left open as ``interrupted``. It deletes expired content, and what makes the file larger than
    ``max_bytes`` (0: no limit; see :mod:`proxy.store.sql.retention`). Only the server does that. Other
    commands leave a file as it is, and a command that only reads writes no row.
    """

    _matching = (
        "SELECT t.run_id FROM run_words JOIN run_texts t ON t.id = run_words.rowid WHERE run_words MATCH ?"
    )
    _match = staticmethod(fts5_query)
    _forget_words = _FORGET_WORDS
    _add_words = (_ADD_WORDS,)

    def __init__(self, path: Path, options: StoreOptions = DEFAULTS) -> None:
        self.path = Path(os.path.realpath(path))
        self._owner = OwnerLock(self.path)
        super().__init__(self._owner.id, KeyMark(path_beside(self.path)), options)
        self._synchronous = options.synchronous
        self._db: SqliteConnection | None = None
        self._left = False
        """Whether the write-ahead log may still contain tidied data."""
        self._reader: SqliteConnection | None = None
        self._reading = asyncio.Lock()
        self._looker: SqliteConnection | None = None

    @property
    def keys_change_counter(self) -> int:
        """The number in the mark file beside this one, which all processes share."""
        return self._mark.number

    async def start(self) -> None:
        """Open and migrate; with ``reap``, also mark what dead owners left open.

        Raises :class:`~proxy.base.errors.StoreTooNew`, :class:`~proxy.base.errors.StoreUnavailable` or
        :class:`StoreError` as :func:`migrate_sqlite` does. StoreError
        also means that another key sealed content. Raises :class:`ConfigError` for a key file
        that cannot be used.
        """
        await asyncio.to_thread(refuse_older, self.path)
        report = await asyncio.to_thread(migrate_sqlite, self.path, clock=self._clock)
        if report.copy is not None:
            _log.warning("the record has schema %d now; a copy of it is kept: %s", report.after, report.copy)
        tidy_in_s: float | None = None
        try:
            self._db = await connect(self.path)
            self._reader = await self._connect_to_read()
            self._looker = await self._connect_to_read()
            await self._take_key()
            await self._db.execute(f"PRAGMA synchronous = {self._synchronous}")
            await self._db.execute("PRAGMA fullfsync = ON")
            await self._db.execute("PRAGMA journal_size_limit = 67108864")
            if self._reap:
                tidy_in_s = await self._tidy()
        except sqlite3.Error as error:
            await self._disconnect()
            raise store_error(error, self.path) from error
        except BaseException:  # A cancelled start must not leave a connection's thread.
            await self._disconnect()
            raise
        self._writer.start(SqliteWriting(self._db), tidy_in_s=tidy_in_s)
        if self._reap:
            self._begin_indexing()

    async def aclose(self) -> None:
        """Write what is queued, within the lock time-out, and close. Idempotent.

        Rows that are still open become ``interrupted``, because no process will close them.
        """
        self._look_ups.close()
        await self._end_indexing()
        written = await self._writer.aclose(self._lock_timeout_s)
        ended = False
        if self._db is not None and self._writer.prepared and written:
            try:
                await self._db.transaction(partial(self._end, owner_id=self._owner.id))
                ended = True
            except sqlite3.Error as error:
                _log.warning("the record could not be closed cleanly: %s", store_error(error, self.path))
        self._owner.release(remove=ended)
        try:
            await HardTimeout().run(self._disconnect(), _CLOSE_S)
        except TimeoutError:
            _log.error("the record did not close within %g s: its disk does not answer", _CLOSE_S)
        self._mark.close()

    async def _disconnect(self) -> None:
        async with self._reading:  # A running read may finish.
            reader, self._reader = self._reader, None
        writer, self._db = self._db, None
        looker, self._looker = self._looker, None
        for db in (looker, reader, writer):
            if db is not None:
                try:
                    await db.close()
                except sqlite3.Error as error:
                    _log.warning("the record did not close: %s", store_error(error, self.path))

    async def _connect_to_read(self) -> SqliteConnection:
        db = await connect(self.path)
        await db.execute("PRAGMA query_only = ON")
        return db

    def _exclusive(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        return file_lock(lock_folder(self.path) / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.tokens")

    @contextlib.asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[SqliteConnection]:
        """Lend the reading connection, with one consistent view of the file inside the block."""
        async with self._reading:
            db = self._reader
            if db is None:
                raise StoreUnavailable("the record is closed")
            try:
                async with _reading(db):
                    yield db
            except sqlite3.Error as error:
                raise store_error(error, self.path) from error

    async def _read_batch(self, batch: QueryBatch) -> Sequence[Answer]:
        db = self._looker
        if db is None:
            raise StoreUnavailable("the record is closed")
        return await db.run(lambda each: [self._rows_of(each, batch, query) for query in batch.queries])

    def _rows_of(self, db: sqlite3.Connection, batch: QueryBatch, query: Query) -> Answer:
        """Return the rows of one query, or its error; runs in the thread of the connection."""
        if batch.given_up:
            return ()
        result: list[Any] = []
        try:
            # Each step gives up the interpreter lock and waits for it again, so each one is progress.
            for row in db.execute(query.sql, query.values):
                result.append(row)
                batch.steps += 1
        except sqlite3.Error as error:
            return store_error(error, self.path)
        except (OverflowError, ValueError) as error:  # A value that cannot be bound.
            return error
        batch.steps += 1
        return result

    async def scrub(self) -> str:
        """Empty the write-ahead log, which has earlier states of pages; in the file, deleted rows are zeros.

        Waits for readers, as long as for a lock.
        """
        db, until = self._db, time.monotonic() + self._lock_timeout_s
        while db is not None:
            try:
                await db.transaction(partial(_tidy_words, how=_DROP_WORDS))
                if await _empty_log(db):
                    return ""
            except sqlite3.Error as error:
                return f"{self.path}-wal could not be emptied: {store_error(error, self.path)}"
            if time.monotonic() >= until:
                break
            await asyncio.sleep(_SCRUB_PAUSE_S)
        return (
            f"{self.path}-wal could not be emptied, because another process reads the record; the file "
            "may hold deleted content until that process ends or the log is overwritten"
        )

    async def _introduce(self) -> Sequence[tuple[str, rows.Row]]:
        """Take the owner's lock, and return the statement that writes its row, later as a heartbeat."""
        await asyncio.to_thread(self._owner.acquire)
        owner, now = self._owner, self._clock()
        row = (owner.id, owner.pid, owner.host, owner.name, now, now, latest_schema())
        return [(PUT_OWNER, row)]

    async def _tidy(self) -> float:
        """Reap dead owners and delete one expired batch; return the seconds until the next call."""
        db = self._db
        if db is None:
            return self._tidy_every_s
        try:
            await self._reap_owners(db)
            before = await _changes(db)
            more = await db.run(lambda each: expire(each, self._expiring(), self._oldest_kept()))
            more = more or await self._cap.trim(SqliteKeeper(db))
            more = more or await trim_requests(SqliteKeeper(db), self._max_requests)
            if not more and self._max_bytes:
                more = await make_room(SqliteKeeper(db), self._max_bytes, self._clock())
            self._left = self._left or await _changes(db) != before
            if not more:
                await db.transaction(partial(_tidy_words, how=_MERGE_WORDS))
                await db.execute_fetchall(f"PRAGMA incremental_vacuum({TIDY_ROWS})")
                # The log still contains the deleted rows. If a process is reading, the next call empties it.
                self._left = self._left and not await _empty_log(db)
        except sqlite3.Error as error:
            if failure_of(error) is None:
                raise
            _log.warning("the record could not be tidied: %s", store_error(error, self.path))
            return min(TIDY_RETRY_S, self._tidy_every_s)
        return 0.0 if more else self._tidy_every_s

    async def _reap_owners(self, db: SqliteConnection) -> None:
        """Mark what dead owners left open (rule R1); skip owners that may be alive."""
        others = await db.execute_fetchall(
            "SELECT id, lock_file FROM owners WHERE ended_at IS NULL AND id <> ?", (self._owner.id,)
        )
        for owner_id, lock_file in others:
            # This may block: the lock file is on a local disk, and the lock is only tried.
            with proven_dead(self.path, lock_file) as dead:
                if dead:
                    interrupted = await db.transaction(partial(self._end, owner_id=owner_id))
                    _log.warning("an earlier process died: %d rows are now interrupted", interrupted)

    def _end(self, db: sqlite3.Connection, owner_id: str) -> int:
        """Mark what an owner left open, inside a transaction; return how many rows."""
        now = self._clock()
        db.execute(END_OWNER, (now, owner_id))
        return sum(db.execute(statement, (now,)).rowcount for statement in INTERRUPT)


def _tidy_words(db: sqlite3.Connection, how: str) -> None:
    """Take the words of deleted runs out of the index, and write a part of it anew without them."""
    for statement in (*_FORGET_WORDS, how):
        db.execute(statement)


async def _empty_log(db: SqliteConnection) -> bool:
    """Move the write-ahead log into the file and empty it; return false if a process reads meanwhile."""
    ((busy, _, _),) = await db.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
    return not busy


async def _changes(db: SqliteConnection) -> int:
    """Return how many rows this connection has changed so far."""
    ((changes,),) = await db.execute_fetchall("SELECT total_changes()")
    return int(changes)


@contextlib.asynccontextmanager
async def _reading(db: SqliteConnection) -> AsyncIterator[None]:
    try:
        await db.execute("BEGIN DEFERRED")
        yield
        await db.execute("COMMIT")
    except BaseException:  # A transaction that failed or was cancelled must not stay open.
        # A cancelled task leaves its statement running in the connection's thread. The rollback runs after
        # that statement, and does nothing if no transaction is open.
        await db.rollback()
        raise
