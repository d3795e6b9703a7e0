"""The record in PostgreSQL, shared by processes on any number of machines.

A few connections read; one writes, in groups (:mod:`proxy.store.sql.writing.writer`). Each process has a
lease on its rows (:mod:`.lease`), by the clock of the database (:mod:`.clock`).

A connection of its own receives the notifications of changed client keys.
"""

import asyncio
import contextlib
import hashlib
import logging
import socket
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import asyncpg

from proxy.base.errors import StoreUnavailable
from proxy.records.words import ts_query
from proxy.store import rows
from proxy.store.key_mark import KeyMark, state_path
from proxy.store.look_ups import Answer, QueryBatch
from proxy.store.options import DEFAULTS, StoreOptions
from proxy.store.postgres.clock import DatabaseClock, check_skew, tell_skew
from proxy.store.postgres.db import (
    DRIVER_ERRORS,
    TOKEN_LOCK_CLASS,
    Connection,
    PostgresConnections,
    PostgresReader,
    answer,
    connect,
    numbered,
    store_error,
)
from proxy.store.postgres.lease import LEASE_S, PUT_OWNER, OwnerLease
from proxy.store.postgres.migrate import migrate_postgres
from proxy.store.postgres.writing import PostgresWriting
from proxy.store.seal import CONTENT
from proxy.store.sql.base import NOTE_KEY, key_of_others
from proxy.store.sql.migrate import latest_schema
from proxy.store.sql.retention import content_size, make_room, trim_requests
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


class PostgresStore(SqlStore):
    """:class:`~proxy.store.base.Store` in a schema of a PostgreSQL database.

    ``url`` is a ``postgresql://`` URL; environment variables such as ``PGPASSWORD`` supply what it leaves
    out. With ``reap`` the store maintains the record, as the SQLite store does; an owner counts as dead if
    it did not renew its lease for ``lease_s`` seconds. ``max_bytes`` limits the size of the content, because
    tables of a server do not shrink when rows are deleted.
    """

    _look_up_lanes = 2
    _matching = (
        "SELECT run_id FROM run_texts "
        "WHERE array_to_tsvector(string_to_array(words, ' ')) @@ CAST(CAST(? AS text) AS tsquery)"
    )
    _match = staticmethod(ts_query)

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
        lease_s: float = LEASE_S,
    ) -> None:
        database = DatabaseClock()
        super().__init__(uuid.uuid4().hex, KeyMark(state_path(url)), options, options.clock or database)
        self._url = url
        self._must_exist = must_exist
        self._database_clock = database
        self._max_skew_s = options.max_clock_skew_s
        self._keys = KeyListener(url)
        # The server's default survives the death of any process, and usually a power failure too.
        settings = {"synchronous_commit": "on"} if options.synchronous == "full" else {}
        self._writing = PostgresWriting(url, settings)
        self._reading = PostgresConnections(url)
        self._reports = asyncio.Semaphore(_REPORTS)
        self._lease = OwnerLease(
            self._owner_id,
            latest_schema("postgres"),
            self._reading,
            database,
            lasts_s=lease_s,
            looks=options.reap,
            now=self._clock,
            interrupt=self._interrupt_dead,
            each_minute=self._check_each_minute,
        )

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
        :class:`~proxy.base.errors.StoreError` for content that another key has sealed. Raises
        :class:`~proxy.base.errors.ConfigError` if the clocks differ by more than the options allow.
        """
        await migrate_postgres(self._url, must_exist=self._must_exist)
        try:
            async with self._reading.lend() as connection:
                await self._database_clock.ask(connection)
                check_skew(self._database_clock.skew_s, self._max_skew_s)
                await self._note_seal(connection)
            await self._check_seal()
        except DRIVER_ERRORS as error:
            await self._disconnect()
            raise store_error(error) from error
        except BaseException:  # A cancelled start must not leave a connection open.
            await self._disconnect()
            raise
        self._writer.start(self._writing, tidy_in_s=0.0 if self._reap else None)
        if self._reap:
            self._lease.start()
            self._begin_indexing()

    async def aclose(self) -> None:
        """Write what is queued, within the lock time-out, and close. Idempotent.

        Rows that are still open become ``interrupted``, because no process will close them.
        """
        self._look_ups.close()
        await self._end_indexing()
        written = await self._writer.aclose(self._lock_timeout_s)
        await self._lease.stop()
        if not self._reading.closed and self._lease.taken and written:
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

    async def _introduce(self) -> Sequence[tuple[str, rows.Row]]:
        """Begin to renew the lease, and return the statement that takes it."""
        self._lease.take()
        return [(PUT_OWNER, self._lease.row)]

    async def _tidy(self) -> float:
        """Delete one expired batch; return the seconds until the next call."""
        try:
            more = await self._expire() or await self._cap.trim(_TidiedSchema(self._writing))
            more = more or await trim_requests(_TidiedSchema(self._writing), self._max_requests)
            if not more and self._max_bytes:
                keeper = _TidiedSchema(self._writing, self._max_bytes)
                more = await make_room(keeper, self._max_bytes, self._clock())
        except WriteError as error:
            _log.warning("the record could not be tidied: %s", error)
            return min(_TIDY_RETRY_S, self._tidy_every_s)
        return 0.0 if more else self._tidy_every_s

    async def scrub(self) -> str:
        """Return why deleted data remains: no client statement removes it from the server's files at once."""
        return (
            "PostgreSQL keeps deleted rows in its files until they are vacuumed, and their bytes until a "
            "page is written over; VACUUM FULL rewrites a table without them. Its write-ahead log, replicas "
            "and backups have them for as long as these are kept"
        )

    async def _interrupt_dead(self, connection: Connection) -> None:
        """Mark what owners left open that have just been ended (rule R1)."""
        if interrupted := await self._interrupt(connection):
            _log.warning("an earlier process died: %d rows are now interrupted", interrupted)

    async def _note_seal(self, connection: Connection) -> None:
        """Put the name of the key that seals on record, unless another key is there that this process lacks.

        One process at a time does so: of two servers with different keys on an empty record, one is refused
        by :meth:`_check_seal`.
        """
        if not self._reap or self._ring.id is None:
            return
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '5s'")  # Many servers may start at once.
            await connection.execute("LOCK TABLE seal_keys IN SHARE ROW EXCLUSIVE MODE")
            if await self._foreign_keys(connection) == []:
                await connection.execute(
                    numbered(NOTE_KEY), self._ring.id, socket.gethostname(), self._clock()
                )

    async def _foreign_keys(self, connection: Connection) -> list[str]:
        """Return the names of the keys that servers seal with and this process lacks."""
        noted = await connection.fetch("SELECT id FROM seal_keys ORDER BY id")
        return [row["id"] for row in noted if not self._ring.opens(row["id"])]

    async def _check_each_minute(self, connection: Connection) -> None:
        """Log what other hosts or the clocks have made wrong since the start."""
        if foreign := await self._foreign_keys(connection):
            _log.error("%s", key_of_others(foreign))
        tell_skew(self._database_clock.skew_s)

    async def _end_owner(self, connection: Connection) -> None:
        await connection.execute(numbered(END_OWNER), self._clock(), self._owner_id)
        await self._interrupt(connection)

    async def _interrupt(self, connection: Connection) -> int:
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
