"""One request and its response on a connection, parsed and handed on as it arrives.

All that one read brings is handed on within that read, in one piece, even if it holds several chunks of the
transfer coding. A piece costs no task, no lock and no timer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade

from proxy.base.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.http.headers import Headers
from proxy.http.secrets import Sink
from proxy.upstreams.http1.reader import BodyReader, HttpReader, LengthReader, ResponseReader
from proxy.upstreams.http1.response_heads import ResponseHeads
from proxy.upstreams.http1.response_states import (
    BEGUN,
    BODY,
    BYTES,
    COMPLETE,
    END,
    FAILURE,
    HEAD,
    NEXT,
    REFUSAL,
    SENT,
)

MAX_FRAMING_BYTES = 128 * 1024
"""At most so many bytes in a row may be no body: a head, chunk extensions, trailers. The parser has no
limit."""

MAX_WAITING_BYTES = 128 * 1024
"""While so much of the body waits to be taken, the socket is not read."""

NEVER = float("inf")


class ConnectionLost(UpstreamError):
    """The connection ended before the head of the response was complete.

    ``received`` says whether any byte had arrived.
    """

    def __init__(self, *, received: bool) -> None:
        self.received = received
        super().__init__("the connection was lost")


class ExchangeConnection(Protocol):
    """The connection on which an exchange takes place."""

    def write(self, data: bytes) -> None:
        """Send data; does nothing if the connection is gone."""

    async def writable(self) -> None:
        """Wait as long as the upstream does not take what is sent."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Continue to read."""

    def release(self, *, reusable: bool) -> None:
        """End the exchange; keep the connection for the next one if it is ``reusable``."""

    def abort(self) -> None:
        """Close the connection at once."""


