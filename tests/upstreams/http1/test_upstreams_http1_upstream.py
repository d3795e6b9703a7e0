"""The HTTP/1 client for upstreams: how it pushes bodies to a sink, and how it keeps connections."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushing import pushed
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
    head,
    whole,
)
from taped_line import Taped
from waiting import until

from proxy.base.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from proxy.http.headers import HeaderSection
from proxy.http.rules import HeaderRules
from proxy.net.resolver import AddressInfo, Resolver, numeric
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.http1 import connection as lean_connection
from proxy.upstreams.http1 import reader as lean_reader
from proxy.upstreams.http1.exchange import NEVER, ConnectionLost, Exchange
from proxy.upstreams.http1.reader import MAX_HEADER_BYTES, MAX_HEADERS
from proxy.upstreams.http1.response_heads import ResponseHeads
from proxy.upstreams.http1.upstream import Http1Upstream

pytestmark = pytest.mark.both_loops

ASK = UpstreamRequest("POST", "/chat/completions", body=ASKED)
CHUNKED = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")


def lean(raw: RawUpstream, **options: Any) -> Http1Upstream:
    """An upstream client for a raw server."""
    return Http1Upstream("main", raw.url, "sk-key", **options)


class Sunk:
    """A sink that keeps what it gets and can be made to wait."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.release: asyncio.Event | None = None
        self.came = asyncio.Event()

    def __call__(self, data: bytes) -> Awaitable[None] | None:
        self.pieces.append(data)
        self.came.set()
        return None if self.release is None else self._wait(self.release)

    async def _wait(self, release: asyncio.Event) -> None:
        await release.wait()


async def test_a_pushed_body_comes_whole_and_in_order() -> None:
    """The sink gets every byte of the body in order, also those that came before the push."""
    async with RawUpstream(chunked(b"a", b"b" * 70_000, b"c")) as raw:
        upstream = lean(raw)
        sunk = Sunk()
        response = await upstream.open(ASK)
        await pushed(response, sunk)
        await response.aclose()
        assert b"".join(sunk.pieces) == b"a" + b"b" * 70_000 + b"c"
        await upstream.aclose()


async def test_a_body_that_is_here_is_pushed_at_once() -> None:
    """``push`` gives the sink a body that has already arrived, and returns nothing to wait for."""
    async with RawUpstream(whole(b"{}")) as raw:
        upstream = lean(raw)
        pieces: list[bytes] = []
        response = await upstream.open(ASK)
        assert response.push(pieces.append) is None
        assert pieces == [b"{}"]
        await upstream.aclose()


async def test_a_sink_that_waits_gets_nothing_meanwhile() -> None:
    """While the sink waits, it gets no piece and the idle timeout does not run; later it gets them all."""
    pieces = [chunk(b"x" * 60_000) for _ in range(200)]
    async with RawUpstream([CHUNKED, *pieces, LAST_CHUNK, FIN]) as raw:
        upstream = lean(raw, idle_timeout_s=1.0)
        sunk = Sunk()
        sunk.release = asyncio.Event()
        response = await upstream.open(ASK)
        pushing = asyncio.ensure_future(pushed(response, sunk))
        await sunk.came.wait()
        await asyncio.sleep(1.5)  # longer than the idle timeout
        assert len(sunk.pieces) == 1
        sunk.release.set()
        await pushing
        assert sum(map(len, sunk.pieces)) == 200 * 60_000
        await upstream.aclose()


async def test_what_a_sink_raises_comes_out_of_the_push() -> None:
    """If the sink raises an error, because its client is gone, the push raises the same error."""

    def gone(data: bytes) -> None:
        raise ConnectionResetError("gone")

    async with RawUpstream([CHUNKED, chunk(b"a"), HANG]) as raw:
        upstream = lean(raw)
        response = await upstream.open(ASK)
        with pytest.raises(ConnectionResetError, match="gone"):
            await pushed(response, gone)
        await response.aclose()
        await upstream.aclose()


@pytest.mark.parametrize("ending", [RESET, FIN, b"zz\r\n"])
async def test_a_pushed_body_that_breaks_gives_what_came_before(ending: Step) -> None:
    """If a body breaks off, the sink gets what came before, and then the push raises UpstreamBroken."""
    async with RawUpstream([CHUNKED, chunk(b"a"), ending]) as raw:
        upstream = lean(raw)
        sunk = Sunk()
        response = await upstream.open(ASK)
        with pytest.raises(UpstreamBroken):
            await pushed(response, sunk)
        assert sunk.pieces == [b"a"]
        await upstream.aclose()


