"""C37, C38, C40 to C42: clients that are slow, leave, do not read, or send secrets."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from faults_rig import OFFERED, SSE_HEAD, TIME, Allow, ask, before, serve_process, served_next
from logged import logged_to
from probe_tools import Watch
from raw_upstream import HANG, RawUpstream, Step, chunk, head, whole
from running_proxy import ONLY_DEPARTURE, SERVER_KEY, Conversation, Proxy
from waiting import LATE_S, PATIENCE_S, until
from wire_kits import Kit

CLIENT_KEY = "sk-client-abcdef0123456789"


async def _crawl(proxy: Proxy, kit: Kit, what: str, begun: list[float]) -> tuple[bytes, float]:
    """Send a head or a body a byte at a time; return the answer, and the seconds until it came."""
    opening = proxy.request(
        None, {"Content-Type": "application/json", "Content-Length": "9000"}, path=kit.path
    )
    if what == "head":
        opening = opening[:-2] + b"X-More: "
    async with proxy.connect() as conversation:
        began = asyncio.get_running_loop().time()
        conversation.writer.write(opening)
        begun.append(began)
        answer = asyncio.create_task(conversation.reader.read(65536))
        try:
            while not answer.done():
                conversation.writer.write(b"a")
                await asyncio.wait([answer], timeout=0.2)
        finally:
            answer.cancel()
        return await answer, asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("what", ["head", "body"])
async def test_two_hundred_slow_clients(kit: Kit, what: str) -> None:
    """C37: while 200 clients send slowly, others are served, and nothing of the slow ones goes upstream."""
    times = {"header_timeout_s": LATE_S, "body_timeout_s": LATE_S}
    async with before(kit.stream("fine"), server=times) as (proxy, upstream):
        begun: list[float] = []
        crawling = [asyncio.create_task(_crawl(proxy, kit, what, begun)) for _ in range(200)]
        await until(lambda: len(begun) == 200)
        for _ in range(5):
            assert kit.read((await ask(proxy, kit)).body).text == "fine"
        assert not any(task.done() for task in crawling)
        for task in crawling:
            task.cancel()
        await asyncio.wait(crawling)
        assert len(upstream.requests) == 5


@pytest.mark.parametrize("what", ["head", "body"])
async def test_slow_clients_are_cut(kit: Kit, what: str) -> None:
    """C37: each of 200 slow clients gets 408 after the full timeout; the next client is served."""
    times = {"header_timeout_s": 1.5, "body_timeout_s": 1.5}
    async with before(kit.stream("fine"), server=times) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*[_crawl(proxy, kit, what, []) for _ in range(200)])
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer, _ in answers)
        assert min(seconds for _, seconds in answers) >= 1.4
        assert upstream.requests == []
        await served_next(proxy, upstream, kit)


Moment = Callable[[Conversation, RawUpstream], Awaitable[object]]


async def _reading(conversation: Conversation, upstream: RawUpstream) -> None:
    await conversation.reader.readuntil(b'"a"')


async def _asked(conversation: Conversation, upstream: RawUpstream) -> None:
    await upstream.asked(1)


async def _asked_again(conversation: Conversation, upstream: RawUpstream) -> None:
    await upstream.asked(2)


def _moments(kit: Kit) -> dict[str, tuple[list[list[Step]], bool, Moment]]:
    begun: list[Step] = [SSE_HEAD, chunk(kit.begun("a")), HANG]
    call = kit.turn(("call_1", TIME, '{"timezone":"UTC"}'))
    return {
        "in the text": ([begun], True, _reading),
        "before the head": ([[HANG]], True, _asked),
        "before the first byte": ([[SSE_HEAD, HANG]], True, _asked),
        "not streamed": ([[HANG]], False, _asked),
        "in a later turn": ([call, [HANG]], True, _asked_again),
        "in a later turn's text": ([call, begun], True, _asked_again),
        "inside a call": ([[SSE_HEAD, chunk(kit.half_call(TIME, '{"t')), HANG]], True, _asked),
    }


MOMENTS = (
    "in the text", "before the head", "before the first byte", "not streamed", "in a later turn",
    "in a later turn's text", "inside a call",
)  # fmt: skip


@pytest.mark.parametrize("where", MOMENTS)
@pytest.mark.parametrize("how", ["reset", "closed"])
async def test_a_client_that_leaves(kit: Kit, allow: Allow, where: str, how: str) -> None:
    """C38: if the client leaves, the proxy closes the upstream call and sends no further request."""
    scripts, stream, moment = _moments(kit)[where]
    # Without tools, there is no later turn.
    allow = allow if len(scripts) == 1 else OFFERED
    async with before(*scripts, allow=allow, **ONLY_DEPARTURE) as (proxy, upstream):
        async with proxy.sent(kit.ask(stream=stream), path=kit.path) as conversation:
            async with asyncio.timeout(PATIENCE_S):
                await moment(conversation, upstream)
            if how == "reset":
                conversation.leave()
            else:
                conversation.writer.close()
        await upstream.all_closed()
        assert len(upstream.requests) == len(scripts)
        if allow:
            await proxy.run_reaches("cancelled")


async def test_a_reading_tool_ends_with_its_client(kit: Kit, watch: Watch) -> None:
    """C38: if the client leaves, a read-only tool is cancelled and no further turn begins."""
    first = kit.turn(("call_1", "probe_tools__slow", "{}"))
    async with before(first, kit.stream("never"), **ONLY_DEPARTURE) as (proxy, upstream):
        async with proxy.sent(kit.ask(), path=kit.path) as conversation:
            await watch.has_started.wait()
            conversation.leave()
        detail = await proxy.run_reaches("cancelled")
        assert watch.cancelled == ["slow"]
        assert [call.status for call in detail.invocations] == ["cancelled"]
        assert len(upstream.requests) == 1


async def test_effects_outlive_their_client(kit: Kit, watch: Watch) -> None:
    """C38: if the client leaves, a running side effect ends and is recorded; no further turn begins."""
    first = kit.turn(("call_1", "probe_tools__slow_buy", "{}"))
    async with before(first, kit.stream("bought"), **ONLY_DEPARTURE) as (proxy, upstream):
        async with proxy.sent(kit.ask(), path=kit.path) as conversation:
            await watch.has_started.wait()
            conversation.leave()
        await proxy.run_reaches("cancelled")
        watch.go_on.set()

        async def succeeded() -> bool:
            return (await proxy.only_run()).invocations[0].status == "success"

        await until(succeeded)
        assert watch.finished == ["slow_buy"]
        assert len(upstream.requests) == 1


async def test_a_client_that_half_closes(kit: Kit) -> None:
    """C38: a client that half-closes its connection counts as gone, and the upstream call is closed."""
    async with (
        before([SSE_HEAD, chunk(kit.begun("a")), HANG], **ONLY_DEPARTURE) as (proxy, upstream),
        proxy.sent(kit.ask(), path=kit.path) as conversation,
    ):
        await conversation.reader.readuntil(b'"a"')
        conversation.writer.write_eof()
        await upstream.all_closed()


@pytest.mark.slow
async def test_a_hundred_clients_leave(kit: Kit, tmp_path: Path) -> None:
    """C38: after 100 clients have left, the process has no more open descriptors than before."""
    async with (
        RawUpstream([SSE_HEAD, chunk(kit.begun("a")), HANG]) as upstream,
        serve_process(upstream, tmp_path) as proxy,
    ):

        async def leave() -> None:
            async with proxy.sent(kit.ask(), path=kit.path) as conversation:
                await conversation.reader.readuntil(b'"a"')
                conversation.leave()

        await leave()
        await upstream.all_closed()
        before_all = proxy.fds()
        for _ in range(5):
            await asyncio.gather(*[leave() for _ in range(20)])
        await upstream.all_closed()
        await until(lambda: proxy.fds() <= before_all + 12)


SECRET_HEADERS = {
    "Authorization": f"Bearer {CLIENT_KEY}",
    "Cookie": f"session={CLIENT_KEY}",
    "X-Api-Key": CLIENT_KEY,
    "Api-Key": CLIENT_KEY,
    "Proxy-Authorization": f"Basic {CLIENT_KEY}",
    "X-Private": CLIENT_KEY,
    "Connection": "x-private, keep-alive, authorization",
    "Keep-Alive": "timeout=5",
    "TE": "trailers",
    "OpenAI-Organization": "org-client",
}


async def test_credentials_stay_here(kit: Kit, allow: Allow) -> None:
    """C41: the upstream gets the proxy's key and no credential of the client; no hop-by-hop header passes."""
    (data, keep) = kit.whole("ok")
    assert isinstance(data, bytes)
    extra = (
        "Set-Cookie: a=b",
        "Proxy-Authenticate: Basic",
        "Connection: x-inner",
        "X-Inner: 1",
        "Keep-Alive: a",
    )
    data = data.replace(b"\r\n", "\r\n".join(["", *extra, ""]).encode(), 1)
    async with before([data, keep], allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit, kit.ask(stream=False), SECRET_HEADERS)
        assert answer.status == 200
        (request,) = upstream.requests
        assert request.header("authorization") == f"Bearer {SERVER_KEY}"
        assert CLIENT_KEY not in str(request.headers)
        assert not {"te", "cookie", "keep-alive", "openai-organization"} & request.names()
        assert not {"set-cookie", "proxy-authenticate", "x-inner", "keep-alive"} & set(answer.names())


