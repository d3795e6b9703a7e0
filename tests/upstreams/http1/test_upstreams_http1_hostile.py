"""The HTTP/1 client with faulty upstreams, and with callers that leave at any moment."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pushing import pushed
from raw_upstream import ASKED, FIN, HANG, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, chunked, head, whole
from waiting import LATE_S, PATIENCE_S

from proxy.base.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.http1.exchange import MAX_FRAMING_BYTES
from proxy.upstreams.http1.upstream import Http1Upstream

pytestmark = pytest.mark.both_loops

ASK = UpstreamRequest("POST", "/chat/completions", body=ASKED)
CHUNKED = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
KEY = "sk-server-0123456789abcdef"


@asynccontextmanager
async def lean(raw: RawUpstream, **options: Any) -> AsyncIterator[Http1Upstream]:
    """An upstream client for a raw server; when it is closed, no task and no connection may be left."""
    settings: dict[str, Any] = {"first_byte_timeout_s": LATE_S, "idle_timeout_s": LATE_S, **options}
    before = asyncio.all_tasks()
    upstream = Http1Upstream("main", raw.url, KEY, **settings)
    try:
        yield upstream
    finally:
        await upstream.aclose()
    await raw.all_closed()
    for task in [task for task in asyncio.all_tasks() - before if "Http1Upstream" in repr(task.get_coro())]:
        pytest.fail(f"a task is left: {task}")


async def ask(upstream: Http1Upstream, request: UpstreamRequest = ASK) -> bytes:
    """Open a response, read it to its end, and close it."""
    response = await upstream.open(request)
    try:
        return await response.read(1 << 24)
    finally:
        await response.aclose()


# ---------------------------------------------------------------- heads and framing


@pytest.mark.parametrize(
    "flood",
    [b"0\r\nX: " + b"t" * 65536, b"1;" + b"e" * 65536, b"0\r\n" + b"T: x\r\n" * 11000],
    ids=["one trailer", "extension", "trailers"],
)
async def test_framing_without_end_is_broken_off(flood: bytes) -> None:
    """A chunk extension or trailers without an end raise UpstreamBroken, like a head without an end."""
    more = b"x" * 65536 if b"T: x" not in flood else flood[3:]
    times = 4 + 2 * MAX_FRAMING_BYTES // len(more)
    script: list[Step] = [CHUNKED, chunk(b"a"), flood, *[more] * times, HANG]
    async with RawUpstream(script) as raw, lean(raw) as upstream:
        response = await upstream.open(ASK)
        with pytest.raises(UpstreamBroken):
            await response.read(100)


async def test_a_head_that_drips_runs_out_of_time() -> None:
    """The first-byte timeout covers the whole head and all interim responses, however slowly bytes come."""
    drip: list[Step] = [HANG]
    for byte in reversed(head("Content-Length: 2")):
        drip[:0] = [bytes([byte]), 0.05]
    hints: list[Step] = [b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.1] * 10
    for script in (drip, [*hints, *whole(b"{}")]):
        async with RawUpstream(script) as raw, lean(raw, first_byte_timeout_s=0.3) as upstream:
            with pytest.raises(UpstreamTimeout):
                await upstream.open(ASK)


@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "gzip", "chunked, gzip", "x", "chunked\r\nTransfer-Encoding: x"]
)
async def test_only_chunks_are_taken_as_a_transfer_coding(coding: str) -> None:
    """A transfer coding such as gzip is refused, since the client could not decode the bytes."""
    script: list[Step] = [head(f"Transfer-Encoding: {coding}") + chunk(b"{}") + LAST_CHUNK, FIN]
    async with RawUpstream(script) as raw, lean(raw) as upstream:
        with pytest.raises(UpstreamBroken, match="malformed response head"):
            await ask(upstream)


async def test_identity_is_no_framing() -> None:
    """A body with ``Transfer-Encoding: identity`` lasts until the upstream closes the connection."""
    script: list[Step] = [head("Transfer-Encoding: identity") + b"{}", FIN]
    async with RawUpstream(script) as raw, lean(raw) as upstream:
        assert await ask(upstream) == b"{}"


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2  \r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nConnection: Upgrade, Keep-Alive\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding:  Chunked \r\n\r\n2;a=b\r\n{}\r\n0\r\nT: 1\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ],
    ids=["bare LF", "padded chunk size", "no reason", "upgrade offered", "blanks", "HTTP/1.0"],
)
async def test_old_servers_are_read(response: bytes) -> None:
    """The client accepts unusual responses that other clients accept, such as those of HTTP/1.0."""
    async with RawUpstream([response, FIN]) as raw, lean(raw) as upstream:
        assert await ask(upstream) == b"{}"


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nA: b\0c\r\nContent-Length: 2\r\n\r\n{}",
        b"{}",
    ],
    ids=["CL+TE", "TE+CL", "two lengths", "signed length", "folded", "NUL", "HTTP/0.9"],
)
async def test_two_readings_are_none(response: bytes) -> None:
    """A head that is ambiguous or missing raises UpstreamBroken, and its connection is closed."""
    async with RawUpstream([response, FIN]) as raw, lean(raw) as upstream:
        with pytest.raises(UpstreamBroken):
            await ask(upstream)
        await raw.all_closed()


# ---------------------------------------------------------------- connections that must not be kept


@pytest.mark.parametrize("header", ["cOnNeCtIoN: ClOsE", "Connection: x, close"])
async def test_a_connection_that_ends_is_not_kept(header: str) -> None:
    """A connection is not reused after ``Connection: close``, in any case and in any list."""
    async with RawUpstream(whole(b"{}", header)) as raw, lean(raw) as upstream:
        await ask(upstream)
        await ask(upstream)
        assert raw.connections == 2


async def test_an_answer_before_the_request_was_sent_does_not_keep_the_connection() -> None:
    """If the answer comes before the request was sent whole, the next request uses a new connection."""
    early = head("Content-Length: 2", status="413 Content Too Large") + b"{}"
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(early)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=4096)
    port = server.sockets[0].getsockname()[1]
    upstream = Http1Upstream("main", f"http://127.0.0.1:{port}/v1", KEY, first_byte_timeout_s=LATE_S)
    big = UpstreamRequest("POST", "/chat/completions", body=b"x" * (16 << 20))
    assert await ask(upstream, big) == b"{}"
    assert await ask(upstream) == b"{}"
    assert len(writers) == 2
    await upstream.aclose()
    for writer in writers:
        writer.transport.abort()
    server.close()
    await asyncio.sleep(0.01)


async def test_a_body_where_none_may_be_is_not_the_next_answer() -> None:
    """Bytes behind a 204 or a 304 answer no request: the client drops their connection."""
    for status in ("204 No Content", "304 Not Modified"):
        script: list[Step] = [head("Content-Length: 4", status=status) + b"evil", KEEP]
        async with RawUpstream(script, whole(b"{}")) as raw, lean(raw) as upstream:
            assert await ask(upstream) == b""
            assert await ask(upstream) == b"{}"
            assert raw.connections == 2


async def test_odd_bytes_in_credentials_go_up_as_they_came() -> None:
    """The client's own Authorization reaches the upstream unchanged, even with bytes beyond ASCII."""
    sent = [("Authorization", "Bearer \udce9"), ("Accept-Encoding", "gzip;q=\udce9")]
    async with RawUpstream(whole(b"{}")) as raw, lean(raw, forward_authorization=True) as upstream:
        assert await ask(upstream, UpstreamRequest("GET", "/files", headers=sent)) == b"{}"
    assert raw.requests[0].header("authorization") == "Bearer \xe9"


