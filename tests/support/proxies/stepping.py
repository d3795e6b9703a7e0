"""A proxy before an upstream that sends one chunk at a time, so that each chunk is one read and one write."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import probe_tools
from logged import logged_to
from running_proxy import Proxy, make_config, running

PROBES = str(probe_tools.__file__)

EVENT = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
)
END = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
PLACE = b'"item_id":"msg_1","output_index":0,"content_index":0'
RESPONSES_OPENING = (
    b'data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress",'
    b'"model":"m","output":[]}}\n\n'
    b'data: {"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"id":"msg_1",'
    b'"type":"message","role":"assistant","content":[]}}\n\n'
)
RESPONSES_EVENT = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":7,'
    + PLACE
    + b',"delta":"word ","logprobs":[],"obfuscation":"x7Ki"}\n\n'
)
RESPONSES_END = (
    b'data: {"type":"response.completed","sequence_number":9,"response":{"id":"resp_1","status":"completed",'
    b'"model":"m","output":[]}}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Talk:
    """A client's request in a dialect, and the bytes of the upstream's answer."""

    path: str
    ask: dict[str, Any]
    opening: bytes
    event: bytes
    end: bytes


CHAT = Talk("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, b"", EVENT, END)
RESPONSES = Talk("/v1/responses", {"input": "hi"}, RESPONSES_OPENING, RESPONSES_EVENT, RESPONSES_END)


class Steps:
    """An upstream that sends one chunk whenever a test puts one into its queue."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                opening = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(opening.partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(HEAD)
                while (data := await self.queue.get()) is not None:
                    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
        writer.close()


@contextlib.asynccontextmanager
async def stepping(
    *, tools: bool, path: Path, text_calls: str = "off", content: str = "tools"
) -> AsyncIterator[tuple[Proxy, Steps]]:
    """Run a proxy with its default settings before an upstream that sends one chunk at a time."""
    steps = Steps()
    server = await asyncio.start_server(steps.serve, "127.0.0.1", 0)
    steps.port = server.sockets[0].getsockname()[1]
    config = make_config(
        {"base_url": f"http://127.0.0.1:{steps.port}/v1", "text_calls": text_calls},
        allow=("core__*", "probe_tools__echo", "probe_tools__buy") if tools else (),
        modules=(PROBES,),
        store={"url": f"sqlite:///{path}/r.db", "content": content},
        limits={"requests": ("1000000/minute",)},
    )
    with (path / "log").open("w") as sink, logged_to(sink):
        async with running(config) as proxy:
            yield proxy, steps
    server.close()
