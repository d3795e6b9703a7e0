"""Responses to a client, byte by byte: their framing, their order, and how a broken response ends."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from aiohttp import HttpVersion10, HttpVersion11
from aiohttp.streams import StreamReader
from edge_requests import edge_request
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import FIN, HANG, KEEP, LAST_CHUNK, RESET, RawUpstream, Step, chunk, chunked, head, whole
from running_proxy import ONLY_DEPARTURE, Proxy, make_config, running
from waiting import PATIENCE_S, until

from proxy.http.headers import Headers
from proxy.http.secrets import Secrets, Sink
from proxy.relay.passing.passthrough import pump
from proxy.relay.routing.deadlines import Deadlines
from proxy.server.messages.response import HttpClientStream, _head_templates
from proxy.upstreams.base import PulledResponse
from proxy.wires.openai.dialect import OPENAI
from proxy.wires.stream.sse import END_MARK

pytestmark = pytest.mark.both_loops

ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")


@asynccontextmanager
async def before(*scripts: list[Step], old: bool = False) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy without tools in front of a raw upstream; with ``old`` it accepts HTTP/1.0, too."""
    config = dict(ONLY_DEPARTURE)
    if old:
        config["server"] = {**config["server"], "trusted_proxies": ("127.0.0.1",)}
    async with (
        RawUpstream(*scripts) as upstream,
        running(make_config(upstream.url, allow=(), **config)) as proxy,
    ):
        yield proxy, upstream


async def exchanged(proxy: Proxy, sent: bytes) -> bytes:
    """Return all bytes until the connection ends; a reset adds ``RESET``."""
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(sent)
        found = b""
        try:
            while data := await conversation.reader.read(65536):
                found += data
        except ConnectionResetError:
            return found + b"RESET"
        return found


def get(path: str, *headers: str, version: str = "1.1", method: str = "GET") -> bytes:
    """Return a request without a body."""
    return "\r\n".join([f"{method} /v1{path} HTTP/{version}", "Host: 127.0.0.1", *headers, "", ""]).encode()


def upload(*headers: str) -> bytes:
    """Return the head of an upload."""
    return get("/files", "Content-Type: application/json", *headers, method="POST")


def body_of(response: bytes) -> bytes:
    """Return what stands behind a response's head."""
    return response.partition(b"\r\n\r\n")[2]


async def test_pipelined_requests_are_answered_in_order_and_apart() -> None:
    """Pipelined requests are answered in order, and no byte of one response stands in the next."""
    stream = [b"data: %d\n\n" % n for n in range(50)]
    scripts = [
        chunked(*stream, END_MARK),
        whole(b"{}"),
        chunked(b"a", content_type="text/plain"),
        whole(b"[]"),
    ]
    async with before(*scripts) as (proxy, upstream), proxy.connect() as conversation:
        sent = [proxy.request(ASK), get("/files"), get("/files/a"), get("/files/b")]
        conversation.writer.write(b"".join(sent))
        async with asyncio.timeout(PATIENCE_S):
            answers = [await conversation.answer() for _ in sent]
    assert [answer.body for answer in answers] == [b"".join(stream) + END_MARK, b"{}", b"a", b"[]"]
    assert all(answer.clean for answer in answers)
    assert [request.target for request in upstream.requests][1:] == [
        "/v1/files",
        "/v1/files/a",
        "/v1/files/b",
    ]


async def test_an_old_client_gets_its_body_until_the_end_of_the_connection() -> None:
    """An HTTP/1.0 client gets a body without chunks; with a length its connection can be kept."""
    async with before(chunked(b"a", b"b"), whole(b"{}"), old=True) as (proxy, _):
        response = await exchanged(proxy, get("/files", version="1.0"))
        assert body_of(response) == b"ab"
        assert b"chunked" not in response
        assert b"Connection: close" in response
        asked = get("/files", "Connection: keep-alive", version="1.0") + get("/files", version="1.0")
        both = await exchanged(proxy, asked)
        assert both.count(b"\r\n\r\n{}") == 2
        assert b"Connection: keep-alive" in both


