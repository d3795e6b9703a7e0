"""The record in PostgreSQL, shared by processes on any number of machines.

A few connections read; one writes, in groups (:mod:`proxy.store.sql.writing.writer`). The session of that
connection holds an advisory lock, which the server frees when the session ends. A free lock alone does not
prove that the process is dead: the network may have failed. An owner that is alive returns within seconds
with a lock under a new key, so an owner whose lock stays free for longer is dead.

A connection of its own receives the notifications of changed client keys.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import socket
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import asyncpg

from proxy.base.errors import StoreUnavailable
from proxy.store import rows
from proxy.store.key_mark import KeyMark, state_path
from proxy.store.look_ups import Answer, QueryBatch
from proxy.store.options import DEFAULTS, StoreOptions
from proxy.store.postgres.db import (
    DRIVER_ERRORS,
    LOCK_CLASS,
    TOKEN_LOCK_CLASS,
    PostgresConnections,
    PostgresReader,
    answer,
    connect,
    failure_of,
    numbered,
    store_error,
)
from proxy.store.postgres.migrate import migrate_postgres
from proxy.store.postgres.writing import PostgresWriting
from proxy.store.seal import CONTENT
from proxy.store.sql.retention import content_size, make_room
from proxy.store.sql.store import END_OWNER, INTERRUPT, SqlStore
from proxy.store.sql.tables.effects import FORGET_RESULTS
from proxy.store.sql.writing.writer import WriteError
from proxy.store.tokens import retry_until_locked

_CHANNEL: Final = "toolrelay_keys"


class KeyListener:
    """Listens for changed keys, from the first :meth:`version` on; that also reconnects after a failure.

    Each notification of the server increases ``told``. Without a connection no notification arrives, so
    callers ask for the version from time to time.
    """

    def __init__(self, url: str) -> None:
        self.told = 0
        self._url = url
        self._connection: asyncpg.Connection[Any] | None = None
        self._asking = asyncio.Lock()
        self._closed = False

    async def version(self) -> int:
        """Start to listen for changes if necessary, then return the version of the keys.

        Raises :class:`~proxy.base.errors.StoreError` if the server does not answer.
        """
        async with self._asking:
            if self._closed:
                raise StoreUnavailable("the record is closed")
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._url)
                    await self._connection.add_listener(_CHANNEL, self._hear)
                version: int | None = await self._connection.fetchval("SELECT version FROM key_state")
            except DRIVER_ERRORS as error:
                self._drop()
                raise store_error(error) from error
            except BaseException:  # A cancelled query leaves its answer unread on the connection.
                self._drop()
                raise
            return version or 0

    async def aclose(self) -> None:
        """Stop listening. Idempotent."""
        self._closed = True
        self._drop()

    def _hear(self, *_: Any) -> None:
        # A notification from another schema of this database costs one unnecessary read.
        self.told += 1

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


_log = logging.getLogger(__name__)

_REPORTS: Final = 3
"""How many reports are read at once. Others wait; look-ups have connections of their own."""
_TIDY_ROWS: Final = 500
_TIDY_RETRY_S: Final = 5.0

_PUT_OWNER: Final = (
    "INSERT INTO owners (id, pid, host, lock_key, started_at, seen_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET "
    "seen_at = excluded.seen_at, lock_key = excluded.lock_key, ended_at = NULL"
)
_FREE_OWNERS: Final = """
    SELECT id, lock_key FROM owners o WHERE ended_at IS NULL AND id <> $2 AND NOT EXISTS (
        SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted
        AND l.classid::bigint = $1 AND l.objid::bigint = o.lock_key AND l.objsubid = 2
    )
"""
_STILL_FREE: Final = """
    SELECT pg_try_advisory_xact_lock($1::int, lock_key)
    FROM (SELECT lock_key FROM owners WHERE id = $2 AND lock_key = $3 AND ended_at IS NULL FOR UPDATE) o
