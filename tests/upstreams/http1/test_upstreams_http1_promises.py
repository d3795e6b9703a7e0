"""The HTTP upstream with a raw server: how it sends requests, and how it reports every ending."""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest
from closed_port import closed_port
from raw_upstream import (
    ASKED,
    FIN,
    HANG,
    KEEP,
    LAST_CHUNK,
    RESET,
    RawUpstream,
    Step,
    chunk,
    chunked,
    event,
    head,
    whole,
)
from waiting import LATE_S, PATIENCE_S

from proxy.base.errors import ConfigError, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.net.resolver import AddressInfo, Resolver, numeric
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse
from proxy.upstreams.http1 import upstream as upstream_module
from proxy.upstreams.http1.upstream import Http1Upstream

pytestmark = pytest.mark.both_loops

KEY = "sk-server-0123456789abcdef"
SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
E1, E2 = event('{"n":1}'), event('{"n":2}')


def post(body: bytes | AsyncIterator[bytes] | None = ASKED, **fields: Any) -> UpstreamRequest:
    """A chat request as the relay would make it."""
    path = "/chat/completions" if body == ASKED else "/files"
    return UpstreamRequest("POST", path, body=body, **fields)


async def ask(upstream: Upstream, request: UpstreamRequest | None = None) -> bytes:
    """Open a response, read it to its end, and close it."""
    response = await upstream.open(request or post())
    try:
        return b"".join([piece async for piece in response.chunks()])
    finally:
        await response.aclose()


class Closing(ABC):
    """Closes itself at the end of a ``with`` block."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Client(Http1Upstream, Closing):
    """The upstream, closed at the end of a block."""


def client(raw: RawUpstream, **options: Any) -> Client:
    """An upstream for a raw server, whose timeouts do not end within a test."""
    settings: dict[str, Any] = {"first_byte_timeout_s": LATE_S, "idle_timeout_s": LATE_S, **options}
    return Client("main", raw.url, KEY, **settings)


# ---------------------------------------------------------------- requests


async def test_credentials_and_hop_by_hop_headers_of_the_client_stay_here() -> None:
    """The upstream gets only listed end-to-end headers, and the proxy's key instead of the client's."""
    sent = [
        ("Authorization", "Bearer sk-client"),
        ("x-api-key", "sk-client"),
        ("api-key", "sk-client"),
        ("Cookie", "session=1"),
        ("Connection", "keep-alive, X-Private"),
        ("X-Private", "1"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic eA=="),
        ("Host", "proxy.example"),
        ("Expect", "100-continue"),
        ("X-Toolrelay-Tools", "all"),
        ("OpenAI-Organization", "org-client"),
        ("Content-Length", "999"),
        ("X-Listed", "kept"),
        ("X-Unlisted", "1"),
        ("X_Listed", "1"),
        ("User-Agent", "sdk/1"),
    ]
    async with (
        RawUpstream(whole(b"{}")) as raw,
        client(raw, headers={"X-Extra": "yes"}, forward_headers=["x-listed", "x-private"]) as upstream,
    ):
        await ask(upstream, post(b'{"a":1}', headers=sent))
    (request,) = raw.requests
    assert request.names() == {"host", "authorization", "x-listed", "user-agent", "x-extra", "content-length"}
    assert request.header("authorization") == f"Bearer {KEY}"
    assert request.header("host") == f"127.0.0.1:{raw.port}"
    assert request.header("content-length") == "7"
    assert request.body == b'{"a":1}'


async def test_nothing_is_added_that_nobody_asked_for() -> None:
    """Without client headers the upstream gets only Host, key and length; a stream asks for ``identity``."""
    async with RawUpstream(whole(b"{}")) as raw, client(raw) as upstream:
        await ask(upstream, post())
        await ask(upstream, post(expect_stream=True, headers=[("Accept-Encoding", "gzip, br")]))
        await ask(upstream, post(headers=[("Accept-Encoding", "br, gzip;q=0.5, zstd")]))
    assert raw.requests[0].names() == {"host", "authorization", "content-length"}
    assert raw.requests[1].header("accept-encoding") == "identity"
    assert raw.requests[2].header("accept-encoding") == "gzip;q=0.5"


async def test_the_target_is_sent_as_it_stands() -> None:
    """The upstream gets path and query with their percent-encoding, case and order unchanged."""
    async with RawUpstream(whole(b"{}")) as raw, client(raw, retries=0) as upstream:
        await ask(upstream, UpstreamRequest("GET", "/files/a%2Bb~c%20d", "x=%41&y=a+b&x=%c3%a9"))
    assert raw.requests[0].target == "/v1/files/a%2Bb~c%20d?x=%41&y=a+b&x=%c3%a9"


async def test_an_own_authorization_goes_up_only_where_it_is_told_to() -> None:
    """With ``forward_authorization`` the client's Authorization, if there is one, replaces the key."""
    headers = [("Authorization", "Bearer sk-client")]
    async with RawUpstream(whole(b"{}")) as raw, client(raw, forward_authorization=True) as upstream:
        await ask(upstream, post(headers=headers))
        await ask(upstream, post())
    assert [r.header("authorization") for r in raw.requests] == ["Bearer sk-client", f"Bearer {KEY}"]


