"""MCP servers over streamable HTTP that answer by a function, and connections to them in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from aiohttp import web
from in_process import serving_app
from mcp_rig import no_token
from mcp_rules import http_fault, message_fault
from waiting import LATE_S, PATIENCE_S

from proxy.tools.mcp.host.connection import Connection
from proxy.tools.mcp.host.left_behind import Groups
from proxy.tools.mcp.servers import HostSettings, Server

LOOPBACK = ("127.0.0.0/8", "::1/128")


@asynccontextmanager
async def connected(server: Server, networks: tuple[str, ...] = LOOPBACK) -> AsyncIterator[Connection]:
    """Run a connection in this process."""
    settings = HostSettings(servers=(server,), networks=networks, list_every_s=0)
    connection = Connection(server, settings, lambda: None, Groups(lambda runs: None), no_token)
    task = asyncio.create_task(connection.run())
    try:
        await connection.wait(PATIENCE_S)
        yield connection
    finally:
        task.cancel()
        await asyncio.wait({task})


class Answering(httpx2.AsyncBaseTransport):
    """A transport that answers every request with one body and records the requests."""

    def __init__(self, body: bytes, **headers: str) -> None:
        self.body = body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.sent: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Record the request and return the body in pieces."""
        self.sent.append(request)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(self.body), 1 << 20):
                yield self.body[start : start + (1 << 20)]

        return httpx2.Response(200, headers=self.headers, content=pieces())


Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | web.StreamResponse]]

Refusal = Callable[[int | None], web.Response]


@asynccontextmanager
async def scripted(
    answer: Handler,
    sessions: set[str] | None = None,
    refusal: Refusal | None = None,
    *,
    heard: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None,
    reopened: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None,
) -> AsyncIterator[tuple[Server, list[str]]]:
    """Run a server of revision 2025-11-25 that answers by ``answer``; also yield the requested paths.

    It refuses what :mod:`mcp_rules` says.

    With ``sessions`` the server has sessions, and accepts those that are in the set. ``refusal`` is its
    answer to a request of another session. ``heard`` gets each message without a method before it is
    accepted. ``reopened`` answers the requests for an event stream.
    """
    paths: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if wrong := http_fault(request.headers):
            return web.Response(status=wrong.status, text=f"{wrong.name} ({wrong.source})")
        asked = await request.json()
        if "method" not in asked:
            if heard is not None:
                await heard(asked)
            return web.Response(status=202)
        if fault := message_fault(asked):
            return web.json_response({"jsonrpc": "2.0", "id": asked.get("id"), "error": fault})
        begins = asked["method"] == "initialize"
        if sessions is not None and not begins and request.headers.get("mcp-session-id") not in sessions:
            return refusal(asked.get("id")) if refusal else web.Response(status=404, text="no such session")
        if "id" not in asked:
            return web.Response(status=202)
        told: Mapping[str, Any] | web.StreamResponse
        if asked["method"] == "initialize":
            info = {"name": "scripted", "version": "1"}
            made = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            told = {"result": made}
            if sessions is not None:
                sessions.add(session := f"s{len(paths)}")
                whole = {"jsonrpc": "2.0", "id": asked["id"], **told}
                return web.json_response(whole, headers={"mcp-session-id": session})
        elif asked["method"].startswith("tools/"):
            told = await answer(asked)
        else:
            told = {"error": {"code": -32601, "message": "not known"}}
        if isinstance(told, web.StreamResponse):
            return told
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **told})

    app = web.Application()
    app.router.add_post("/{path}", serve)
    if reopened is not None:
        app.router.add_get("/{path}", reopened)
    async with serving_app(app) as address:
        yield Server("toy", url=f"{address}/mcp"), paths


async def call(connection: Connection, tool: str) -> Mapping[str, Any]:
    """Call a tool with the digest of its current definition."""
    live = connection.definition(tool)
    assert live is not None
    return await connection.call(tool, {}, digest=live.digest, timeout_s=LATE_S)


def body_of(text: str | bytes, kind: str = "application/json", status: int = 200) -> web.Response:
    """Return a response with this body and type."""
    body = text.encode() if isinstance(text, str) else text
    return web.Response(body=body, content_type=kind, status=status)