@pytest.mark.parametrize("ending", [FIN, RESET])
async def test_a_body_that_broke_never_looks_whole(ending: Step) -> None:
    """A broken body ends in a reset over HTTP/1.0, and without a last chunk over HTTP/1.1."""
    script: list[Step] = [
        head("Content-Type: text/plain", "Transfer-Encoding: chunked"),
        chunk(b"a"),
        0.05,
        ending,
    ]
    async with before(script, old=True) as (proxy, _):
        assert (await exchanged(proxy, get("/files", version="1.0"))).endswith(b"RESET")
        newer = await exchanged(proxy, get("/files"))
        assert newer.endswith(b"1\r\na\r\n")


async def test_a_head_request_gets_a_head() -> None:
    """A HEAD request gets the length of the body without the body, and its connection goes on."""
    async with before([head("Content-Length: 5", "Content-Type: text/plain"), KEEP], whole(b"{}")) as (
        proxy,
        _,
    ):
        found = await exchanged(proxy, get("/files", method="HEAD") + get("/files", "Connection: close"))
    first, second, body = found.split(b"\r\n\r\n")
    assert b"Content-Length: 5" in first
    assert second.startswith(b"HTTP/1.1 200 OK")
    assert body == b"{}"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_a_response_without_a_body_has_none(status: str) -> None:
    """A response with status 204 or 304 has no body, neither with a length nor in chunks."""
    async with before([head("ETag: x", status=status), KEEP]) as (proxy, _):
        found = await exchanged(proxy, get("/files", "Connection: close"))
    assert body_of(found) == b""
    assert b"chunked" not in found
    assert b"ETag: x" in found


async def test_odd_header_bytes_pass_and_a_missing_type_is_named() -> None:
    """Header values in UTF-8 pass, other bytes are replaced, and a missing content type is added."""
    script: list[Step] = [
        b"HTTP/1.1 200 OK\r\nETag: \xc3\xa9\r\nVary: \xe9\r\nContent-Length: 2\r\n\r\n{}",
        KEEP,
    ]
    async with before(script) as (proxy, _):
        found = await exchanged(proxy, get("/files", "Connection: close"))
    assert b"ETag: \xc3\xa9\r\n" in found
    assert b"Vary: \xef\xbf\xbd\r\n" in found
    assert b"Content-Type: application/octet-stream\r\n" in found


THEIR_NAMES = st.sampled_from(
    [
        "Content-Type",
        "content-length",
        "X-RateLimit-Limit-Requests",
        "x-ratelimit-reset-tokens",
        "ETag",
        "X-A",
    ]
)
OUR_LIMITS = [("x-ratelimit-limit-requests", "5"), ("x-ratelimit-remaining-requests", "4")]


def lines_of(
    status: int, theirs: Headers, limits: Headers, method: str, *, old: bool, keep: bool
) -> tuple[list[str], bool]:
    """Return the headers that a response should have, without its date, and whether its connection
    goes on."""
    shown = limits if status != 429 else []
    replaced = {name for name, _ in shown} | ({"content-length"} if status == 204 else set())
    lines = [f"{name}: {value}" for name, value in theirs if name.lower() not in replaced]
    lines += [f"{name}: {value}" for name, value in [*shown, ("Server", "toolrelay")]]
    low = {name.lower() for name, _ in theirs}
    if method != "HEAD" and status not in (204, 304):
        if "content-length" not in low and old:
            keep = False
        elif "content-length" not in low:
            lines.append("Transfer-Encoding: chunked")
        if "content-type" not in low:
            lines.append("Content-Type: application/octet-stream")
    if not keep:
        lines.append("Connection: close")
    elif old:
        lines.append("Connection: keep-alive")
    return sorted(lines), keep


