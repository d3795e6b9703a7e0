"""MCP servers over streamable HTTP: the addresses they may have, and their malformed answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from mcp_http import real_server
from mcp_rig import no_token
from mcp_script import tool_definition
from waiting import LATE_S, PATIENCE_S, until

from proxy.tools.mcp.host.connection import CallFailed, Connection
from proxy.tools.mcp.host.http import CheckedTransport
from proxy.tools.mcp.servers import HostSettings, Server

LOOPBACK = ("127.0.0.0/8", "::1/128")


def _blue(url: str) -> Server:
    return Server("real", url=url, headers={"x-team": "blue"})


@asynccontextmanager
async def connected(server: Server, networks: tuple[str, ...] = LOOPBACK) -> AsyncIterator[Connection]:
    """Run a connection in this process."""
    settings = HostSettings(servers=(server,), networks=networks, list_every_s=0)
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
    """A call over HTTP works, with the configured headers and without cookies or credentials."""
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
    """The proxy sends nothing to a server at a private address unless mcp.networks allows it."""
    async with real_server() as (url, seen):
        async with connected(Server("real", url=url), networks=()) as connection:
            assert "mcp.networks" in connection.status.reason
            with pytest.raises(CallFailed, match="not connected"):
                await connection.call("add", {}, digest="", timeout_s=0.1)
        assert seen == []


class Answering(httpx2.AsyncBaseTransport):
    """A transport that answers every request with one body and records the requests."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.sent: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Record the request and return the body in pieces."""
        self.sent.append(request)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(self.body), 1 << 20):
                yield self.body[start : start + (1 << 20)]

        return httpx2.Response(200, content=pieces())


async def test_a_connection_is_made_to_the_address_that_was_checked() -> None:
    """The transport connects to the checked address, with the name in the host header and in SNI."""
    inner = Answering(b"{}")
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        await client.get("http://localhost:1234/mcp")
    (request,) = inner.sent
    assert request.url.host in ("127.0.0.1", "::1")
    assert request.headers["host"] == "localhost:1234"
    assert request.extensions["sni_hostname"] == "localhost"


async def test_an_answer_without_an_end_is_cut() -> None:
    """The transport stops reading an answer after 16 MiB."""
    inner = Answering(b"x" * (17 << 20))
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        with pytest.raises(httpx2.ReadError, match="longer than"):
            await client.get("http://127.0.0.1:1/mcp")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_an_event_stream_may_be_long_and_its_events_may_not(end: bytes) -> None:
    """The limit of 16 MiB holds for one event, not for the stream, with any kind of line ends."""
    event = b"data: " + b"x" * (700_001) + end
    inner = Answering(event * 30)
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        answer = await client.get("http://127.0.0.1:1/mcp")
        assert len(answer.content) == len(inner.body) > 16 << 20
        inner.body = event + b"data: " + b"x" * (17 << 20) + end
        with pytest.raises(httpx2.ReadError, match="longer than"):
            await client.get("http://127.0.0.1:1/mcp")


Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | web.StreamResponse]]


