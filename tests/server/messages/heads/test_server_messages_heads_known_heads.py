"""Known heads: the proxy does the same with and without this cache of heads, and forgets heads in time."""

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from client_keys import ALICE, BOB, bearer, keyed, made
from edge_requests import Behind
from hypothesis import example, given, settings
from hypothesis import strategies as st
from raw_upstream import RawUpstream, whole
from running_proxy import Answer, Proxy, make_config, running
from waiting import PATIENCE_S, until

from proxy.base.errors import RequestError
from proxy.server.connections.connection import EdgeConnection
from proxy.server.connections.runner import EdgeRunner
from proxy.server.messages.body import read_body, received_body
from proxy.server.messages.errors import of_request_error
from proxy.server.messages.heads import known_heads
from proxy.server.messages.heads.head import Head
from proxy.server.messages.heads.known_heads import KnownHeads, WholeBody, head_cut
from proxy.server.messages.request import EdgeRequest

LIMIT = 300
PLAIN = (
    b"POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer one\r\n"
    b"Content-Length: %d\r\nX-End: e\r\n\r\n"
)
LOW = b"POST /v1/chat HTTP/1.1\r\nhost: a\r\nauthorization: Bearer two\r\ncontent-length: %d\r\n\r\n"
UPLOAD = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
NEW = PLAIN.replace(b"one", b"another")
BODILESS = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
PARTIAL = b"GET / HTTP/1.1\r\nHost: a\r\nX: "
ENDLESS = b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n"
EARLY = b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

HEADS = (
    PLAIN,
    LOW,
    UPLOAD,
    EARLY,
    PLAIN.replace(b"Bearer one", b"bearer one"),
    PLAIN.replace(b"Host: a", b"Host:  a"),
    PLAIN.replace(b"Content-Length", b"Content-length"),
    PLAIN.replace(b"Length: ", b"Length:"),
    PLAIN.replace(b"Length: %d", b"Length: %d "),
    PLAIN.replace(b"Length: %d", b"Length: 0%d"),
    PLAIN.replace(b"Length: %d", b"Length: +%d"),
    PLAIN.replace(b"Length: %d", b"Length: %d_0"),
    PLAIN.replace(b"Length: %d", b"Length: %d, %d"),
    PLAIN.replace(b"Length: %d", b"Length: %d\r\nContent-Length: 7"),
    PLAIN.replace(b"Length: %d", b"Length: %d\r\ncontent-length: 5"),
    PLAIN.replace(b"Length: %d", b"Length: %d\r\nTransfer-Encoding: chunked"),
    PLAIN.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked"),
    PLAIN.replace(b"Content-Length: %d", b"X: a\r\n Content-Length: %d"),
    PLAIN.replace(b"Content-Length: %d", b"X: Content-Length: %d"),
    PLAIN.replace(b"Content-Length: %d", b"X: a\nContent-Length: %d"),
    PLAIN.replace(b"Content-Length: %d", b"X: a\rContent-Length: %d"),
    PLAIN.replace(b"X-End: e", b"X-End: Content-Length: 9"),
    PLAIN.replace(b"\r\nX-End: e\r\n\r\n", b"\n\nX-End: e\r\n\r\n"),
    PLAIN.replace(b"\r\nX-End: e\r\n\r\n", b"\r\n\nX-End: e\r\n\r\n"),
    PLAIN.replace(b"X-End: e", b"Expect: 100-continue"),
    PLAIN.replace(b"X-End: e", b"Upgrade: h2c"),
    PLAIN.replace(b"X-End: e", b"Connection: upgrade\r\nUpgrade: websocket"),
    PLAIN.replace(b"X-End: e", b"Connection: close"),
    PLAIN.replace(b"X-End: e", b"X-Long: " + b"l" * 5000),
    PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"X-End: e", b"Connection: keep-alive"),
    PLAIN.replace(b"/v1/chat", b"http://a/v1/chat"),
    PLAIN.replace(b"POST", b"CONNECT"),
    b"\r\n" + PLAIN,
    b"\r\n\r\n" + PLAIN,
    BODILESS,
    ENDLESS,
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    b"no request\r\n\r\n",
)
"""Heads that clients may send; ``%d`` stands for the length of the body."""