async def test_a_body_that_streams_keeps_its_length_or_goes_chunked() -> None:
    """A streamed request body is sent with the client's Content-Length, or chunked without one."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        yield b"def"

    async with RawUpstream(whole(b"{}")) as raw, client(raw) as upstream:
        await ask(upstream, post(pieces(), headers=[("Content-Length", "6")]))
        await ask(upstream, post(pieces()))
    assert [r.body for r in raw.requests] == [b"abcdef", b"abcdef"]
    assert raw.requests[0].header("content-length") == "6"
    assert raw.requests[1].header("transfer-encoding") == "chunked"


async def test_a_body_that_fails_says_so_in_its_own_words() -> None:
    """An exception of the request body reaches the caller as it is, not as an error of the upstream."""

    class TooLarge(Exception):
        pass

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        raise TooLarge

    async with RawUpstream(whole(b"{}")) as raw, client(raw) as upstream:
        with pytest.raises(TooLarge):
            await upstream.open(post(pieces()))


async def test_a_long_body_arrives_whole() -> None:
    """The upstream gets a request body of 2 MiB unchanged."""
    body = bytes(range(256)) * 8192
    async with RawUpstream(whole(b"{}")) as raw, client(raw) as upstream:
        await ask(upstream, post(body))
    assert raw.requests[0].body == body


# ---------------------------------------------------------------- responses that end well


GOOD: dict[str, list[Step]] = {
    "chunked": [SSE_HEAD, chunk(E1), chunk(E2), LAST_CHUNK],
    "one write": [SSE_HEAD + chunk(E1) + chunk(E2) + LAST_CHUNK],
    "chunk extensions": [SSE_HEAD, b"%x;a=b\r\n%s\r\n" % (len(E1), E1), chunk(E2), LAST_CHUNK],
    "trailers": [SSE_HEAD, chunk(E1 + E2), b"0\r\nX-Sum: 1\r\n\r\n"],
    "content length": [
        head("Content-Type: text/event-stream", f"Content-Length: {len(E1 + E2)}"),
        E1,
        E2,
    ],
    "close-delimited": [head("Content-Type: text/event-stream"), E1, E2, FIN],
    "early hints": [
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
        SSE_HEAD + chunk(E1 + E2) + LAST_CHUNK,
    ],
    "early hints in one write": [
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + SSE_HEAD + chunk(E1 + E2) + LAST_CHUNK
    ],
    "byte by byte": [bytes([b]) for b in SSE_HEAD + chunk(E1) + chunk(E2) + LAST_CHUNK],
}


@pytest.mark.parametrize("case", GOOD)
async def test_every_framing_gives_the_same_bytes(case: str) -> None:
    """The reader gets the exact body in each HTTP framing, with early hints, trailers and extensions."""
    async with RawUpstream(GOOD[case]) as raw, client(raw) as upstream:
        response = await upstream.open(post())
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert await response.read(1000) == E1 + E2
        await response.aclose()


async def test_pieces_come_as_they_arrive() -> None:
    """The reader gets the first event before the upstream has sent the second."""
    go_on = asyncio.Event()
    async with (
        RawUpstream([SSE_HEAD, chunk(E1), go_on, chunk(E2), LAST_CHUNK]) as raw,
        client(raw) as upstream,
    ):
        pieces = (await upstream.open(post())).chunks()
        assert await anext(pieces) == E1
        go_on.set()
        assert [piece async for piece in pieces] == [E2]


async def test_response_headers_are_end_to_end_ones_in_order() -> None:
    """The response keeps its listed end-to-end headers in order, and the key in them is redacted."""
    script: list[Step] = [
        head(
            "X-First: 1",
            "X-Unlisted: 1",
            "X_First: 1",
            "Set-Cookie: a=b",
            "Connection: close, X-Private",
            "X-Private: 1",
            "Keep-Alive: 5",
            "Proxy-Authenticate: Basic",
            "Content-Type: Text/HTML; charset=utf-8",
            "Content-Length: 2",
            "Retry-After: 7",
            "X-First: 2",
            f"X-Echo: Bearer {KEY}",
            status="503 No",
        )
        + b"no"
    ]
    listed = ["x-first", "x-echo", "x-private"]
    async with RawUpstream(script) as raw, client(raw, forward_response_headers=listed) as upstream:
        response = await upstream.open(post())
        assert response.status == 503
        assert response.content_type == "text/html"
        assert list(response.headers) == [
            ("X-First", "1"),
            ("Content-Type", "Text/HTML; charset=utf-8"),
            ("Retry-After", "7"),
            ("X-First", "2"),
            ("X-Echo", "Bearer [redacted]"),
        ]
        assert await response.read(10) == b"no"


async def test_redirects_cookies_and_codings_are_left_alone() -> None:
    """The upstream client follows no redirect, returns no cookie, and keeps the coding of a JSON body."""
    moved: list[Step] = [head("Location: /v2", "Set-Cookie: a=b", "Content-Length: 0", status="307 T"), KEEP]
    coded = whole(b"not really gzip", "Content-Encoding: gzip")
    async with RawUpstream(moved, coded) as raw:
        # By name, because cookie jars keep nothing for an address.
        upstream = Client("main", f"http://localhost:{raw.port}/v1", KEY)
        first = await upstream.open(post())
        assert (first.status, await first.read(1)) == (307, b"")
        second = await upstream.open(post())
        assert ("Content-Encoding", "gzip") in second.headers
        assert ("Content-Length", "15") in second.headers
        assert await second.read(100) == b"not really gzip"
        await upstream.aclose()
    assert len(raw.requests) == 2
    assert "cookie" not in raw.requests[1].names()


async def test_a_body_over_the_limit_is_refused() -> None:
    """``read`` raises UpstreamBroken past its limit and closes the connection."""
    async with (
        RawUpstream([head("Content-Length: 1000000"), b"x" * 20000, HANG]) as raw,
        client(raw) as upstream,
    ):
        response = await upstream.open(post())
        with pytest.raises(UpstreamBroken, match="over 10000 bytes"):
            await response.read(10000)
        await raw.all_closed()


# ---------------------------------------------------------------- responses that break


BROKEN: dict[str, list[Step]] = {
    "reset": [SSE_HEAD, chunk(E1), 0.05, RESET],
    "fin without the last chunk": [SSE_HEAD, chunk(E1), FIN],
    "fin without the last chunk, one write": [SSE_HEAD + chunk(E1), FIN],
    "fin inside an event": [SSE_HEAD, chunk(E1), b"40\r\ndata: {", FIN],
    "short content length": [head("Content-Type: text/event-stream", "Content-Length: 99"), E1, FIN],
    "malformed chunk": [SSE_HEAD, chunk(E1), 0.05, b"zz\r\nwhat\r\n", HANG],
    "malformed chunk in the same write": [SSE_HEAD, chunk(E1) + b"zz\r\nwhat\r\n", HANG],
    "malformed chunk with the head": [SSE_HEAD + chunk(E1) + b"zz\r\nwhat\r\n", HANG],
    "malformed chunk after hints": [
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + SSE_HEAD + chunk(E1) + b"zz\r\n",
        HANG,
    ],
    "chunk longer than it said": [SSE_HEAD, b"2\r\n" + E1 + b"\r\n", HANG],
}


@pytest.mark.parametrize("slow_reader", [False, True])
@pytest.mark.parametrize("case", BROKEN)
async def test_every_broken_ending_is_told_at_once(case: str, slow_reader: bool) -> None:
    """The reader gets what arrived and then UpstreamBroken, without waiting for the idle timeout."""
    got = bytearray()

    async def gather(response: UpstreamResponse) -> None:
        async for piece in response.chunks():
            got.extend(piece)

    async with RawUpstream(BROKEN[case]) as raw, client(raw) as upstream:
        async with asyncio.timeout(PATIENCE_S):
            response = await upstream.open(post())
            if slow_reader:
                await asyncio.sleep(0.15)
            with pytest.raises(UpstreamBroken):
                await gather(response)
            await response.aclose()
            await raw.all_closed()
    if case == "chunk longer than it said":
        assert E1.startswith(got)
    else:
        assert got in (E1, E1 + b"data: {")
    assert len(raw.requests) == 1


HEADLESS: dict[str, list[Step]] = {
    "half a head": [b"HTTP/1.1 200 OK\r\nContent-Ty", FIN],
    "half a head, reset": [b"HTTP/1.1 200 OK\r\nContent-Ty", 0.05, RESET],
    "garbage": [b"\x16\x03\x01 what is this?\r\n\r\n", HANG],
    "a status of letters": [b"HTTP/1.1 OK\r\n\r\n", HANG],
    "a giant header": [head("X-Big: " + "x" * 200_000, "Content-Length: 0"), HANG],
    "a giant header without an end": [b"HTTP/1.1 200 OK\r\nX-Big: " + b"x" * 400_000, HANG],
    "5000 headers": [head(*(f"X-{i}: y" for i in range(5000)), "Content-Length: 0"), HANG],
    "switching protocols": [head("Upgrade: websocket", "Connection: upgrade", status="101 S"), HANG],
}


@pytest.mark.parametrize("case", HEADLESS)
async def test_a_head_that_is_none_is_a_bad_gateway(case: str) -> None:
    """A malformed, partial or giant head is a 502 at once, and the request is sent only once."""
    async with RawUpstream(HEADLESS[case]) as raw, client(raw) as upstream:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(UpstreamBroken) as caught:
                await upstream.open(post())
            await raw.all_closed()
    assert caught.value.status == 502
    assert "xxx" not in str(caught.value)
    assert len(raw.requests) == 1


@pytest.mark.parametrize("end", [FIN, RESET])
async def test_a_new_connection_that_dies_unanswered_is_not_tried_again(end: Step) -> None:
    """Rule E2: if a new connection ends unanswered, the request is not repeated: it may have been taken."""
    async with RawUpstream([end]) as raw, client(raw) as upstream:
        with pytest.raises(UpstreamUnreachable):
            await upstream.open(post())
    assert len(raw.requests) == 1


async def test_a_stalled_first_byte_is_a_gateway_timeout() -> None:
    """If no head comes within the first-byte timeout, the error is a 504 and the connection is closed."""
    async with RawUpstream([HANG]) as raw, client(raw, first_byte_timeout_s=0.1) as upstream:
        with pytest.raises(UpstreamTimeout) as caught:
            await upstream.open(post())
        await raw.all_closed()
    assert caught.value.status == 504


async def test_a_stall_in_the_stream_is_a_timeout() -> None:
    """If no piece comes within the idle timeout, the reader gets UpstreamTimeout; the connection closes."""
    async with RawUpstream([SSE_HEAD, chunk(E1), HANG]) as raw, client(raw, idle_timeout_s=0.1) as upstream:
        pieces = (await upstream.open(post())).chunks()
        assert await anext(pieces) == E1
        with pytest.raises(UpstreamTimeout):
            await anext(pieces)
        await raw.all_closed()


async def test_a_slow_upload_does_not_use_up_the_first_byte_time() -> None:
    """The first-byte timeout starts again with each piece of the request body."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            await asyncio.sleep(0.15)
            yield b"x"

    async with RawUpstream(whole(b"{}")) as raw, client(raw, first_byte_timeout_s=1.0) as upstream:
        assert await ask(upstream, post(pieces())) == b"{}"


