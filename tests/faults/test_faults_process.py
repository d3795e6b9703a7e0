"""C03, C07, C33, C36, C39, C40, C43, C44 for a process of its own: memory, descriptors, signals and sudden
death."""

import asyncio
import json
import signal
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import pytest
from faults_rig import SSE_HEAD, TIME, Allow, ServeProcess, serve_process
from proxy_process import EFFECT
from raw_upstream import FIN, HANG, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, head
from running_proxy import Answer
from waiting import LATE_S, PATIENCE_S, until
from wire_kits import KITS, Kit

pytestmark = pytest.mark.slow

MIB = 1 << 20
GROWTH = 96 * MIB


class Highest:
    """``async with Highest(proxy) as high: …; high.growth`` is the greatest growth of resident memory."""

    def __init__(self, proxy: ServeProcess) -> None:
        self._proxy = proxy
        self._first = proxy.rss()
        self._most = self._first

    async def __aenter__(self) -> "Highest":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            self._most = max(self._most, self._proxy.rss())
            await asyncio.sleep(0.01)

    @property
    def growth(self) -> int:
        """Return the growth in bytes."""
        return max(self._most, self._proxy.rss()) - self._first


async def ask(proxy: ServeProcess, kit: Kit, **more: Any) -> Answer:
    """Send one request."""
    return await proxy.ask(kit.ask(**more), path=kit.path)


async def warm(proxy: ServeProcess, upstream: RawUpstream, kit: Kit) -> None:
    """Send one request, so that imports and connections are there; then restore the scripts."""
    scripts = upstream.scripts
    upstream.scripts = (kit.stream("fine"),)
    assert kit.read((await ask(proxy, kit)).body).text == "fine"
    upstream.requests.clear()
    upstream.scripts = scripts


async def test_memory_of_a_large_event(kit: Kit, allow: Allow, tmp_path: Path) -> None:
    """C03: an event of 8 MB in small pieces costs less than 96 MiB."""
    data = kit.begun("x" * (8 * MIB)) + b"data: [DONE]\n\n"
    pieces = [chunk(data[at : at + 20_000]) for at in range(0, len(data), 20_000)]
    async with (
        RawUpstream([SSE_HEAD, *pieces, LAST_CHUNK, KEEP]) as upstream,
        serve_process(upstream, tmp_path, allow=allow) as proxy,
    ):
        await warm(proxy, upstream, kit)
        async with Highest(proxy) as high:
            assert (await ask(proxy, kit)).body == data
        assert high.growth <= GROWTH


async def test_memory_of_a_bomb(kit: Kit, allow: Allow, tmp_path: Path) -> None:
    """C07: the proxy does not unpack 400 MB of a compressed stream into memory."""
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(kit.begun("a")) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b"data: " + b" " * MIB) + packer.flush(zlib.Z_FULL_FLUSH)
    opening = head("Content-Type: text/event-stream", "Content-Encoding: gzip", "Connection: close")
    async with (
        RawUpstream([opening, bomb, block * 400, HANG]) as upstream,
        serve_process(upstream, tmp_path, allow=allow) as proxy,
    ):
        await warm(proxy, upstream, kit)
        async with Highest(proxy) as high:
            answer = await ask(proxy, kit)
            if answer.clean:
                kit.check_broken(answer.body, kit.begun("a"))
        assert high.growth <= GROWTH
        upstream.scripts = (kit.stream("next"),)
        assert kit.read((await ask(proxy, kit)).body).text == "next"