class Line(asyncio.Transport):
    """The transport to a client, as the server sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.connection: EdgeConnection | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.connection is None

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            asyncio.get_running_loop().call_soon(connection.connection_lost, None)

    abort = close


async def turn() -> None:
    """Let every task run until it waits for more bytes."""
    for _ in range(12):
        await asyncio.sleep(0)


class AccessMiddleware:
    """A server whose reads the test makes; ``seen`` has the requests that its handler got, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.runner = EdgeRunner(Behind(self._handle))
        self.known: KnownHeads = self.runner._known

    async def _handle(self, request: EdgeRequest) -> web.Response:
        names = [pair for pair in request.headers.items() if pair[0].lower() != "content-length"]
        said = (request.method, request.raw_path, request.path, names, request.content_length)
        try:
            if request.raw_path == "/early":
                body: bytes | None = None
            elif request.raw_path == "/upload":
                body = b""
                while not request.content.at_eof():
                    body += await request.content.readany()
            else:
                body = received_body(request, LIMIT)
                if body is None:
                    body = await read_body(request, LIMIT, PATIENCE_S)
        except RequestError as error:
            self.seen.append((*said, error.status))
            return of_request_error(error)
        self.seen.append((*said, request.version, request.keep_alive, request.body_exists, body))
        return web.json_response({"path": request.raw_path, "size": len(body or b"")})

    @asynccontextmanager
    async def connected(self) -> Any:
        """Open a connection that waits for its first request."""
        line = Line()
        assert self.runner.server is not None
        connection = self.runner.server()
        assert isinstance(connection, EdgeConnection)
        line.connection = connection
        connection.connection_made(line)
        await turn()
        try:
            yield line
        finally:
            line.close()
            await turn()

    async def read(self, line: Line, data: bytes, *, settle: bool = True) -> None:
        """Give the connection the bytes of one read."""
        if line.connection is not None:
            line.connection.data_received(data)
            if settle:
                await turn()


@asynccontextmanager
async def edge() -> Any:
    """Run a server whose handler reads bodies in three ways."""
    server = AccessMiddleware()
    await server.runner.setup()
    try:
        yield server
    finally:
        await server.runner.cleanup()


class Unknowing(KnownHeads):
    """A cache that never knows a head."""

    def find(self, key: known_heads.Key) -> None:
        return None


async def said_to(
    known: Callable[[], KnownHeads], warm: Sequence[bytes], reads: Sequence[tuple[bytes, bool]]
) -> tuple[Any, ...]:
    """Return what a server makes of the reads of one connection, its answers, and whether it closed it.

    Before the reads, each of ``warm`` comes over connections of its own.
    """
    async with edge() as server:
        server.runner.server._known = server.known = known()
        for data in warm:
            for _ in range(3):
                async with server.connected() as line:
                    await server.read(line, data)
        server.seen.clear()
        async with server.connected() as line:
            for data, settle in reads:
                await server.read(line, data, settle=settle)
            await turn()
            heads = [part for part in line.written.split(b"\r\n") if not part.startswith(b"Date:")]
            answers = [part for part in heads if not part.lower().startswith(b"x-request-id")]
            return server.seen, answers, line.connection is None