# ---------------------------------------------------------------- connections


async def test_idle_connections_that_the_upstream_closes_cost_no_request() -> None:
    """Rule E2: forty requests succeed though the upstream closes every connection after its answer."""
    async with RawUpstream([*whole(b"{}")[:1], FIN]) as raw, client(raw) as upstream:
        for _ in range(40):
            assert await ask(upstream) == b"{}"


async def test_a_reused_connection_that_is_reset_is_tried_once_on_a_new_one() -> None:
    """Rule E2: if a reused connection ends without a byte, the request is repeated on a new connection."""
    go = asyncio.Event()
    slow: list[Step] = [go, *whole(b"{}")]
    async with RawUpstream(slow, slow, [RESET], whole(b'{"again":1}')) as raw, client(raw) as upstream:
        both = asyncio.gather(ask(upstream), ask(upstream))
        await raw.asked(2)
        go.set()
        await both
        assert await ask(upstream) == b'{"again":1}'
    assert [r.connection for r in raw.requests][3] == 3


async def test_a_reused_connection_that_broke_off_its_head_is_not_tried_again() -> None:
    """Rule E2: once a byte of the response came, the request is never sent again."""
    async with RawUpstream(whole(b"{}"), [b"HTTP/1.1 2", 0.02, RESET]) as raw, client(raw) as upstream:
        await ask(upstream)
        with pytest.raises(UpstreamBroken):
            await ask(upstream)
    assert len(raw.requests) == 2


