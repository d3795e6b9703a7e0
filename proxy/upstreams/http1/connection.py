"""The connections to one origin, kept between requests and supervised by one timer."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import cast

import aiohappyeyeballs

from proxy.net.authorities import wants_certificate
from proxy.net.keepalive import watch_peer
from proxy.net.outgoing import HttpProxy
from proxy.net.resolver import Resolver
from proxy.net.tunnel import open_tunnel
from proxy.upstreams.http1.exchange import ConnectionLost, Exchange

_HAPPY_EYEBALLS_S = 0.25
"""Seconds between attempts at two addresses (RFC 8305, section 5)."""

_MOST_IDLE = 128
"""At most so many idle connections to one origin are kept for later requests."""

_SLOWEST_TICK_S = 1.0
_FASTEST_TICK_S = 0.01


class Http1Connection(asyncio.Protocol):
    """One connection that serves one request after another; an :class:`ExchangeConnection`."""

    def __init__(self, pool: "Http1Pool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None
        self._eof = False
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        self.wants_certificate = False
        """Whether the upstream ended the connection because of this client's certificate."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._pool.loop

    def begin(self, exchange: Exchange, head: bytes) -> bool:
        """Start an exchange and send the head of its request; return false if the connection is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self.exchange = exchange
        transport.write(head)
        return True

    # The methods that an exchange calls.

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def writable(self) -> None:
        if self._writable is not None:
            await self._writable

    def pause(self) -> None:
        if not self.closed and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self.closed and self._transport is not None:
            self._transport.resume_reading()

    def release(self, *, reusable: bool) -> None:
        self.exchange = None
        transport = self._transport
        # If a request was answered before it was sent whole, its rest would precede the next request.
        sent = transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()
        if reusable and sent:
            self._pool.put(self)
        else:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._lose(by_peer=False)

    # The callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if (exchange := self.exchange) is not None:
            exchange.feed(data)
        else:
            # No request is open, so these bytes must not be taken for the next answer.
            self.abort()

    def eof_received(self) -> None:
        self._eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        # A server of TLS 1.3 looks at this client's certificate only after the handshake.
        self.wants_certificate = exc is not None and wants_certificate(exc)
        self.resume_writing()
        self._lose(by_peer=self._eof and exc is None)

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _lose(self, *, by_peer: bool) -> None:
        self._pool.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lost(by_peer=by_peer)


class Http1Pool:
    """All connections to one origin; the one used last is reused first.

    One timer for all of them detects silence and closes connections that were idle for too long.

    Connections and the timer outlive the requests that create them, so they run in a context of their own.
    The context of a request would keep the request, and its client's key, in memory for as long as they last.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        resolver: Resolver,
        tls: Callable[[], ssl.SSLContext] | None,
        proxy: HttpProxy | None,
        keepalive_s: float,
        tick_s: float,
    ) -> None:
        """``resolver`` finds the host's addresses. ``tls`` makes the TLS context for the first connection.
        Connections go through ``proxy``, which then resolves the host; ``None`` for none.

        The timer fires every ``tick_s`` seconds, within bounds.
        """
        self.loop = asyncio.get_running_loop()
        self._host = host
        self._port = port
        self._resolver = resolver
        self._tls = tls
        self._proxy = proxy
        self._tls_context: ssl.SSLContext | None = None
        self._keepalive_s = keepalive_s
        self._tick_s = min(max(tick_s, _FASTEST_TICK_S), _SLOWEST_TICK_S)
        self._all: set[Http1Connection] = set()
        self._idle: list[Http1Connection] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self) -> Http1Connection | None:
        """Return an open and idle connection; ``None`` if there is none."""
        expired = self.loop.time() - self._keepalive_s
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.idle_since > expired:
                return connection
            connection.abort()
        return None

    async def connect(self) -> Http1Connection:
        """Open a new connection.

        Raises ``OSError``, which includes ``ssl.SSLError``, and
        :class:`~proxy.net.tunnel.TunnelRefused`.
        """
        if self._tls is not None and self._tls_context is None:
            self._tls_context = self._tls()
        host, port = (self._host, self._port) if (proxy := self._proxy) is None else (proxy.host, proxy.port)
        infos = await self._resolver.resolve(host, port)
        try:
            sock = await aiohappyeyeballs.start_connection(
                infos, happy_eyeballs_delay=_HAPPY_EYEBALLS_S, interleave=1, loop=self.loop
            )
        except (OSError, RuntimeError) as exc:
            self._resolver.forget(host)  # the host may have another address by now
            if isinstance(exc, RuntimeError):  # uvloop raises it in place of an OSError
                raise OSError(str(exc)) from exc
            raise
        connection = Http1Connection(self)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch_peer(sock)
            if proxy is not None:
                await open_tunnel(self.loop, sock, proxy, self._host, self._port)
            opening = self.loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._tls_context,
                # Only the resolver needs a name's last dot; no certificate has it (RFC 6066, section 3).
                server_hostname=self._host.rstrip(".") if self._tls_context is not None else None,
            )
            await self.loop.create_task(opening, context=Context())
        except BaseException:  # A failure or a cancellation must leave no socket open.
            # A transport that closes in order would still use the socket.
            connection.abort()
            sock.close()
            raise
        if self._closed:
            connection.abort()
            raise ConnectionLost(received=False)
        self._all.add(connection)
        if self._timer is None:
            self._timer = self.loop.call_later(self._tick_s, self._tick, context=Context())
        return connection

    def put(self, connection: Http1Connection) -> None:
        """Keep a connection for the next request."""
        if self._closed:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if len(self._idle) > _MOST_IDLE:
            # After a burst, the least recently used connection goes.
            self._idle[0].abort()

    def forget(self, connection: Http1Connection) -> None:
        """Forget a connection that is gone."""
        self._all.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection, in use or not."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in tuple(self._all):
            connection.abort()

    def _tick(self) -> None:
        now = self.loop.time()
        for connection in tuple(self._all):
            exchange = connection.exchange
            if exchange is None:
                if now - connection.idle_since > self._keepalive_s:
                    connection.abort()
            else:
                exchange.look_for_silence(now)
        self._timer = self.loop.call_later(self._tick_s, self._tick) if self._all else None
