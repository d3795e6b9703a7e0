"""aiohttp's client protocol, with three gaps closed that matter to a proxy.

Measured with aiohttp 3.14.5: (1) a malformed chunk closes the connection but tells nobody who
reads the body, which then waits for ever; (2) a head whose body is malformed in the same read is
lost with it; (3) nobody can tell a connection that died before any response byte from one that
died after.
"""

import asyncio
from contextvars import ContextVar
from typing import Any

from aiohttp import ClientPayloadError, TCPConnector
from aiohttp.client_proto import ResponseHandler
from proxy.net.keepalive import watch_peer

__all__ = ["Attempt", "WatchfulConnector"]


class Attempt:
    """One try to get a response: on which connection, and how much came back."""

    def __init__(self) -> None:
        self.handler: WatchfulHandler | None = None
        self.timer: asyncio.Timeout | None = None
        self.first_byte_timeout_s = 0.0
        self.body_error: Exception | None = None

    @property
    def reused(self) -> bool:
        """Whether the connection had served a request before."""
        return self.handler is not None and self.handler.served > 1

    @property
    def received(self) -> int:
        """Response bytes so far."""
        return self.handler.received if self.handler is not None else 0

    def progress(self) -> None:
        """Start the wait for the first response byte anew."""
        # The body may still be on its way when the response's head is there, or the time is up.
        if self.timer is not None and not self.timer.expired():
            self.timer.reschedule(asyncio.get_running_loop().time() + self.first_byte_timeout_s)


class WatchfulHandler(ResponseHandler):
    """One connection to an upstream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, current: ContextVar[Attempt]) -> None:
        super().__init__(loop)
        self.served = 0
        self.received = 0
        self._current = current
        self._head_pending = False

    def set_response_params(self, **params: Any) -> None:
        """A request is about to be sent on this connection."""
        self.served += 1
        self.received = 0
        self._head_pending = True
        attempt = self._current.get()
        attempt.handler = self
        attempt.progress()
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse a head on its own, so that a fault in the body cannot take it away again."""
        self.received += len(data)
        while self._head_pending and data:
            head, blank_line, rest = data.partition(b"\r\n\r\n")
            if not blank_line:
                break
            # An interim response (RFC 9110, section 15.2) is followed by another head.
            self._head_pending = head.startswith(b"HTTP/1.1 1")
            super().data_received(head + blank_line)
            if not rest:
                return
            data = rest
        super().data_received(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            watch_peer(sock)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell whoever reads an unfinished body, which aiohttp leaves waiting."""
        payload = self._payload
        super().connection_lost(exc)
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(ClientPayloadError("the connection ended inside the body"))

    def close(self) -> None:
        """Close at once: what is still unsent belongs to a request that nobody waits for."""
        self.abort()


class WatchfulConnector(TCPConnector):
    """A connection pool whose connections are :class:`WatchfulHandler`.

    aiohttp has no public hook for the protocol class; the tests of this room hold the private
    one (``_factory``) in place.
    """

    def __init__(self, current: ContextVar[Attempt], **options: Any) -> None:
        super().__init__(**options)
        self._factory = lambda: WatchfulHandler(self._loop, current)  # type: ignore[assignment]