@given(
    status=st.sampled_from([200, 204, 299, 304, 404, 429, 500]),
    theirs=st.lists(st.tuples(THEIR_NAMES, st.sampled_from(["1", "a b", "é", "%s"]))),
    limits=st.sampled_from([[], OUR_LIMITS]),
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    old=st.booleans(),
    keep=st.booleans(),
    last=st.booleans(),
)
def test_a_head_has_each_header_under_its_name(
    status: int, theirs: Headers, limits: Headers, method: str, old: bool, keep: bool, last: bool
) -> None:
    """The cached templates of heads with the same names change nothing about a head."""
    theirs = [(name, "1" if name.lower() == "content-length" else value) for name, value in theirs]
    request = edge_request(method)
    request.version = HttpVersion10 if old else HttpVersion11
    request.keep_alive, request.limit_headers = keep, dict(limits)
    client = HttpClientStream(request, {"Server": "toolrelay"}, last=last)
    client.start(status, theirs)
    first, *lines = client._held.decode().removesuffix("\r\n\r\n").split("\r\n")
    expected, goes_on = lines_of(status, theirs, limits, method, old=old, keep=keep and not last)
    assert first.startswith(f"HTTP/1.{0 if old else 1} {status} ")
    assert sorted(line for line in lines if not line.startswith("Date: ")) == expected
    assert len(lines) == len(expected) + 1
    assert client.response.status == status
    assert client.response.keep_alive == goes_on


def test_ever_other_ways_to_answer_keep_few_frames() -> None:
    """However clients vary their requests, the cache has few templates of heads for one upstream's names."""
    theirs = [("X-Kept-For-Many", "1"), ("Content-Length", "0")]
    heads: dict[Any, list[bytes]] = {}
    for _ in range(2):  # A dropped template is made again as it was.
        for way in product(["GET", "HEAD"], [True, False], [True, False], [200, 204], range(4)):
            method, old, keep, status, told = way
            request = edge_request(method)
            request.version = HttpVersion10 if old else HttpVersion11
            request.keep_alive = keep
            client = HttpClientStream(request, {f"x-{name}": "a" for name in range(told)})
            client.start(status, theirs)
            heads.setdefault(way, []).append(re.sub(rb"Date: [^\r]+", b"", client._held))
    assert all(first == again for first, again in heads.values())
    assert len(_head_templates(tuple([name for name, _ in theirs]))) <= 8


# ---------------------------------------------------------------- uploads


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    """The proxy answers ``Expect: 100-continue`` before the body comes, and does not forward it."""
    async with before(whole(b"{}")) as (proxy, upstream), proxy.connect() as conversation:
        conversation.writer.write(upload("Expect: 100-continue", "Content-Length: 3"))
        async with asyncio.timeout(PATIENCE_S):
            assert await conversation.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            conversation.writer.write(b"abc")
            assert (await conversation.answer()).body == b"{}"
    assert upstream.requests[0].body == b"abc"
    assert upstream.requests[0].header("expect") is None


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_client_that_dies_in_its_upload_ends_it_upstream(framing: str) -> None:
    """If a client dies in its upload, the upstream gets no whole request, and its connection is closed."""
    opening = "Content-Length: 100000" if framing == "length" else "Transfer-Encoding: chunked"
    sent = upload(opening)
    async with before(whole(b"{}")) as (proxy, upstream):
        async with proxy.connect() as conversation:
            conversation.writer.write(sent + (b"x" * 100 if framing == "length" else chunk(b"x" * 100)))
            await until(lambda: upstream.open_connections > 0)
            conversation.leave()
        await upstream.all_closed()
        assert upstream.requests == []


async def test_an_early_answer_ends_an_upload_in_order() -> None:
    """An upstream's early refusal of an upload reaches the client, and the next request is served."""
    served: list[asyncio.StreamWriter] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        refusal = whole(b'{"error":{}}', status="413 Content Too Large")[0]
        assert isinstance(refusal, bytes)
        writer.write(refusal)

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = make_config(f"http://127.0.0.1:{port}/v1", allow=())
    async with running(config) as proxy, asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(upload("Content-Length: 3000000") + b"x" * 1_500_000)
        answer = await conversation.answer()
        assert (answer.status, answer.clean) == (413, True)
        conversation.writer.write(b"x" * 1_500_000 + get("/files"))
        assert (await conversation.answer()).status == 413
    for writer in served:
        writer.transport.abort()
    server.close()
    await asyncio.sleep(0.01)


