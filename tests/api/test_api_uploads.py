"""Uploads: the proxy passes their bytes on while they still come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from raw_upstream import whole
from running_proxy import make_config, running
from waiting import PATIENCE_S

pytestmark = pytest.mark.both_loops

BODY = bytes(range(256)) * 300
FORM = "multipart/form-data; boundary=0f1e"


class Reader:
    """An upstream that says when it has the first half of :data:`BODY`, and answers once it has all."""

    def __init__(self) -> None:
        self.url = ""
        self.head = b""
        self.body = b""
        self.has_half = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Reader"]:
        """Listen on a free port."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = await reader.readuntil(b"\r\n\r\n")
        self.body = await reader.readexactly(len(BODY) // 2)
        self.has_half.set()
        self.body += await reader.readexactly(len(BODY) - len(self.body))
        answer = whole(b'{"ok":true}')[0]
        assert isinstance(answer, bytes)
        writer.write(answer)
        await writer.drain()
        writer.close()


async def test_uploads_stream_through() -> None:
    """The upstream gets half of an upload before the client sends the rest; type and bytes are unchanged."""
    async with (
        Reader().serving() as upstream,
        running(make_config(upstream.url)) as proxy,
        proxy.connect() as conversation,
        asyncio.timeout(PATIENCE_S),
    ):
        headers = {"Content-Type": FORM, "Content-Length": str(len(BODY)), "Authorization": "Bearer x"}
        half = len(BODY) // 2
        conversation.writer.write(proxy.request(None, headers, path="/v1/files") + BODY[:half])
        await upstream.has_half.wait()
        conversation.writer.write(BODY[half:])
        answer = await conversation.answer()
        assert (answer.status, answer.body) == (200, b'{"ok":true}')
    assert upstream.body == BODY
    lines = upstream.head.decode().lower().split("\r\n")
    assert f"content-type: {FORM}" in lines
    assert f"content-length: {len(BODY)}" in lines
