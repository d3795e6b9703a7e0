"""A client's response, written straight to its transport.

aiohttp parses the request and keeps the connection.  Its ``StreamResponse.write`` is a coroutine
with a look at compression, lengths and hooks for each piece; a stream has hundreds of pieces, so the
few bytes of framing that HTTP/1.1 asks for are put around them here.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from http import HTTPStatus

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time

from proxy.server.edge_request import EdgeRequest
from proxy.server.rate_limiter import without_replaced
from proxy.upstreams.base import Headers, Secrets

__all__ = ["HttpClientStream"]

_MAX_UNREAD_BYTES = 64 * 1024
"""Bytes in the transport's buffer above which the upstream has to wait."""

_RESET = struct.pack("ii", 1, 0)
_STATUSES = frozenset(HTTPStatus)
_CHUNKED = ("Transfer-Encoding", "chunked")
_BYTES = ("Content-Type", "application/octet-stream")

_TELLING = frozenset({"content-length", "content-type"})
"""Headers without which a head needs others."""


class _SentResponse(web.StreamResponse):
    """What aiohttp is told of a response that has gone out without it."""

    def __init__(self, status: int, *, keep_alive: bool) -> None:
        # Without the base's own: nobody asks for the headers and the state that it would make.
        self._sent = status
        self._kept = keep_alive

    @property
    def status(self) -> int:
        return self._sent

    @property
    def prepared(self) -> bool:
        return True

    @property
    def keep_alive(self) -> bool:
        return self._kept

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return


class HttpClientStream:
    """A :class:`~proxy.relay.base.ClientStream` that answers one request.

    ``headers`` go out with every response, whatever its status.  A ``last`` one ends its connection.
    ``first_byte_at`` is when the body began, in monotonic seconds, 0 until then; ``sent`` counts bytes,
    head and framing included.
    """

    def __init__(self, request: EdgeRequest, headers: Headers, *, last: bool = False) -> None:
        self._request = request
        self._headers = headers
        self._last = last
        self._response: _SentResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self._chunked = False
        self._bodiless = False
        self._until_close = False
        self._secrets: Secrets | None = None
        self.first_byte_at = 0.0
        self.sent = 0

    @property
    def started(self) -> bool:
        return self._response is not None

    @property
    def cut_off(self) -> bool:
        return self._request.cut_off

    @property
    def response(self) -> web.StreamResponse:
        """What was sent, for the server to take note of."""
        if self._response is None:
            raise RuntimeError("nothing has been sent to the client")
        return self._response

    def keep_back(self, secrets: Secrets | None) -> None:
        self._secrets = secrets

    def start(self, status: int, headers: Headers) -> None:
        request = self._request
        told = {kind for name, _ in headers if (kind := _kind(name))}
        # An upstream's own refusal comes with the numbers that explain it.
        ours = request.limit_headers if status != 429 else ()
        pairs = [*(without_replaced(headers, ours) if "limit" in told else headers), *ours, *self._headers]
        self._bodiless = request.method == "HEAD" or status in (204, 304)
        keep_alive = request.keep_alive and not self._last
        version = request.version
        if self._bodiless:
            if status == 204 and "content-length" in told:
                pairs = [pair for pair in pairs if _kind(pair[0]) != "content-length"]
        else:
            if "content-length" not in told:
                self._chunked = version >= HttpVersion11
                # Nothing but the connection's end can end a body for which there are no chunks.
                self._until_close = not self._chunked
                keep_alive = keep_alive and self._chunked
                if self._chunked:
                    pairs.append(_CHUNKED)
            if "content-type" not in told:
                pairs.append(_BYTES)
        pairs.append(("Date", rfc822_formatted_time()))
        if not keep_alive:
            pairs.append(("Connection", "close"))
        elif version == HttpVersion10:
            pairs.append(("Connection", "keep-alive"))
        self._held = _head(_status_line(version.minor, status), pairs)
        self._transport = request.transport
        self._response = _SentResponse(status, keep_alive=keep_alive)
        request.started = True

    def flush(self) -> None:
        if self._held:
            with contextlib.suppress(ConnectionResetError):
                self._send(b"")

    def push(self, data: bytes, *, last: bool = False) -> Awaitable[None] | None:
        if self._bodiless or not data:
            return None
        if not self.first_byte_at:
            self.first_byte_at = time.monotonic()
        if (secrets := self._secrets) is not None and data.find(secrets.beginning) >= 0:
            data = secrets.blanked(data)
        if self._chunked:
            data = b"".join((_chunk_size(len(data)), data, b"\r\n"))
        if last:
            self._held += data
            return None
        transport = self._send(data)
        if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            return self._request.writer.drain()
        return None

    async def write(self, data: bytes) -> None:
        if (wait := self.push(data)) is not None:
            await wait

    def finish(self) -> None:
        if self._chunked:
            self._send(b"0\r\n\r\n")
        elif self._held:
            self._send(b"")

    def abort(self) -> None:
        if (transport := self._request.transport) is not None:
            self.flush()
            if self._until_close and not transport.is_closing():
                # In order, the connection's end would say that the body is whole.
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                transport.abort()
            transport.close()

    def _send(self, data: bytes) -> asyncio.Transport:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has closed the connection")
        if self._held:
            data = self._held + data
            self._held = b""
        self.sent += len(data)
        transport.write(data)
        return transport


def _head(status_line: str, pairs: Sequence[tuple[str, str]]) -> bytes:
    """A response's head, its blank line included; raises ValueError for a header that would end its line."""
    head = "\r\n".join([status_line, *[f"{name}: {value}" for name, value in pairs]]).encode("utf-8")
    # Whoever made these headers has checked them; none may end its line and begin another.
    if head.count(b"\n") > len(pairs) or head.count(b"\r") > len(pairs) or head.find(b"\0") >= 0:
        raise ValueError("a control character stands in a response header")
    return head + b"\r\n\r\n"


# The same few names, statuses and sizes come again and again, so what is made of each is kept.


@lru_cache(maxsize=1024)
def _chunk_size(size: int) -> bytes:
    return b"%x\r\n" % size


@lru_cache(maxsize=1024)
def _status_line(minor: int, status: int) -> str:
    reason = HTTPStatus(status).phrase if status in _STATUSES else ""
    return f"HTTP/1.{minor} {status} {reason}"


@lru_cache(maxsize=1024)
def _kind(name: str) -> str:
    """What a header tells of its response: its length, its type, a limit; "" for all else."""
    lower = name.lower()
    if lower.startswith("x-ratelimit-"):
        return "limit"
    return lower if lower in _TELLING else ""