"""


class PostgresStore(SqlStore):
    """:class:`~proxy.store.base.Store` in a schema of a PostgreSQL database.

    ``url`` is a ``postgresql://`` URL; environment variables such as ``PGPASSWORD`` supply what it leaves
    out. With ``reap`` the store maintains the record, as the SQLite store does; an owner counts as dead if
    its lock was free for ``grace_s`` seconds. ``max_bytes`` limits the size of the content, because tables of
    a server do not shrink when rows are deleted.
    """

    _look_up_lanes = 2

    # Transactions do not see each other's uncommitted rows, so they must count one after the other.
    _counting_turn = (
        (
            "SELECT pg_advisory_xact_lock(hashtextextended(?::text || current_schema(), 0))",
            (("toolrelay approvals ",),),
        ),
    )

    def __init__(
        self,
        url: str,
        options: StoreOptions = DEFAULTS,
        *,
        must_exist: bool = False,
        grace_s: float = 15.0,
    ) -> None:
        super().__init__(uuid.uuid4().hex, KeyMark(state_path(url)), options)
        self._url = url
        self._must_exist = must_exist
        self._grace_s = grace_s
        self._keys = KeyListener(url)
        # The server's default survives the death of any process, and usually a power failure too.
        settings = {"synchronous_commit": "on"} if options.synchronous == "full" else {}
        self._writing = PostgresWriting(url, settings, self._lost_session)
        self._reading = PostgresConnections(url)
        self._reports = asyncio.Semaphore(_REPORTS)
        self._lock: tuple[asyncpg.Connection[Any], int] | None = None
        self._suspects: dict[tuple[str, int], float] = {}
        self._expire_at = 0.0

    @property
    def keys_change_counter(self) -> int:
        """The number of notifications from the server that keys changed."""
        return self._keys.told

    async def keys_version(self) -> int:
        """Return the version of the keys; the first call starts to listen for changes."""
        return await self._keys.version()

    async def start(self) -> None:
        """Connect, migrate and begin to write; with ``reap``, also begin to look for dead owners.

        Raises the errors of :func:`~proxy.store.postgres.migrate.migrate_postgres`, and
        :class:`~proxy.base.errors.StoreError` for content that another key has sealed.
        """
        await migrate_postgres(self._url, must_exist=self._must_exist)
        try:
            await self._check_seal()
        except BaseException:  # A cancelled start must not leave a connection open.
            await self._disconnect()
            raise
        self._writer.start(self._writing, tidy_in_s=0.0 if self._reap else None)

    async def aclose(self) -> None:
        """Write what is queued, within the lock time-out, and close. Idempotent.

        Rows that are still open become ``interrupted``, because no process will close them.
        """
        self._look_ups.close()
        written = await self._writer.aclose(self._lock_timeout_s)
        if not self._reading.closed and self._writer.prepared and written:
            try:
                await self._writing.transaction(self._end_owner)
            except WriteError as error:
                _log.warning("the record could not be closed cleanly: %s", error)
        await self._disconnect()

    def _is_storable(self, name: str) -> bool:
        # An index accepts names of less than 2,700 bytes, and text cannot contain NUL.
        return rows.is_text(name) and "\0" not in name and len(name) <= rows.MAX_NAME

    @contextlib.asynccontextmanager
    async def _exclusive(self, name: str) -> AsyncIterator[None]:
        """Hold an advisory lock in a session of its own; the server frees it when the session ends."""
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], signed=True)
        try:
            connection = await connect(self._url)
        except DRIVER_ERRORS as error:
            raise store_error(error) from error

        async def attempt() -> bool:
            try:
                return bool(
                    await connection.fetchval(
                        "SELECT pg_try_advisory_lock($1::int, $2::int)", TOKEN_LOCK_CLASS, key
                    )
                )
            except DRIVER_ERRORS as error:
                raise store_error(error) from error

        try:
            await retry_until_locked(attempt)
            yield
        finally:
            connection.terminate()

    @contextlib.asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[PostgresReader]:
        try:
            async with (
                self._reports,
                self._reading.lend() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                yield PostgresReader(connection)
        except DRIVER_ERRORS as error:
            raise store_error(error) from error

    async def _read_batch(self, batch: QueryBatch) -> Sequence[Answer]:
        try:
            async with self._reading.lend() as connection:
                return await answer(connection, batch)
        except asyncio.CancelledError:  # It took too long: the next one, and the probe, connect anew.
            self._reading.drop_idle()
            raise
        except DRIVER_ERRORS as error:
            raise store_error(error) from error

    async def _disconnect(self) -> None:
        await self._keys.aclose()
        await self._writing.aclose()
        await self._reading.aclose()

    def _lost_session(self) -> None:
        """Reconnect after the session and its lock were lost, before other processes believe this one
        dead."""
        if self._writer.prepared:
            self._writer.note_failure("unreachable")

    async def _introduce(self) -> Sequence[tuple[str, rows.Row]]:
        """Take a lock in this session, then return the statement that writes the owner's row."""
        connection = await self._writing.connection()
        if self._lock is None or self._lock[0] is not connection:
            # Each session has its own key: the server may not yet know that the last session is dead, which
            # then still holds its lock.
            key = 1 + secrets.randbelow(2**31 - 1)
            try:
                free = await connection.fetchval(
                    "SELECT pg_try_advisory_lock($1::int, $2::int)", LOCK_CLASS, key
                )
            except DRIVER_ERRORS as error:
                raise WriteError(failure_of(error) or "unreachable", type(error).__name__) from error
            if not free:
                raise WriteError("locked", "the lock of an owner is taken")
            self._lock = (connection, key)
        owner = (self._owner_id, os.getpid(), socket.gethostname(), self._lock[1])
        return [(_PUT_OWNER, (*owner, self._started_at, self._clock()))]

    async def _tidy(self) -> float:
        """Reap dead owners and delete one expired batch; return the seconds until the next call.

        Dead owners are looked for more often than the rest, because that is one small query.
        """
        loop = asyncio.get_running_loop()
        try:
            await self._reap_owners()
            if loop.time() < self._expire_at:
                return self._next_look(self._expire_at - loop.time())
            more = await self._expire() or await self._cap.trim(_TidiedSchema(self._writing))
            if not more and self._max_bytes:
                keeper = _TidiedSchema(self._writing, self._max_bytes)
                more = await make_room(keeper, self._max_bytes, self._clock())
        except WriteError as error:
            _log.warning("the record could not be tidied: %s", error)
            return min(_TIDY_RETRY_S, self._tidy_every_s)
        if more:
            return 0.0
        self._expire_at = loop.time() + self._tidy_every_s
        return self._next_look(self._tidy_every_s)

    def _next_look(self, at_most_s: float) -> float:
        """Return the seconds until the next search for dead owners: the rest of a suspect's grace period."""
        now = asyncio.get_running_loop().time()
        waits = [max(since + self._grace_s - now, 0.0) for since in self._suspects.values()]
        return min([*waits, self._grace_s, at_most_s])

    async def scrub(self) -> str:
        """Return why deleted data remains: no client statement removes it from the server's files at once."""
        return (
            "PostgreSQL keeps deleted rows in its files until they are vacuumed, and their bytes until a "
            "page is written over; VACUUM FULL rewrites a table without them. Its write-ahead log, replicas "
            "and backups have them for as long as these are kept"
        )

    async def _reap_owners(self) -> None:
        """Mark what dead owners left open (rule R1); skip owners that may be alive."""
        free: list[tuple[str, int]] = []

        async def look(connection: "asyncpg.Connection[Any]") -> None:
            owners = await connection.fetch(_FREE_OWNERS, LOCK_CLASS, self._owner_id)
            free.extend((row["id"], row["lock_key"]) for row in owners)

        await self._writing.transaction(look)
        now = asyncio.get_running_loop().time()
        self._suspects = {owner: self._suspects.get(owner, now) for owner in free}
        for owner, since in list(self._suspects.items()):
            if now - since >= self._grace_s:
                await self._reap_owner(*owner)
                del self._suspects[owner]

    async def _reap_owner(self, owner_id: str, lock_key: int) -> None:
        interrupted = 0

        async def reap(connection: "asyncpg.Connection[Any]") -> None:
            nonlocal interrupted
            # No row: the owner returned or was reaped. If several processes ask, one gets the lock.
            if await connection.fetchval(_STILL_FREE, LOCK_CLASS, owner_id, lock_key):
                await connection.execute(numbered(END_OWNER), self._clock(), owner_id)
                interrupted = await self._interrupt(connection)

        await self._writing.transaction(reap)
        if interrupted:
            _log.warning("an earlier process died: %d rows are now interrupted", interrupted)

    async def _end_owner(self, connection: "asyncpg.Connection[Any]") -> None:
        await connection.execute(numbered(END_OWNER), self._clock(), self._owner_id)
        await self._interrupt(connection)

    async def _interrupt(self, connection: "asyncpg.Connection[Any]") -> int:
        now = self._clock()
        return sum([_count(await connection.execute(numbered(each), now)) for each in INTERRUPT])

    async def _expire(self) -> bool:
        """Delete one batch of expired rows; return whether a batch was full."""
        full = False

        async def expire(connection: "asyncpg.Connection[Any]") -> None:
            nonlocal full
            for table, oldest in self._expiring():
                gone = await connection.execute(
                    f"DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} "
                    f"WHERE created_at < $1 LIMIT {_TIDY_ROWS} FOR UPDATE SKIP LOCKED))",
                    oldest,
                )
                full = full or _count(gone) >= _TIDY_ROWS
            await connection.execute(numbered(FORGET_RESULTS), self._oldest_kept())

        await self._writing.transaction(expire)
        return full


