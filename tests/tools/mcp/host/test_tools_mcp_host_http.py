"""MCP servers over streamable HTTP: the addresses they may have, and their malformed answers."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from in_process import serving_app
from mcp_answers import LOOPBACK, Answering, body_of, call, connected, scripted
from mcp_http import real_server
from mcp_rig import no_token
from mcp_script import tool_definition
from own_authority import make_certificate
from waiting import LATE_S, PATIENCE_S, until

from proxy.tools.mcp.host.connection import CallFailed, Connection
from proxy.tools.mcp.host.http import CheckedTransport
from proxy.tools.mcp.host.left_behind import Groups
from proxy.tools.mcp.servers import HostSettings, Server


def _blue(url: str) -> Server:
    return Server("real", url=url, headers={"x-team": "blue"})


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
@pytest.mark.parametrize(
    ("region", "header"),
    [("eu-1", "eu-1"), ("a\r\nx-evil: 1", "=?base64?YQ0KeC1ldmlsOiAx?="), ("köln", "=?base64?a8O2bG4=?=")],
)
async def test_arguments_are_mirrored_into_headers(region: str, header: str) -> None:
    """An argument with ``x-mcp-header`` is sent as a safe header too; the SDK's server refuses calls without.

    Source: MCP 2026-07-28, Transports, "Custom Headers".
    """
    async with real_server() as (url, seen), connected(_blue(url)) as connection:
        live = connection.definition("route")
        assert live is not None
        arguments = {"region": region, "urgent": True, "note": "x"}
        result = await connection.call("route", arguments, digest=live.digest, timeout_s=LATE_S)
        assert result["content"][0]["text"] == f"{region} True x"
        with pytest.raises(CallFailed, match="longer than 8192 bytes"):
            await connection.call("route", {"region": "x" * 9000}, digest=live.digest, timeout_s=LATE_S)
    (call,) = [headers for headers in seen if headers.get("mcp-method") == "tools/call"]
    assert (call["mcp-param-region"], call["mcp-param-urgent"]) == (header, "true")
    assert not [name for name in call if name in ("x-evil", "mcp-param-note")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_address_that_is_not_public_is_refused() -> None:
    """The proxy sends nothing to a server at a private address unless mcp.networks allows it."""
    async with real_server() as (url, seen):
        async with connected(Server("real", url=url), networks=()) as connection:
            assert "mcp.networks" in connection.status.reason
            with pytest.raises(CallFailed, match="not connected"):
                await connection.call("add", {}, digest="", timeout_s=0.1)
        assert seen == []


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_an_authority_named_in_the_environment_is_trusted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate of an authority that the environment names is accepted, and otherwise it is not."""
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(request: web.Request) -> web.Response:
        return web.Response(text="fine")

    app = web.Application()
    app.router.add_get("/", serve)
    async with serving_app(app, ssl=context) as address:
        url = address.replace("127.0.0.1", "localhost") + "/"
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.delenv("SSL_CERT_DIR", raising=False)
        async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK)) as client:
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get(url)
        monkeypatch.setenv(name, str(certificate if name == "SSL_CERT_FILE" else tmp_path))
        async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK)) as client:
            assert (await client.get(url)).text == "fine"


async def test_a_connection_is_made_to_the_address_that_was_checked() -> None:
    """The transport connects to the checked address, with the name in the host header and in SNI."""
    inner = Answering(b"{}")
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        await client.get("http://localhost:1234/mcp")
    (request,) = inner.sent
    assert request.url.host in ("127.0.0.1", "::1")
    assert request.headers["host"] == "localhost:1234"
    assert request.extensions["sni_hostname"] == "localhost"


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


MALFORMED: Mapping[str, Callable[[int], web.Response]] = {
    "cut": lambda number: body_of(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{'),
    "other id": lambda number: body_of('{"jsonrpc": "2.0", "id": 9999, "result": {"content": []}}'),
    "no id": lambda number: body_of('{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "x"}}'),
    "batch": lambda number: body_of(f'[{{"jsonrpc": "2.0", "id": {number}, "result": {{}}}}]'),
    "nothing": lambda number: body_of(""),
    "deep": lambda number: body_of('{"a":' * 3000 + "1" + "}" * 3000),
    "bytes": lambda number: body_of(b'{"jsonrpc": "2.0", "id": 1, "result": {"x": "\xff"}}'),
    "surrogate": lambda number: body_of(
        f'{{"jsonrpc": "2.0", "id": {number}, "result": {{"x": "\\ud800"}}}}'
    ),
    "page": lambda number: body_of("<html>", "text/html"),
    "accepted": lambda number: body_of("", status=202),
    "failed": lambda number: body_of("oops", "text/plain", 500),
    "event": lambda number: body_of('data: {"jsonrpc"\n\n', "text/event-stream"),
    "no event": lambda number: body_of("", "text/event-stream"),
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


async def test_a_connection_that_fails_can_be_ended_at_any_moment() -> None:
    """A connection task that keeps failing ends as cancelled, at whatever moment it is cancelled."""

    async def answer(asked: Mapping[str, Any]) -> web.StreamResponse:
        return web.Response(status=401)

    async with scripted(answer) as (server, paths):
        settings = HostSettings(servers=(server,), networks=LOOPBACK)
        for moment in range(30):
            connection = Connection(server, settings, lambda: None, Groups(lambda runs: None), no_token)
            task = asyncio.create_task(connection.run())
            met = len(paths)
            await until(lambda met=met: len(paths) > met)  # type: ignore[misc]
            for _ in range(moment * 3):
                await asyncio.sleep(0)
            task.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait({task})
            assert task.cancelled()
