"""Serve one client's connection, and close the gaps of aiohttp's server.

Gaps that were measured with aiohttp 3.14.5:

(1) A request that cannot be parsed gets an answer in plain text, which quotes the line and any key in it.
The log quotes it, too.

(2) After a malformed chunk, the handler waits for the rest of the body for ever.

(3) aiohttp closes the connection while the client still sends; the client's system then discards the answer.

(4) There is no time limit for the head of a request, nor for a client that reads nothing of its response.

(5) Bytes that are read along with an offered upgrade are lost, so the rest of a body would be read as a
request.

(6) aiohttp accepts chunks with HTTP/1.0, whose readers see no body there, and any version whose number the
parser knows.

(7) A body that arrives after its request was taken occupies a place in the queue for good. In the end,
aiohttp reads only the first of several requests that arrive at once.

(8) aiohttp runs each request in a task of its own, and a second task waits for it.

The names of aiohttp's own fields come from :class:`AiohttpConnection`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import ERROR

from proxy.server.connections.application import ConnectionBounds, Handler
from proxy.server.connections.client_address import network_of
from proxy.server.connections.connection_modes import NEXT, REFUSAL, REFUSED, REQUESTS, UPGRADE
from proxy.server.messages.errors import ERROR_CODE, error_response
from proxy.server.messages.heads.head import Head
from proxy.server.messages.heads.known_heads import READ_BUFFER_BYTES, KnownHeads, KnownMessage, KnownRequests
from proxy.server.messages.heads.pending_heads import MAX_HEAD_BYTES, PendingHead
from proxy.server.messages.heads.unparsed import (
    MAX_FIELD_BYTES,
    MAX_HEADERS,
    as_bytes,
    fault_of,
    own_headers,
    refusal,
    replace_too_large,
    too_many_connections,
    too_many_heads,
)
from proxy.server.messages.request import EdgeRequest, new_request_id
from proxy.server.transport.aiohttp_seam import AiohttpConnection, Switched

KEEPALIVE_S = 75.0
MAX_LINE_BYTES = 16 * 1024
"""The most bytes of a request line; a target has a lower limit, whose error says more."""
_LINGER_S = 2.0
"""Seconds to read from a client that still sends the body of an answered request, so that it sees the
answer."""


class EdgeConnection(AiohttpConnection):
    """One connection of a client, from its first byte to its last."""

    __slots__ = (
        "_bounds",
        "_feed",
        "_held",
        "_known",
        "_late",
        "_linger_timer",
        "_log",
        "_mode",
        "_pending_head",
        "_read_last",
        "_send_timer",
        "handle",
    )

    def __init__(
        self,
        server: web.Server,
        handle: Handler,
        bounds: ConnectionBounds,
        known: KnownHeads,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_S,
            access_log=None,  # type: ignore[arg-type]  # As aiohttp's own runner passes it.
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=_LINGER_S,
            read_bufsize=READ_BUFFER_BYTES,
            # Compressed bodies are refused, so they need not be unpacked.
            auto_decompress=False,
        )
        self.handle = handle
        self._feed: Callable[[bytes], None] | None = None
        self._bounds = bounds
        self._known = KnownRequests(known)
        self._held = False
        # Whether the last request was taken before its body ended; then its place in the parser is still
        # occupied.
        self._late = False
        self._mode = REQUESTS
        self._linger_timer: asyncio.TimerHandle | None = None
        self._pending_head: PendingHead | None = None
        # The body that arrived before that head.
        self._read_last: StreamReader | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._log = log
        self.messages = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the client, or answer that there are too many connections."""
        super().connection_made(transport)
        if self._bounds.descriptors.is_short(transport):
            self._refuse_crowd("too_many_connections", too_many_connections())

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; a request whose head is known bypasses the parser."""
        if self._mode is not REQUESTS:
            if self._feed is not None:
                self._feed(data)
            return
        known = self._known
        if (filling := known.filling) is not None:
            closed = self.force_closed or self.ends_with_response
            if closed or not (data := known.fill(filling, data)):
                return
        if (request := known.take(data, self, idle=self._is_idle())) is not None:
            self.messages.append(request)
            if self.waiter is not None:
                self.waiter.set_result(None)
            return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse bytes; start the timer of an incomplete head, and fail a body that is malformed."""
        before = len(self.messages)
        behind_body = (body := self._read_last) is None or body.is_eof()
        super().data_received(data)
        if body is not None and body.is_eof():
            self._read_last = None  # An open stream need not hold its request.
        self._known.learn(data, self.messages[before:])
        if len(self.messages) > before:
            self._stop_waiting_for_head()
            if len(data) > MAX_HEAD_BYTES:
                self.messages[before:] = replace_too_large(self.messages[before:])
            self._read_last = None if (body := self.messages[-1][1]).is_eof() else body
            if not isinstance(self.messages[-1][0], RawRequestMessage):
                self._fail_bodies()
        elif data and behind_body:
            # After a complete body, only an incomplete head makes no message.
            self._wait_for_head(len(data))

    def switch(self, feed: Callable[[bytes], None]) -> None:
        """Pass all further bytes to another protocol, beginning with those that followed its handshake."""
        self._stop_waiting_for_head()
        self._mode = NEXT[self._mode, UPGRADE]
        self._feed = feed
        self.set_parser(Switched(feed))  # type: ignore[arg-type]  # It has all methods that aiohttp calls.

    def _wait_for_head(self, size: int) -> None:
        """Count ``size`` bytes of an incomplete head, start its timer, and refuse a head that is too
        large."""
        pending = self._pending_head or self._begin_head()
        if pending is None:
            self._refuse_crowd("too_many_heads", too_many_heads())
            return
        pending.size += size
        if pending.size > MAX_HEAD_BYTES:
            self._refuse_head("large_head", refusal(too_long=True))
        elif pending.timer is None and self.waiter is not None and not self.waiter.done():
            pending.timer = self.loop.call_later(self._bounds.header_timeout_s, self._refuse_late_head)

    def _begin_head(self) -> PendingHead | None:
        """Count a head that has begun; return ``None`` if there are too many."""
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        address = "" if self._bounds.trusted.trusts(peer) else network_of(peer)
        if self._bounds.pending_heads.begin(address):
            self._pending_head = PendingHead(self._bounds.pending_heads, address)
        return self._pending_head

    def _stop_waiting_for_head(self) -> None:
        if self._pending_head is not None:
            self._pending_head.end()
            self._pending_head = None

    def _is_idle(self) -> bool:
        """Return whether the connection waits for a request and may take one."""
        waiter = self.waiter
        if waiter is None or waiter.done() or self.messages:
            return False
        return not (self.upgraded or self.force_closed or self.ends_with_response)

    async def start(self) -> None:
        """Serve the connection's requests one after the other, all in this task.

        aiohttp makes a task for each request and waits for it, which is not needed.
        """
        try:
            while not self.force_closed:
                if not self.messages:
                    self.waiter = self.loop.create_future()
                    try:
                        await self.waiter
                    finally:
                        self.waiter = None
                response, unread = await self._serve()
                if response is None:
                    break
                if not unread.is_eof():
                    await self._read_out(unread)
                if not response.keep_alive or self.ends_with_response or self.force_closed:
                    break
                self._await_next()
                if self.messages:
                    # A client that sends many requests at once must not delay others.
                    await asyncio.sleep(0)
        except BaseException:  # Every exception ends the connection, even a cancellation.
            self.force_close()
            raise
        if not self.force_closed:
            self.serving_task = None
            if self.transport is not None:
                self.transport.close()

    def _taken(self) -> tuple[Any, StreamReader]:
        """Remove the next request from the queue, and let the parser continue if it waits for the place."""
        message, body = taken = self.messages.pop(0)
        known = type(message) is KnownMessage
        late, self._late = self._late, not known and not body.is_eof()
        if self.parser is not None:
            if not known and not self._late:
                self.parser.message_consumed()
            if late:
                self.parser.message_consumed()
                self.data_received(b"")  # It may have stopped because no place was free.
        if self.buffer_paused and len(self.messages) <= self.resume_below:
            self.resume_if_drained()
        return taken

    async def _serve(self) -> tuple[web.StreamResponse | None, StreamReader]:
        """Answer the next request; return the response, or ``None`` if the client has gone, and the body."""
        message, payload = self._taken()
        task = self.serving_task
        if task is None:
            return None, payload  # The client left in this turn of the loop.
        fault = None
        if type(message) is KnownMessage:
            request = EdgeRequest(message.head, payload, self, task, message.length)
        else:
            fault = fault_of(message)
            if fault is not None:
                message = ERROR
            elif message.upgrade:
                message = message._replace(should_close=True)
            request = EdgeRequest(Head(message), payload, self, task)
        # So that the request alone holds them, and can release them while its stream is open.
        del message, payload
        self.in_progress = True
        self.current_request = request
        gone = False
        try:
            if fault is None:
                response = await self.handle(request)
            else:
                response = self._malformed(fault)
            self.current_request = None
            if not request.started:
                response, gone = await self.finish_response(request.as_aiohttp(), response, None)
            return None if gone else response, request.content
        except ConnectionError:
            return None, request.content
        except Exception:  # noqa: BLE001
            # The last boundary of a connection: only this connection ends.
            self._log.exception("connection_failed")
            self.force_close()
            return None, request.content
        finally:
            self.current_request = None
            self.in_progress = False
            if self.handled is not None:
                self.handled.set_result(None)

    async def _read_out(self, payload: StreamReader) -> None:
        """Discard the rest of a body that arrives after its request was answered, for a limited time."""
        if not self.force_closed:
            # The task that forwarded the body was cancelled, and releases it in this turn of the loop.
            await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError, web.RequestPayloadError):
                async with asyncio.timeout(_LINGER_S):
                    while not payload.is_eof():
                        await payload.readany()
                        await asyncio.sleep(0)  # What came may be there already, as tiny chunks.
            if not payload.is_eof():
                self.close()
        payload.set_exception(web.PayloadAccessError())

    def _await_next(self) -> None:
        """Start the idle timer of a connection that waits for another request."""
        self.keepalive_ends_at = self.loop.time() + KEEPALIVE_S
        if self.keepalive_timer is None:
            self.keepalive_timer = self.loop.call_at(self.keepalive_ends_at, self.close_if_idle)

    def pause_reading(self) -> None:
        """Pause the parser and the socket, because the buffer of a body is full."""
        self._held = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume if reading was paused; aiohttp would parse and resume anew after each body."""
        if self._held:
            self._held = not resume_parser
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        """Start the timer for a client that reads more slowly than its response arrives."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self._bounds.send_timeout_s, self._drop_idle_reader)

    def resume_writing(self) -> None:
        """Stop the timer, because the client has read some bytes."""
        self._stop_send_timer()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting_for_head()
        self._stop_send_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _fail_bodies(self) -> None:
        """Raise an error in readers of a body whose rest cannot be parsed; aiohttp leaves them waiting."""
        bodies = [body for _, body in self.messages]
        if self.current_request is not None:
            bodies.append(self.current_request.content)
        for body in bodies:
            if not body.is_eof() and body.exception() is None:
                body.set_exception(web.RequestPayloadError("the framing of the body is malformed"))

    def _refuse_late_head(self) -> None:
        self._refuse_head(
            "late_request",
            error_response(
                408,
                f"The head of the request did not arrive within {self._bounds.header_timeout_s:g} s.",
                code="request_timeout",
            ),
        )

    def _refuse_crowd(self, event: str, response: web.Response) -> None:
        """Refuse a connection because there are too many; limit the log lines about it."""
        if count := self._bounds.refusals.counted():
            self._log.warning(event, status=response.status, error_code=response[ERROR_CODE], count=count)
        self._refuse(response, new_request_id())

    def _refuse_head(self, event: str, response: web.Response) -> None:
        request_id = new_request_id()
        self._log.warning(
            event, status=response.status, error_code=response[ERROR_CODE], request_id=request_id
        )
        self._refuse(response, request_id)

    def _refuse(self, response: web.Response, request_id: str) -> None:
        """Answer an incomplete head and end the connection; send no answer while a request is in progress."""
        self._stop_waiting_for_head()
        self._mode = NEXT[self._mode, REFUSAL]
        if self.transport is None:
            return
        if self.in_progress:
            self.close()
            return
        response.headers.update(own_headers(request_id))
        self.transport.write(as_bytes(response))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger_timer = self.loop.call_later(_LINGER_S, self.force_close)

    def _drop_idle_reader(self) -> None:
        self._send_timer = None
        self._log.warning("idle_reader", seconds=self._bounds.send_timeout_s)
        if self.transport is not None:
            # A plain close would wait for the unsent bytes.
            self.transport.abort()

    def _malformed(self, fault: BaseException) -> web.Response:
        """Answer a request that could not be parsed, without quoting it; the text of ``fault`` quotes the
        client."""
        request_id = new_request_id()
        response = refusal(too_long=isinstance(fault, LineTooLong))
        said = {"status": response.status, "error_code": response[ERROR_CODE], "request_id": request_id}
        self._log.warning("malformed_request", error=type(fault).__name__, **said)
        response.headers.update(own_headers(request_id))
        response.force_close()
        self._mode = NEXT[self._mode, REFUSAL]
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response. After a refusal, discard what the client still sends, for a limited time."""
        finished = await super().finish_response(request, resp, start_time)
        if self._mode is REFUSED and self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()
            # Ends at once if the client closes the connection, which cancels this task.
            await asyncio.sleep(_LINGER_S)
        return finished