_COMPRESSED: Final = 20
_ON_DISK: Final = "SELECT " + " + ".join(
    f"pg_total_relation_size('{table.name}'::regclass)" for table in CONTENT
)


class _TidiedSchema:
    """The schema, as :class:`~proxy.store.sql.retention.Keeper` sees it."""

    counts_runs = False
    length = "octet_length({})"

    def __init__(self, writing: PostgresWriting, max_bytes: int = 0) -> None:
        self._writing = writing
        self._max_bytes = max_bytes

    async def used(self) -> int:
        """Return the bytes of all content before compression by the server. While the tables are far below
        the limit, their size is returned instead, and no row is read."""
        ((on_disk,),) = await self.fetch(_ON_DISK, ())
        if on_disk * _COMPRESSED <= self._max_bytes:
            return int(on_disk)
        ((size,),) = await self.fetch(content_size(), ())
        return int(size)

    async def fetch(self, sql: str, values: rows.Row) -> Iterable[Any]:
        collected: list[Any] = []

        async def read(connection: "asyncpg.Connection[Any]") -> None:
            collected.extend(await connection.fetch(numbered(sql), *values))

        await self._writing.transaction(read)
        return collected

    async def change(self, sql: str, values: Iterable[rows.Row]) -> int:
        counts: list[int] = []

        async def write(connection: "asyncpg.Connection[Any]") -> None:
            counts.extend([_count(await connection.execute(numbered(sql), *row)) for row in values])

        await self._writing.transaction(write)
        return sum(counts)


def _count(status: str) -> int:
    """Return the number of changed rows in the server's command tag (``UPDATE 3``)."""
    return int(status.rpartition(" ")[2])
