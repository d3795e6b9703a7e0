"""An MCP server's answer of 10 MB or more fails its own call and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from chat_script import content, finish, role, stream
from in_process import serving_app
from mcp_proxy import FINE, ask, mcp_proxy, obedient, said
from mcp_rig import Hosted, hosted
from mcp_script import calls_of, scripted, tool_definition
from raw_upstream import RawRequest, Step
from waiting import LATE_S, until

from proxy.base.errors import ToolFailure
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server

TEN_MB = 10_000_000
TOO_MUCH = 17 << 20
"""More than the proxy reads of one message."""

TOOLS = [tool_definition("large"), tool_definition("endless"), tool_definition("a")]


def large(size: int) -> Mapping[str, Any]:
    """Return a result with a text of this size."""
    return {"result": {"content": [{"type": "text", "text": "x" * size}]}}


@asynccontextmanager
async def over_http(*, events: bool = False) -> AsyncIterator[Server]:
    """A server of 2025-11-25 that answers in JSON, or with one event of a stream."""

    async def serve(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        match asked["method"], asked.get("params", {}).get("name"):
            case "initialize", _:
                info = {"name": "scripted", "version": "1"}
                made = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
                told: Mapping[str, Any] = {"result": made}
            case "tools/list", _:
                told = {"result": {"tools": TOOLS}}
            case "tools/call", "large":
                told = large(TEN_MB)
            case "tools/call", "endless":
                told = large(TOO_MUCH)
            case "tools/call", _:
                told = FINE
            case _:
                told = {"error": {"code": -32601, "message": "not known"}}
        whole = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told})
        if events:
            return web.Response(text=f"event: message\ndata: {whole}\n\n", content_type="text/event-stream")
        return web.Response(text=whole, content_type="application/json")

    app = web.Application()
    app.router.add_post("/mcp", serve)
    async with serving_app(app) as address:
        yield Server("toy", url=f"{address}/mcp")


@asynccontextmanager
async def over_stdio(folder: Path) -> AsyncIterator[Server]:
    """The same server over standard input and output."""
    answers = {"large": large(TEN_MB), "endless": large(TOO_MUCH), "a": FINE}
    yield scripted(folder, TOOLS, answers)


def over(transport: str, folder: Path) -> AbstractAsyncContextManager[Server]:
    """The server over a transport."""
    return over_stdio(folder) if transport == "stdio" else over_http(events=transport == "events")


async def call(host: Hosted, server: str, tool: str) -> str:
    """Call a tool; return its text."""
    digest = (await host.definitions(server))[tool].digest
    return read_result(await host.client.call(server, tool, digest, {}, LATE_S)).text


@pytest.mark.parametrize("transport", ["stdio", "http", "events"])
async def test_a_large_answer_fails_its_own_call_alone(tmp_path: Path, transport: str) -> None:
    """The call fails with the reason and that the tool ran; calls of this and another server go on."""
    other = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="other")
    async with over(transport, tmp_path) as toy, hosted(toy, other, networks=("127.0.0.0/8",)) as host:
        await host.becomes("toy", "ready")
        await host.becomes("other", "ready")
        asking = asyncio.create_task(call(host, "toy", "large"))
        beside = [await call(host, "other", "a") for _ in range(20)]
        assert beside == ["fine"] * 20
        with pytest.raises(ToolFailure, match="the tool ran, but its result is larger than 8388608 bytes"):
            await asking
        assert await call(host, "toy", "a") == "fine"
        # The large answer did not end the connection.
        assert host.client.statuses["toy"].reconnects == 0


@pytest.mark.parametrize(
    ("transport", "words", "reconnects"),
    [
        ("stdio", "the server wrote a line of more than 16777216 bytes", 1),
        ("http", "the server's answer is larger than 16777216 bytes", 0),
        ("events", "the server's answer is larger than 16777216 bytes", 0),
    ],
)
async def test_an_answer_past_the_bound_is_not_read(
    tmp_path: Path, transport: str, words: str, reconnects: int
) -> None:
    """The call fails with an unknown outcome; a server over stdio restarts, and no other is affected."""
    other = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="other")
    async with over(transport, tmp_path) as toy, hosted(toy, other, networks=("127.0.0.0/8",)) as host:
        await host.becomes("toy", "ready")
        await host.becomes("other", "ready")
        with pytest.raises(ToolFailure, match=f"{words}.*; it may have taken effect"):
            await call(host, "toy", "endless")
        assert await call(host, "other", "a") == "fine"
        assert host.client.statuses["other"].reconnects == 0
        await host.becomes("toy", "ready")
        assert await call(host, "toy", "a") == "fine"
        assert host.client.statuses["toy"].reconnects == reconnects


async def test_streams_beside_a_large_answer(tmp_path: Path) -> None:
    """The model gets the reason, and a stream beside the call ends as usual."""
    middle = asyncio.Event()

    def model(request: RawRequest) -> list[Step]:
        """Return a stream with a pause if one is asked for, else an answer of the obedient model."""
        if json.loads(request.body).get("stream"):
            first, *rest = stream(role(), content("before"), content("after"), finish())
            return [first, *rest[:2], middle, *rest[2:]]
        return obedient(request)

    server = scripted(tmp_path, TOOLS, {"large": large(TEN_MB), "a": FINE})
    async with mcp_proxy(server, model=model) as (proxy, _, _):
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go on"}]}
        streaming = asyncio.create_task(proxy.ask(body))
        answer = said(await proxy.ask(ask("mcp__toy__large")))
        assert "its result is larger than 8388608 bytes" in answer
        await until(lambda: calls_of(tmp_path) == ["large"])
        middle.set()
        streamed = await streaming
        assert streamed.status == 200
        assert b"before" in streamed.body
        assert b"after" in streamed.body
        assert streamed.body.rstrip().endswith(b"data: [DONE]")
