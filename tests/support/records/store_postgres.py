"""A PostgreSQL server for the tests: a schema for each, on a server that may not be there.

``TOOLRELAY_TEST_POSTGRES`` names another server or database than the one on this machine.
"""

import asyncio
import os
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from require import require
from waiting import PATIENCE_S

__all__ = ["SERVER", "fetch", "locked_table", "need_postgres", "new_schema"]

SERVER = os.environ.get("TOOLRELAY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")


@cache
def _missing() -> str:
    """Why no server can be used, once for all tests; empty where one can."""
    try:
        import asyncpg
    except ModuleNotFoundError:
        return "asyncpg is not installed"
    found: list[str] = []

    async def look() -> None:
        try:
            connection = await asyncpg.connect(SERVER, timeout=PATIENCE_S)
            await connection.close()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            found.append(f"no PostgreSQL answers at {SERVER.rpartition('@')[2]}: {type(error).__name__}")

    # In a thread of its own: a test's loop may be running in this one.
    thread = threading.Thread(target=lambda: asyncio.run(look()))
    thread.start()
    thread.join()
    return "".join(found)


def need_postgres() -> None:
    """Skip the test where there is no server, or fail it where one is required."""
    require("postgres", not _missing(), _missing())


@asynccontextmanager
async def new_schema() -> AsyncIterator[str]:
    """A schema of its own, as a URL for a store; gone afterwards."""
    name = f"toolrelay_{secrets.token_hex(8)}"
    await fetch(SERVER, f"CREATE SCHEMA {name}")
    try:
        yield f"{SERVER}?search_path={name}"
    finally:
        await fetch(SERVER, f"DROP SCHEMA {name} CASCADE")


async def fetch(url: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a database read, or a statement run, by a connection of the test's own."""
    import asyncpg

    connection = await asyncpg.connect(url, timeout=PATIENCE_S, command_timeout=PATIENCE_S)
    try:
        return [tuple(row.values()) for row in await connection.fetch(sql, *values)]
    finally:
        await connection.close()


@asynccontextmanager
async def locked_table(url: str, table: str) -> AsyncIterator[None]:
    """A table that somebody else holds."""
    import asyncpg

    holder = await asyncpg.connect(url)
    try:
        async with holder.transaction():
            await holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await holder.close()
