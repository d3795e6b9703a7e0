"""What a server over HTTP may send: its answers, its events and its list of tools have bounds."""

import asyncio
import contextlib
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from hypothesis import given
from hypothesis import strategies as st
from mcp_answers import LOOPBACK, Answering, body_of, call, connected, scripted
from mcp_script import tool_definition
from waiting import LATE_S, until

from proxy.tools.mcp.host import http
from proxy.tools.mcp.host.bounds import TOO_LONG, Room
from proxy.tools.mcp.host.connection import CallFailed
from proxy.tools.mcp.host.http import CheckedTransport, _BoundedEvents


async def test_an_answer_without_an_end_is_cut() -> None:
    """The transport stops reading an answer after 16 MiB."""
    inner = Answering(b"x" * (17 << 20))
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        with pytest.raises(httpx2.ReadError, match="larger than"):
            await client.get("http://127.0.0.1:1/mcp")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", " GZIP "])
async def test_the_limit_holds_for_what_is_decompressed(encoding: str) -> None:
    """A compressed answer may have 16 MiB when it is decompressed, whatever it had before."""
    for size in (15 << 20, 1 << 30):
        packer = zlib.compressobj(9, zlib.DEFLATED, 15 if encoding == "deflate" else 31)
        packed = b"".join(packer.compress(b"x" * (1 << 20)) for _ in range(size >> 20)) + packer.flush()
        inner = Answering(packed, content_encoding=encoding)
        async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
            if size > 16 << 20:
                tracemalloc.start()
                with pytest.raises(httpx2.ReadError, match="larger than"):
                    await client.get("http://127.0.0.1:1/mcp")
                assert tracemalloc.get_traced_memory()[1] < 64 << 20
                tracemalloc.stop()
            else:
                assert len((await client.get("http://127.0.0.1:1/mcp")).content) == size


@pytest.mark.parametrize(("encoding", "body"), [("br", b"x"), ("gzip, gzip", b"x"), ("gzip", b"no gzip")])
async def test_another_compression_is_refused(encoding: str, body: bytes) -> None:
    """An answer that is compressed in another way, or twice, is not read."""
    inner = Answering(body, content_encoding=encoding)
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        with pytest.raises(httpx2.DecodingError, match="compressed"):
            await client.get("http://127.0.0.1:1/mcp")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_an_event_stream_may_be_long_and_its_events_may_not(end: bytes) -> None:
    """The limit of 16 MiB holds for one event, not for the stream, with any kind of line ends."""
    event = b"data: " + b"x" * (700_001) + end
    inner = Answering(event * 30, content_type="text/event-stream")
    async with httpx2.AsyncClient(transport=CheckedTransport(LOOPBACK, inner=inner)) as client:
        answer = await client.get("http://127.0.0.1:1/mcp")
        assert answer.content == inner.body
        assert len(answer.content) > 16 << 20
        for bad in (b"x" * (17 << 20), b"[" + b"1," * 150_000 + b"1]"):
            inner.body = event + b"data: " + bad + end
            told = (await client.get("http://127.0.0.1:1/mcp")).content
            assert str(TOO_LONG).encode() in told
            assert len(told) < len(event) + 1000


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\r", b": c", b'"[,', b""])), st.data())
def test_events_are_passed_on_whole_however_they_come(parts: list[bytes], data: st.DataObject) -> None:
    """Every byte of a stream is passed on in order, in pieces that end with an event, but for the last."""
    body = b"".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)))))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def read() -> list[bytes]:
        async def told() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return [piece async for piece in _BoundedEvents(httpx2.ByteStream(b""), told(), Room())]

    got = asyncio.run(read())
    assert b"".join(got) == body
    assert all(piece.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) for piece in got[:-1])


async def test_open_answers_have_a_bound_together() -> None:
    """Answers that are not complete may have 32 MiB over all streams of a server, and then make room."""
    inner = Answering(b"x" * (15 << 20))
    checked = CheckedTransport(LOOPBACK, inner=inner)
    async with httpx2.AsyncClient(transport=checked) as client, contextlib.AsyncExitStack() as stack:

        async def begin() -> httpx2.Response:
            opened = client.stream("GET", "http://127.0.0.1:1/mcp")
            return await stack.enter_async_context(opened)

        async def most_of(response: httpx2.Response) -> None:
            pieces = response.aiter_raw()
            for _ in range(14):
                await anext(pieces)
            kept.append(pieces)

        kept: list[AsyncIterator[bytes]] = []
        for _ in range(2):
            await most_of(await begin())
        with pytest.raises(httpx2.ReadError, match="too large together"):
            await most_of(await begin())
        for pieces in kept:
            assert len([piece async for piece in pieces]) == 1
        assert len(await (await begin()).aread()) == len(inner.body)


