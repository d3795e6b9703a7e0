"""Bringing a PostgreSQL record up to the schema this code knows.

The same numbered steps as for SQLite, in SQL of its own.  Each is applied in a transaction that
also counts it in ``toolrelay_schema``.  An advisory lock is held meanwhile: of several processes
that start at once one migrates, and the others find it done.  No copy is made; that is the operator's backup.
"""

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from proxy.errors import ConfigError, NoRecord, StoreError, StoreTooNew
from proxy.store.postgres.db import CONNECT_S, DRIVER_ERRORS, LOCK_CLASS, connect, store_error
from proxy.store.sql.migrate import Migration, MigrationReport, find_migrations, load_migrations

__all__ = ["migrate_postgres", "postgres_version"]

_LOCK: Final = 0
"""The second half of the migrations' lock; owners' locks begin with 1."""

_OLDEST_SERVER: Final = (12, 0)


async def migrate_postgres(
    url: str,
    *,
    migrations: Sequence[Migration] | None = None,
    lock_timeout_s: float = 30.0,
    must_exist: bool = False,
) -> MigrationReport:
    """Create the tables if there are none, and apply every migration that the database lacks.

    Raises :class:`~proxy.errors.StoreTooNew` for a schema later than ``migrations`` know,
    :class:`~proxy.errors.StoreUnavailable` where the server cannot be reached or another process
    migrates for longer than ``lock_timeout_s``, :class:`~proxy.errors.StoreError` for tables that
    are not ours, and :class:`~proxy.errors.ConfigError` for a URL that is none, and with
    ``must_exist`` for a database without a record.
    """
    steps = tuple(migrations) if migrations is not None else load_migrations(find_migrations("postgres"))
    try:
        connection = await _connected(url, lock_timeout=str(round(lock_timeout_s * 1000)))
        try:
            # Taken outside of a transaction: one that began before may not see what was made meanwhile.
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
    """The schema of a record that is only looked at; 0 where there is none.  Raises as
    :func:`migrate_postgres` does."""
    try:
        connection = await _connected(url)
    except DRIVER_ERRORS as error:
        raise store_error(error) from error
    try:
        return await _version(connection, len(load_migrations(find_migrations("postgres"))))
    except DRIVER_ERRORS as error:
        raise store_error(error) from error
    finally:
        await connection.close(timeout=CONNECT_S)


async def _connected(url: str, **settings: str) -> "asyncpg.Connection[Any]":
    try:
        return await connect(url, **settings)
    except ValueError:  # its message may quote the URL
        raise ConfigError(
            "store.url", "is not a PostgreSQL address", "Write postgresql://USER@HOST:5432/DATABASE"
        ) from None


async def _migrate(connection: "asyncpg.Connection[Any]", steps: Sequence[Migration]) -> MigrationReport:
    server = connection.get_server_version()
    if (server.major, server.minor) < _OLDEST_SERVER:
        raise StoreError(f"PostgreSQL {server.major} is too old: {_OLDEST_SERVER[0]} or later is needed")
    before = await _version(connection, len(steps))
    applied: list[str] = []
    for step in steps[before:]:
        async with connection.transaction():
            await _apply(connection, step)
            applied.append(step.name)
    return MigrationReport(before, await _version(connection, len(steps)), tuple(applied))


async def _version(connection: "asyncpg.Connection[Any]", known: int) -> int:
    """The number of the last migration this schema has seen; raises where it is not ours to touch."""
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
        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # an orphan shows here, not at the commit
    except asyncpg.PostgresError as error:
        raise StoreError(f"migration {step.name}: {type(error).__name__}: {error.args[0]}") from error
    if not connection.is_in_transaction():
        raise StoreError(f"migration {step.name} ends its own transaction")
    await connection.execute("INSERT INTO toolrelay_schema (version) VALUES ($1)", step.number)
