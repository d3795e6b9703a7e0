"""A server over streamable HTTP: reached only where it may be, and no further."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp_http import real_server
from mcp_rig import no_token
from waiting import LATE_S, PATIENCE_S

from proxy.tools.mcp.host.connection import CallFailed, Connection
from proxy.tools.mcp.host.http import CheckedTransport
from proxy.tools.mcp.servers import HostSettings, Server

LOOPBACK = ("127.0.0.0/8", "::1/128")


def _blue(url: str) -> Server:
    return Server("real", url=url, headers={"x-team": "blue"})


@asynccontextmanager
async def connected(server: Server, networks: tuple[str, ...] = LOOPBACK) -> AsyncIterator[Connection]:
    """A connection in this process."""
    settings = HostSettings(servers=(server,), networks=networks)
    connection = Connection(server, settings, lambda: None, lambda group, runs: None, no_token)
    task = asyncio.create_task(connection.run())
    try:
        await connection.wait(PATIENCE_S)
        yield connection
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_tool_is_called_over_http() -> None:
    """With the operator's headers, and none of the machine's."""
    async with real_server() as (url, seen), connected(_blue(url)) as connection:
        assert connection.status.state == "ready", connection.status.reason
        live = connection.definition("add")
        assert live is not None
        result = await connection.call("add", {"a": 1, "b": 2}, digest=live.digest, timeout_s=LATE_S)
        assert result["content"][0]["text"] == "3"
    assert {headers["x-team"] for headers in seen} == {"blue"}
    assert not {"cookie", "authorization"} & {name for headers in seen for name in headers}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_address_that_is_not_public_is_refused() -> None:
    """Unless the operator opened its network; nothing is sent there."""
    async with real_server() as (url, seen):
        async with connected(Server("real", url=url), networks=()) as connection:
            assert "mcp.networks" in connection.status.reason
            with pytest.raises(CallFailed, match="not connected"):
                await connection.call("add", {}, digest="", timeout_s=0.1)
        assert seen == []


class Answering(httpx2.AsyncBaseTransport):
    """Answers every request with one body, and notes where it was sent."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.sent: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The body."""
        self.sent.append(request)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(self.body), 1 << 20):
                yield self.body[start : start + (1 << 20)]

        return httpx2.Response(200, content=pieces())


async def test_a_connection_is_made_to_the_address_that_was_checked() -> None:
    """The name goes on in the host header and in the certificate that is asked for."""
    inner = Answering(b"{}")
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        await client.get("http://localhost:1234/mcp")
    (request,) = inner.sent
    assert request.url.host in ("127.0.0.1", "::1")
    assert request.headers["host"] == "localhost:1234"
    assert request.extensions["sni_hostname"] == "localhost"


async def test_an_answer_without_an_end_is_cut() -> None:
    """At 16 MiB."""
    inner = Answering(b"x" * (17 << 20))
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        with pytest.raises(httpx2.ReadError, match="longer than"):
            await client.get("http://127.0.0.1:1/mcp")
