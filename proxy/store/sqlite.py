"""The record in one SQLite file.

Two connections, each in a thread of its own, so that the event loop never waits for a disk: one
that alone writes, in groups (:mod:`proxy.store.writer`), and one that reads.  Runs, turns and
invocations stay until they are purged; content (messages, suspended turns, responses) goes after
``keep_days``.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import aiosqlite

from proxy.errors import StoreUnavailable
from proxy.records import (
    MessageRecord,
    ResponseRecord,
    RunRecord,
    SuspendedTurn,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.store import rows
from proxy.store.base import RunDetail, RunFilter
from proxy.store.migrate import migrate_sqlite, store_error
from proxy.store.owners import OwnerLock, proven_dead
from proxy.store.shelf import ContentPolicy, ResponseKey, oldest_kept, response_shelf, suspended_shelf
from proxy.store.write_behind import WriteBehind
from proxy.store.writer import GroupWriter, Write, WriterHooks, failure_of

__all__ = ["SqliteStore", "Synchronous"]

_log = logging.getLogger(__name__)

Synchronous = Literal["normal", "full"]
"""What a commit survives: ``normal`` the death of the process, ``full`` a power loss too."""

_BUSY_S: Final = 1.0
_TIDY_ROWS: Final = 500
_TIDY_RETRY_S: Final = 5.0

_PUT_RUN: Final = rows.upsert("runs", ("owner_id", *rows.RUN_COLUMNS), ("id",))
_PUT_TURN: Final = rows.upsert("turns", rows.TURN_COLUMNS, ("run_id", "number"))
_PUT_MESSAGE: Final = rows.upsert(
    "messages", (*rows.MESSAGE_COLUMNS, "created_at"), ("run_id", "turn", "seq")
)
_PUT_INVOCATION: Final = rows.upsert("tool_invocations", ("owner_id", *rows.INVOCATION_COLUMNS), ("id",))
_PUT_SUSPENDED: Final = rows.upsert("suspended_turns", rows.SUSPENDED_COLUMNS, ("key",))
_PUT_RESPONSE: Final = rows.upsert("responses", rows.RESPONSE_COLUMNS, ("id", "caller"))
_DELETE_RESPONSE: Final = "DELETE FROM responses WHERE id = ? AND caller = ?"
_WITHDRAW_INVOCATION: Final = (
    "UPDATE tool_invocations SET status = 'cancelled', ended_at = ? WHERE id = ? AND status = 'started'"
)
_PUT_OWNER: Final = (
    "INSERT INTO owners (id, pid, host, lock_file, started_at, seen_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at"
)
_END_OWNER: Final = "UPDATE owners SET ended_at = ? WHERE id = ?"
_INTERRUPT: Final = tuple(
    f"UPDATE {table} SET status = 'interrupted', ended_at = ? WHERE status = '{status}' "
    "AND owner_id IN (SELECT id FROM owners WHERE ended_at IS NOT NULL)"
    for table, status in (("runs", "running"), ("tool_invocations", "started"))
)

_Record = TypeVar("_Record")


class SqliteStore:
    """:class:`~proxy.store.base.Store` in a SQLite file of mode 0600.

    ``content`` and ``keep_days`` say what becomes of messages, suspended turns and responses;
    ``keep_days`` of 0 sets no limit.  With ``reap`` the store looks after the file: at its start, and every
    ``tidy_every_s`` seconds, it marks what dead owners left open as ``interrupted`` and deletes
    content past its days.  Only the server does that; other commands leave a file as it is, and
    one that only reads writes no row.  ``lost`` counts the writes that never reached the file.

    Its methods are called from one event loop's thread.
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
        lock_timeout_s: float = 5.0,
        max_queued: int = 10_000,
        max_queued_bytes: int = 64 * 2**20,
        tidy_every_s: float = 3600.0,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._content = content
        self._keep_days = keep_days
        self._synchronous = synchronous
        self._clock = clock
        self._reap = reap
        self._lock_timeout_s = lock_timeout_s
        self._owner = OwnerLock(self.path)
        self._tidy_every_s = tidy_every_s
        self._started_at = clock()
        self._writer = GroupWriter(
            WriterHooks(self._introduce, self._tidy),
            max_writes=max_queued,
            max_bytes=max_queued_bytes,
            lock_timeout_s=lock_timeout_s,
        )
        self._db: aiosqlite.Connection | None = None
        self._reader: aiosqlite.Connection | None = None
        self._reading = asyncio.Lock()
        self._suspended = WriteBehind(suspended_shelf(self._oldest_kept), self._writer.withdraw)
        self._responses = WriteBehind(response_shelf(self._oldest_kept), self._writer.withdraw)

    @property
    def lost(self) -> int:
        """How many writes never reached the file."""
        return self._writer.lost

    async def start(self) -> None:
        """Open, migrate, and with ``reap`` mark what dead owners left open.

        Raises :class:`~proxy.errors.StoreTooNew`, :class:`~proxy.errors.StoreUnavailable` or
        :class:`~proxy.errors.StoreError` as :func:`~proxy.store.migrate.migrate_sqlite` does.
        """
        report = await asyncio.to_thread(migrate_sqlite, self.path, clock=self._clock)
        if report.copy is not None:
            _log.warning("the record has schema %d now; a copy of it is kept: %s", report.after, report.copy)
        tidy_in_s: float | None = None
        try:
            self._db = await self._connect()
            self._reader = await self._connect()
            await self._reader.execute("PRAGMA query_only = ON")
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
        self._writer.start(self._db, tidy_in_s=tidy_in_s)

    async def aclose(self) -> None:
        """Write what is queued, within the lock time-out, and close.  Idempotent.

        Rows that are still open become ``interrupted``: nobody is left to close them.
        """
        written = await self._writer.aclose(self._lock_timeout_s)
        ended = False
        if self._db is not None and self._writer.prepared and written:
            try:
                async with _transaction(self._db):
                    await self._db.execute(_END_OWNER, (self._clock(), self._owner.id))
                    await self._interrupt(self._db)
                ended = True
            except sqlite3.Error as error:
                _log.warning("the record could not be closed in order: %s", store_error(error, self.path))
        self._owner.release(remove=ended)
        await self._disconnect()

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Write the row of an execution that is about to start (rule R1).

        With ``durable`` it is committed when this returns; raises
        :class:`~proxy.errors.StoreUnavailable` where it cannot be.
        """
        if not durable:
            self.close_invocation(record)
            return
        withdraw = Write(_WITHDRAW_INVOCATION, [(self._clock(), rows.clean_text(record.id))])
        row = (self._owner.id, *rows.invocation_row(record))
        await self._writer.commit(_PUT_INVOCATION, [row], undo=withdraw)

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Queue the row's final state; it is inserted where its beginning was lost."""
        self._put(_PUT_INVOCATION, (self._owner.id,), rows.invocation_row, (record,))

    def put_run(self, record: RunRecord) -> None:
        """Queue the run, in place of an earlier row with its id."""
        self._put(_PUT_RUN, (self._owner.id,), rows.run_row, (record,))

    def put_turn(self, record: TurnRecord) -> None:
        """Queue a turn; its run must have been put."""
        self._put(_PUT_TURN, (), rows.turn_row, (record,))

    def put_messages(self, records: Sequence[MessageRecord]) -> None:
        """Queue messages, together or not at all, unless the policy is ``none``."""
        if self._content == "none" or not records:
            return
        now = self._clock()
        self._put(_PUT_MESSAGE, (), lambda record: (*rows.message_row(record), now), records)

    def put_suspended(self, record: SuspendedTurn) -> None:
        """Hold a turn in place of an earlier one of its key.

        Under ``none``, and an ephemeral one always, in memory only.
        """
        if record.ephemeral or self._content == "none":
            self._suspended.keep(record)
        else:
            self._suspended.queue(
                record, lambda settled: self._put(_PUT_SUSPENDED, (), rows.suspended_row, (record,), settled)
            )

    async def find_suspended(self, key: str) -> SuspendedTurn | None:
        """The last held turn of that key, also while it waits for its commit or could not be written.

        Raises :class:`~proxy.errors.StoreError` where the file cannot be read.
        """
        if self._suspended.knows(key) or self._content == "none":
            return self._suspended.find(key)
        async with self._snapshot() as db:
            found = await _select(
                db,
                "suspended_turns",
                rows.SUSPENDED_COLUMNS,
                "key = ? AND created_at >= ?",
                rows.clean_text(key),
                self._oldest_kept(),
            )
        return rows.read_suspended(found[0]) if found else None

    def put_response(self, record: ResponseRecord) -> None:
        """Keep a response in place of the caller's earlier one with its id; under ``none`` in memory only."""
        if self._writes_response((record.id, record.caller)):
            self._responses.queue(
                record, lambda settled: self._put(_PUT_RESPONSE, (), rows.response_row, (record,), settled)
            )
        else:
            self._responses.keep(record)

    async def find_response(self, response_id: str, caller: str) -> ResponseRecord | None:
        """The caller's own response of that id, also while it waits for its commit or could not be written.

        Raises :class:`~proxy.errors.StoreError` where the file cannot be read.
        """
        key = (response_id, caller)
        if self._responses.knows(key) or not self._writes_response(key):
            return self._responses.find(key)
        async with self._snapshot() as db:
            found = await _select(
                db,
                "responses",
                rows.RESPONSE_COLUMNS,
                "id = ? AND caller = ? AND created_at >= ?",
                *key,
                self._oldest_kept(),
            )
        return rows.read_response(found[0]) if found else None

    async def delete_response(self, response_id: str, caller: str) -> bool:
        """Forget a response of the caller's, written or not; whether there was one.

        What never reached the file is forgotten without it.  Raises
        :class:`~proxy.errors.StoreUnavailable` where the file has the response and the deletion is
        not known to be committed, :class:`~proxy.errors.StoreError` where the file cannot be read;
        what the file has may then still be there.
        """
        key = (response_id, caller)
        held = self._responses.find(key) is not None
        with self._responses.gone(key) as under_way:
            if not self._writes_response(key):
                return held
            async with self._snapshot() as db:
                found = await _select(db, "responses", ("created_at",), "id = ? AND caller = ?", *key)
            if found or under_way:
                # In order: after a put that is under way, and before one that follows.
                await self._writer.commit(_DELETE_RESPONSE, [key], in_order=True)
        return held or any(created_at >= self._oldest_kept() for (created_at,) in found)

    async def list_runs(self, wanted: RunFilter) -> Sequence[RunRecord]:
        """Runs, newest first.

        Raises :class:`~proxy.errors.StoreUnavailable` where earlier writes cannot be committed,
        :class:`~proxy.errors.StoreError` where the file cannot be read.
        """
        await self._writer.flush()
        async with self._snapshot() as db:
            found = await db.execute_fetchall(*rows.runs_query(wanted))
        return [rows.read_run(tuple(row)) for row in found]

    async def get_run(self, run_id: str) -> RunDetail | None:
        """One run by its id, or by a prefix that fits exactly one; raises like :meth:`list_runs`."""
        wanted = rows.clean_text(run_id)
        if not wanted:
            return None
        await self._writer.flush()
        async with self._snapshot() as db:
            select_run = f"SELECT {', '.join(rows.RUN_COLUMNS)} FROM runs WHERE "
            found = list(await db.execute_fetchall(select_run + "id = ?", (wanted,)))
            if not found:
                bounds = (wanted, wanted + "\U0010ffff")
                found = list(await db.execute_fetchall(select_run + "id >= ? AND id < ? LIMIT 2", bounds))
            if len(found) != 1:
                return None
            run = rows.read_run(tuple(found[0]))
            turns = await _select(db, "turns", rows.TURN_COLUMNS, "run_id = ? ORDER BY number", run.id)
            messages = await _select(
                db,
                "messages",
                rows.MESSAGE_COLUMNS,
                "run_id = ? AND created_at >= ? ORDER BY turn, seq",
                run.id,
                self._oldest_kept(),
            )
            invocations = await _select(
                db,
                "tool_invocations",
                rows.INVOCATION_COLUMNS,
                "run_id = ? ORDER BY turn, seq, started_at, id",
                run.id,
            )
        return RunDetail(
            run,
            [rows.read_turn(row) for row in turns],
            [rows.read_message(row) for row in messages],
            [rows.read_invocation(row) for row in invocations],
        )

    async def healthy(self) -> bool:
        """Whether the write lock can be had and the last write went in."""
        if not self._writer.running or self._writer.failure is not None:
            return False
        try:
            await self._writer.probe(2 * _BUSY_S)
        except StoreUnavailable:
            return False
        return True

    def _oldest_kept(self) -> float:
        return oldest_kept(self._clock(), self._keep_days)

    def _writes_response(self, key: ResponseKey) -> bool:
        # A name that is no Unicode would be made to fit, and might then be somebody else's: such a
        # response stays in memory, under its very name.
        return self._content != "none" and all(map(rows.is_text, key))

    def _put(
        self,
        statement: str,
        prefix: rows.Row,
        encode: Callable[[_Record], rows.Row],
        records: Sequence[_Record],
        settled: Callable[[bool], None] | None = None,
    ) -> Write:
        try:
            encoded = [(*prefix, *encode(record)) for record in records]
        except (TypeError, ValueError, AttributeError) as error:  # a field is not of its declared type
            write = Write(statement, (), settled=settled)
            self._writer.lose([write], f"a record does not encode: {error}")
        else:
            write = Write(statement, encoded, settled=settled)
            self._writer.put(write)
        return write

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
            if not more:
                await db.execute_fetchall(f"PRAGMA incremental_vacuum({_TIDY_ROWS})")
        except sqlite3.Error as error:
            if failure_of(error) is None:
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
                        await db.execute(_END_OWNER, (self._clock(), owner_id))
                        interrupted = await self._interrupt(db)
                    _log.warning("an earlier process died: %d rows are now interrupted", interrupted)

    async def _interrupt(self, db: aiosqlite.Connection) -> int:
        now = self._clock()
        return sum([(await db.execute(statement, (now,))).rowcount for statement in _INTERRUPT])

    async def _expire(self, db: aiosqlite.Connection) -> bool:
        """Delete one batch of content past its days; whether a batch was full."""
        if self._keep_days <= 0:
            return False
        oldest = self._oldest_kept()
        full = False
        for table in ("messages", "suspended_turns", "responses"):
            gone = await db.execute(
                f"DELETE FROM {table} WHERE rowid IN "
                f"(SELECT rowid FROM {table} WHERE created_at < ? LIMIT {_TIDY_ROWS})",
                (oldest,),
            )
            full = full or gone.rowcount >= _TIDY_ROWS
        return full


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


async def _select(
    db: aiosqlite.Connection, table: str, columns: Sequence[str], where: str, *values: Any
) -> list[rows.Row]:
    found = await db.execute_fetchall(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", values)
    return [tuple(row) for row in found]
