"""A body in chunks of one byte is read in parts, and others are served between them."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from aiohttp.streams import StreamReader
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from waiting import PATIENCE_S

MOST_A_TURN = 10_000
CHUNKS = 200_000
HEAD = (
    b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/files", b"/healthz", b"/none"])
async def test_few_chunks_are_read_in_one_turn(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads or discards the body, one turn of the event loop takes some thousand chunks."""
    counted: Counter[int] = Counter()
    received = StreamReader.end_http_chunk_receiving
    turn, ticking = 0, False

    def tick() -> None:
        nonlocal turn, ticking
        turn, ticking = turn + 1, False

    def counting(self: StreamReader) -> None:
        nonlocal ticking
        counted[turn] += 1
        if not ticking:
            ticking = True
            asyncio.get_running_loop().call_soon(tick)
        received(self)

    monkeypatch.setattr(StreamReader, "end_http_chunk_receiving", counting)
    async with RawUpstream(whole(b"{}")) as upstream, running(make_config(upstream.url)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with suppress(ConnectionError):
            writer.write(HEAD % path + b"1\r\n \r\n" * CHUNKS + b"0\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await writer.drain()
                assert (await reader.readline()).startswith(b"HTTP/1.1 ")
        writer.close()
    assert counted
    assert max(counted.values()) <= MOST_A_TURN
