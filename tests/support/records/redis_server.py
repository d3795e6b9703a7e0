"""A Redis server for the tests, and a TCP proxy before it whose connections a test can break.

``TOOLRELAY_TEST_REDIS`` names another server than the one on this machine.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from urllib.parse import urlsplit

import pytest
from require import require
from waiting import PATIENCE_S

HURRY = "proxy.server.limits.redis.ANSWER_S"
"""The proxy's timeout for Redis, which is so short that Redis looks unavailable on a busy machine."""

SERVER = os.environ.get("TOOLRELAY_TEST_REDIS", "redis://127.0.0.1:6379/0")


@cache
def _missing() -> str:
    """Return why no server can be used, or an empty string; the result is kept for all tests."""
    try:
        import redis
    except ModuleNotFoundError:
        return "redis is not installed"
    try:
        with redis.Redis.from_url(SERVER, socket_timeout=PATIENCE_S) as client:
            client.ping()
    except redis.RedisError as error:
        return f"no Redis answers at {SERVER.rpartition('@')[2]}: {type(error).__name__}"
    return ""


def need_redis() -> None:
    """Skip the test if there is no server, or fail it if a server is required."""
    require("redis", not _missing(), _missing())


@asynccontextmanager
async def own_prefix() -> AsyncIterator[str]:
    """Yield a prefix that no other test has, and delete its keys at the end.

    Until then, the proxy waits long for Redis.
    """
    from redis.asyncio import Redis

    need_redis()
    prefix = f"test-{secrets.token_hex(8)}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HURRY, PATIENCE_S)
            yield prefix
    finally:
        async with Redis.from_url(SERVER) as client:
            if keys := [key async for key in client.scan_iter(f"{prefix}:*", count=1000)]:
                await client.delete(*keys)


class Cable:
    """A TCP proxy that forwards connections to the server until a test breaks them."""

    def __init__(self) -> None:
        self.port = 0
        self.mode = "through"
        self.accepted = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._mended = asyncio.Event()

    @property
    def url(self) -> str:
        """The address at which clients reach the server through this proxy."""
        return f"redis://127.0.0.1:{self.port}{urlsplit(SERVER).path}"

    def cut(self) -> None:
        """Break all connections, and break new ones at once."""
        self.mode = "cut"
        for writer in self._writers:
            writer.transport.abort()

    def hang(self) -> None:
        """Hold all data back without closing the connections."""
        self.mode = "hang"
        self._mended.clear()

    def mend(self) -> None:
        """Forward data again."""
        self.mode = "through"
        self._mended.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.accepted += 1
        if self.mode == "cut":
            writer.transport.abort()
            return
        parts = urlsplit(SERVER)
        theirs_in, theirs_out = await asyncio.open_connection(parts.hostname, parts.port or 6379)
        self._writers |= {writer, theirs_out}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, theirs_out), self._pump(theirs_in, writer))
        for end in (writer, theirs_out):
            end.transport.abort()
            self._writers.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.mode == "hang":
                await self._mended.wait()
            writer.write(data)
        writer.transport.abort()


@asynccontextmanager
async def cable() -> AsyncIterator[Cable]:
    """Run a TCP proxy before the server."""
    need_redis()
    made = Cable()
    made._mended.set()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.mend()
        made.cut()
        server.close()
        await server.wait_closed()