def written(head: bytes, size: int) -> bytes:
    """Return a head with this length of the body."""
    return head.replace(b"%d", b"%d" % size)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a request, usually a valid one, whose body is as long as its head says or nearly so."""
    head = draw(st.sampled_from(HEADS[:4]) | st.sampled_from(HEADS))
    size = draw(st.sampled_from([0, 1, 5, 7, 12, 200, LIMIT, LIMIT + 1]))
    body = draw(
        st.sampled_from([b'{"a":1}', b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"])
    )
    filled = (body * size)[:size] if draw(st.booleans()) else (b"x" * size)
    extra = draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    return written(head, max(0, size + extra)) + filled


@st.composite
def reads(draw: st.DrawFn) -> list[tuple[bytes, bool]]:
    """Draw the reads in which requests come: one read for each, or cut and joined at any place."""
    several = draw(st.lists(messages(), min_size=1, max_size=6))
    how = draw(st.sampled_from(["each", "head apart", "cut"]))
    if how == "each":
        pieces = several
    elif how == "head apart":
        pieces = [part for one in several for part in _apart(one)]
    else:
        stream = b"".join(several)
        cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    return [(piece, draw(st.sampled_from([True, True, True, False]))) for piece in pieces if piece]


def _apart(one: bytes) -> Iterator[bytes]:
    head, end, body = one.partition(b"\r\n\r\n")
    yield head + end
    yield body


@settings(max_examples=200, deadline=None)
@given(reads())
@example([(written(PLAIN, 5) + b"hello", True)] * 2)
@example([(written(PLAIN, 5), True), (b"hello" + written(PLAIN, 3), True), (b"abc", True)])
@example([(written(PLAIN, 5) + b"hell", True), (b"o" + written(LOW, 3) + b"abc", True)])
@example([(written(EARLY, 5) + b"he", True), (b"llo", True), (written(PLAIN, 5) + b"hello", True)])
@example([(b"POST /v1", True), (written(PLAIN, 5) + b"hello", True)])
@example([(ENDLESS, True), (written(PLAIN, 5) + b"hello", True)])
@example([(PARTIAL, True), (written(PLAIN, 5) + b"hello", True)])
@example([(BODILESS + PARTIAL, True), (written(PLAIN, 5) + b"hello", True)])
@example([(written(NEW, 5) + b"he", True), (b"llo" + PARTIAL, True), (written(PLAIN, 5) + b"hello", True)])
@example([(written(NEW, 5) + b"hello" + PARTIAL, True), (written(PLAIN, 5) + b"hello", True)])
@example([(written(NEW, 5) + b"hello", True), (written(PLAIN, 5) + b"hello" + PARTIAL, True)])
@example([(written(PLAIN, 5) + b"hello", False), (written(PLAIN, 5) + b"hello", False)])
def test_known_heads_change_nothing(sent: list[tuple[bytes, bool]]) -> None:
    """Rule E1: with and without known heads, any reads give the same requests, the same answers and end."""
    warm = [written(head, 5) + b"hello" for head in HEADS]

    async def both() -> None:
        knowing = await said_to(KnownHeads, warm, sent)
        assert knowing == await said_to(Unknowing, (), sent)

    asyncio.run(both())


@pytest.mark.parametrize("head", [PLAIN, LOW, UPLOAD, EARLY])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_head_is_read_once_for_all(head: bytes, apart: bool) -> None:
    """From its third time on no parser sees a head, on any connection and with any length of its body."""
    async with edge() as server:
        for size in (5, 7):
            async with server.connected() as line:
                await server.read(line, written(head, size) + b"x" * size)
        server.seen.clear()
        async with server.connected() as line:
            line.connection._parser = None  # Any use of the parser fails.
            for size in (1, 12, 4000):
                body = b"y" * size
                for piece in (written(head, size), body) if apart else (written(head, size) + body,):
                    await server.read(line, piece)
            assert line.written.count(b"HTTP/1.1 ") == 3
        assert [seen[4] for seen in server.seen] == [1, 12, 4000]


@pytest.mark.parametrize("head", HEADS[4:])
async def test_what_is_more_than_a_head_and_a_length_is_never_known(head: bytes) -> None:
    """Rule E1: a head that two readers could take for different ones always goes through the parser."""
    known = (
        HEADS[4], HEADS[5], PLAIN.replace(b"X-End: e", b"X-End: Content-Length: 9"),
        PLAIN.replace(b"Content-Length: %d", b"X: Content-Length: %d"), b"\r\n" + PLAIN,
        PLAIN.replace(b"/v1/chat", b"http://a/v1/chat"),
    )  # fmt: skip
    async with edge() as server:
        for _ in range(4):
            async with server.connected() as line:
                await server.read(line, written(head, 5) + b"hello")
        if head == known[3]:
            assert len(server.known) == 0
        else:
            assert len(server.known) == (1 if head in known else 0)


def test_the_end_of_a_head_is_beyond_doubt() -> None:
    """A head ends at a blank line, and is not known if anything before it could be taken for one."""
    assert known_heads.ends_once(PLAIN)
    for end in (b"\n\n", b"\r\n\n", b"\n\r\n", b"\r\r", b"\r\n\r\n"):
        assert not known_heads.ends_once(PLAIN.replace(b"\r\nX-End", end + b"X-End"))


@given(st.sampled_from([PLAIN, LOW]), st.integers(0, 10**9), st.binary(max_size=20))
def test_two_heads_share_a_key_only_where_their_digits_differ(head: bytes, size: int, body: bytes) -> None:
    """The key of a head is the head without the digits of its length, which stand between its halves."""
    whole_head = written(head, size)
    cut = head_cut(whole_head + body)
    if size == 0 or size >= 10**8:
        assert cut is None
        return
    assert cut is not None
    (before, behind), start, length = cut
    assert (start, length) == (len(whole_head), size)
    assert before + b"%d" % size + behind + b"\r\n\r\n" == whole_head


async def test_what_is_known_is_bounded() -> None:
    """Rule S1: the cache forgets the oldest of many heads, and keeps only one form of each."""
    async with edge() as server:
        for number in range(3 * known_heads.MOST_HEADS):
            async with server.connected() as line:
                for _ in range(2):
                    await server.read(line, written(PLAIN.replace(b"one", b"k%d" % number), 5) + b"hello")
                assert len(server.known) <= 2 * known_heads.MOST_HEADS
        assert len(server.known) > known_heads.MOST_HEADS
        assert len(server.known._seen) <= known_heads.MOST_SEEN
        # The raw headers, which nothing reads, would take as much memory again.
        assert {head.message.raw_headers for head in server.known._young.values()} == {()}


async def test_credentials_are_gone_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S1: a key that is no longer sent leaves the memory after two ages, and then the timer stops."""
    monkeypatch.setattr(known_heads, "AGE_S", 0.05)
    async with edge() as server:
        async with server.connected() as line:
            for _ in range(3):
                await server.read(line, written(PLAIN.replace(b"one", SENT_ONCE.encode()), 5) + b"hello")
        server.seen.clear()
        assert len(server.known) == 1
        assert holders()
        await until(lambda: server.known._timer is None)
        assert len(server.known) == 0
        assert holders() == []


