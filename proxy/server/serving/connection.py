"""One client's connection: what aiohttp's server leaves open, closed.

Measured with aiohttp 3.14.5: (1) what cannot be parsed is answered as plain text that quotes the line,
a key included, and logged the same way; (2) a malformed chunk leaves the handler waiting for the rest
of its body; (3) a connection is closed on a client that is still sending, whose system then throws
the answer away; (4) nothing bounds how long a request's head takes, nor how long a client may take
nothing of its response; (5) what is read along with a request that offers an upgrade is lost, so that
the rest of a body behind it would be read as a request; (6) chunks are taken under HTTP/1.0, whose
readers see no body there, and any version whose number the parser knows; (7) a body that comes after
its request was taken fills a place among those that wait, for good: in the end none but the first of the
requests that come at once is read.  And each request is a task, with a second one that waits for it.

The private names used here are held by the tests of this module.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import ERROR, RequestHandler

from proxy.server.serving.client_address import network_of
from proxy.server.serving.errors import ERROR_CODE, error_response
from proxy.server.serving.head import Head
from proxy.server.serving.known_heads import (
    HeadCut,
    KnownHeads,
    KnownMessage,
    WholeBody,
    ends_once,
    head_cut,
)
from proxy.server.serving.pending_heads import MAX_HEAD_BYTES
from proxy.server.serving.request import EdgeRequest, new_request_id
from proxy.server.serving.served import ConnectionBounds, Handler
from proxy.server.serving.unparsed import (
    MAX_FIELD_BYTES,
    MAX_HEADERS,
    as_bytes,
    fault_of,
    less_large,
    own_headers,
    refusal,
    too_many_connections,
    too_many_heads,
)

if TYPE_CHECKING:
    from proxy.server.auth.key_ring import Key

__all__ = ["EdgeConnection"]

KEEPALIVE_S = 75.0
MAX_LINE_BYTES = 16 * 1024
"""Of a request line; a target has a bound of its own below it, whose error says more."""
_LINGER_S = 2.0
"""For a client that still sends the body of a request that was answered, so that it sees the answer."""
_READ_BUFFER_BYTES = 64 * 1024
_UNSURE = -1
_CHANCES = 8
"""Heads in a row that a connection may send and none of them known, before it is taken for one of those
whose heads all differ, and nobody looks any more."""


class EdgeConnection(RequestHandler):
    """One connection of a client, from its first byte to its last."""

    __slots__ = (
        "_bounds",
        "_chances",
        "_filling",
        "_handle",
        "_head_bytes",
        "_head_timer",
        "_held",
        "_known",
        "_late",
        "_left",
        "_log",
        "_pending_from",
        "_read_last",
        "_refused",
        "_send_timer",
        "let_in",
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
            access_log=None,  # type: ignore[arg-type]  # As aiohttp's own runner gives it.
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=_LINGER_S,
            read_bufsize=_READ_BUFFER_BYTES,
            # A compressed body is refused, so nobody has to unpack it first.
            auto_decompress=False,
        )
        self.let_in: tuple[str, Key] | None = None
        """The door's: the last ``Authorization`` with a valid key, until another comes, and that key."""
        self._handle = handle
        self._bounds = bounds
        self._known = known
        # How many bytes of a body are still to come; 0 between messages, and _UNSURE where that cannot be
        # said: then nothing is kept from the parser any more.
        self._left = 0
        self._chances = _CHANCES
        # A body of a known head that is still coming, which the parser does not see.
        self._filling: StreamReader | None = None
        self._held = False
        # Whether the last request's turn came before its body's end, where the parser gives it its place.
        self._late = False
        self._refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        # What has come of a head that is not whole, who is counted for it, and the body before it.
        self._head_bytes = 0
        self._pending_from: str | None = None
        self._read_last: StreamReader | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._log = log
        # aiohttp's own is a deque, which takes ten times the room of a list; there is seldom more than one.
        self._messages: list[tuple[Any, StreamReader]] = []  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the client, or tell it that there are too many connections."""
        super().connection_made(transport)
        if self._bounds.descriptors.is_short(transport):
            self._refuse_crowd("too_many_connections", too_many_connections())

    def data_received(self, data: bytes) -> None:
        """Parse; start the clock on a head that is not whole, and fail a body that cannot go on."""
        if self._refused or (self._filling is not None and not (data := self._fill(self._filling, data))):
            return
        cut = head_cut(data) if self._left == 0 else None
        if cut is not None and self._pass_by(data, cut):
            return
        before = len(self._messages)
        behind_body = (body := self._read_last) is None or body.is_eof()
        super().data_received(data)
        if body is not None and body.is_eof():
            self._read_last = None  # An open stream keeps nothing of its request.
        if self._left != _UNSURE and data:
            self._left = self._place_after(data, cut, self._messages[before:])
        if len(self._messages) > before:
            if self._head_bytes:
                self._stop_waiting_for_head()
            if len(data) > MAX_HEAD_BYTES:
                self._messages[before:] = less_large(self._messages[before:])
            self._read_last = None if (body := self._messages[-1][1]).is_eof() else body
            if not isinstance(self._messages[-1][0], RawRequestMessage):
                self._fail_bodies()
        elif data and behind_body:
            # Behind a body that was whole, only part of a head makes no message.
            self._wait_for_head(len(data))

    def _wait_for_head(self, size: int) -> None:
        """Count ``size`` bytes of a head, give it time from its first byte on, and refuse one too many."""
        if self._pending_from is None:
            peer = self._peer()
            address = "" if self._bounds.trusted.trusts(peer) else network_of(peer)
            if not self._bounds.pending_heads.begin(address):
                self._refuse_crowd("too_many_heads", too_many_heads())
                return
            self._pending_from = address
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head("large_head", refusal(too_long=True))
        elif self._head_timer is None and self._waiter is not None and not self._waiter.done():
            self._head_timer = self._loop.call_later(self._bounds.header_timeout_s, self._refuse_late_head)

    def _peer(self) -> str:
        name = None if self.transport is None else self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    def _stop_waiting_for_head(self) -> None:
        self._head_bytes = 0
        if self._pending_from is not None:
            self._bounds.pending_heads.end(self._pending_from)
            self._pending_from = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _pass_by(self, data: bytes, cut: HeadCut) -> bool:
        """Take a request whose head is known without the parser; false where the parser must see it.

        That is sure of its place only while a request is waited for: all before it were answered, and their
        bodies came to their ends.  And nothing may come with this one that is not its own.
        """
        waiter = self._waiter
        if waiter is None or waiter.done() or self._messages or self._upgraded:
            return False
        if self._force_close or self._close:
            return False
        key, start, length = cut
        left = length - (len(data) - start)
        # A stream that is filled past its buffer pauses the parser, which has no part in it.
        if left < 0 or (left > 0 and length > _READ_BUFFER_BYTES):
            return False
        head = self._known.find(key)
        if head is None:
            return False
        body: StreamReader
        if left == 0:
            body = WholeBody(data[start:])
        else:
            body = self._filling = StreamReader(self, _READ_BUFFER_BYTES, loop=self._loop)
            body.feed_data(data[start:])
            self._left = left
        self._chances = _CHANCES
        self._request_count += 1
        self._messages.append((KnownMessage(head, length), body))
        waiter.set_result(None)
        return True

    def _fill(self, body: StreamReader, data: bytes) -> bytes:
        """Put what came into the body of a known head; what is behind that is the parser's."""
        if self._force_close or self._close:
            return b""
        behind = data[self._left :]
        piece = data[: self._left]
        self._left -= len(piece)
        body.feed_data(piece)
        if self._left == 0:
            self._filling = None
            body.feed_eof()
        return behind

    def _place_after(self, data: bytes, cut: HeadCut | None, made: list[tuple[Any, StreamReader]]) -> int:
        """What is still to come of a body once the parser made these messages of a read, or ``_UNSURE``."""
        if self._left:
            return self._left - len(data) if len(data) <= self._left else _UNSURE
        if len(made) != 1:
            return _UNSURE
        message, body = made[0]
        if not isinstance(message, RawRequestMessage) or message.upgrade:
            return _UNSURE
        said = message.headers.getall(hdrs.CONTENT_LENGTH, [])
        if cut is None:
            # For 2**64 - 1 bytes the parser gives no body, and takes all that comes for it.
            return 0 if body is EMPTY_PAYLOAD and said in ([], ["0"]) and ends_once(data) else _UNSURE
        _, start, length = cut
        here = len(data) - start
        if here > length or body.total_bytes != here or said != [str(length)] or not ends_once(data[:start]):
            return _UNSURE
        if not self._known.note(cut, message):
            self._chances -= 1
        return length - here if self._chances else _UNSURE

    async def start(self) -> None:
        """Serve the connection's requests one after the other, each of them in this task.

        aiohttp makes a task of each and waits for it; a request that has its turn needs no second one.
        """
        try:
            while not self._force_close:
                if not self._messages:
                    self._waiter = self._loop.create_future()
                    try:
                        await self._waiter
                    finally:
                        self._waiter = None
                response, unread = await self._serve()
                if response is None:
                    break
                if not unread.is_eof():
                    await self._read_out(unread)
                if not response.keep_alive or self._close or self._force_close:
                    break
                self._await_next()
                if self._messages:
                    # Who sends many requests at once must not keep the others waiting.
                    await asyncio.sleep(0)
        except BaseException:  # Whatever ends the serving, a cancellation too, ends the connection.
            self.force_close()
            raise
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    def _taken(self) -> tuple[Any, StreamReader]:
        """The next request; there is room for another one now."""
        message, body = taken = self._messages.pop(0)
        known = isinstance(message, KnownMessage)
        late, self._late = self._late, not known and not body.is_eof()
        if self._parser is not None:
            if not known and not self._late:
                self._parser.message_consumed()
            if late:
                self._parser.message_consumed()
                self.data_received(b"")  # It may have stopped for want of this place.
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        return taken

    async def _serve(self) -> tuple[web.StreamResponse | None, StreamReader]:
        """Answer the next request; ``None`` where nobody was there to take the answer, and its body."""
        message, payload = self._taken()
        task = self._task_handler
        if task is None:
            return None, payload  # The client went away in this very turn.
        fault = None
        if isinstance(message, KnownMessage):
            request = EdgeRequest(message.head, payload, self, task, message.length)
        else:
            fault = fault_of(message)
            if fault is not None:
                message = ERROR
            elif message.upgrade:
                message = message._replace(should_close=True)
            request = EdgeRequest(Head(message), payload, self, task)
        # The request lets go of what it needs no more, while its stream is open.
        del message, payload
        self._request_in_progress = True
        # aiohttp asks it for its body and cancels it, and no more.
        self._current_request = request  # type: ignore[assignment]
        gone = False
        try:
            if fault is None:
                response = await self._handle(request)
            else:
                response = self._malformed(fault)
            self._current_request = None
            if not request.started:
                response, gone = await self.finish_response(request.as_aiohttp(), response, None)
            return None if gone else response, request.content
        except ConnectionError:
            return None, request.content
        except Exception:  # noqa: BLE001
            # The last boundary of a connection: it ends, and nothing else does.
            self._log.exception("connection_failed")
            self.force_close()
            return None, request.content
        finally:
            self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)

    async def _read_out(self, payload: StreamReader) -> None:
        """Throw away, for a while, the rest of a body whose request was answered before it came."""
        if not self._force_close:
            # Who sent the body on until now has been cancelled, and lets go of it in this turn.
            await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError, web.RequestPayloadError):
                async with asyncio.timeout(_LINGER_S):
                    while not payload.is_eof():
                        await payload.readany()
            if not payload.is_eof():
                self.close()
        payload.set_exception(web.PayloadAccessError())

    def _await_next(self) -> None:
        """Start the clock on a connection that is kept for another request."""
        self._next_keepalive_close_time = self._loop.time() + KEEPALIVE_S
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(
                self._next_keepalive_close_time, self._process_keepalive
            )

    def pause_reading(self) -> None:
        """A body fills its buffer: the parser stops, and so does the socket."""
        self._held = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on where something was paused; aiohttp parses and resumes anew after each body."""
        if self._held:
            self._held = not resume_parser
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        """The client is slower than its response: from now on it has to take something."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self._loop.call_later(self._bounds.send_timeout_s, self._drop_idle_reader)

    def resume_writing(self) -> None:
        """It took something."""
        self._stop_send_timer()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting_for_head()
        self._stop_send_timer()
        super().connection_lost(exc)

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _fail_bodies(self) -> None:
        """Tell whoever reads a body whose rest cannot be parsed, which aiohttp leaves waiting."""
        bodies = [body for _, body in self._messages]
        if self._current_request is not None:
            bodies.append(self._current_request.content)
        for body in bodies:
            if not body.is_eof() and body.exception() is None:
                body.set_exception(web.RequestPayloadError("the body's framing is malformed"))

    def _refuse_late_head(self) -> None:
        self._refuse_head(
            "late_request",
            error_response(
                408,
                f"The request's head did not arrive within {self._bounds.header_timeout_s:g} s.",
                code="request_timeout",
            ),
        )

    def _refuse_crowd(self, event: str, response: web.Response) -> None:
        """Refuse one of many: they must not fill the log."""
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
        """Answer a head that is not whole, and end the connection; behind a request, without an answer."""
        self._stop_waiting_for_head()
        self._refused = True
        if self.transport is None:
            return
        if self._request_in_progress:
            self.close()
            return
        response.headers.update(own_headers(request_id))
        self.transport.write(as_bytes(response))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_timer = self._loop.call_later(_LINGER_S, self.force_close)

    def _drop_idle_reader(self) -> None:
        self._send_timer = None
        self._log.warning("idle_reader", seconds=self._bounds.send_timeout_s)
        if self.transport is not None:
            # What is unsent would keep a connection that is merely closed.
            self.transport.abort()

    def _malformed(self, fault: BaseException) -> web.Response:
        """Answer what could not be parsed without a word of it: the text of ``fault`` quotes the client."""
        request_id = new_request_id()
        response = refusal(too_long=isinstance(fault, LineTooLong))
        said = {"status": response.status, "error_code": response[ERROR_CODE], "request_id": request_id}
        self._log.warning("malformed_request", error=type(fault).__name__, **said)
        response.headers.update(own_headers(request_id))
        response.force_close()
        self._refused = True
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response.  After a refusal, throw away what the client still sends, for a while."""
        finished = await super().finish_response(request, resp, start_time)
        if self._refused and self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()
            # Ends at once where the client closes: its going away cancels this.
            await asyncio.sleep(_LINGER_S)
        return finished