async def test_silence_ends_a_push() -> None:
    """If the upstream sends nothing for the idle timeout, the push raises UpstreamTimeout."""
    async with RawUpstream([CHUNKED, chunk(b"a"), HANG]) as raw:
        upstream = lean(raw, idle_timeout_s=0.1)
        response = await upstream.open(ASK)
        with pytest.raises(UpstreamTimeout, match="sent nothing"):
            await pushed(response, Sunk())
        await upstream.aclose()


async def test_idle_connections_are_closed_in_time() -> None:
    """A connection that was idle for ``keepalive_s`` is closed without another request."""
    async with RawUpstream(whole(b"{}"), whole(b"{}")) as raw:
        upstream = lean(raw, keepalive_s=0.1)
        response = await upstream.open(ASK)
        assert await response.read(10) == b"{}"
        await raw.all_closed()
        await upstream.aclose()


async def test_bytes_that_nobody_asked_for_end_their_connection() -> None:
    """If a second response follows the first one, the next request uses a new connection."""
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    first, second = whole(b"{}"), whole(b"[]")
    assert isinstance(first[0], bytes)
    first[0] += evil
    async with RawUpstream(first, second) as raw:
        upstream = lean(raw)
        assert await (await upstream.open(ASK)).read(10) == b"{}"
        assert await (await upstream.open(ASK)).read(10) == b"[]"
        assert raw.connections == 2
        await upstream.aclose()


def exchange(line: Taped, *, bodiless: bool = False) -> Exchange:
    """An exchange by itself."""
    loop = asyncio.get_running_loop()
    heads = ResponseHeads(HeaderRules(), ())
    return Exchange("main", line, heads, loop, first_byte_timeout_s=1, idle_timeout_s=2, bodiless=bodiless)


async def _body(given: Exchange) -> bytes:
    found = []
    while piece := await given.next_piece():
        found.append(piece)
    return b"".join(found)


RESPONSES = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=1\r\nhe\r\n3\r\nllo\r\n0\r\nT: 1\r\n\r\n"
    ),
    "interim": (
        b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    ),
    "nothing": b"HTTP/1.1 204 No Content\r\n\r\n",
}


@given(name=st.sampled_from(sorted(RESPONSES)), cuts=st.sets(st.integers(1, 150), max_size=8))
def test_a_response_reads_the_same_however_it_is_cut(name: str, cuts: set[int]) -> None:
    """Rule W6: status, body and reuse of the connection do not depend on how reads cut the bytes."""

    async def run() -> None:
        line = Taped()
        given_ = exchange(line)
        raw = RESPONSES[name]
        edges = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
        for start, end in pairwise(edges):
            given_.feed(raw[start:end])
        await given_.head
        assert given_.status == (204 if name == "nothing" else 200)
        assert not {"Link", "T"} & {name for name, _ in given_.headers}
        assert await _body(given_) == (b"" if name == "nothing" else b"hello")
        assert line.said == ["release True"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 17,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (MAX_HEADERS + 2),
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * (MAX_HEADER_BYTES + 1) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * (256 * 1024),
        b"\x00\x01\x02",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
async def test_what_is_no_response_is_refused(raw: bytes) -> None:
    """A malformed or oversized head raises UpstreamBroken, and its connection is closed."""
    line = Taped()
    given_ = exchange(line)
    given_.feed(raw)
    with pytest.raises(UpstreamBroken, match="malformed"):
        await given_.head
    assert line.said == ["abort"]


async def test_too_much_unread_stops_the_reading() -> None:
    """While nobody takes a body, its connection is not read and the idle timeout does not run."""
    line = Taped()
    given_ = exchange(line)
    given_.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 200_000)
    assert line.said == ["pause"]
    assert given_.limit_s == NEVER
    assert len(await given_.next_piece()) == 200_000
    assert line.said == ["pause", "resume"]
    assert given_.limit_s == 2


async def test_a_sink_that_waits_at_once_stops_the_reading() -> None:
    """If the sink waits with its first piece, the connection is not read until the sink goes on."""
    line, sunk = Taped(), Sunk()
    sunk.release = asyncio.Event()
    given_ = exchange(line)
    given_.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    rest = given_.push(sunk)
    assert rest is not None
    assert (line.said, given_.limit_s) == (["pause"], NEVER)
    pushing = asyncio.ensure_future(rest)
    sunk.release.set()
    await until(lambda: line.said == ["pause", "resume"])
    assert given_.limit_s == 2
    given_.feed(b"cd")
    await pushing
    assert sunk.pieces == [b"ab", b"cd"]