SENT_ONCE = "sent-to-be-forgotten"


def holders() -> list[Head]:
    """Return the heads in memory, known or not, that have the key which is to be forgotten."""
    gc.collect()
    heads = [one for one in gc.get_objects() if type(one) is Head]
    return [head for head in heads if SENT_ONCE in head.headers.get("Authorization", "")]


async def test_a_head_that_goes_on_coming_is_not_forgotten() -> None:
    """A head that keeps coming stays known, and one that comes once is not kept at all."""
    async with edge() as server:
        for number in range(0, known_heads.MOST_SEEN + 8, 4):
            async with server.connected() as line:
                for one in range(number, number + 4):
                    await server.read(line, written(PLAIN.replace(b"one", b"once-%d" % one), 1) + b"x")
        assert 0 < len(server.known._seen) <= known_heads.MOST_SEEN
        assert len(server.known) == 0
        async with server.connected() as line:
            for _ in range(2):
                await server.read(line, written(PLAIN, 5) + b"hello")
            for _ in range(5):
                server.known._age()
                await server.read(line, written(PLAIN, 5) + b"hello")
                assert len(server.known) == 1
            server.known._age()
            server.known._age()
            assert len(server.known) == 0


async def test_a_connection_whose_heads_all_differ_is_left_alone() -> None:
    """A connection whose heads all differ stops looking for known heads, and fills no place of others."""
    async with edge() as server:
        async with server.connected() as line:
            for number in range(20):
                await server.read(line, written(PLAIN.replace(b"one", b"%d" % number), 1) + b"x")
            assert len(server.known._seen) == known_heads.CHANCES
        async with server.connected() as line:
            for number in range(20):
                data = written(PLAIN if number % 5 else PLAIN.replace(b"one", b"new-%d" % number), 1)
                await server.read(line, data + b"x")
            assert line.connection._known._chances == known_heads.CHANCES