@pytest.mark.parametrize("stream", [True, False])
async def test_an_upstream_that_echoes_our_key(kit: Kit, allow: Allow, stream: bool) -> None:
    """C42: the proxy's key is removed from an error's body and headers, however the body is cut."""
    body = json.dumps({"error": {"message": f"bad key {SERVER_KEY}", "code": "invalid_api_key"}}).encode()
    opening = head(
        "Content-Type: application/json", f"X-Debug: {SERVER_KEY}", "Connection: close", status="401 No"
    )
    async with before([opening, body[:40], 0.02, body[40:]], allow=allow) as (proxy, _):
        answer = await ask(proxy, kit, stream=stream)
        assert answer.status == 401
        assert SERVER_KEY not in answer.body.decode() + str(answer.headers)
        assert answer.json["error"]["code"] == "invalid_api_key"


async def test_an_upstream_that_echoes_our_key_in_its_stream(kit: Kit, allow: Allow) -> None:
    """C42, rule R3: the proxy's key is removed from an error event in a stream, however it is cut."""
    said = kit.begun("so") + kit.error_event(f"bad key {SERVER_KEY}, ask elsewhere")
    middle = said.index(SERVER_KEY.encode()) + 9
    failing = [
        head("Content-Type: text/event-stream", "Connection: close"),
        said[:middle],
        0.02,
        said[middle:],
    ]
    called = kit.turn(("call_1", TIME, '{"timezone":"UTC"}'))
    for turns in ([failing], [called, failing]) if allow else ([failing],):
        async with before(*turns, allow=allow) as (proxy, upstream):
            answer = await ask(proxy, kit)
            assert (answer.status, answer.clean, len(upstream.requests)) == (200, True, len(turns))
            assert SERVER_KEY.encode() not in answer.body
            assert b"bad key " + b"*" * len(SERVER_KEY) + b", ask elsewhere" in answer.body


