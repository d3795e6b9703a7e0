"""The record in a SQLite database in memory, which is gone when the process ends.

It has the tables of the record in a file, and nothing of it is written to a disk: neither the database nor
what SQLite keeps beside one.  Statements run in the event loop's own thread.  None of them waits for a disk,
and to go to another thread and back takes longer than most of them do.
"""

import contextlib
import os
import socket
import sqlite3
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from proxy.caches import CacheSize, declare
from proxy.errors import StoreUnavailable
from proxy.store import rows
from proxy.store.key_mark import KeyMark
from proxy.store.options import DEFAULTS, StoreOptions
from proxy.store.sql.base import SqlReader
from proxy.store.sql.migrate import make_schema, store_error
from proxy.store.sql.store import SqlStore
from proxy.store.sql.writes import Batch
from proxy.store.sqlite.db import PUT_OWNER, commit, prepare, writing
from proxy.store.sqlite.room import make_room, used
from proxy.store.sqlite.tidying import TIDY_RETRY_S, SqliteKeeper, expire

__all__ = ["MAX_BYTES", "MemoryStore"]

T = TypeVar("T")

MAX_BYTES: Final = 128 * 2**20
"""The most that the rows of a record in memory take; ``store.max_bytes`` may make it less."""

_GROUP_BYTES: Final = 72 * 2**20
"""What one group of writes adds at most, before room is made for it."""

_NAME: Final = Path("memory:")
"""What messages call the record."""


class MemoryStore(SqlStore):
    """:class:`~proxy.store.base.Store` in memory, for trials and tests.

    Whenever a group of writes leaves more than ``max_bytes`` (:data:`MAX_BYTES` at most), room is made:
    whoever has the most content loses the oldest of it (see :mod:`proxy.store.sqlite.room`).  Nothing is
    sealed, since nothing is written down, and no other process shares it.  After ``aclose`` runs can still be
    read; they go with the object.
    """

    def __init__(self, options: StoreOptions = DEFAULTS) -> None:
        most = min(options.max_bytes or MAX_BYTES, MAX_BYTES)
        super().__init__(
            uuid.uuid4().hex, _NoFile(), replace(options, seal=None, old_seals=(), max_bytes=most)
        )
        self._db: _Connection | None = None
        declare("record_in_memory", self._record_size)

    @property
    def keys_told(self) -> int:
        """How often a key has changed."""
        return self._mark.number

    @property
    def sealed(self) -> bool:
        """Nothing is written down, so that nothing has to be masked."""
        return True

    @property
    def vault(self) -> None:
        """There is none: tokens would be gone with the process, and no other sees them."""
        return None

    async def start(self) -> None:
        """Make the tables and begin to take writes; raises :class:`~proxy.errors.StoreError`."""
        try:
            self._db = _Connection(self._max_bytes)
        except sqlite3.Error as error:
            raise store_error(error, _NAME) from error
        self._writer.start(self._db, tidy_in_s=self._tidy_every_s)

    async def aclose(self) -> None:
        """Take no more writes.  Idempotent."""
        self._look_ups.close()
        await self._writer.aclose(self._lock_timeout_s)

    async def scrub(self) -> str:
        """Nothing is written anywhere."""
        return ""

    async def settle(self, within_s: float) -> bool:
        """No other process ever finds it here; in this one it is there at once."""
        return self._writer.running

    async def healthy(self) -> bool:
        """Whether writes are taken."""
        return self._writer.running and self._writer.failure is None

    def _exclusive(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def _introduce(self) -> Sequence[tuple[str, rows.Row]]:
        owner = (self._owner_id, os.getpid(), socket.gethostname(), None, self._started_at, self._clock())
        return [(PUT_OWNER, owner)]

    async def _tidy(self) -> float:
        """Delete a batch of what is past its days, or more than one caller may have."""
        db = self._connection()
        try:
            more = await db.run(lambda each: expire(each, self._expiring(), self._oldest_kept()))
            more = more or await self._cap.trim(SqliteKeeper(db))
        except sqlite3.Error:  # There is no memory for it now.
            return min(TIDY_RETRY_S, self._tidy_every_s)
        return 0.0 if more else self._tidy_every_s

    @contextlib.asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[SqlReader]:
        """The database itself: no query hands control to others, so that nothing changes in between."""
        db = self._connection()
        try:
            yield db
        except sqlite3.Error as error:
            raise store_error(error, _NAME) from error

    async def _query(self, sql: str, values: rows.Row) -> Iterable[Any]:
        if not self._writer.running:
            raise StoreUnavailable("the record is closed")
        async with self._snapshot() as db:
            return await db.execute_fetchall(sql, values)

    async def _look_up(self, sql: str, values: rows.Row) -> Iterable[Any]:
        """A query, which always answers in time, so that it also sees what waits to be written."""
        await self._see_writes()
        return await self._query(sql, values)

    def _connection(self) -> "_Connection":
        if self._db is None:
            raise StoreUnavailable("the record is closed")
        return self._db

    def _record_size(self) -> CacheSize:
        return CacheSize(self._db.held() if self._db is not None else 0, self._max_bytes + _GROUP_BYTES)


class _Connection:
    """A database in memory, of ``max_bytes`` beside its empty tables.

    Its methods are coroutines as those of a connection to a file are, but never wait.
    """

    def __init__(self, max_bytes: int) -> None:
        # Whoever drops the store last may be another thread; statements run in the event loop's alone.
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)
        prepare(self._db)
        self._db.execute("PRAGMA temp_store = MEMORY")  # what is sorted goes to no file either
        make_schema(self._db)
        self._max_bytes = max_bytes
        self._empty = used(self._db)

    async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None, /) -> Iterable[Any]:
        """The rows of a query."""
        return self._db.execute(sql, tuple(parameters or ())).fetchall()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What ``work`` comes to."""
        return work(self._db)

    async def transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same, with all of ``work`` committed or nothing."""
        return commit(self._db, work)

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit a group of writes, then make room; raises WriteError."""
        with writing(batches) as work:
            commit(self._db, work)
            make_room(self._db, self._empty, self._max_bytes)

    def held(self) -> int:
        """The bytes of the rows."""
        return used(self._db) - self._empty


class _NoFile(KeyMark):
    """The mark of a record that no other process shares: it is in no file."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self._changes = 0

    def exists(self) -> bool:
        """Whether keys were ever made."""
        return self._changes > 0

    @property
    def number(self) -> int:
        """How often a key has changed."""
        return self._changes

    def attach(self) -> None:
        """There is nothing to open."""

    def touch(self) -> None:
        """Count one change."""
        self._changes += 1