async def test_an_upload_waits_for_the_upstream() -> None:
    """If the upstream does not read, the proxy stops reading from the client, so its buffers are bounded."""
    go = asyncio.Event()
    got: list[int] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go.wait()
        while sum(got) < 24 << 20 and (data := await reader.read(1 << 20)):
            got.append(len(data))
        answer = whole(b"{}", "Connection: close")[0]
        assert isinstance(answer, bytes)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = make_config(f"http://127.0.0.1:{port}/v1", allow=(), server={"max_upload_bytes": 24 << 20})
    async with running(config) as proxy, asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(upload(f"Content-Length: {24 << 20}") + b"x" * (24 << 20))
        transport = conversation.writer.transport
        left = -1
        while transport.get_write_buffer_size() != left:
            left = transport.get_write_buffer_size()
            await asyncio.sleep(0.2)
        assert left > 12 << 20
        go.set()
        assert (await conversation.answer()).body == b"{}"
    assert sum(got) == 24 << 20
    server.close()
    await asyncio.sleep(0.01)


# ---------------------------------------------------------------- clients that are slow or leave


async def test_a_client_that_stops_reading_and_leaves_frees_the_upstream() -> None:
    """The proxy reads the upstream only as far as its buffers go, and drops it when the client leaves."""
    pieces = [chunk(b"data: " + b"x" * 60000 + b"\n\n")] * 3000
    async with before([SSE_HEAD, *pieces, LAST_CHUNK, HANG]) as (proxy, upstream):
        async with proxy.sent(ASK) as conversation:
            await conversation.head()
            sent = -1
            while upstream.sent != sent:
                sent = upstream.sent
                await asyncio.sleep(0.1)
            assert sent < 100 << 20
            conversation.leave()
        await upstream.all_closed()


class Flood(PulledResponse):
    """A stream that goes on after its end mark."""

    status = 200
    headers: Headers = (("Content-Type", "text/event-stream"),)
    content_type = "text/event-stream"

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"data: 1\n\n" + END_MARK
        for _ in range(3):
            yield b"data: more\n\n"

    async def aclose(self) -> None:
        return

    async def read(self, limit: int) -> bytes:
        raise NotImplementedError


class Client:
    """A client that records what it gets, and which piece was marked as the last."""

    stopped_by_server = False
    origin = ""

    def __init__(self) -> None:
        self.given: list[tuple[bytes, bool]] = []
        self.started = False

    def blank_out(self, secrets: Secrets | None) -> None:
        return

    def set_header(self, name: str, value: str) -> None:
        return

    def start(self, status: int, headers: Headers) -> None:
        self.started = True

    def flush(self) -> None:
        return

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        self.given.append((data, last))
        return None

    async def write(self, data: bytes) -> None:
        self.push(data)

    def before_finish(self) -> Awaitable[None] | None:
        return None

    def finish(self) -> None:
        return

    def abort(self) -> None:
        raise AssertionError("a whole stream was broken off")


class AtOnce(Flood):
    """A stream that arrives whole, in one read."""

    def push(self, sink: Sink) -> Awaitable[None] | None:
        sink(b"data: 1\n\n" + END_MARK)
        return None