async def test_no_key_in_any_line(kit: Kit, tmp_path: Path) -> None:
    """C42: log and record contain neither key nor a private argument, even after malformed requests."""
    log = io.StringIO()
    pin = "314159265358"
    first = kit.turn(("call_1", "probe_tools__unlock", json.dumps({"pin": pin})))
    url = f"sqlite:///{tmp_path}/record.db"
    store = {"url": url, "content": "tools"}
    with logged_to(log, level="debug", secrets=[SERVER_KEY]):
        async with before(first, kit.stream("open"), store=store) as (proxy, _):
            answer = await ask(proxy, kit, headers=SECRET_HEADERS)
            assert kit.read(answer.body).text == "open"
            await _malformed(proxy, kit)
            await proxy.get(f"/v1/models?key={CLIENT_KEY}", SECRET_HEADERS)
    at_rest = _bytes_at_rest(tmp_path)
    assert b"probe_tools__unlock" in at_rest
    for secret in (CLIENT_KEY, SERVER_KEY, pin):
        assert secret not in log.getvalue()
        assert secret.encode() not in at_rest


def _bytes_at_rest(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


async def _malformed(proxy: Proxy, kit: Kit) -> None:
    for line in (f"Authorization : Bearer {CLIENT_KEY}", f"{CLIENT_KEY}", f"X-Api-Key: {CLIENT_KEY}\x00"):
        async with proxy.connect() as conversation:
            opening = f"POST {kit.path} HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n{line}\r\n\r\n"
            conversation.writer.write(opening.encode())
            answer = await conversation.answer()
            assert answer.status == 400
            assert CLIENT_KEY not in answer.body.decode()


async def test_a_client_that_stops_reading(kit: Kit, allow: Allow) -> None:
    """C40: if a client stops reading, the upstream is held back, others are served, and leaving ends it."""
    flood: list[Step] = [
        SSE_HEAD,
        chunk(kit.begun("a")),
        *[chunk(b": " + b"x" * 65_000 + b"\n\n")] * 3000,
        HANG,
    ]
    async with before(flood, kit.stream("fine"), allow=allow, **ONLY_DEPARTURE) as (proxy, upstream):
        async with proxy.sent(kit.ask(), path=kit.path) as conversation:
            await conversation.reader.readuntil(b'"a"')
            last = -1
            while upstream.sent != last:
                last = upstream.sent
                await asyncio.sleep(0.3)
            assert upstream.sent < 100 << 20
            assert kit.read((await ask(proxy, kit)).body).text == "fine"
            conversation.leave()
        # The second request's connection is kept, the flood's is closed.
        await until(lambda: upstream.open_connections <= 1)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_a_slow_client_of_a_fast_upstream(framing: str) -> None:
    """C40: a slow client gets all 20 MB, even if the upstream has finished and closed long before."""
    body = bytes(range(256)) * (80 << 10)
    kind = "Content-Type: application/octet-stream"
    script: dict[str, list[Step]] = {
        "chunked": [head(kind, "Transfer-Encoding: chunked"), chunk(body), b"0\r\n\r\n"],
        "length": [head(kind, f"Content-Length: {len(body)}"), body],
        "close": [head(kind, "Connection: close"), body],
    }
    async with before(script[framing]) as (proxy, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=65536)
        writer.write(proxy.request(method="GET", path="/v1/files/f/content", headers={"Connection": "close"}))
        await reader.readuntil(b"\r\n\r\n")
        size, digest = 0, []
        async with asyncio.timeout(2 * PATIENCE_S):
            while data := await reader.read(1 << 18):
                size += len(data)
                digest.append(data)
                await asyncio.sleep(0.01)
        writer.close()
        got = b"".join(digest)
        if framing == "chunked" or got[:1] != body[:1]:
            got = _dechunked(got)
        assert got == body


def _dechunked(data: bytes) -> bytes:
    found = []
    while data:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        found.append(data[:size])
        data = data[size + 2 :]
        if not size:
            break
    return b"".join(found)


async def test_the_next_is_served(kit: Kit) -> None:
    """C38: after clients that left within a head, the next stream is whole."""
    async with before(whole(b"{}")) as (proxy, upstream):
        for _ in range(3):
            async with proxy.connect() as conversation:
                conversation.writer.write(b"POST ")
                conversation.leave()
        await served_next(proxy, upstream, kit)