@pytest.mark.parametrize("events", [False, True])
async def test_an_answer_with_too_many_values_fails_its_call(events: bool) -> None:
    """An answer of many tiny values fails its call, and the session goes on."""

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("many"), tool_definition("a")]}}
        if asked["params"]["name"] == "a":
            return {"result": {"content": []}}
        many = f'{{"jsonrpc": "2.0", "id": {asked["id"]}, "result": {{"x": [{"[]," * 150_000}1]}}}}'
        return body_of(f"data: {many}\n\n", "text/event-stream") if events else body_of(many)

    async with scripted(answer) as (server, _), connected(server) as connection:
        with pytest.raises(CallFailed, match="100000 values") as caught:
            await call(connection, "many")
        assert caught.value.kind == "lost"
        assert await call(connection, "a") == {"content": []}
        assert connection.history.connects == 1


async def test_requests_over_http_without_a_pause_take_no_memory() -> None:
    """Of a stream of requests no more is read than is answered, one answer after another."""
    pinged = 0
    go_on = asyncio.Event()

    async def refuse(asked: Mapping[str, Any]) -> None:
        """Keep the answers to our requests back."""
        if "result" in asked:
            await go_on.wait()

    class Pings(web.StreamResponse):
        async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
            nonlocal pinged
            self.content_type = "text/event-stream"
            writer = await super().prepare(request)
            with contextlib.suppress(ConnectionError):
                while pinged < 200_000:
                    pinged += 100
                    ping = 'data: {"jsonrpc": "2.0", "id": 1, "method": "ping"}\n\n'
                    await self.write(ping.encode() * 100)
            return writer

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("a")]}}
        return Pings()

    async with scripted(answer, heard=refuse) as (server, _), connected(server) as connection:
        with pytest.raises(CallFailed, match="does not take the answers") as caught:
            await call(connection, "a")
        assert caught.value.kind == "lost"
        # What the buffers of both ends and of the system hold, and no more.
        assert pinged < 200_000
        go_on.set()


async def test_a_server_has_no_more_streams_opened_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends each event stream and wants another at once gets a bounded number of them."""
    monkeypatch.setattr(http, "_MAX_STREAMS", 5)
    monkeypatch.setattr(http, "_STREAMS_S", LATE_S)

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("a")]}}
        return body_of("id: 1\nretry: 0\ndata:\n\n", "text/event-stream")

    opened: list[str] = []

    async def reopen(request: web.Request) -> web.Response:
        opened.append(request.path)
        return body_of("id: 1\nretry: 0\ndata:\n\n", "text/event-stream")

    async with scripted(answer, reopened=reopen) as (server, _), connected(server) as connection:
        with pytest.raises(CallFailed, match="broke off") as caught:
            await call(connection, "a")
        assert caught.value.kind == "lost"
        assert len(opened) <= 5


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
        return body_of(events, "text/event-stream")

    async with scripted(answer) as (server, _), connected(server) as connection:
        assert await call(connection, "a") == {"content": []}
        await until(lambda: len(lists) == 2)


@pytest.mark.parametrize("last", ["page", "same page", "error"])
async def test_an_empty_cursor_is_one(last: str) -> None:
    """An empty cursor leads to another page; where it leads to no new one, it ends the list."""

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if "cursor" not in asked.get("params", {}) or last == "same page":
            return {"result": {"tools": [tool_definition("a")], "nextCursor": ""}}
        if last == "error":
            return {"error": {"code": -32602, "message": "Invalid cursor"}}
        return {"result": {"tools": [tool_definition("b")]}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        assert connection.definition("a") is not None
        assert (connection.definition("b") is not None) == (last == "page")


async def test_a_cursor_that_repeats_ends_the_list() -> None:
    """Pages that begin anew are read once, and the tools of all of them are usable."""
    pages: list[Any] = []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        cursor = asked.get("params", {}).get("cursor")
        pages.append(cursor)
        name, following = {None: ("a", "1"), "1": ("b", "2"), "2": ("c", "1")}[cursor]
        return {"result": {"tools": [tool_definition(name)], "nextCursor": following}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        listing = connection.status.listing
        assert listing is not None
        assert [one.name for one in listing.definitions] == ["a", "b", "c"]
        assert pages == [None, "1", "2"]


async def test_pages_without_an_end_end() -> None:
    """The proxy reads at most 100 pages of tools and uses the tools that it has got."""
    pages: list[Any] = []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        pages.append(asked)
        tools = [tool_definition("a")] if len(pages) == 1 else []
        return {"result": {"tools": tools, "nextCursor": str(len(pages))}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        assert connection.definition("a") is not None
        assert len(pages) == 100


async def test_a_list_has_a_bound_over_all_its_pages() -> None:
    """Pages that are larger than a message together are not kept, and the reason says so."""
    pages: list[Any] = []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        pages.append(asked)
        large = tool_definition(f"a{len(pages)}", "x" * (6 << 20))
        return {"result": {"tools": [large], "nextCursor": str(len(pages))}}

    async with scripted(answer) as (server, _), connected(server) as connection:
        assert "list of tools is larger than" in connection.status.reason
        assert len(pages) == 3
