"""Incomplete heads: they are bounded in bytes and in number, and the excess gets an error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from raw_upstream import RawUpstream, whole
from running_proxy import Answer, Conversation, Proxy, make_config, running
from waiting import LATE_S, PATIENCE_S, until

from proxy.server.messages.heads.pending_heads import MAX_HEAD_BYTES, OncePerMinute, PendingHeads

pytestmark = pytest.mark.both_loops

BEGUN = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n"
LINE = b"X-Padding: " + b"x" * 4000 + b"\r\n"
SETTINGS: dict[str, Any] = {
    "max_pending_heads": 16,
    "max_pending_heads_per_address": 4,
    "header_timeout_s": LATE_S,
}


@contextlib.asynccontextmanager
async def edge(**server: Any) -> AsyncIterator[Proxy]:
    """Run a proxy that lets few incomplete heads wait."""
    async with (
        RawUpstream(whole(b'{"data":[]}')) as upstream,
        running(make_config(upstream.url, server={**SETTINGS, **server})) as proxy,
    ):
        yield proxy


async def answered(proxy: Proxy, *pieces: bytes) -> tuple[Answer, bytes]:
    """Send pieces until an answer comes; return it, and what follows it until the connection's end."""
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                conversation.writer.write(piece)
                await conversation.writer.drain()
                await asyncio.sleep(0)
        return await conversation.answer(), await conversation.reader.read()


@pytest.mark.parametrize("lines", [17, 400])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_head_has_a_bound_in_all(lines: int, at_once: bool) -> None:
    """Rule E1: a head that is too long gets a 431, whole or not, in one read or in many, with short lines."""
    pieces = [BEGUN, *[LINE] * lines, *([b"\r\n"] if lines == 17 else [])]
    async with edge() as proxy:
        answer, rest = await answered(proxy, *([b"".join(pieces)] if at_once else pieces))
        assert answer.status == 431
        assert answer.json["error"]["code"] == "headers_too_large"
        assert str(MAX_HEAD_BYTES) in answer.json["error"]["message"]
        assert rest == b""


async def test_a_large_head_within_the_bound_is_served() -> None:
    """A head of nearly 60 kilobytes in small pieces is served."""
    async with edge() as proxy:
        pieces = [BEGUN, *[LINE] * 14, b"Connection: close\r\n\r\n"]
        assert (await answered(proxy, *pieces))[0].status == 200


async def test_a_long_body_is_no_head() -> None:
    """The rest of a refused body does not count as the client's next head."""
    async with edge() as proxy, proxy.connect() as conversation:
        sent = b"x" * 300_000
        conversation.writer.write(
            b"POST /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(sent)
        )
        for at in range(0, len(sent), 5000):
            conversation.writer.write(sent[at : at + 5000])
            await conversation.writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            assert (await conversation.answer()).status != 431


async def begun(proxy: Proxy, many: int, stack: contextlib.AsyncExitStack) -> list[Conversation]:
    """Open connections, and send part of a head on each."""
    found = []
    for _ in range(many):
        conversation = await stack.enter_async_context(proxy.connect())
        conversation.writer.write(BEGUN)
        await conversation.writer.drain()
        found.append(conversation)
    return found


@pytest.mark.parametrize(("server", "most"), [({}, 4), ({"trusted_proxies": ["127.0.0.1"]}, 16)])
async def test_few_heads_wait_at_one_time(server: dict[str, Any], most: int) -> None:
    """One incomplete head too many of an address, or of all behind a trusted proxy, gets a 503."""
    async with edge(**server) as proxy, contextlib.AsyncExitStack() as stack:
        waiting = await begun(proxy, most, stack)
        await until(lambda: proxy.bounds.pending_heads.count == most)
        answer, rest = await answered(proxy, BEGUN)
        assert answer.status == 503
        assert answer.header("retry-after") == "1"
        assert answer.json["error"]["code"] == "too_many_pending_requests"
        assert rest == b""
        assert (await answered(proxy, BEGUN + b"Connection: close\r\n\r\n"))[0].status == 200
        waiting[0].writer.write(b"Connection: close\r\n\r\n")
        assert (await waiting[0].answer()).status == 200
        waiting[1].writer.close()
        await until(lambda: proxy.bounds.pending_heads.count == most - 2)
        await begun(proxy, 2, stack)
        await until(lambda: proxy.bounds.pending_heads.count == most)
    assert proxy.bounds.pending_heads.count == 0


async def test_a_head_behind_a_request_is_bounded_too() -> None:
    """The bound holds for a head behind a request, too: the connection ends after that request's response."""
    async with (
        RawUpstream([0.5, *whole(b'{"data":[]}')]) as upstream,
        running(make_config(upstream.url, server=SETTINGS)) as proxy,
        proxy.connect() as conversation,
        asyncio.timeout(PATIENCE_S),
    ):
        conversation.writer.write(BEGUN + b"\r\n")
        await until(lambda: upstream.requests != [])
        conversation.writer.write(BEGUN)
        for _ in range(40):
            conversation.writer.write(LINE)
            await conversation.writer.drain()
            await asyncio.sleep(0)
        assert (await conversation.answer()).status == 200
        with contextlib.suppress(ConnectionError):
            assert await conversation.reader.read() == b""
        await until(lambda: proxy.bounds.pending_heads.count == 0)


def test_heads_are_counted_by_address() -> None:
    """Each address has its limit and all together have one; an address is forgotten with its last head."""
    heads = PendingHeads(5, 2)
    assert [heads.begin("a") for _ in range(3)] == [True, True, False]
    assert [heads.begin("") for _ in range(3)] == [True, True, True]
    assert not heads.begin("b")
    heads.end("a")
    assert heads.begin("b")
    for address in ("a", "b", "", "", ""):
        heads.end(address)
    assert heads.count == 0
    assert heads._by_address == {}


def test_a_line_a_minute_counts_the_others() -> None:
    """The first event is logged at once, and the line of the next minute has the number since then."""
    now = [0.0]
    log = OncePerMinute(lambda: now[0])
    assert [log.counted() for _ in range(3)] == [1, 0, 0]
    now[0] = 61.0
    assert log.counted() == 3