async def test_no_time_is_cut_short_and_none_is_long_overdue() -> None:
    """The idle timeout counts from the first check after the last byte, so it never ends too early."""
    line = Taped()
    given_ = exchange(line)
    start = given_.last
    given_.look_for_silence(start + 1.0)
    given_.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    for later in (1.1, 3.0, 3.1):
        given_.look_for_silence(start + later)
        assert line.said == []
    given_.look_for_silence(start + 3.2)
    assert line.said == ["abort"]
    assert await given_.next_piece() == b"ab"
    with pytest.raises(UpstreamTimeout, match="sent nothing for 2 s"):
        await given_.next_piece()


async def test_a_connection_lost_before_the_head_says_whether_anything_came() -> None:
    """ConnectionLost says whether a byte came: only a request without any answer may be repeated."""
    for sent, received in ((b"", False), (b"HTTP/1.1 2", True)):
        given_ = exchange(Taped())
        if sent:
            given_.feed(sent)
        given_.lost(by_peer=True)
        with pytest.raises(ConnectionLost) as lost:
            await given_.head
        assert lost.value.received is received


async def test_only_an_orderly_end_ends_a_body_without_a_length() -> None:
    """A body without a length is complete only if the upstream itself closed the connection."""
    for by_peer in (True, False):
        given_ = exchange(Taped())
        given_.feed(b"HTTP/1.1 200 OK\r\n\r\nhello")
        given_.lost(by_peer=by_peer)
        assert await given_.next_piece() == b"hello"
        if by_peer:
            assert await given_.next_piece() == b""
        else:
            with pytest.raises(UpstreamBroken):
                await given_.next_piece()


async def test_a_head_request_has_no_body_and_its_connection_is_not_kept() -> None:
    """The answer to HEAD has no body, whatever its length says, and its connection is not reused."""
    line = Taped()
    given_ = exchange(line, bodiless=True)
    given_.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert await given_.next_piece() == b""
    assert line.said == ["release False"]


async def test_a_name_is_looked_up_once_for_many_connections() -> None:
    """One look-up of a name serves several connections; after a refused one the name is looked up again."""
    asked = []

    def look_up(host: str) -> Sequence[AddressInfo]:
        asked.append(host)
        return numeric("127.0.0.1", 0) or ()

    async with RawUpstream([*whole(b"{}")[:-1], FIN]) as raw:
        url = f"http://upstream.test:{raw.port}/v1"
        upstream = Http1Upstream("main", url, retries=0, resolver=Resolver("tests", look_up=look_up))
        for _ in range(3):
            assert await (await upstream.open(ASK)).read(10) == b"{}"
        assert asked == ["upstream.test"]
        assert raw.connections == 3
    with pytest.raises(UpstreamUnreachable):
        await upstream.open(ASK)
    with pytest.raises(UpstreamUnreachable):
        await upstream.open(ASK)
    assert len(asked) == 2
    await upstream.aclose()


async def test_headers_that_are_sent_again_are_each_upstream_s_own() -> None:
    """Upstreams that share a header section each send their own key and headers, and nobody else's."""
    section = HeaderSection.of([("X-A", "1"), ("X-B", "2"), ("Authorization", "Bearer client")])
    ask = UpstreamRequest("POST", "/chat/completions", headers=section, body=ASKED)
    async with RawUpstream(whole(b"{}")) as raw:
        listed: dict[str, Any] = {"forward_headers": ["x-a", "x-b"]}
        plain = Http1Upstream("plain", raw.url, "sk-plain", **listed)
        other = Http1Upstream("other", raw.url, "sk-other", headers={"x-a": "mine"}, **listed)
        theirs = Http1Upstream("theirs", raw.url, forward_authorization=True, **listed)
        keys = {plain: "sk-plain", other: "sk-other", theirs: "client"}
        for upstream in (plain, plain, other, theirs):
            assert await (await upstream.open(ask)).read(10) == b"{}"
            sent = raw.requests[-1]
            own = ["mine" if upstream is other else "1"]
            assert sent.header("authorization") == f"Bearer {keys[upstream]}"
            assert [value for name, value in sent.headers if name.lower() == "x-a"] == own
            assert sent.header("x-b") == "2"
        for upstream in (plain, other, theirs):
            await upstream.aclose()
        assert section.cached_lines is not None
        assert section.cached_lines[1] == "X-A: 1\r\nX-B: 2\r\n"


