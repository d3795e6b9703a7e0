"""C08 to C11, C24, C25: upstreams that break, stall or never begin, and what the client gets."""

import asyncio
from collections.abc import Sequence

import pytest
from faults_rig import ECHO, SSE_HEAD, TIME, Allow, ask, before, served_next
from probe_tools import Watch
from raw_upstream import (
    FIN,
    HALF,
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
from running_proxy import make_config, running
from waiting import LATE_S, PATIENCE_S
from wire_kits import DONE, Kit

KIND = "Content-Type: text/event-stream"
BIG = b"x" * 200_000
HEADLESS: dict[str, list[Step]] = {
    "giant header": [b"HTTP/1.1 200 OK\r\nX: " + BIG + b"\r\nContent-Length: 0\r\n\r\n", KEEP],
    "many headers": [b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 5000 + b"Content-Length: 0\r\n\r\n", KEEP],
    "reset": [RESET],
    "closed": [FIN],
    "half head": [b"HTTP/1.1 200 OK\r\nContent-Ty", FIN],
    "half head, reset": [b"HTTP/1.1 200 OK\r\nContent-Ty", 0.02, RESET],
    "garbage": [b"\x00\x01\x02garbage\r\n\r\n", FIN],
    "no status": [b"HTTP/1.1 abc OK\r\n\r\n", FIN],
    "two lengths": [head("Content-Length: 1", "Content-Length: 2") + b"ab", FIN],
    "a length and chunks": [head("Content-Length: 1", "Transfer-Encoding: chunked") + b"1\r\na\r\n", FIN],
    "switches protocols": [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
    "control characters": [head("X-A: a\x00b", "Content-Length: 2") + b"{}", KEEP],
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", HEADLESS)
async def test_heads_that_are_none(kit: Kit, allow: Allow, name: str, stream: bool) -> None:
    """C08: a broken head is a 502 in OpenAI's form after at most 3 attempts; the next request is served."""
    async with before(HEADLESS[name], allow=allow) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(proxy, kit, stream=stream)
        if answer.status != 200 or name not in ("a length and chunks", "control characters"):
            assert answer.status == 502
            assert answer.error["type"] == "upstream_error"
        assert (answer.header("content-type") or "").startswith("application/json") or answer.status == 200
        assert 1 <= len(upstream.requests) <= 3
        await served_next(proxy, upstream, kit)


def _dying(kit: Kit) -> dict[str, tuple[list[Step], bytes]]:
    """Return each way in which a stream can break, and the whole events before that."""
    begun = kit.begun("hello")
    half = event('{"half":1}').rstrip(b"\n")
    long = [head(KIND, f"Content-Length: {len(begun) + 50}") + begun]
    return {
        "reset": ([SSE_HEAD, chunk(begun), 0.05, RESET], begun),
        "closed": ([SSE_HEAD, chunk(begun), FIN], begun),
        "half closed": ([SSE_HEAD, chunk(begun), HALF], begun),
        "closed inside an event": ([SSE_HEAD, chunk(begun + half), FIN], begun),
        "reset inside an event": ([SSE_HEAD, chunk(begun + half), 0.05, RESET], begun),
        "short": ([*long, FIN], begun),
        "short, reset": ([*long, 0.05, RESET], begun),
        "malformed chunk": ([SSE_HEAD, chunk(begun), 0.02, b"zz\r\nhello\r\n", HANG], begun),
        "malformed chunk at once": ([SSE_HEAD + chunk(begun) + b"zz\r\n", HANG], begun),
        "negative chunk": ([SSE_HEAD, chunk(begun), 0.02, b"-5\r\nhello\r\n", HANG], begun),
        "huge chunk": ([SSE_HEAD, chunk(begun), 0.02, b"f" * 40 + b"\r\nhello\r\n", HANG], begun),
        "chunk without its end": ([SSE_HEAD, chunk(begun), 0.02, b"5\r\nhelloXX\r\n", HANG], begun),
    }


DYING = (
    "reset", "closed", "half closed", "closed inside an event", "reset inside an event", "short",
    "short, reset", "malformed chunk", "malformed chunk at once", "negative chunk", "huge chunk",
    "chunk without its end",
)  # fmt: skip


@pytest.mark.parametrize("name", DYING)
async def test_a_stream_that_dies(kit: Kit, allow: Allow, name: str) -> None:
    """C09: a broken stream ends with its whole events, an error event and one end mark; it is not retried."""
    script, sent = _dying(kit)[name]
    async with before(script, allow=allow) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(proxy, kit)
        assert (answer.status, answer.clean) == (200, True)
        kit.check_broken(answer.body, sent)
        assert len(upstream.requests) == 1
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("name", ["short", "malformed chunk", "reset"])
async def test_a_reply_that_dies(kit: Kit, allow: Allow, name: str) -> None:
    """C09: half a reply is never a complete 200: it is an error status, or its framing is incomplete."""
    body = kit.reply("hello")[:-20]
    scripts: dict[str, list[Step]] = {
        "short": [head("Content-Type: application/json", f"Content-Length: {len(body) + 20}") + body, FIN],
        "malformed chunk": [
            head("Content-Type: application/json", "Transfer-Encoding: chunked") + chunk(body) + b"zz\r\n",
            HANG,
        ],
        "reset": [
            head("Content-Type: application/json", "Transfer-Encoding: chunked"),
            chunk(body),
            0.05,
            RESET,
        ],
    }
    async with before(scripts[name], allow=allow) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(proxy, kit, stream=False)
        assert not (answer.clean and answer.status == 200)
        assert len(upstream.requests) == 1
        await served_next(proxy, upstream, kit)


STALLS = ("silent", "in the head", "in the text", "in a call", "inside an event")


@pytest.mark.parametrize("where", STALLS)
async def test_stalls(kit: Kit, allow: Allow, where: str) -> None:
    """C10: a stall is a 504, or an error event and the end mark, at the timeout; the socket is closed."""
    begun = {"in a call": kit.half_call(TIME, '{"timez'), "inside an event": kit.begun("a") + b"data: {"}
    script: dict[str, list[Step]] = {
        "silent": [HANG],
        "in the head": [b"HTTP/1.1 200 OK\r\nContent-", HANG],
    }
    steps = script.get(where) or [SSE_HEAD, chunk(begun.get(where, kit.begun("a"))), HANG]
    times = {"first_byte_timeout_s": 0.5 if where in script else LATE_S, "idle_timeout_s": 0.5}
    async with before(steps, allow=allow, served=times) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(proxy, kit)
        if where in script:
            assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        else:
            assert answer.clean
            assert answer.body.endswith(DONE)
            assert b"upstream_timeout" in answer.body
        await upstream.all_closed()
        assert len(upstream.requests) == 1
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("at_once", [False, True], ids=["a piece each", "at once"])
async def test_an_end_mark_does_not_wait_for_the_message(
    kit: Kit, allow: Allow, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: the end mark reaches the client at once, while the upstream keeps its connection open."""
    for module in ("passing.passthrough", "run.turn.stream"):
        monkeypatch.setattr(f"proxy.relay.{module}.AFTER_END_S", LATE_S)
    pieces: list[Step] = [chunk(kit.begun("hello") + DONE)]
    if not at_once:
        pieces = [chunk(kit.begun("hello")), 0.05, chunk(DONE)]
    async with before([SSE_HEAD, *pieces, HANG], allow=allow) as (proxy, _), proxy.connect() as conversation:
        conversation.writer.write(proxy.request(kit.ask(), path=kit.path))
        async with asyncio.timeout(PATIENCE_S):
            await conversation.reader.readuntil(DONE)


async def test_a_stream_without_end(kit: Kit) -> None:
    """C10: at the total timeout, a stream gets an error event and the end mark."""
    on: list[Step] = [chunk(b": on\n\n"), 0.01]
    endless = [SSE_HEAD, chunk(kit.begun("a")), *on * 2000]
    async with before(endless, allow=(), served={"total_timeout_s": 1.0}) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(proxy, kit)
        assert answer.clean
        assert answer.body.startswith(kit.begun("a"))
        kit.check_broken(answer.body.replace(b": on\n\n", b""), kit.begun("a"))
        assert b"upstream_timeout" in answer.body
        await upstream.all_closed()
        await served_next(proxy, upstream, kit)


async def test_a_file_without_end(kit: Kit) -> None:
    """C10: at the total timeout, a response that is no stream is left incomplete."""
    opening = head("Content-Type: application/octet-stream", "Transfer-Encoding: chunked")
    on: list[Step] = [chunk(b"abc"), 0.01]
    endless = [opening, *on * 2000]
    async with before(endless, served={"total_timeout_s": 1.0}) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await proxy.ask(None, method="GET", path="/v1/files/f/content")
        assert (answer.status, answer.clean) == (200, False)
        await upstream.all_closed()
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("begun", [False, True], ids=["silent", "in the body"])
async def test_a_reply_that_stalls(kit: Kit, allow: Allow, begun: bool) -> None:
    """C10: a stalled reply is a 504, or a response that is left incomplete."""
    body = kit.reply("hello")
    opening = head("Content-Type: application/json", f"Content-Length: {len(body)}")
    script: list[Step] = [opening + body[:10], HANG] if begun else [HANG]
    times = {"first_byte_timeout_s": LATE_S if begun else 0.5, "idle_timeout_s": 0.5}
    async with before(script, allow=allow, served=times) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(proxy, kit, stream=False)
        if answer.status == 200:
            assert begun
            assert not answer.clean
        else:
            assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        await upstream.all_closed()
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.03])
async def test_kept_connections_that_close(kit: Kit, after_s: float) -> None:
    """C11: all of 40 requests succeed, whenever the upstream closes the connection that it kept."""
    (data, _) = kit.whole("ok")
    async with before([data, after_s, FIN]) as (proxy, upstream):
        for _ in range(40):
            answer = await ask(proxy, kit, stream=False)
            assert kit.read_reply(answer.body).text == "ok"
        assert len(upstream.requests) == 40


class Forgetful(RawUpstream):
    """An upstream that resets a connection at its second use, before a byte of the answer."""

    async def _play(
        self, script: Sequence[Step], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        used = [request.connection for request in self.requests]
        return await super()._play([RESET] if used.count(used[-1]) > 1 else script, reader, writer)


async def test_a_kept_connection_that_is_reset(kit: Kit) -> None:
    """C11: if a kept connection is reset before the answer's first byte, the request is retried once."""
    async with Forgetful(kit.whole("ok")) as upstream, running(make_config(upstream.url)) as proxy:
        for _ in range(6):
            answer = await ask(proxy, kit, stream=False)
            assert (answer.status, kit.read_reply(answer.body).text) == (200, "ok")
        assert len(upstream.requests) <= 12


async def test_a_byte_came_back(kit: Kit) -> None:
    """C11: after the first byte of an answer, the request is not retried."""
    async with before(kit.whole("ok"), [b"H", 0.02, RESET]) as (proxy, upstream):
        await ask(proxy, kit, stream=False)
        assert (await ask(proxy, kit, stream=False)).status == 502
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("end", ["reset", "closed", "clean end"])
async def test_a_call_that_breaks_off(kit: Kit, watch: Watch, end: str) -> None:
    """C24: a stream that breaks within a call ends with an error; nothing runs, and nothing is retried."""
    half = kit.half_call(ECHO, '{"text":"a"')
    ends: dict[str, list[Step]] = {"reset": [0.05, RESET], "closed": [FIN], "clean end": [LAST_CHUNK, KEEP]}
    async with before([SSE_HEAD, chunk(half), *ends[end]]) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert answer.clean
        assert kit.read(answer.body, hidden=(ECHO,)).error is not None
        assert watch.started == []
        assert len(upstream.requests) == 1
        assert (await proxy.run_reaches("failed")).invocations == []
        await served_next(proxy, upstream, kit)


def _follow_ups(kit: Kit) -> dict[str, list[Step]]:
    return {
        "reset": [RESET],
        "429": whole(b'{"error":{"message":"slow"}}', "Retry-After: 0", status="429 Slow"),
        "500 html": whole(b"<html>oops</html>", content_type="text/html", status="500 Oops"),
        "400": whole(b'{"error":{"message":"bad","code":"invalid"}}', status="400 Bad"),
        "reset in text": [SSE_HEAD, chunk(kit.begun("half")), 0.05, RESET],
        "json": kit.whole("x"),
        "html": whole(b"<html>login</html>", content_type="text/html"),
        "malformed chunk": [SSE_HEAD + chunk(kit.begun("half")) + b"zz\r\n", HANG],
        "stall": [SSE_HEAD, chunk(kit.begun("half")), HANG],
        "rubbish": chunked(b"data: {\n\n" * 50),
    }


FOLLOW_UPS = (
    "reset", "429", "500 html", "400", "reset in text", "json", "html", "malformed chunk", "stall", "rubbish",
)  # fmt: skip


@pytest.mark.parametrize("name", FOLLOW_UPS)
async def test_a_follow_up_that_fails(kit: Kit, name: str) -> None:
    """C25: if a later turn fails, the stream ends with an error event, and the run is recorded as failed."""
    first = kit.turn(("call_1", TIME, '{"timezone":"UTC"}'))
    served = {"idle_timeout_s": 0.5, "retries": 2}
    async with before(first, _follow_ups(kit)[name], served=served) as (proxy, upstream):
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(proxy, kit)
        assert answer.clean
        said = kit.read(answer.body, hidden=("<html>", TIME))
        assert said.error is not None
        assert said.finish not in ("stop", "completed")
        assert len(upstream.requests) <= 4
        assert (await proxy.run_reaches("failed")).run.error_code
        await served_next(proxy, upstream, kit)