class Writes(asyncio.Transport):
    """A transport that records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


async def test_a_head_waits_for_no_body_that_is_still_to_come() -> None:
    """The client gets the status and the headers as soon as the upstream has sent them."""
    for kind in ("text/event-stream", "text/plain"):
        go_on = asyncio.Event()
        script: list[Step] = [head(f"Content-Type: {kind}", "Content-Length: 9"), go_on, b"data: 1\n\n", KEEP]
        async with before(script) as (proxy, _), proxy.connect() as conversation:
            conversation.writer.write(proxy.request(ASK))
            async with asyncio.timeout(PATIENCE_S):
                assert kind.encode() in await conversation.reader.readuntil(b"\r\n\r\n")
                go_on.set()
                assert b"data: 1" in await conversation.reader.readuntil(b"\n\n")


async def test_a_response_that_is_here_leaves_in_one_write() -> None:
    """The proxy writes head, body and end in one call if all of them are here at once."""
    transport = Writes()
    request = edge_request("POST", "/v1/responses")
    request.protocol.transport = transport
    client = HttpClientStream(request, {})
    await pump(AtOnce(), client, dialect=OPENAI)
    [written] = transport.writes
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert written.endswith(END_MARK + b"\r\n0\r\n\r\n")


async def test_each_piece_is_one_chunk_of_its_own_length() -> None:
    """The proxy writes each piece at once as one chunk with its length, with secrets blanked out."""
    for shapes in ([b"sk-Q0" + 20 * b"a"], [b"sk-Q0" + 20 * b"a", b"Zz9" + 20 * b"x"]):
        transport = Writes()
        request = edge_request("POST", "/v1/responses")
        request.protocol.transport = transport
        client = HttpClientStream(request, {})
        client.blank_out(Secrets(shapes))
        client.start(200, [("Content-Type", "text/event-stream")])
        client.push(b"first")
        pieces = [b"a" * size for size in (1, 15, 16, 255, 256, 511, 512, 513, 4096, 70_000)]
        pieces += [b"Q" + shape + b"Z" for shape in shapes]
        blanked = pieces[: -len(shapes)] + [b"Q" + b"*" * len(shape) + b"Z" for shape in shapes]
        for piece in pieces:
            assert client.push(piece) is None
        assert transport.writes[1:] == [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in blanked]
        assert client.sent == sum(map(len, transport.writes))


@pytest.mark.parametrize("control", ["\r", "\n", "\0"])
async def test_no_header_ends_its_line(control: str) -> None:
    """The proxy writes no head if a header's name or value, whoever set it, has a control character."""
    fine, odd = ("X-A", "a"), f"a{control}b"
    limits = ("x-ratelimit-limit-requests", "9")
    for bad in ((odd, "a"), ("X-A", odd), ("x-ratelimit-a", odd)):
        for theirs, ours, ahead in (
            ([fine, bad], [fine], []),
            ([fine], [bad], []),
            ([limits], [("Server", "a")], [bad]),
        ):
            for _ in range(2):  # The second time the template may be cached.
                request = edge_request("POST", "/v1/responses")
                request.protocol.transport = Writes()
                request.limit_headers = dict(ahead)
                client = HttpClientStream(request, dict(ours))
                with pytest.raises(ValueError, match="control character"):
                    client.start(200, theirs)
                assert not client.started


async def test_an_open_stream_keeps_no_head() -> None:
    """When the response's head is made, the request drops its own, unless its body is still to come."""
    for still_sending in (False, True):
        request = edge_request("POST", "/v1/responses", {"User-Agent": "sdk"})
        request.protocol.transport = Writes()
        if still_sending:
            request.content = StreamReader(request.protocol, 2**16, loop=asyncio.get_running_loop())
        HttpClientStream(request, {}).start(200, [("Content-Type", "text/event-stream")])
        assert ("User-Agent" in request.headers) == still_sending
        assert ("User-Agent" in request.head.headers) == still_sending


class AtTheLastMoment(Flood):
    """A stream whose end comes in the same turn of the event loop in which its time runs out."""

    def push(self, sink: Sink) -> Awaitable[None] | None:
        return self._late(sink)

    async def _late(self, sink: Sink) -> None:
        asyncio.get_running_loop().call_later(0.02, sink, b"data: 1\n\n" + END_MARK)
        time.sleep(0.05)  # noqa: ASYNC251 - both timers must be due when the loop looks again
        await asyncio.Event().wait()


