"""A client's connection: data that is malformed, late or never read."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from chat_script import content, role
from edge_requests import Behind
from in_process import serving_proxy
from logged import logged_to
from raw_upstream import HANG, RawUpstream, Step, chunk, head, whole
from running_proxy import Answer, Proxy, make_config, running
from waiting import LATE_S, PATIENCE_S

from proxy.server.messages.heads.unparsed import MAX_HEADERS
from proxy.server.messages.request import EdgeRequest

KEY = "sk-client-0123456789"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def edge(*scripts: list[Step], **server: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy whose timeouts a test can wait for."""
    async with (
        RawUpstream(*(scripts or (whole(b'{"ok":true}'),))) as upstream,
        running(make_config(upstream.url, server=server)) as proxy,
    ):
        yield proxy, upstream


async def said(proxy: Proxy, data: bytes, *more: bytes) -> tuple[Answer, bytes]:
    """Send bytes, and more after a moment; return one response, and what follows it until the end."""
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(data)
        for piece in more:
            await asyncio.sleep(0.05)
            conversation.writer.write(piece)
        return await conversation.answer(), await conversation.reader.read()


MALFORMED: dict[str, tuple[bytes, int]] = {
    "no http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "no request line": (b"HELLO " + KEY.encode() + b"\r\n\r\n", 400),
    "no host": (b"GET /v1/models HTTP/1.1\r\nX-Api-Key: " + KEY.encode() + b"\r\n\r\n", 400),
    "blank before the colon": (b"Authorization : Bearer " + KEY.encode() + b"\r\n", 400),
    "a control character": (b"X-Api-Key: " + KEY.encode() + b"\x00\r\n", 400),
    "a line without a colon": (KEY.encode() + b"\r\n", 400),
    "two lengths": (b"X-Api-Key: " + KEY.encode() + b"\r\nContent-Length: 1\r\nContent-Length: 2\r\n", 400),
    "too many headers": (b"".join(b"x-%d: %s\r\n" % (n, KEY.encode()) for n in range(MAX_HEADERS)), 400),
    "a megabyte of value": (b"X-Api-Key: " + KEY.encode() * 50_000 + b"\r\n", 431),
    "a megabyte of name": (KEY.encode() * 50_000 + b": x\r\n", 431),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_cannot_be_parsed_is_refused_without_a_word_of_it(name: str) -> None:
    """Rule E1: malformed bytes get an error with an id, and the end; no answer and no log repeats them."""
    data, status = MALFORMED[name]
    log = io.StringIO()
    with logged_to(log):
        async with edge() as (proxy, upstream):
            if (b"\r\n\r\n" not in data and b":" in data) or name == "a line without a colon":
                data = (
                    f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n".encode() + data + b"\r\n"
                )
            behind = f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n\r\n".encode()
            answer, rest = await said(proxy, data + behind)
            assert answer.status == status
            assert answer.header("content-type") == "application/json"
            assert answer.error["code"] == ("headers_too_large" if status == 431 else "invalid_http")
            assert (answer.header("x-request-id") or "").startswith("req_")
            assert rest == b""
            assert upstream.requests == []
            lines = [json.loads(line) for line in log.getvalue().splitlines()]
            assert [(line["status"], line["request_id"]) for line in lines] == [
                (status, answer.header("x-request-id"))
            ]
            assert KEY not in log.getvalue() + answer.body.decode() + str(answer.headers)


@pytest.mark.parametrize(
    ("version", "framing"),
    [
        ("0.9", b""),
        ("2.0", b""),
        ("1.0", b"Transfer-Encoding: chunked\r\n"),
        ("2.0", b"Content-Length: 0\r\n"),
    ],
)
async def test_what_readers_of_other_versions_take_for_something_else_is_refused(
    version: str, framing: bytes
) -> None:
    """Rule E1: the server refuses versions other than HTTP/1.0 and 1.1, and a chunked body with HTTP/1.0."""
    async with edge() as (proxy, upstream):
        host = f"127.0.0.1:{proxy.port}"
        kept = f"Host: {host}\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n".encode()
        body = b"0\r\n\r\n" if framing.startswith(b"T") else b""
        opening = f"POST /v1/files HTTP/{version}\r\n".encode() + kept + framing + b"\r\n" + body
        answer, rest = await said(proxy, opening + proxy.request(method="GET", path="/v1/models"))
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert rest == b""
        assert upstream.requests == []


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
@pytest.mark.parametrize("path", ["/healthz", "/v1/models"])
async def test_nothing_behind_an_offered_upgrade_is_a_request(protocol: str, path: str) -> None:
    """Rule E1: the connection ends after a request that offers an upgrade. The parser loses what it has read
    behind it, so the rest of a body could look like a request."""
    async with edge() as (proxy, upstream):
        offers = proxy.request(None, {"Connection": "upgrade", "Upgrade": protocol}, method="GET", path=path)
        upload = {"Content-Type": "application/json", "Content-Length": "300"}
        behind = proxy.request(None, upload, path="/v1/files")
        hidden = proxy.request(method="GET", path="/v1/hidden")
        answer, rest = await said(proxy, offers + behind, hidden)
        assert answer.status == (426 if (path, protocol) == ("/v1/models", "websocket") else 200)
        assert answer.header("connection") == "close"
        assert rest == b""
        assert {request.target for request in upstream.requests} <= {"/v1/models"}


async def test_a_refused_client_that_goes_on_sending_sees_its_answer() -> None:
    """A refused connection stays open while its client still sends, so that the client gets the answer."""
    async with edge() as (proxy, _), asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(b"GET /v1/models HTTP/1.1\r\nx: ")
        for _ in range(64):
            conversation.writer.write(b"a" * 65536)
            await conversation.writer.drain()
        assert (await conversation.answer()).status == 431


async def test_a_malformed_chunk_fails_the_body_that_waits_for_it() -> None:
    """Rule E1: a malformed chunk in a body that the proxy reads gets a 400 and ends the connection."""
    async with edge() as (proxy, upstream):
        opening = (
            proxy.request(None, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
            + b"1\r\n{\r\n"
        )
        answer, rest = await said(proxy, opening, b"zz\r\n}\r\n0\r\n\r\n")
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert rest == b""
        assert upstream.requests == []


async def test_a_malformed_chunk_breaks_an_upload_off() -> None:
    """If a chunk of an upload is malformed, the upstream never gets a complete request."""
    async with edge() as (proxy, upstream):
        opening = (
            proxy.request(
                None, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}, path="/v1/files"
            )
            + b"1\r\na\r\n"
        )
        answer, _ = await said(proxy, opening, b"zz\r\n}\r\n0\r\n\r\n")
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        await upstream.all_closed()
        assert upstream.requests == []


@pytest.mark.parametrize("warm", [False, True])
async def test_a_head_has_a_time_in_all(warm: bool) -> None:
    """A head that is not complete in time gets a 408, even if bytes keep coming or a request came before."""
    async with edge(header_timeout_s=0.3) as (proxy, upstream), proxy.connect() as conversation:
        loop = asyncio.get_running_loop()
        if warm:
            conversation.writer.write(proxy.request(method="GET", path="/v1/models"))
            assert (await conversation.answer()).status == 200
        drip = asyncio.create_task(_drip(conversation.writer, b"GET /v1/models HTTP/1.1\r\n" + b"x" * 4000))
        began = loop.time()
        async with asyncio.timeout(PATIENCE_S):
            answer = await conversation.answer()
            assert await conversation.reader.read() == b""
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert (answer.header("x-request-id") or "").startswith("req_")
        assert loop.time() - began >= 0.25
        assert len(upstream.requests) == int(warm)
        drip.cancel()
        await asyncio.wait([drip])


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.01)