async def test_a_body_that_cannot_be_sent_again_is_not() -> None:
    """Rule E2: a request with a streamed body is not repeated, since its body can be read only once."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    async with RawUpstream(whole(b"{}"), [RESET]) as raw, client(raw) as upstream:
        await ask(upstream)
        with pytest.raises(UpstreamError):
            await ask(upstream, post(pieces()))
    assert len(raw.requests) == 2


@pytest.mark.parametrize("retries", [0, 2])
async def test_refused_connections_are_tried_again_and_then_named(
    retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule E2: after ``retries`` more refusals the error names the upstream, but neither key nor port."""
    monkeypatch.setattr(upstream_module, "_CONNECT_RETRY_BUDGET_S", LATE_S)
    asked = []

    def look_up(host: str) -> Sequence[AddressInfo]:
        asked.append(host)  # a refused connection makes the next one look the name up again
        return numeric("127.0.0.1", 0) or ()

    resolver = Resolver("tests", look_up=look_up)
    with closed_port() as port:
        url = f"http://refusing.test:{port}/v1"
        async with Client("spare", url, KEY, retries=retries, resolver=resolver) as upstream:
            with pytest.raises(UpstreamUnreachable, match=r"'spare'.*refused") as caught:
                await upstream.open(post())
    assert len(asked) == 1 + retries
    assert KEY not in str(caught.value)
    assert str(port) not in str(caught.value)


