"""Migrates a PostgreSQL record to the schema that this code knows.

The numbered steps are those of SQLite, written in PostgreSQL's SQL. Each step and its number in
``toolrelay_schema`` are one transaction. An advisory lock is held meanwhile: if several processes start at
once, one migrates, and the others find the work done. No copy is made: backups are up to the operator.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from proxy.base.errors import ConfigError, NoRecord, StoreError, StoreTooNew, StoreUnavailable
from proxy.store.postgres.clock import NOW
from proxy.store.postgres.db import (
    CONNECT_S,
    CONNECTIONS,
    DRIVER_ERRORS,
    LOCK_CLASS,
    open_session,
    set_up,
    store_error,
)
from proxy.store.sql.migrate import (
    OLDEST_BESIDE,
    Migration,
    MigrationReport,
    find_migrations,
    latest_schema,
    load_migrations,
    older_processes,
)

_LOCK: Final = 0
"""The second half of the migrations' lock key."""

_LEASES_SINCE: Final = 32
_OLDER: Final = (
    f"SELECT host FROM owners WHERE ended_at IS NULL AND schema < {OLDEST_BESIDE} AND lease_until >= {NOW}"
)
# Before there were leases, the session of a process that lived held an advisory lock.
_OLDER_WITH_LOCKS: Final = f"""
    SELECT host FROM owners o WHERE ended_at IS NULL AND EXISTS (
        SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted
        AND l.classid::bigint = {LOCK_CLASS} AND l.objid::bigint = o.lock_key AND l.objsubid = 2
    )
"""

_OLDEST_SERVER: Final = (12, 0)


async def migrate_postgres(
    url: str,
    *,
    migrations: Sequence[Migration] | None = None,
    lock_timeout_s: float = 30.0,
    must_exist: bool = False,
) -> MigrationReport:
    """Create the tables if there are none, and apply every migration that the database lacks.

    Raises :class:`~proxy.base.errors.StoreTooNew` for a schema newer than ``migrations``. Raises
    :class:`~proxy.base.errors.StoreUnavailable` if the server is unreachable or another process migrates for
    longer than ``lock_timeout_s``, or if a process of a version uses the record that must not run beside this
    one. Raises :class:`StoreError` for tables of another program.
    Raises :class:`~proxy.base.errors.ConfigError` for an invalid URL and, with ``must_exist``, for a database
    without a record.
    """
    steps = tuple(migrations) if migrations is not None else load_migrations(find_migrations("postgres"))
    try:
        connection = await _connected(url, lock_timeout=str(round(lock_timeout_s * 1000)))
        try:
            # Outside a transaction: an earlier one might not see what another process created meanwhile.
            await connection.execute("SELECT pg_advisory_lock($1::int, $2::int)", LOCK_CLASS, _LOCK)
            if must_exist and await _version(connection, len(steps)) == 0:
                raise NoRecord(
                    "store.url", "there is no record in this database yet", "Start the server once"
                )
            return await _migrate(connection, steps)
        finally:
            await connection.close(timeout=lock_timeout_s)
    except (StoreError, ConfigError):
        raise
    except DRIVER_ERRORS as error:
        raise store_error(error) from error


async def postgres_version(url: str) -> int:
    """Return the schema version of a record without changing it; 0 if there is none.

    Raises the errors of :func:`migrate_postgres`.
    """
    try:
        connection = await _connected(url)
    except DRIVER_ERRORS as error:
        raise store_error(error) from error
    try:
        return await _version(connection, latest_schema("postgres"))
    except DRIVER_ERRORS as error:
        raise store_error(error) from error
    finally:
        await connection.close(timeout=CONNECT_S)


async def _connected(url: str, **settings: str) -> "asyncpg.Connection[Any]":
    """Connect, and check that a pooler leaves the connection its session."""
    try:
        connection = await open_session(url)
    except ValueError:  # Its message may quote the URL.
        raise ConfigError(
            "store.url", "is not a PostgreSQL address", "Write postgresql://USER@HOST:5432/DATABASE"
        ) from None
    try:
        await _check_session(connection, url)
        await set_up(connection, url, **settings)
    except BaseException:  # A cancelled start must not leave a connection open.
        connection.terminate()
        raise
    return connection


