"""A PostgreSQL server for the tests, if one is there: each test has its own schema.

``TOOLRELAY_TEST_POSTGRES`` names another server or database than the one on this machine.
"""

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from require import require
from waiting import PATIENCE_S

SERVER = os.environ.get("TOOLRELAY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")


@cache
def _missing() -> str:
    """Return why no server can be used, or an empty string; the result is kept for all tests."""
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

    # This needs another thread, because a test's event loop may be running in the present one.
    thread = threading.Thread(target=lambda: asyncio.run(look()))
    thread.start()
    thread.join()
    return "".join(found)


def need_postgres() -> None:
    """Skip the test if there is no server, or fail it if a server is required."""
    require("postgres", not _missing(), _missing())


@asynccontextmanager
async def new_schema() -> AsyncIterator[str]:
    """Make a new schema and yield a store's URL for it; drop the schema at the end."""
    name = f"toolrelay_{secrets.token_hex(8)}"
    await fetch(SERVER, f"CREATE SCHEMA {name}")
    try:
        yield f"{SERVER}?search_path={name}"
    finally:
        await fetch(SERVER, f"DROP SCHEMA {name} CASCADE")


async def fetch(url: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement on a new connection and return its rows."""
    import asyncpg

    connection = await asyncpg.connect(url, timeout=PATIENCE_S, command_timeout=PATIENCE_S)
    try:
        return [tuple(row.values()) for row in await connection.fetch(sql, *values)]
    finally:
        await connection.close()


@asynccontextmanager
async def locked_table(url: str, table: str) -> AsyncIterator[None]:
    """Hold a lock on a table with another connection."""
    import asyncpg

    holder = await asyncpg.connect(url)
    try:
        async with holder.transaction():
            await holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await holder.close()


class Network:
    """A TCP relay to the server that a test can freeze, so that no byte passes and no connection ends."""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection in both directions."""
        host, _, port = SERVER.rpartition("@")[2].partition("/")[0].partition(":")
        there = await asyncio.open_connection(host, int(port or 5432))
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.ensure_future(self._pipe(source, sink))
            self._tasks.add(task)

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self.flows.wait()
                sink.write(data)
        sink.close()

    async def aclose(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def network_to(url: str) -> AsyncIterator[tuple[Network, str]]:
    """Run a relay to the server of a store's URL, and yield it with the URL through it."""
    wire = Network()
    server = await asyncio.start_server(wire.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = SERVER.partition("://")[2].rpartition("@")[0]
    path = url.rpartition("@")[2].partition("/")[2]
    yield wire, f"postgresql://{user}@127.0.0.1:{port}/{path}"
    server.close()
    wire.flows.set()
    await wire.aclose()