@asynccontextmanager
async def scripted(
    answer: Handler, sessions: set[str] | None = None
) -> AsyncIterator[tuple[Server, list[str]]]:
    """Run a server of revision 2025-11-25 that answers by ``answer``; also yield the requested paths.

    With ``sessions`` the server has sessions, and accepts those that are in the set.
    """
    paths: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        asked = await request.json()
        begins = asked["method"] == "initialize"
        if sessions is not None and not begins and request.headers.get("mcp-session-id") not in sessions:
            return web.Response(status=404, text="no such session")
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
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Server("toy", url=f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"), paths
    finally:
        await runner.cleanup()


async def call(connection: Connection, tool: str) -> Mapping[str, Any]:
    """Call a tool with the digest of its current definition."""
    live = connection.definition(tool)
    assert live is not None
    return await connection.call(tool, {}, digest=live.digest, timeout_s=LATE_S)


async def test_an_empty_cursor_is_one() -> None:
    """An empty cursor leads to another page; the list ends only without a cursor."""

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if "cursor" not in asked.get("params", {}):
            return {"result": {"tools": [tool_definition("a")], "nextCursor": ""}}
        return {"result": {"tools": [tool_definition("b")]}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        assert connection.definition("a") is not None
        assert connection.definition("b") is not None


async def test_pages_without_an_end_end() -> None:
    """The proxy reads at most 100 pages of tools and uses the tools that it has got."""
    pages: list[Any] = []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        pages.append(asked)
        return {"result": {"tools": [tool_definition("a")] if len(pages) == 1 else [], "nextCursor": "x"}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        assert connection.definition("a") is not None
        assert len(pages) == 100


async def test_a_server_has_so_many_calls_open() -> None:
    """The 33rd concurrent call of a server is refused at once, and the other 32 get their results."""
    go_on, waiting = asyncio.Event(), []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("a")]}}
        waiting.append(asked)
        await go_on.wait()
        return {"result": {"content": []}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        calls = [asyncio.create_task(call(connection, "a")) for _ in range(32)]
        await until(lambda: len(waiting) == 32)
        with pytest.raises(CallFailed) as caught:
            await call(connection, "a")
        assert caught.value.kind == "busy"
        go_on.set()
        assert await asyncio.gather(*calls) == [{"content": []}] * 32
    assert len(waiting) == 32


async def test_a_redirect_to_another_origin_is_not_followed() -> None:
    """The proxy does not follow a redirect to another origin, and the server is not connected."""

    async def fine(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"result": {"tools": [tool_definition("a")]}}

    async with scripted(fine) as (other, reached):

        async def answer(asked: Mapping[str, Any]) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": other.url})

        async with scripted(answer) as (server, _), connected(server) as connection:
            assert connection.status.state != "ready"
    assert reached == []


async def test_a_call_whose_session_the_server_forgot_is_made_in_a_new_one() -> None:
    """A call refused for an unknown session is repeated once in a new session, because it did not run."""
    sessions: set[str] = set()
    runs: list[Any] = []
    forgetful = False

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if asked["method"] == "tools/list":
            if forgetful:
                sessions.clear()
            return {"result": {"tools": [tool_definition("a")]}}
        runs.append(asked)
        return {"result": {"content": []}}

    async with scripted(answer, sessions) as (server, _), connected(server) as connection:
        assert connection.status.state == "ready", connection.status.reason
        await call(connection, "a")
        sessions.clear()
        assert await call(connection, "a") == {"content": []}
        assert (len(runs), connection.history.connects) == (2, 2)
        sessions.clear()
        forgetful = True
        with pytest.raises(CallFailed) as caught:
            await call(connection, "a")
        assert caught.value.kind == "away"
        assert len(runs) == 2


class Cut(web.Response):
    """An answer that resets the connection before any byte is sent."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        assert request.transport is not None
        request.transport.abort()
        return None


async def test_calls_whose_connection_is_cut_have_an_unknown_outcome() -> None:
    """If a connection is reset, all open calls have an unknown outcome, and later calls work."""
    waiting = asyncio.Event()

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("cut"), tool_definition("stays")]}}
        if asked["params"]["name"] == "cut":
            return Cut()
        if not waiting.is_set():
            waiting.set()
            await asyncio.sleep(LATE_S)
        return {"result": {"content": []}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        beside = asyncio.create_task(call(connection, "stays"))
        await asyncio.wait_for(waiting.wait(), LATE_S)
        cut = asyncio.create_task(call(connection, "cut"))
        failed = await asyncio.gather(beside, cut, return_exceptions=True)
        assert [one.kind for one in failed if isinstance(one, CallFailed)] == ["lost", "lost"]
        assert await call(connection, "stays") == {"content": []}
        assert connection.history.connects == 2


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_method_that_a_server_does_not_know_ends_no_session(compressed: bool) -> None:
    """A 404 with a JSON-RPC error is an error of the call; the session goes on."""
    error = {"code": -32601, "message": "not known"}

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("a")]}}
        told = web.json_response({"jsonrpc": "2.0", "id": asked["id"], "error": error}, status=404)
        if compressed:
            told.enable_compression(web.ContentCoding.gzip)
        return told

    async with scripted(answer, set()) as (server, _), connected(server) as connection:
        with pytest.raises(CallFailed) as caught:
            await call(connection, "a")
        assert (caught.value.kind, caught.value.error) == ("error", error)
        assert connection.history.connects == 1


def _body(text: str | bytes, kind: str = "application/json", status: int = 200) -> web.Response:
    body = text.encode() if isinstance(text, str) else text
    return web.Response(body=body, content_type=kind, status=status)


MALFORMED: Mapping[str, Callable[[int], web.Response]] = {
    "cut": lambda number: _body(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{'),
    "other id": lambda number: _body('{"jsonrpc": "2.0", "id": 9999, "result": {"content": []}}'),
    "no id": lambda number: _body('{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "x"}}'),
    "batch": lambda number: _body(f'[{{"jsonrpc": "2.0", "id": {number}, "result": {{}}}}]'),
    "nothing": lambda number: _body(""),
    "deep": lambda number: _body('{"a":' * 3000 + "1" + "}" * 3000),
    "bytes": lambda number: _body(b'{"jsonrpc": "2.0", "id": 1, "result": {"x": "\xff"}}'),
    "surrogate": lambda number: _body(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{"x": "\\ud800"}}}}'),
    "page": lambda number: _body("<html>", "text/html"),
    "accepted": lambda number: _body("", status=202),
    "failed": lambda number: _body("oops", "text/plain", 500),
    "event": lambda number: _body('data: {"jsonrpc"\n\n', "text/event-stream"),
    "no event": lambda number: _body("", "text/event-stream"),
}


@pytest.mark.parametrize("malformed", MALFORMED)
async def test_an_answer_that_is_none_fails_its_call_at_once(malformed: str) -> None:
    """A malformed answer fails its call only; the session goes on, and the error does not quote it."""

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("bad"), tool_definition("good")]}}
        if asked["params"]["name"] == "bad":
            return MALFORMED[malformed](asked["id"])
        return {"result": {"content": []}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(CallFailed) as caught:
                await call(connection, "bad")
        assert caught.value.kind == ("lost" if malformed == "no event" else "error")
        assert "jsonrpc" not in caught.value.words
        assert "pydantic" not in caught.value.words
        assert await call(connection, "good") == {"content": []}
        assert connection.history.connects == 1


async def test_a_flood_of_events_does_not_keep_a_result_back() -> None:
    """A call gets its result after 5,000 events, and a change of the tool list among them is noticed."""
    note = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}'
    changed = '{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}'
    lists: list[Any] = []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            lists.append(asked)
            return {"result": {"tools": [tool_definition("a")]}}
        result = f'{{"jsonrpc": "2.0", "id": {asked["id"]}, "result": {{"content": []}}}}'
        events = "".join(f"event: message\ndata: {data}\n\n" for data in [*[note] * 5000, changed, result])
        return _body(events, "text/event-stream")

    async with scripted(answer) as (server, _), connected(server) as connection:
        assert await call(connection, "a") == {"content": []}
        await until(lambda: len(lists) == 2)


async def test_a_connection_that_fails_can_be_ended_at_any_moment() -> None:
    """A connection task that keeps failing ends as cancelled, at whatever moment it is cancelled."""

    async def answer(asked: Mapping[str, Any]) -> web.StreamResponse:
        return web.Response(status=401)

    async with scripted(answer) as (server, paths):
        settings = HostSettings(servers=(server,), networks=LOOPBACK)
        for moment in range(30):
            connection = Connection(server, settings, lambda: None, lambda group, runs: None, no_token)
            task = asyncio.create_task(connection.run())
            met = len(paths)
            await until(lambda met=met: len(paths) > met)  # type: ignore[misc]
            for _ in range(moment * 3):
                await asyncio.sleep(0)
            task.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait({task})
            assert task.cancelled()
