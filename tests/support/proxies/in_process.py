"""Servers in the process of a test: pytest-aiohttp starts them, and ends what the test leaves running.

Its fixtures belong to the event loop of one test. In any other loop (of a module, a thread, a script) the
same classes start the servers, and the end of the block ends them.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, TypeVar

from aiohttp import DummyCookieJar, TCPConnector, web
from aiohttp.test_utils import BaseTestServer, TestClient, TestServer
from waiting import PATIENCE_S

from proxy.server.connections.application import Application
from proxy.server.connections.runner import EdgeRunner

T = TypeVar("T")


class ProxyServer(BaseTestServer):
    """Serves an application as the command does."""

    def __init__(self, application: Application) -> None:
        super().__init__()
        self._application = application

    async def _make_runner(self, **_: Any) -> EdgeRunner:
        return EdgeRunner(self._application, shutdown_timeout=2.0)


async def _client_of(server: BaseTestServer, **options: Any) -> TestClient[Any, Any]:
    client = TestClient[Any, Any](server, **options)
    await client.start_server()
    return client


async def _server_of(application: web.Application, **options: Any) -> TestServer:
    server = TestServer(application)
    await server.start_server(**options)
    return server


class Starters:
    """What starts a server and a client of it, and a server alone: during a test, its fixtures."""

    aiohttp_client: ClassVar[Callable[..., Awaitable[TestClient[Any, Any]]]] = _client_of
    aiohttp_server: ClassVar[Callable[..., Awaitable[TestServer]]] = _server_of


@contextmanager
def in_thread(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run a server in a thread of its own, for a test of a command that takes this thread."""
    ready, stop, made = threading.Event(), threading.Event(), list[T]()

    async def serve() -> None:
        async with server as one:
            made.append(one)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield made[0]
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@asynccontextmanager
async def serving_proxy(application: Application) -> AsyncIterator[TestClient[Any, Any]]:
    """Serve an application of the proxy on a free port, and yield a client of it."""
    jar, connector = DummyCookieJar(), TCPConnector(force_close=True)
    async with await Starters.aiohttp_client(
        ProxyServer(application), cookie_jar=jar, connector=connector
    ) as client:
        yield client


@asynccontextmanager
async def serving_app(application: web.Application, **options: Any) -> AsyncIterator[str]:
    """Serve an application of aiohttp on a free port, and yield its address without a slash at the end."""
    options = {"access_log": None, "shutdown_timeout": 1, **options}
    server = await Starters.aiohttp_server(application, **options)
    async with server:
        yield str(server.make_url("")).rstrip("/")