async def test_no_header_that_says_something_of_one_request_is_kept_for_the_next() -> None:
    """Requests that share a header section each send their own Content-Length and Accept-Encoding."""
    section = HeaderSection.of([("X-A", "1"), ("Accept-Encoding", "gzip")])
    async with RawUpstream(whole(b"{}")) as raw:
        upstream = lean(raw)
        for body, streams in ((b"{}", True), (b"[1,2]", False)):
            ask = UpstreamRequest("POST", "/files", headers=section, body=body, expect_stream=streams)
            assert await (await upstream.open(ask)).read(10) == b"{}"
            assert raw.requests[-1].body == body
            assert raw.requests[-1].header("accept-encoding") == ("identity" if streams else "gzip")
        await upstream.aclose()


async def test_responses_that_are_alike_need_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third response with the same header names is read without the parser, in one read or in several."""
    head_ = head("Content-Type: application/json", "Content-Length: 2", "ETag: %d")
    scripts: list[Sequence[Step]] = [[head_.replace(b"%d", b"%d" % n) + b"{}", KEEP] for n in range(3)]
    scripts.append([head_, 0.05, b"{", 0.05, b"}", KEEP])
    async with RawUpstream(*scripts, whole(b"{}", "ETag: x")) as raw:
        upstream = lean(raw)
        for _ in range(2):
            await (await upstream.open(ASK)).read(10)
        with monkeypatch.context() as patch:
            patch.setattr(lean_reader, "HttpResponseParser", None)
            for said in (b"2", b"%d"):
                response = await upstream.open(ASK)
                assert ("ETag", said.decode()) in [*response.headers]
                assert await response.read(10) == b"{}"
        assert await (await upstream.open(ASK)).read(10) == b"{}"
        assert raw.connections == 1
        await upstream.aclose()


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"evil", b"\0"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_bytes_behind_a_known_response_end_their_connection(behind: bytes, at_once: bool) -> None:
    """Extra bytes behind a response with a known head close its connection, and answer no request."""
    good = head("Content-Length: 2") + b"{}"
    first: list[Step] = [good + behind, KEEP] if at_once else [good[:-1], 0.05, b"}" + behind, KEEP]
    async with RawUpstream([good, KEEP], [good, KEEP], first, whole(b"[]")) as raw:
        upstream = lean(raw)
        for _ in range(3):
            assert await (await upstream.open(ASK)).read(10) == b"{}"
        assert await (await upstream.open(ASK)).read(10) == b"[]"
        assert raw.connections == 2
        await upstream.aclose()


async def test_few_idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many requests at once only the few connections stay open that were used last."""
    monkeypatch.setattr(lean_connection, "_MOST_IDLE", 3)
    ends = [asyncio.Event() for _ in range(8)]
    scripts: list[list[Step]] = [[head("Content-Length: 2"), end, b"{}", KEEP] for end in ends]
    async with RawUpstream(*scripts, whole(b"{}")) as raw:
        upstream = lean(raw)
        responses = [await upstream.open(ASK) for _ in ends]
        order = [4, 0, 7, 2, 6, 1, 5, 3]
        for number in order:
            ends[number].set()
            assert await responses[number].read(10) == b"{}"
        await until(lambda: raw.open_connections == 3)
        again = await asyncio.gather(*[upstream.open(ASK) for _ in range(3)])
        assert [await response.read(10) for response in again] == [b"{}"] * 3
        used = [request.connection for request in raw.requests]
        assert used[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert sorted(used[8:]) == sorted(used[number] for number in order[-3:])
        await upstream.aclose()


class _Client:
    """What a request keeps in its context, such as a client's key."""


ASKING: ContextVar[_Client] = ContextVar("asking")


async def test_a_kept_connection_keeps_nothing_of_the_request_that_opened_it() -> None:
    """The context of a request is freed at its end, although its connection stays open for others."""

    async def ask() -> weakref.ref[_Client]:
        client = _Client()
        ASKING.set(client)
        response = await upstream.open(ASK)
        assert await response.read(10) == b"{}"
        await response.aclose()
        return weakref.ref(client)

    async with RawUpstream(whole(b"{}"), whole(b"{}")) as raw:
        # asyncio keeps a timer that was cancelled, and its context, until it would have gone off.
        upstream = lean(raw, keepalive_s=3600, connect_timeout_s=1)
        left = await asyncio.create_task(ask())
        gc.collect()
        await until(lambda: left() is None)
        await asyncio.create_task(ask())
        assert raw.connections == 1
        await upstream.aclose()