async def test_long_bodies_cost_a_known_head_nothing() -> None:
    """A head that comes again and again with long bodies is known for short bodies, too."""
    async with edge() as server, server.connected() as line:
        long, body = written(UPLOAD, 100_000), b"x" * 100_000
        for _ in range(3 * known_heads.CHANCES):
            await server.read(line, long)
            await server.read(line, body)
        assert len(server.seen) == 3 * known_heads.CHANCES
        server.known._age()
        await server.read(line, long)
        await server.read(line, body)
        server.known._age()
        assert len(server.known) == 1
        line.connection._parser = None  # Any use of the parser fails.
        await server.read(line, written(UPLOAD, 5) + b"hello")
        assert server.seen[-1][-1] == b"hello"


async def test_a_whole_body_is_read_like_any_other() -> None:
    """A body that came with its head has the methods that the server and aiohttp call on any other."""
    body = WholeBody(b"whole")
    assert body.is_eof()
    assert not body.at_eof()
    assert body.exception() is None
    assert await body.readany() == b"whole"
    assert body.at_eof()
    assert body.read_nowait() == b""
    assert "0 bytes" in repr(body)
    body = WholeBody(b"whole")
    body.set_exception(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError):
        await body.readany()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/files", "/v1/moderations"])
async def test_an_upstream_sees_the_same(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream gets the same bytes for a request whose head was known, with that request's own length."""
    headers = {
        "User-Agent": "sdk/1",
        "Accept": "*/*",
        "X-Stainless-Retry-Count": "0",
        "Connection": "keep-alive",
    }
    texts = ["x" * many for many in range(1, 6)]
    if path == "/v1/chat/completions":
        asked = [{"model": "m", "messages": [{"role": "user", "content": text}]} for text in texts]
    else:
        asked = [{"model": "m", "input": text} for text in texts]
    bodies = [json.dumps(each).encode() for each in asked]

    async def sent() -> list[tuple[Any, ...]]:
        async with (
            RawUpstream(whole(b'{"ok":true}')) as upstream,
            running(make_config(upstream.url, allow=())) as proxy,
            proxy.connect() as conversation,
        ):
            for body in bodies:
                conversation.writer.write(proxy.request(body, headers, path=path))
                assert (await conversation.answer()).status == 200
            host = ("Host", f"127.0.0.1:{upstream.port}")
            return [
                (each.method, each.target, [pair for pair in each.headers if pair != host], each.body)
                for each in upstream.requests
            ]

    with_known = await sent()
    monkeypatch.setattr(KnownHeads, "find", lambda self, key: None)
    assert with_known == await sent()
    assert [each[3] for each in with_known] == bodies
    for each in with_known:
        assert ("Content-Length", str(len(each[3]))) in each[2]


async def test_the_limit_of_bodies_holds_for_known_heads() -> None:
    """A body that is too long gets a 413, although its head is known from shorter bodies."""
    config = {"max_body_bytes": 2000}
    async with (
        RawUpstream(whole(b'{"ok":true}')) as upstream,
        running(make_config(upstream.url, allow=(), server=config)) as proxy,
        proxy.connect() as conversation,
    ):
        statuses = []
        for size in (100, 200, 300, 3000, 100):
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "u" * size}]}).encode()
            conversation.writer.write(proxy.request(body))
            statuses.append((await conversation.answer()).status)
        assert statuses == [200, 200, 200, 413, 200]


ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ROUNDS = 5
"""How often a test sends the same heads: more than it takes to know them."""


async def answers(proxy: Proxy, *asked: bytes, rounds: int = ROUNDS) -> list[list[Answer]]:
    """Send rounds of requests over one connection, and return the answers of each round."""
    found: list[list[Answer]] = []
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        for _ in range(rounds):
            found.append([])
            for data in asked:
                conversation.writer.write(data)
                found[-1].append(await conversation.answer())
    return found


async def test_a_known_head_lets_in_its_own_caller_alone() -> None:
    """Rule S1: of many callers' requests over one connection, each is admitted or refused by its own key."""
    async with keyed() as (proxy, upstream):
        asked = [
            proxy.request(ASK, bearer(ALICE)),
            proxy.request(ASK, bearer(BOB)),
            proxy.request(ASK, bearer("nobody")),
            proxy.request(ASK, [("Authorization", f"bearer {ALICE}")]),
            proxy.request(ASK, [("Authorization", f"Basic {ALICE}")]),
            proxy.request(ASK, bearer(ALICE), path="/v1/files"),
            proxy.request(ASK, bearer(ALICE), path=f"/v1/tr_{'A' * 43}"),
        ]
        for round_ in await answers(proxy, *asked):
            assert [answer.status for answer in round_] == [200, 200, 401, 200, 401, 403, 400]
        assert len(upstream.requests) == 3 * ROUNDS