# ---------------------------------------------------------------- callers that leave


class Slow:
    """A sink that makes the push wait for ever."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.never = asyncio.Event()

    def __call__(self, data: bytes) -> Awaitable[None] | None:
        self.came.set()
        return self._wait()

    async def _wait(self) -> None:
        await self.never.wait()


async def test_a_push_that_is_cancelled_as_it_begins_to_wait_leaves_nothing() -> None:
    """If a push is cancelled as its sink begins to wait, no coroutine of the sink stays unawaited."""
    more = asyncio.Event()
    async with RawUpstream([CHUNKED, chunk(b"a"), more, chunk(b"b"), HANG]) as raw, lean(raw) as upstream:
        response = await upstream.open(ASK)
        pushing: asyncio.Task[None]
        seen: list[bytes] = []

        def sink(data: bytes) -> Awaitable[None] | None:
            seen.append(data)
            if len(seen) == 1:
                more.set()
                return None
            pushing.cancel()
            return Slow()._wait()

        pushing = asyncio.ensure_future(pushed(response, sink))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(asyncio.CancelledError):
                await pushing
            await response.aclose()
            gc.collect()
        assert seen == [b"a", b"b"]


@pytest.mark.parametrize("turns", range(14))
async def test_leaving_at_any_moment_leaves_no_connection(turns: int) -> None:
    """A request that is cancelled at any moment leaves no connection in use, and the next one works."""
    async with RawUpstream(chunked(b"a", b"b")) as raw, lean(raw) as upstream:

        async def whole_request() -> None:
            response = await upstream.open(ASK)
            try:
                await pushed(response, lambda data: None)
            finally:
                await response.aclose()

        task = asyncio.ensure_future(whole_request())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await ask(upstream) == b"ab"
        pool = upstream._pool
        assert pool is not None
        assert all(connection.exchange is None for connection in pool._all)
        assert set(pool._idle) == pool._all


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
async def test_whoever_is_stopped_in_reading_a_whole_body_lets_go_of_it(status: str) -> None:
    """A ``read`` that is cancelled closes the connection, since nobody else would close it."""
    script: list[Step] = [head("Transfer-Encoding: chunked", status=status), chunk(b"a"), HANG]
    async with RawUpstream(script) as raw, lean(raw) as upstream:
        response = await upstream.open(ASK)
        reading = asyncio.ensure_future(response.read(1 << 20))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await raw.all_closed()


async def test_closing_twice_and_reading_after_a_push_do_no_harm() -> None:
    """After a push a second push and a read give nothing; closing twice does not harm the connection."""
    async with RawUpstream(chunked(b"a", b"b")) as raw, lean(raw) as upstream:
        response = await upstream.open(ASK)
        pieces: list[bytes] = []
        await pushed(response, pieces.append)
        await pushed(response, pieces.append)
        assert (b"".join(pieces), await response.read(10)) == (b"ab", b"")
        await response.aclose()
        await response.aclose()
        assert await ask(upstream) == b"ab"
        assert raw.connections == 1


async def test_closing_the_upstream_ends_every_stream() -> None:
    """When the upstream client is closed, streams and uploads fail, and no request can be opened."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async with RawUpstream([CHUNKED, chunk(b"a"), HANG]) as raw:
        upstream = Http1Upstream("main", raw.url, KEY)
        response = await upstream.open(ASK)
        reading = asyncio.ensure_future(response.read(100))
        upload = asyncio.ensure_future(ask(upstream, UpstreamRequest("POST", "/files", body=pieces())))
        await asyncio.sleep(0.05)
        await upstream.aclose()
        async with asyncio.timeout(PATIENCE_S):
            for task in (reading, upload):
                with pytest.raises(UpstreamError):
                    await task
        with pytest.raises(UpstreamUnreachable):
            await upstream.open(ASK)


# ---------------------------------------------------------------- many at once


async def test_many_slow_streams_at_once_lose_nothing() -> None:
    """200 streams with slow sinks come whole, and later streams reuse their connections."""
    body = [bytes([65 + n % 26]) * 9000 for n in range(40)]
    async with RawUpstream(chunked(*body)) as raw, lean(raw) as upstream:

        async def one() -> int:
            got = []

            def sink(data: bytes) -> Awaitable[None] | None:
                got.append(data)
                return asyncio.sleep(0) if len(got) % 2 else None

            response = await upstream.open(ASK)
            await pushed(response, sink)
            await response.aclose()
            return b"".join(got) == b"".join(body)

        async with asyncio.timeout(LATE_S):
            assert all(await asyncio.gather(*[one() for _ in range(200)]))
            used = raw.connections
            assert all(await asyncio.gather(*[one() for _ in range(50)]))
        assert raw.connections == used