class Exchange:
    """The response to one request, as it arrives.

    ``head`` is done when ``status`` and the cleaned ``headers`` are there. It fails with
    :class:`ConnectionLost`, :class:`UpstreamBroken` or :class:`UpstreamTimeout`.
    ``limit_s`` is the longest silence after ``last`` (seconds on the loop's clock). The owner of the
    connections checks it with :meth:`look_for_silence`. Data that arrives between two checks counts from the
    later check, so the clock is not read for each piece.
    """

    __slots__ = (
        "_blocked",
        "_bodiless",
        "_failure",
        "_framing_bytes",
        "_heads",
        "_idle_timeout_s",
        "_line",
        "_loop",
        "_paused",
        "_reader",
        "_sink",
        "_state",
        "_until_eof",
        "_upload",
        "_upstream",
        "_waiter",
        "_waiting",
        "_waiting_bytes",
        "head",
        "headers",
        "heard",
        "last",
        "limit_s",
        "status",
    )

    def __init__(
        self,
        upstream: str,
        line: ExchangeConnection,
        heads: ResponseHeads,
        loop: asyncio.AbstractEventLoop,
        first_byte_timeout_s: float,
        idle_timeout_s: float,
        *,
        bodiless: bool,
    ) -> None:
        """``bodiless`` says that the response has no body, even if its head announces one (HEAD)."""
        self._upstream = upstream
        self._line: ExchangeConnection | None = line
        self._heads = heads
        self._loop = loop
        self._idle_timeout_s = idle_timeout_s
        self._bodiless = bodiless
        self._reader: HttpReader | None = None
        self.head: asyncio.Future[None] = loop.create_future()
        self.status = 0
        self.headers: Headers = ()
        self.last = loop.time()
        self.heard = False
        self.limit_s = first_byte_timeout_s
        self._framing_bytes = 0
        self._until_eof = False
        self._state = SENT
        self._upload: asyncio.Task[None] | None = None
        self._paused = False
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._blocked: Awaitable[None] | None = None
        self._failure: Exception | None = None

    # The methods that a response calls.

    async def next_piece(self) -> bytes:
        """Return what has arrived since the last call, ``b""`` at the end.

        Data that came before a failure is returned before the failure is raised.
        """
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            if self._state is COMPLETE:
                return b""
            await self._wait()
        data = self._taken()
        self._resume()
        return data

    def _taken(self) -> bytes:
        """Take all waiting data."""
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return data

    def push(self, sink: Sink) -> Awaitable[None] | None:
        """Give the body to ``sink``, each piece within the read that brings it.

        See :meth:`proxy.upstreams.base.UpstreamResponse.push`.
        """
        return None if self._give(sink) else self._push_on(sink)

    def _give(self, sink: Sink) -> bool:
        """Give ``sink`` what has arrived; return whether the body is complete and ``sink`` needs no wait."""
        if self._waiting and self._blocked is None:
            self._blocked = sink(self._taken())
        if self._blocked is not None:
            self._pause()
            return False
        if self._failure is not None:
            raise self._failure
        return self._state is COMPLETE

    async def _push_on(self, sink: Sink) -> None:
        while True:
            if self._blocked is not None:
                blocked, self._blocked = self._blocked, None
                await blocked
            if self._give(sink):
                return
            if self._blocked is None:
                self._resume()
                self._sink = sink
                try:
                    await self._wait()
                finally:
                    self._sink = None

    def send(self, pieces: AsyncIterator[bytes], *, chunked: bool) -> None:
        """Send the request's body in pieces, while the response may already arrive.

        Each piece restarts the first-byte time limit. If ``pieces`` raises, so does ``head``; a response
        that has begun breaks off.
        """
        self._upload = self._loop.create_task(self._send(pieces, chunked))

    async def _send(self, pieces: AsyncIterator[bytes], chunked: bool) -> None:
        try:
            async for piece in pieces:
                if self._line is None:
                    return
                if piece:
                    self._line.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    self.heard = True
                    await self._line.writable()
        # The boundary to the client's body: its failure is raised where the response is awaited.
        except Exception as exc:  # noqa: BLE001
            self._fail(self._broken() if self._state is BODY else exc)
            if self._line is not None:
                self._line.abort()
            return
        if chunked and self._line is not None:
            self._line.write(b"0\r\n\r\n")
        self._upload = None

    def close(self) -> None:
        """Give up the rest: close the connection, unless it has finished this exchange."""
        if self._state is COMPLETE and self._blocked is None and self._upload is None:
            return
        self.head.cancel()
        if self._upload is not None:
            self._upload.cancel()
        if isinstance(self._blocked, Coroutine):
            # The push that should have awaited it was cancelled.
            self._blocked.close()
        if self._line is not None:
            self._line.abort()

    def look_for_silence(self, now: float) -> None:
        """Fail if the upstream has been silent for too long."""
        if self.heard:
            self.heard = False
            self.last = now
        elif now - self.last > self.limit_s:
            self._time_out()

    def _time_out(self) -> None:
        if self._state is BODY:
            text = f"sent nothing for {self._idle_timeout_s:g} s"
        else:
            text = f"did not answer within {self.limit_s:g} s"
        self._fail(UpstreamTimeout(f"upstream {self._upstream!r} {text}"))
        if self._line is not None:
            self._line.abort()

    # The methods that the connection calls.

    def feed(self, data: bytes) -> None:
        """Take bytes of the response; the part of the body in them is handed on in one piece."""
        if (reader := self._reader) is None:
            if (begun := self._begin_reading(data)) is None:
                return
            reader, data = begun
        over = False
        try:
            reader.feed(data)
        except (HttpParserError, HttpParserUpgrade):
            over = True
        if reader.news:
            over = self._take_news(reader) or over
        if pieces := reader.pieces:
            piece = b"".join(pieces)
            pieces.clear()
            self.heard = True
            self._framing_bytes = 0
            if (sink := self._sink) is None:
                self._keep(piece)
            else:
                try:
                    blocked = sink(piece)
                # The boundary to the consumer of the body: its failure is raised where the body was
                # requested.
                except Exception as exc:  # noqa: BLE001
                    self._refuse(exc)
                else:
                    if blocked is not None:
                        self._block(blocked)
        else:
            self._framing_bytes += len(data)
            over = over or self._framing_bytes > MAX_FRAMING_BYTES
        if over:
            self._finish()

    def lost(self, *, by_peer: bool) -> None:
        """Note that the connection is gone; ``by_peer`` says that the upstream closed it in order."""
        self._line = None
        self._close_reader()
        if self._state is COMPLETE:
            return
        if self._state is not BODY:
            self._fail(ConnectionLost(received=self._state is not SENT))
        elif by_peer and self._until_eof:
            self._state = NEXT[self._state, END]
            self._wake()
        else:
            self._fail(self._broken())

    # How the response is read.

    def _begin_reading(self, data: bytes) -> tuple[HttpReader, bytes] | None:
        """Choose the reader of the response; return it with the bytes to feed it.

        Return ``None`` if these bytes were the whole response.
        """
        self._state = NEXT[self._state, BYTES]
        if self._bodiless or (head := self._heads.plain(data)) is None:
            self._reader = ResponseReader(bodiless=self._bodiless)
            return self._reader, data
        self._begin(head.status, head.headers)
        body = data[head.size :]
        if head.length == len(body):
            self._state = NEXT[self._state, END]
            if body:
                self._keep(body)
            self._end()
            return None
        self._framing_bytes = head.size
        self._reader = BodyReader(None) if head.length is None else LengthReader(head.length)
        return self._reader, body

    def _take_news(self, reader: HttpReader) -> bool:
        """Take the head or the end, or both, from the reader; return whether it was the end."""
        reader.news = False
        if self._state is BEGUN and isinstance(reader, ResponseReader):
            self._begin(reader.status, self._heads.clean(reader.raw_names, reader.raw_values))
            self._until_eof = reader.until_eof
            # A stream may stay open for an hour, and later only the clean headers are needed.
            reader.raw_names.clear()
            reader.raw_values.clear()
            if reader.bodiless:
                reader.pieces.clear()
        if reader.complete:
            self._state = NEXT[self._state, END]
        return reader.complete

    def _begin(self, status: int, headers: Headers) -> None:
        """Take the head of the response."""
        self.status = status
        self.headers = headers
        self._state = NEXT[self._state, HEAD]
        self.heard = True
        self.limit_s = self._idle_timeout_s
        if not self.head.done():
            self.head.set_result(None)

    def _finish(self) -> None:
        """End the exchange: the response is complete, or no more of it can be read."""
        if self._state is COMPLETE:
            self._end()
            return
        self._fail(self._broken() if self._state is BODY else self._malformed())
        if self._line is not None:
            self._line.abort()

    def _close_reader(self) -> None:
        if (reader := self._reader) is not None:
            self._reader = None
            reader.close()

    # Internal state.

    def _keep(self, piece: bytes) -> None:
        """Keep a piece, because no one takes the body at the moment."""
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if self._waiting_bytes >= MAX_WAITING_BYTES:
            self._pause()
        self._wake()

    def _block(self, blocked: Awaitable[None]) -> None:
        """Stop reading, because the consumer of the body can take no more for now."""
        self._blocked = blocked
        self._sink = None
        self._pause()
        self._wake()

    def _refuse(self, error: Exception) -> None:
        """Fail, because the consumer of the body failed."""
        self._state = NEXT[self._state, REFUSAL]
        self._failure = error
        if self._line is not None:
            self._line.abort()
        self._wake()

    def _pause(self) -> None:
        if self._line is not None and not self._paused:
            self._paused = True
            # If the client does not read, this is not the upstream's silence.
            self.limit_s = NEVER
            self._line.pause()

    def _resume(self) -> None:
        if self._paused and self._line is not None:
            self._paused = False
            self.last = self._loop.time()
            self.limit_s = self._idle_timeout_s
            self._line.resume()

    async def _wait(self) -> None:
        """Wait until something has arrived or ended."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self) -> None:
        """Release the connection, because the response is complete."""
        line, self._line = self._line, None
        if self._waiter is not None:
            self._wake()
        if line is not None:
            reusable = self._reader is None or self._reader.reusable
            self._close_reader()
            if self._paused:
                line.resume()
            line.release(reusable=reusable and self._upload is None and not self._until_eof)

    def _fail(self, error: Exception) -> None:
        if not self.head.done():
            self.head.set_exception(error)
        before, self._state = self._state, NEXT[self._state, FAILURE]
        if self._state is not before:
            self._failure = error
        self._wake()

    def _broken(self) -> UpstreamError:
        return UpstreamBroken(f"upstream {self._upstream!r} broke off its response")

    def _malformed(self) -> UpstreamError:
        return UpstreamBroken(f"upstream {self._upstream!r} sent a malformed response head")