async def test_an_upstream_that_comes_up_is_reached_by_a_retry() -> None:
    """Rule E2: a retry reaches an upstream that begins to listen after the first attempt."""
    # A bound socket that does not listen yet refuses, and nobody else gets its port.
    reserved = socket.socket()
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(ASKED)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with Client("late", f"http://127.0.0.1:{port}/v1", retries=5) as upstream:
        asked = asyncio.create_task(ask(upstream))
        await asyncio.sleep(0.05)
        server = await asyncio.start_server(answer, sock=reserved)
        assert await asked == b"{}"
        server.close()


async def test_a_failed_tls_handshake_is_named() -> None:
    """A failed TLS handshake is an UpstreamError that names the upstream."""
    async with RawUpstream([FIN]) as raw:
        url = f"https://127.0.0.1:{raw.port}/v1"
        upstream = Client("tls", url, KEY, retries=0, connect_timeout_s=0.5)
        with pytest.raises(UpstreamError, match="'tls'"):
            await upstream.open(post())
        await upstream.aclose()


async def test_closing_an_unread_response_closes_its_connection() -> None:
    """Rule E4: closing an unread response, once or twice, closes its connection; a later read fails."""
    async with RawUpstream([SSE_HEAD, chunk(E1), HANG]) as raw, client(raw) as upstream:
        response = await upstream.open(post())
        await response.aclose()
        await response.aclose()
        await raw.all_closed()
        with pytest.raises(UpstreamBroken):
            await response.read(100)


async def test_closing_wakes_a_reader_that_waits() -> None:
    """A read that waits fails with UpstreamBroken when another task closes the response."""
    async with RawUpstream([SSE_HEAD, HANG]) as raw, client(raw) as upstream:
        response = await upstream.open(post())
        reading = asyncio.create_task(response.read(100))
        await asyncio.sleep(0.02)
        await response.aclose()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(UpstreamBroken):
                await reading