async def test_a_revoked_key_is_out_though_its_head_is_known() -> None:
    """Rule S1: the next request with a revoked key is refused on every connection, even with a known head."""
    async with keyed() as (proxy, _):
        store = proxy.services.store
        secret = await made(store)
        data = proxy.request(ASK, bearer(secret))
        async with proxy.connect() as conversation:

            async def status() -> int:
                conversation.writer.write(data)
                return (await conversation.answer()).status

            assert [await status() for _ in range(ROUNDS)] == [200] * ROUNDS
            await made(store, name="other")
            assert await status() == 200
            for key in (await store.read_keys()).keys:
                await store.revoke_key(key.id)
            assert [await status(), await status()] == [401, 401]
            assert [[answer.status for answer in each] for each in await answers(proxy, data)] == [
                [401]
            ] * ROUNDS


async def test_a_known_head_counts_like_any_other() -> None:
    """Each request with a known head counts against limits, and has its own id and headers for browsers."""
    origin = "https://page.example"
    sections: dict[str, Any] = {"limits": {"requests": ("12/minute",)}, "server": {"cors_origins": (origin,)}}
    async with (
        RawUpstream(whole(b'{"ok":true}')) as upstream,
        running(make_config(upstream.url, allow=(), **sections)) as proxy,
    ):
        found = await answers(
            proxy,
            proxy.request(ASK, {"Origin": origin}),
            proxy.request(ASK, {"Origin": "https://other.example"}),
            proxy.request(ASK, {"x-request-id": "of-the-client"}),
            rounds=7,
        )
    assert [answer.status for answer, _, _ in found] == [200] * 6 + [429]
    assert {answer.status for _, answer, _ in found} == {403}
    assert [answer.header("x-ratelimit-remaining-requests") for answer, _, _ in found[:6]] == [
        str(left) for left in range(11, 0, -2)
    ]
    assert {answer.header("access-control-allow-origin") for answer, _, _ in found} == {origin}
    assert len({answer.header("x-request-id") for answer, _, _ in found}) == 7
    assert {answer.header("x-request-id") for _, _, answer in found} == {"of-the-client"}


async def test_forwarded_callers_of_known_heads_are_told_apart() -> None:
    """Rule S1: with forwarded keys, each request with a known head goes up with its own caller's key."""
    async with RawUpstream(whole(b'{"ok":true}')) as upstream:
        async with running(make_config(upstream.url, auth={"mode": "forward"})) as proxy:
            asked = [proxy.request(ASK, bearer(secret)) for secret in ("sk-one", "sk-two")]
            for round_ in await answers(proxy, *asked):
                assert [answer.status for answer in round_] == [200, 200]
        sent = [request.header("authorization") for request in upstream.requests]
        assert sent == ["Bearer sk-one", "Bearer sk-two"] * ROUNDS


async def test_wishes_of_known_heads_are_their_own() -> None:
    """An invalid header in a known head is refused each time."""
    async with (
        RawUpstream(whole(b'{"ok":true}')) as upstream,
        running(make_config(upstream.url)) as proxy,
    ):
        asked = [
            proxy.request(ASK, {"x-toolrelay-tools": "none"}),
            proxy.request(ASK, {"x-toolrelay-tools": ""}),
            proxy.request(ASK, {"x-toolrelay-trace": "loud"}),
            proxy.request(ASK, {"x-toolrelay-history": "perhaps"}),
            proxy.request(ASK, {"Content-Encoding": "gzip"}),
            proxy.request(ASK, {"Content-Type": "application/json; charset=latin-1"}),
            proxy.request(ASK, {"Host": "evil.example"}),
        ]
        for round_ in await answers(proxy, *asked):
            assert [answer.status for answer in round_] == [200, 400, 400, 400, 415, 415, 403]