async def test_a_quiet_connection_is_no_late_head() -> None:
    """A client may be silent between two requests for longer than the timeout of a head."""
    async with edge(header_timeout_s=0.1) as (proxy, _), proxy.connect() as conversation:
        for _ in range(2):
            await asyncio.sleep(0.2)
            conversation.writer.write(proxy.request(method="GET", path="/v1/models"))
            assert (await conversation.answer()).status == 200


FLOOD: list[Step] = [
    head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
    chunk(role()),
    *[chunk(content("x" * 60_000))] * 1000,
    HANG,
]


async def test_a_client_that_takes_nothing_is_let_go() -> None:
    """The proxy drops a client that stops reading after the timeout, which frees the upstream."""
    async with (
        edge(FLOOD, send_timeout_s=0.3) as (proxy, upstream),
        proxy.sent({**ASK, "stream": True}) as conversation,
    ):
        await conversation.reader.readuntil(b"xxx")
        conversation.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await upstream.all_closed()
        assert upstream.sent < 60_000_000


async def test_a_client_that_takes_a_little_is_kept() -> None:
    """The proxy keeps a slow client: each time the client reads something, the timeout starts anew."""
    script: list[Step] = [*FLOOD[:402], b"0\r\n\r\n", HANG]
    async with edge(script, send_timeout_s=2.0) as (proxy, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=65536)
        writer.write(proxy.request({**ASK, "stream": True}))
        size, end = 0, b""
        async with asyncio.timeout(LATE_S):
            while not end.endswith(b"0\r\n\r\n"):
                data = await reader.read(1 << 18)
                assert data, "the connection was cut"
                size, end = size + len(data), (end + data)[-5:]
                await asyncio.sleep(0.02)
        writer.close()
        assert size > 24_000_000


async def test_what_is_sent_at_once_behind_a_late_body_is_answered() -> None:
    """Rule E1: after a body that came later than its head, 70 pipelined requests are all answered."""
    async with edge() as (proxy, _), asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        first, blank, body = proxy.request(ASK).partition(b"\r\n\r\n")
        conversation.writer.write(first + blank)
        await asyncio.sleep(0.05)
        conversation.writer.write(body)
        assert (await conversation.answer()).status == 200
        conversation.writer.write(proxy.request(method="GET", path="/healthz") * 70)
        assert {(await conversation.answer()).status for _ in range(70)} == {200}


async def test_many_requests_at_once_keep_nobody_waiting() -> None:
    """Between two pipelined requests of a connection the event loop serves others."""
    order: list[str] = []

    async def note(request: EdgeRequest) -> web.Response:
        if not order:
            asyncio.get_running_loop().call_soon(order.append, "another")
        order.append(request.raw_path)
        return web.Response(text="noted")

    async with serving_proxy(Behind(note)) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        paths = [f"/{number}" for number in range(10)]
        writer.write(b"".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths))
        answers = b""
        while answers.count(b"noted") < len(paths):
            answers += await reader.read(65536)
        writer.close()
    assert order.index("another") <= 2
    assert [path for path in order if path != "another"] == paths


async def test_a_body_that_nobody_read_is_no_request() -> None:
    """The server discards the rest of a body after an early answer, and serves the next request."""

    async def early(request: EdgeRequest) -> web.Response:
        return web.Response(text="early")

    async with serving_proxy(Behind(early)) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n")
        assert (await reader.readuntil(b"early")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /" * 100_000 + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        rest = await reader.read()
        writer.close()
    assert rest.count(b"HTTP/1.1 200") == 1
    assert rest.endswith(b"early")
