"""The record in a SQLite database in memory, which is gone when the process ends.

It has the same tables as a record in a file. Nothing is written to disk, neither the database nor SQLite's
temporary files. Statements run in the event loop's own thread: they do not wait for a disk, and a switch to
another thread and back takes longer than most of them.
"""

import contextlib
import os
import socket
import sqlite3
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from proxy.base.caches import CacheSize, declare
from proxy.base.errors import StoreUnavailable
from proxy.store import rows
from proxy.store.key_mark import KeyMark
from proxy.store.look_ups import Answer, QueryBatch
from proxy.store.options import DEFAULTS, StoreOptions
from proxy.store.sql.base import SqlReader
from proxy.store.sql.migrate import make_schema, store_error
from proxy.store.sql.retention import trim_requests
from proxy.store.sql.store import SqlStore
from proxy.store.sql.writing.writes import Batch
from proxy.store.sqlite.db import PUT_OWNER, commit, prepare, writing
from proxy.store.sqlite.room import make_room, used
from proxy.store.sqlite.tidying import TIDY_RETRY_S, SqliteKeeper, expire

T = TypeVar("T")

MAX_BYTES: Final = 128 * 2**20
"""The most bytes that the rows of a record in memory take; ``store.max_bytes`` can lower it."""

_GROUP_BYTES: Final = 72 * 2**20
"""The most bytes that one group of writes adds before room is made."""

_NAME: Final = Path("memory:")
"""The name of the record in messages."""


class MemoryStore(SqlStore):
    """:class:`~proxy.store.base.Store` in memory, for trials and tests.

    After each group of writes, what exceeds ``max_bytes`` (at most :data:`MAX_BYTES`) is deleted: the callers
    with the most content lose the oldest of it (see :mod:`proxy.store.sqlite.room`). Nothing is sealed,
    because nothing is written to disk and no other process shares it. After ``aclose``, runs can still be
    read until the object is gone.
    """

    def __init__(self, options: StoreOptions = DEFAULTS) -> None:
        most = min(options.max_bytes or MAX_BYTES, MAX_BYTES)
        # No key seals anything here. They still give the keys for hashes and for what clients carry, so that
        # other processes with the same keys know it again.
        known = [*([options.seal] if options.seal is not None else []), *options.old_seals]
        super().__init__(
            uuid.uuid4().hex, _NoFile(), replace(options, seal=None, old_seals=known, max_bytes=most)
        )
        self._configured = options.seal
        self._db: _Connection | None = None
        declare("record_in_memory", self._record_size)

    @property
    def keys_change_counter(self) -> int:
        """How often client keys have changed."""
        return self._mark.number

    @property
    def sealed(self) -> bool:
        """True: nothing is written to disk, so nothing must be masked."""
        return True

    @property
    def vault(self) -> None:
        """``None``: tokens would be lost with the process, and no other process could use them."""
        return None

    async def start(self) -> None:
        """Create the tables and start to take writes; raises :class:`~proxy.base.errors.StoreError`."""
        try:
            self._db = _Connection(self._max_bytes)
        except sqlite3.Error as error:
            raise store_error(error, _NAME) from error
        self._writer.start(self._db, tidy_in_s=self._tidy_every_s)

    async def aclose(self) -> None:
        """Stop taking writes. Idempotent."""
        self._look_ups.close()
        await self._writer.aclose(self._lock_timeout_s)

    async def scrub(self) -> str:
        """Do nothing: nothing is written to disk."""
        return ""

    async def wait_until_visible(self, within_s: float) -> bool:
        """Do not wait: only this process reads the record, and it sees writes at once."""
        return self._writer.running

    async def healthy(self) -> bool:
        """Return whether the store accepts writes."""
        return self._writer.running and self._writer.failure is None

    def _exclusive(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def _introduce(self) -> Sequence[tuple[str, rows.Row]]:
        now = self._clock()
        return [(PUT_OWNER, (self._owner_id, os.getpid(), socket.gethostname(), None, now, now, 0))]

    async def _tidy(self) -> float:
        """Delete a batch of what is past its retention, or over the limit of one caller."""
        db = self._connection()
        try:
            more = await db.run(lambda each: expire(each, self._expiring(), self._oldest_kept()))
            more = more or await self._cap.trim(SqliteKeeper(db))
            more = more or await trim_requests(SqliteKeeper(db), self._max_requests)
        except sqlite3.Error:  # Out of memory for now.
            return min(TIDY_RETRY_S, self._tidy_every_s)
        return 0.0 if more else self._tidy_every_s

    @contextlib.asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[SqlReader]:
        """Yield the database itself: queries do not yield to other tasks, so nothing changes in between."""
        db = self._connection()
        try:
            yield db
        except sqlite3.Error as error:
            raise store_error(error, _NAME) from error

    async def _read_batch(self, batch: QueryBatch) -> Sequence[Answer]:
        return [await self._look_up(query.sql, query.values) for query in batch.queries]

    async def _look_up(self, sql: str, values: rows.Row, caller: str = "") -> Iterable[Any]:
        """Run a query that also sees pending writes; unlike in a file it is always fast enough."""
        await self._see_writes()
        if not self._writer.running:
            raise StoreUnavailable("the record is closed")
        async with self._snapshot() as db:
            return await db.execute_fetchall(sql, values)

    def _connection(self) -> "_Connection":
        if self._db is None:
            raise StoreUnavailable("the record is closed")
        return self._db

    def _record_size(self) -> CacheSize:
        return CacheSize(self._db.held() if self._db is not None else 0, self._max_bytes + _GROUP_BYTES)


class _Connection:
    """A database in memory, with room for ``max_bytes`` besides its empty tables.

    Its methods are coroutines like those of a connection to a file, but they never wait.
    """

    def __init__(self, max_bytes: int) -> None:
        # Another thread may drop the last reference; statements only run in the event loop's thread.
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)
        prepare(self._db)
        self._db.execute("PRAGMA temp_store = MEMORY")  # Sorting must not use a file either.
        make_schema(self._db)
        for trigger in ("messages_added", "messages_changed", "messages_replaced", "messages_deleted"):
            self._db.execute(f"DROP TRIGGER {trigger}")  # Nothing is indexed: a search reads memory.
        self._max_bytes = max_bytes
        self._empty = used(self._db)

    async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None, /) -> Iterable[Any]:
        return self._db.execute(sql, tuple(parameters or ())).fetchall()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self._db)

    async def transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return commit(self._db, work)

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit a group of writes, then make room; raises ``WriteError``."""
        with writing(batches) as work:
            commit(self._db, work)
            make_room(self._db, self._empty, self._max_bytes)

    def held(self) -> int:
        """Return the size of the rows, in bytes."""
        return used(self._db) - self._empty


class _NoFile(KeyMark):
    """The mark of key changes of a record that no other process shares: a counter in place of a file."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self._changes = 0

    def exists(self) -> bool:
        """Return whether a client key was ever created."""
        return self._changes > 0

    @property
    def number(self) -> int:
        """How often client keys have changed."""
        return self._changes

    def attach(self) -> None:
        """Do nothing: there is no file to open."""

    def touch(self) -> None:
        """Count one change."""
        self._changes += 1