@pytest.mark.accepts("chat-lengths", "responses-bounds", why="the test is about the size of the whole body")
async def test_memory_of_bodies(kit: Kit, tmp_path: Path) -> None:
    """C33, C36: large bodies, many values, and endless bodies and heads cost bounded memory."""
    async with (
        RawUpstream(kit.whole("ok")) as upstream,
        serve_process(upstream, tmp_path, allow=("core__*",)) as proxy,
    ):
        await warm(proxy, upstream, kit)
        async with Highest(proxy) as high:
            assert (await ask(proxy, kit, stream=False, user="x" * (8 * MIB))).status == 200
            many = json.dumps(kit.ask(stream=False)).encode()[:-1] + b',"x":[' + b"{}," * (10 * MIB) + b"1]}"
            assert (await proxy.ask(many, path=kit.path)).status == 400
            await _endless(
                proxy,
                proxy.request(
                    None, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}, path=kit.path
                ),
            )
            await _endless(proxy, f"POST {kit.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ".encode())
        assert high.growth <= GROWTH + 32 * MIB


async def _endless(proxy: ServeProcess, opening: bytes) -> None:
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n" if b"chunked" in opening else b"a" * 65536
    async with proxy.connect() as conversation:
        conversation.writer.write(opening)
        answer = asyncio.create_task(conversation.head())
        for _ in range(2000):
            if answer.done() or conversation.writer.is_closing():
                break
            conversation.writer.write(piece)
            try:
                await conversation.writer.drain()
            except ConnectionError:
                break
        async with asyncio.timeout(PATIENCE_S):
            assert (await answer).status in (413, 431)


async def test_five_hundred_streams(allow: Allow, tmp_path: Path) -> None:
    """C39: 500 streams at once are exact, cost at most 192 MiB, and leave no descriptor open."""
    release = asyncio.Event()
    scripts: dict[str, list[Step]] = {}
    for kit in KITS.values():
        data = kit.text(*["word "] * 20)
        half = len(data) // 2
        scripts[kit.path] = [SSE_HEAD, chunk(data[:half]), release, chunk(data[half:]), LAST_CHUNK, KEEP]

    async with (
        RawUpstream(lambda request: scripts[request.target]) as upstream,
        serve_process(upstream, tmp_path, allow=allow) as proxy,
    ):
        release.set()
        for kit in KITS.values():
            await ask(proxy, kit)
        release.clear()
        baseline = proxy.fds()
        kits = [*KITS.values()] * 250
        async with Highest(proxy) as high:
            streams = [asyncio.create_task(ask(proxy, kit)) for kit in kits]
            await until(lambda: len(upstream.requests) >= 502)
            release.set()
            async with asyncio.timeout(PATIENCE_S):
                answers = await asyncio.gather(*streams)
        for kit, answer in zip(kits, answers, strict=True):
            assert answer.clean
            assert answer.body == kit.text(*["word "] * 20)
        assert high.growth <= 192 * MIB
        # Connections to the upstream are kept for a while; those to clients are closed.
        await until(lambda: proxy.fds() <= baseline + upstream.open_connections + 12)


async def test_memory_of_a_client_that_does_not_read(kit: Kit, allow: Allow, tmp_path: Path) -> None:
    """C40: if a client does not read, most of 200 MB stays with the upstream, and others are served."""
    comments = [chunk(b": " + b"x" * 65_000 + b"\n\n")] * 3200
    flood: list[Step] = [SSE_HEAD, chunk(kit.begun("a")), *comments, HANG]
    async with RawUpstream(flood) as upstream, serve_process(upstream, tmp_path, allow=allow) as proxy:
        await warm(proxy, upstream, kit)
        async with Highest(proxy) as high:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=65536)
            writer.write(proxy.request(kit.ask(), path=kit.path))
            await reader.readuntil(b'"a"')
            last = -1
            while upstream.sent != last:
                last = upstream.sent
                await asyncio.sleep(0.3)
            assert upstream.sent <= 64 * MIB
            upstream.scripts = (kit.stream("other"),)
            assert kit.read((await ask(proxy, kit)).body).text == "other"
        assert high.growth <= GROWTH
        writer.transport.abort()
        await until(lambda: upstream.open_connections <= 1)