async def _check_session(connection: "asyncpg.Connection[Any]", url: str) -> None:
    """Raise StoreError if a pooler lends one session of the server to several clients in turn.

    Nothing is prepared, because a session that others use may have what they prepared under the same name.
    PgBouncer tells its clients another process id than the server's
    (https://www.postgresql.org/docs/current/protocol-flow.html, BackendKeyData).
    """

    async def holds(asked: "asyncpg.Connection[Any]", condition: str) -> bool:
        return await asked.execute(f"SELECT 1 WHERE {condition}") == "SELECT 1"

    if await holds(connection, f"pg_backend_pid() = {connection.get_server_pid():d}"):
        return
    token = secrets.token_hex(16)
    mine = f"current_setting('toolrelay.session', true) = '{token}'"
    await connection.execute(f"SET toolrelay.session = '{token}'")
    other = await open_session(url)
    try:
        async with asyncio.timeout(CONNECT_S):
            await other.execute("BEGIN")  # A pooler in transaction mode must leave it one session meanwhile.
            shared = await holds(other, mine) or not await holds(connection, mine)
    except TimeoutError:
        raise StoreUnavailable(
            "the pooler before PostgreSQL gave no second connection; each process of toolrelay needs "
            f"{CONNECTIONS} (PgBouncer: default_pool_size)"
        ) from None
    except asyncpg.PostgresError as error:  # PgBouncer in statement mode refuses transactions.
        shared = "statement pooling" in str(error)
        if not shared:
            raise
    finally:
        other.terminate()
    await connection.execute("RESET toolrelay.session")
    if shared:
        raise StoreError(
            "the pooler before PostgreSQL does not keep sessions, but locks of toolrelay belong to them; set "
            "pool_mode = session for this database (PgBouncer), or name the server itself in store.url"
        )


async def _migrate(connection: "asyncpg.Connection[Any]", steps: Sequence[Migration]) -> MigrationReport:
    server = connection.get_server_version()
    if (server.major, server.minor) < _OLDEST_SERVER:
        raise StoreError(f"PostgreSQL {server.major} is too old: {_OLDEST_SERVER[0]} or later is needed")
    before = await _version(connection, len(steps))
    if before and len(steps) >= _LEASES_SINCE:
        older = await connection.fetch(_OLDER if before >= _LEASES_SINCE else _OLDER_WITH_LOCKS)
        if older:
            raise older_processes([row["host"] for row in older])
    applied: list[str] = []
    for step in steps[before:]:
        async with connection.transaction():
            await _apply(connection, step)
            applied.append(step.name)
    return MigrationReport(before, await _version(connection, len(steps)), tuple(applied))


async def _version(connection: "asyncpg.Connection[Any]", known: int) -> int:
    """Return the number of the last applied migration; raises StoreError for a foreign or newer schema."""
    if await connection.fetchval("SELECT to_regclass('toolrelay_schema')") is None:
        if await connection.fetchval(
            "SELECT to_regclass('runs') IS NOT NULL OR to_regclass('owners') IS NOT NULL"
        ):
            raise StoreError(
                "the PostgreSQL schema holds another program's tables; name another database, or "
                "another schema with ?search_path=NAME, in store.url"
            )
        return 0
    version: int = await connection.fetchval("SELECT coalesce(max(version), 0) FROM toolrelay_schema")
    if version > known:
        raise StoreTooNew(
            f"the record in PostgreSQL has schema {version}, this version of toolrelay knows {known}; "
            "use the newer version that wrote it, or name another database in store.url"
        )
    return version


async def _apply(connection: "asyncpg.Connection[Any]", step: Migration) -> None:
    if step.number == 1:
        await connection.execute("CREATE TABLE toolrelay_schema (version INTEGER NOT NULL PRIMARY KEY)")
    try:
        await connection.execute(step.sql)
        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # foreign keys fail here, not at COMMIT
    except asyncpg.PostgresError as error:
        raise StoreError(f"migration {step.name}: {type(error).__name__}: {error.args[0]}") from error
    if not connection.is_in_transaction():
        raise StoreError(f"migration {step.name} ends its own transaction")
    await connection.execute("INSERT INTO toolrelay_schema (version) VALUES ($1)", step.number)
