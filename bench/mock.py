"""The upstream: ``python -m bench.mock PORT``. One process, raw protocols, as little parsing as possible."""

import asyncio
import sys
import time
from typing import cast

from bench.wire import END, Plan, plan_of, stamps

_SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_TEXT = b"some words of an answer, as long as a token is with all that a provider puts around it"
_ARGUMENT_PIECE = 1024
_TOOLS = {"tool": b"bench_tools__work", "act": b"bench_tools__act"}


def _event(delta: bytes, reason: bytes = b"null") -> bytes:
    return (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"bench",'
        b'"choices":[{"index":0,"delta":' + delta + b',"finish_reason":' + reason + b"}]}\n\n"
    )


def _text_event(text: bytes) -> bytes:
    return _event(b'{"content":"' + text + b'"}')


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_FINISH = _framed(_event(b"{}", b'"stop"') + END) + b"0\r\n\r\n"
_REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + _TEXT + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}'
)
_JSON = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_REPLY) + _REPLY
)


class Mock(asyncio.Protocol):
    """One connection from the proxy."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head_end = -1
        self._length = 0
        self._first_byte_at = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._buffer:
            self._first_byte_at = time.monotonic_ns()
        self._buffer += data
        while self._buffer:
            if self._head_end < 0:
                self._head_end = self._buffer.find(b"\r\n\r\n")
                if self._head_end < 0:
                    return
                head = bytes(self._buffer[: self._head_end]).lower()
                _, _, rest = head.partition(b"content-length:")
                self._length = int(rest.partition(b"\r\n")[0] or 0)
            end = self._head_end + 4 + self._length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[self._head_end + 4 : end])
            del self._buffer[:end]
            self._head_end = -1
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        assert self._transport is not None
        plan = plan_of(body)
        if plan.kind == "json":
            self._transport.write(_JSON)
        elif plan.kind in ("tool", "act"):
            self._answer_tool(plan, body)
        elif plan.kind == "paced":
            self._transport.write(_SSE)
            self._pace(plan, 0)
        else:
            self._transport.write(_SSE)
            for _ in range(plan.count):
                # One write for each chunk, as providers do; the kernel joins them.
                self._transport.write(_framed(_text_event(b"@%d@ " % time.monotonic_ns() + _TEXT)))
            self._transport.write(_FINISH)

    def _pace(self, plan: Plan, said: int) -> None:
        assert self._transport is not None
        if said == plan.count:
            self._transport.write(_FINISH)
            return
        self._transport.write(_framed(_text_event(b"@%d@ " % time.monotonic_ns() + _TEXT)))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(plan.pause_ms / 1000, self._pace, plan, said + 1)

    def _answer_tool(self, plan: Plan, body: bytes) -> None:
        """Answer with a call; after its result, answer with the time that the request with the result took to
        begin."""
        assert self._transport is not None
        at = body.rfind(b'"role":"tool"')
        if at < 0:
            self._transport.write(_SSE + _framed(_event(b'{"role":"assistant","content":null}')))
            opening = b'{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":'
            self._transport.write(
                _framed(
                    _event(opening + b'{"name":"%s","arguments":"{\\"text\\":\\""}}]}' % _TOOLS[plan.kind])
                )
            )
            left = plan.count
            while left > 0:
                piece = b"x" * min(left, _ARGUMENT_PIECE)
                left -= len(piece)
                self._transport.write(
                    _framed(_event(b'{"tool_calls":[{"index":0,"function":{"arguments":"' + piece + b'"}}]}'))
                )
            last = _event(b'{"tool_calls":[{"index":0,"function":{"arguments":"\\"}"}}]}')
            self._transport.write(_framed(last + _event(b"{}", b'"tool_calls"') + END) + b"0\r\n\r\n")
            return
        took = self._first_byte_at - max(stamps(body[at:]), default=self._first_byte_at)
        self._transport.write(_SSE + _framed(_text_event(b"tool=@%d@" % took)) + _FINISH)


async def main(port: int) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Mock, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1])))