async def test_sudden_death(kit: Kit, tmp_path: Path) -> None:
    """C43: after ``kill -9``, the record is valid, has its rows, and no run is left as running."""
    call = kit.turn(("call_1", TIME, '{"timezone":"UTC"}'))
    async with RawUpstream(call, kit.stream("done"), call, [HANG]) as upstream:
        async with serve_process(upstream, tmp_path, allow=("core__*",)) as proxy:
            assert kit.read((await ask(proxy, kit)).body).text == "done"
            async with proxy.sent(kit.ask(), path=kit.path):
                await upstream.asked(4)
                await until(lambda: len(_rows(tmp_path)) == 2)
                proxy.kill()
                await proxy.process.wait()
        upstream.requests.clear()
        upstream.scripts = (kit.stream("again"),)
        async with serve_process(upstream, tmp_path, allow=("core__*",)) as proxy:
            assert kit.read((await ask(proxy, kit)).body).text == "again"
            await until(lambda: len(_rows(tmp_path)) == 3)
            await until(lambda: "running" not in _rows(tmp_path))
            assert sorted(_rows(tmp_path)) == ["completed", "completed", "interrupted"]
    with sqlite3.connect(tmp_path / "record.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def _rows(folder: Path) -> list[str]:
    database = sqlite3.connect(folder / "record.db")
    try:
        return [status for (status,) in database.execute("SELECT status FROM runs")]
    finally:
        database.close()


PATIENT_RECORD = f"""{EFFECT}
from dataclasses import replace
from proxy.store.sqlite.store import SqliteStore
begin = SqliteStore.__init__
def patient(self, path, options):
    begin(self, path, replace(options, lock_timeout_s={LATE_S}))
SqliteStore.__init__ = patient
"""
"""A module of tools that makes the record wait longer for a lock than a test waits for an answer."""


async def test_a_locked_record_delays_no_stream(kit: Kit, tmp_path: Path) -> None:
    """C43: while another process locks the record, streams are served; their rows are written later."""
    (tmp_path / "patient.py").write_text(PATIENT_RECORD)
    tools = {"modules": ["patient.py"]}
    async with (
        RawUpstream(kit.stream("fine")) as upstream,
        serve_process(upstream, tmp_path, allow=("core__*",), tools=tools) as proxy,
    ):
        await warm(proxy, upstream, kit)
        await until(lambda: _rows(tmp_path) == ["completed"])
        database = sqlite3.connect(tmp_path / "record.db", isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            async with asyncio.timeout(PATIENCE_S):
                assert kit.read((await ask(proxy, kit)).body).text == "fine"
        database.execute("ROLLBACK")
        database.close()
        await until(lambda: _rows(tmp_path) == ["completed"] * 4)


async def test_a_signal_during_a_stream(kit: Kit, allow: Allow, tmp_path: Path) -> None:
    """C44: after SIGTERM, the stream runs to its end, a new request is refused, and the process ends."""
    release = asyncio.Event()
    data = kit.text("one ", "two ", "three")
    half = data.index(b"\n\n") + 2
    script: list[Step] = [SSE_HEAD, chunk(data[:half]), release, chunk(data[half:]), LAST_CHUNK, FIN]
    async with RawUpstream(script) as upstream, serve_process(upstream, tmp_path, allow=allow) as proxy:
        async with proxy.sent(kit.ask(), path=kit.path) as conversation:
            answer = await conversation.head()
            pieces = conversation.pieces(answer)
            body = await anext(pieces)
            proxy.process.send_signal(signal.SIGTERM)
            # A request that came before the signal was handled is served like the first.
            await until(lambda: _is_refused(proxy, kit))
            release.set()
            body += b"".join([piece async for piece in pieces])
            assert (body, answer.clean) == (data, True)
        async with asyncio.timeout(PATIENCE_S):
            assert await proxy.process.wait() == 0


async def _is_refused(proxy: ServeProcess, kit: Kit) -> bool:
    """Say whether a new request gets 503 or no connection; leave if it is admitted."""
    try:
        async with proxy.sent(kit.ask(), path=kit.path) as conversation:
            status = (await conversation.head()).status
            conversation.leave()
            return status == 503
    except (ConnectionError, asyncio.IncompleteReadError):
        return True