async def test_an_end_mark_at_the_last_moment_is_an_end() -> None:
    """An end that comes as the total time runs out is sent, and the stream does not count as broken."""
    client = Client()
    await pump(AtTheLastMoment(), client, dialect=OPENAI, total=Deadlines(0.01))
    assert client.given == [(b"data: 1\n\n" + END_MARK, True)]


async def test_only_the_end_mark_is_held_for_the_end() -> None:
    """Only the piece with the end mark is marked as the last; what follows it is sent like the rest."""
    client = Client()
    await pump(Flood(), client, dialect=OPENAI)
    assert [last for _, last in client.given] == [True, False, False, False]
    assert b"".join(data for data, _ in client.given).endswith(b"data: more\n\n")


# ---------------------------------------------------------------- one response is not two

EVIL = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nevil"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "response",
    [
        *(
            b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b%b" % (status, len(EVIL), EVIL, FINAL)
            for status in (100, 102, 103, 104, 110, 150, 199)
        ),
        b"HTTP/1.1 104 X\r\ncontent-length : 9\r\n\r\n" + FINAL,
        b"HTTP/1.1 104 X\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n%b"
        % (len(EVIL), EVIL, FINAL),
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 68\r\n\r\n{}" + EVIL,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        + EVIL,
        b"HTTP/1.1 204 No Content\r\nContent-Length: %d\r\n\r\n%b" % (len(EVIL), EVIL),
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: %d\r\n\r\n%b" % (len(EVIL), EVIL),
        FINAL + EVIL,
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" + EVIL,
    ],
)
@pytest.mark.parametrize("cut", [False, True])
async def test_a_response_never_answers_the_next_request(response: bytes, cut: bool) -> None:
    """What an upstream sends beyond one response reaches no client as a second one, however it is cut."""
    pieces: list[Step] = [response[at : at + 1] for at in range(len(response))] if cut else [response]
    async with before([*pieces, KEEP], whole(b'{"second":1}')) as (proxy, _):
        found = await exchanged(proxy, get("/files") + get("/files", "Connection: close"))
    assert b"evil" not in found
    # The first answer may be an error that ends the connection; each answer is whole.
    assert len(re.findall(rb"HTTP/1\.1 \d{3} ", found)) <= 2
    if b'{"second":1}' in found:
        assert found.endswith(b'{"second":1}')


class Wrong(PulledResponse):
    """A response whose body is not as long as its head says."""

    status = 200
    content_type = "application/json"

    def __init__(self, announced: int, *pieces: bytes) -> None:
        self.headers: Headers = [("Content-Type", "application/json"), ("Content-Length", str(announced))]
        self._pieces = pieces

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        for piece in self._pieces:
            yield piece

    async def read(self, limit: int) -> bytes:
        """Not called."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Nothing to close."""


class Written(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Keep the data."""
        self.written += data

    def get_write_buffer_size(self) -> int:
        """Return 0, as everything has been sent."""
        return 0

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.closed

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


@pytest.mark.parametrize(
    ("announced", "pieces", "sent"),
    [
        (2, [b"{}", b"x"], b"{}"),
        (2, [b"{", b"}x"], b"{"),
        (0, [b"x"], b""),
        (9, [b"{}"], b"{}"),
        (9, [], b""),
    ],
)
async def test_a_body_that_breaks_its_word_ends_the_connection(
    announced: int, pieces: list[bytes], sent: bytes
) -> None:
    """If a body is longer or shorter than announced, the proxy ends the connection and drops the excess."""
    request, transport = edge_request(), Written()
    request.protocol.transport = transport
    client = HttpClientStream(request, {})
    broken: list[object] = []
    await pump(Wrong(announced, *pieces), client, dialect=None, broken=broken.append)
    assert body_of(transport.written) == sent
    assert transport.closed
    assert len(broken) == (sum(map(len, pieces)) > announced)