async def test_cancelling_before_the_head_closes_the_connection() -> None:
    """Rule E4: if the client leaves before the first byte, the upstream connection is closed."""
    async with RawUpstream([HANG]) as raw, client(raw) as upstream:
        asked = asyncio.create_task(upstream.open(post(b"x" * 3_000_000)))
        await raw.asked(1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await raw.all_closed()


async def test_a_cancelled_upload_is_dropped_not_finished() -> None:
    """Rule E4: when the client leaves, the unsent rest of its upload is never sent to a slow upstream."""
    begun, left = asyncio.Event(), asyncio.Event()
    taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await left.wait()
        size = 0
        try:
            while piece := await reader.read(1 << 16):
                size += len(piece)
        except ConnectionError:
            pass
        taken.set_result(size)
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with Client("main", url, KEY) as upstream:

        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * (64 << 20)

        asked = asyncio.create_task(upstream.open(post(pieces())))
        await begun.wait()
        await asyncio.sleep(0.05)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        left.set()
        assert await asyncio.wait_for(taken, PATIENCE_S) < 64 << 20
    server.close()


async def test_an_answer_before_the_end_of_the_upload_is_an_answer() -> None:
    """If the answer begins before the upload has ended, both go on, and the reader gets all of it."""
    answered = asyncio.Event()

    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first")
        writer.write(head("Transfer-Encoding: chunked") + chunk(b"taken"))
        await reader.readuntil(b"last")
        writer.write(chunk(b"all") + LAST_CHUNK)
        await writer.drain()
        writer.close()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await answered.wait()
        yield b"last"

    server = await asyncio.start_server(eager, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with Client("main", url, KEY, idle_timeout_s=LATE_S) as upstream:
        body = (await upstream.open(post(pieces()))).chunks()
        assert await anext(body) == b"taken"
        answered.set()
        assert [piece async for piece in body] == [b"all"]
    server.close()


async def test_a_response_read_to_its_end_gives_its_connection_back() -> None:
    """Ten requests in a row use one connection."""
    async with RawUpstream(chunked(E1)) as raw, client(raw) as upstream:
        for _ in range(10):
            assert await ask(upstream) == E1
    assert raw.connections == 1


async def test_a_reader_that_does_not_read_stops_the_upstream() -> None:
    """While nobody reads a response of 64 MB, the upstream can send only what the buffers take."""
    megabyte = b"x" * (1 << 20)
    script: list[Step] = [
        head("Content-Type: text/event-stream", f"Content-Length: {64 << 20}"),
        *[megabyte] * 64,
    ]
    async with RawUpstream([*script, KEEP]) as raw, client(raw) as upstream:
        response = await upstream.open(post())
        sent = -1
        while sent != raw.sent:
            sent = raw.sent
            await asyncio.sleep(0.1)
        assert raw.sent < 32 << 20
        assert len(await response.read(65 << 20)) == 64 << 20


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_a_slow_reader_loses_nothing_when_the_upstream_closes(framing: str) -> None:
    """A slow reader gets all eight megabytes, although the upstream has closed long before."""
    body = bytes(range(256)) * 32768
    parts = [body[i : i + 100_000] for i in range(0, len(body), 100_000)]
    scripts: dict[str, list[Step]] = {
        "chunked": [SSE_HEAD, *[chunk(part) for part in parts], LAST_CHUNK, FIN],
        "length": [head(f"Content-Length: {len(body)}"), *parts, FIN],
        "close": [head("Content-Type: text/plain"), *parts, FIN],
    }
    got = bytearray()
    async with RawUpstream(scripts[framing]) as raw, client(raw) as upstream:
        async for piece in (await upstream.open(post())).chunks():
            got += piece
            if len(got) % 7 == 0:
                await asyncio.sleep(0.002)
    assert bytes(got) == body


async def test_a_closed_upstream_says_so() -> None:
    """After ``aclose`` a new request raises UpstreamUnreachable."""
    async with RawUpstream(whole(b"{}")) as raw:
        upstream = client(raw)
        await ask(upstream)
        await upstream.aclose()
        with pytest.raises(UpstreamUnreachable, match="closed"):
            await upstream.open(post())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.openai.com/v1",
        "ftp://x/v1",
        "http://",
        "http://u:p@h/v1",
        "http://h/v1?k=1",
        "http://h:99999/v1",
    ],
)
def test_a_base_url_that_cannot_be_used_is_the_operators_fault(url: str) -> None:
    """A wrong base URL is a ConfigError that names its setting and repeats no credential."""
    with pytest.raises(ConfigError) as caught:
        Client("main", url)
    assert caught.value.setting == "upstreams.main.base_url"
    assert "u:p" not in str(caught.value)


def test_a_configured_header_that_cannot_be_sent_is_the_operators_fault() -> None:
    """A header with a line break is a ConfigError."""
    with pytest.raises(ConfigError, match=r"upstreams\.main\.headers"):
        Client("main", "http://h/v1", headers={"X-A": "1\r\nX-B: 2"})
