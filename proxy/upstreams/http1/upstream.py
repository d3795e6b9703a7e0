"""A model provider behind HTTP/1.1, with as little code as possible between socket and relay.

aiohttp's client session costs four times as much for a request, and twice as much for a piece of a stream.
It would be the largest cost on the path of bytes.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Mapping, Sequence

from yarl import URL

from proxy.base.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.http.headers import Columns, Headers, HeaderSection, by_names
from proxy.http.rules import HeaderRules, accept_encoding, first
from proxy.http.secrets import Sink
from proxy.net.authorities import is_unknown_authority, wants_certificate
from proxy.net.outgoing import HttpProxy
from proxy.net.resolver import Resolver
from proxy.net.tunnel import TunnelRefused
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.filtered_response import FilteredResponse
from proxy.upstreams.http1.connection import Http1Connection, Http1Pool
from proxy.upstreams.http1.exchange import ConnectionLost, Exchange
from proxy.upstreams.http1.response_heads import ResponseHeads
from proxy.upstreams.origin import (
    UpstreamCredentials,
    checked_base_url,
    checked_headers,
    credentials_by_path,
    root_of,
    secret_shapes,
)
from proxy.wires.registry.table import SERVED, EndpointTable

_CONNECT_RETRY_BUDGET_S = 5.0
"""Connection failures are retried for at most so many seconds after the request came."""

_FIRST_BACKOFF_S = 0.1
_TICKS = 16
"""The number of checks for silence within the shortest allowed silence."""

_SPLIT_BYTES = 64 * 1024
"""A larger body is written separately, not copied behind its head."""

_CHUNKED = ("Transfer-Encoding", "chunked")


class Http1Response(FilteredResponse):
    """An :class:`~proxy.upstreams.base.UpstreamResponse` over one exchange."""

    def __init__(
        self, upstream: str, exchange: Exchange, secrets: tuple[bytes, ...], *, decode: bool
    ) -> None:
        self._exchange = exchange
        super().__init__(upstream, exchange.status, exchange.headers, secrets, decode=decode)

    async def _next(self) -> bytes:
        return await self._exchange.next_piece()

    def push(self, sink: Sink) -> Awaitable[None] | None:
        return self._exchange.push(sink) if self.is_raw else super().push(sink)

    async def aclose(self) -> None:
        self._exchange.close()

    def _close(self) -> None:
        self._exchange.close()


class Http1Upstream:
    """An :class:`~proxy.upstreams.base.Upstream` behind HTTP/1.1 or HTTPS."""

    def __init__(
        self,
        name: str,
        base_url: str,
        api_key: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        forward_headers: Sequence[str] = (),
        forward_response_headers: Sequence[str] = (),
        connect_timeout_s: float = 10.0,
        first_byte_timeout_s: float = 600.0,
        idle_timeout_s: float = 120.0,
        retries: int = 2,
        forward_authorization: bool = False,
        keepalive_s: float = 15.0,
        ssl_context: ssl.SSLContext | None = None,
        resolver: Resolver | None = None,
        proxy: HttpProxy | None = None,
        wires: Sequence[str] = ("chat", "responses"),
        endpoints: EndpointTable = SERVED,
    ) -> None:
        """``base_url`` ends before ``/chat/completions``. Times are seconds. ``wires`` are its dialects.

        ``retries`` is the number of further attempts to connect. With ``forward_authorization`` the client's
        own ``Authorization`` is sent in place of the key. ``resolver`` may be shared with other upstreams.
        Raises :class:`~proxy.base.errors.ConfigError` for a URL or header that cannot be used.
        """
        self.name = name
        """The name in the configuration."""
        url = URL(checked_base_url(name, base_url), encoded=True)
        self._host = url.raw_host or ""
        self._port = url.port or 0
        self._secure = url.scheme == "https"
        self._paths = (path := url.raw_path.rstrip("/"), root_of(path))
        self._configured = checked_headers(name, headers or {})
        self._rules = HeaderRules(name, forward_headers, forward_response_headers)
        self._configured_names = tuple(header.lower() for header in self._configured)
        self._less_configured = by_names(self._not_configured)
        fixed = [("Host", url.host_port_subcomponent or ""), *self._configured.items()]
        self._fixed = HeaderSection.of(fixed).lines()
        self._length = self._line("Content-Length", "%d")
        self._identity = self._line("Accept-Encoding", "identity")
        usual, by_path = credentials_by_path(api_key, wires, endpoints)
        self._keyed = api_key != ""
        self._key = self._line(*usual.key) if api_key else ""
        self._usual = usual if usual.headers else None
        self._by_path = by_path
        self._first_byte_timeout_s = first_byte_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._connect_timeout_s, self._retries = connect_timeout_s, retries
        self._forward_authorization = forward_authorization
        self._keepalive_s = keepalive_s
        self._ssl_context, self._proxy = ssl_context, proxy
        self._resolver = resolver or Resolver("this upstream")
        self._secrets = secret_shapes(api_key, self._configured)
        self._heads = ResponseHeads(self._rules, self._secrets)
        # Header sections hold this mark and may outlive this upstream, so it must not lead to the keys.
        self._mark = object()
        self._pool: Http1Pool | None = None
        self._closed = False

    async def open(self, request: UpstreamRequest) -> Http1Response:
        """Send the request; see :meth:`proxy.upstreams.base.Upstream.open`."""
        if request.path[:1] != "/":
            raise ValueError(f"an upstream path starts with a slash: {request.path!r}")
        pool = self._pool or self._opened_pool()
        can_repeat = request.body is None or isinstance(request.body, bytes)
        head = self._head(request)
        connection = pool.take()
        while True:
            reused = connection is not None
            if connection is None:
                connection = await self._connect(pool, can_repeat=can_repeat)
            exchange = Exchange(
                self.name,
                connection,
                self._heads,
                pool.loop,
                self._first_byte_timeout_s,
                self._idle_timeout_s,
                bodiless=request.method == "HEAD",
            )
            try:
                _send(connection, exchange, request, head)
                await exchange.head
            except ConnectionLost as exc:
                # The upstream may close an idle connection at the moment of its reuse. The second attempt
                # gets a new connection, so there is no third.
                exchange.close()
                if exc.received or not reused or not can_repeat or connection.wants_certificate:
                    raise self._lost(exc, wants_certificate=connection.wants_certificate) from exc
                connection = None
            except BaseException:  # A cancelled request leaves a connection that cannot be reused.
                exchange.close()
                raise
            else:
                return Http1Response(self.name, exchange, self._secrets, decode=request.expect_stream)

    async def aclose(self) -> None:
        """Close every connection. No new one can be opened afterwards."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _opened_pool(self) -> Http1Pool:
        if self._closed:
            raise UpstreamUnreachable(f"upstream {self.name!r} is closed")
        if self._pool is None:
            self._pool = Http1Pool(
                self._host,
                self._port,
                resolver=self._resolver,
                tls=self._tls if self._secure else None,
                proxy=self._proxy,
                keepalive_s=self._keepalive_s,
                tick_s=min(self._first_byte_timeout_s, self._idle_timeout_s, self._keepalive_s) / _TICKS,
            )
        return self._pool

    def _tls(self) -> ssl.SSLContext:
        if self._ssl_context is not None:
            return self._ssl_context
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def _connect(self, pool: Http1Pool, *, can_repeat: bool) -> Http1Connection:
        """Open a new connection; retry if that can help."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _CONNECT_RETRY_BUDGET_S
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self._connect_timeout_s):
                    return await pool.connect()
            except (ssl.SSLError, TunnelRefused) as exc:
                raise self._unreachable(exc) from exc
            except (OSError, ConnectionLost) as exc:
                pause = _FIRST_BACKOFF_S * 2**failures
                failures += 1
                too_late = loop.time() + pause > give_up_at
                if not can_repeat or failures > self._retries or too_late or self._closed:
                    raise self._unreachable(exc) from exc
            await asyncio.sleep(pause)

    def _head(self, request: UpstreamRequest) -> bytes:
        """Build the request's head, with its blank line."""
        query = f"?{request.query}" if request.query else ""
        base = self._paths[request.rooted]
        line = f"{request.method} {base}{request.path}{query} HTTP/1.1\r\n"
        lines = f"{self._fixed}{self._forwarded(request.headers)}{self._own(request)}\r\n"
        # Bytes of the client that are not UTF-8 came as lone surrogates; they are sent unchanged.
        return line.encode("ascii") + lines.encode("utf-8", "surrogateescape")

    def _forwarded(self, headers: Headers) -> str:
        """Build the lines of the client's headers."""
        section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
        if (cached := section.cached_lines) is not None and cached[0] is self._mark:
            return cached[1]
        kept = self._rules.request_headers(section)
        if self._configured:
            kept = kept.only(self._less_configured(kept.names))
        lines = kept.lines()
        section.cached_lines = (self._mark, lines)
        return lines

    def _own(self, request: UpstreamRequest) -> str:
        """Build the lines of the headers that belong to this request only."""
        body = request.body
        if isinstance(body, bytes):
            framing = self._length and self._length % len(body)
        elif body is not None:
            length = _length(request)
            framing = self._line(*(_CHUNKED if length is None else ("Content-Length", length)))
        else:
            bodiless = request.method not in ("POST", "PUT", "PATCH")
            framing = "" if bodiless else self._line("Content-Length", "0")
        if request.expect_stream:
            coding = self._identity
        else:
            accepted = accept_encoding(request.headers)
            coding = "" if accepted is None else self._line("Accept-Encoding", accepted)
        theirs = first(request.headers, "authorization") if self._forward_authorization else ""
        shown = self._by_path.get(request.path, self._usual)
        if shown is None:
            return framing + coding + (self._line("Authorization", theirs) if theirs else self._key)
        return framing + coding + self._shown(request, shown, theirs)

    def _shown(self, request: UpstreamRequest, shown: UpstreamCredentials, theirs: str) -> str:
        """Build the lines of the key, and of the dialect's headers that the client has left out."""
        key = ("Authorization", theirs) if theirs else shown.key
        lines = [self._line(*key)] if theirs or self._keyed else []
        lines += [self._line(*pair) for pair in shown.headers if not first(request.headers, pair[0])]
        return "".join(lines)

    def _line(self, name: str, value: str) -> str:
        """Build one line of a head; empty if a configured header replaces it."""
        return "" if name.lower() in self._configured_names else f"{name}: {value}\r\n"

    def _not_configured(self, names: tuple[str, ...]) -> Columns:
        """Select the client's headers that no configured header replaces."""
        return Columns.where(names, lambda name: name.lower() not in self._configured_names)

    def _unreachable(self, exc: Exception) -> UpstreamError:
        # Until there is a tunnel, what fails is the way to the proxy; TLS begins within the tunnel.
        through = self._proxy is not None and not isinstance(exc, ssl.SSLError | TunnelRefused)
        way = f" through the proxy of {self._proxy.setting}" if self._proxy and through else ""
        if isinstance(exc, TimeoutError) and not exc.errno:
            return UpstreamTimeout(
                f"upstream {self.name!r} could not be reached{way} within {self._connect_timeout_s:g} s",
                unsent=True,
            )
        reason = str(exc) if isinstance(exc, TunnelRefused) else _reason(exc)
        if is_unknown_authority(exc):
            reason += f"; upstreams.{self.name}.ca_file can name the authority that signed it"
        elif wants_certificate(exc):
            reason = self._certificate_wanted()
        return UpstreamUnreachable(f"upstream {self.name!r} could not be reached{way}: {reason}", unsent=True)

    def _certificate_wanted(self) -> str:
        return f"it does not accept this client's certificate; see upstreams.{self.name}.client_cert"

    def _lost(self, lost: ConnectionLost, *, wants_certificate: bool) -> UpstreamError:
        if wants_certificate:
            # The handshake was not over for the upstream, so it has not read the request.
            return UpstreamUnreachable(
                f"upstream {self.name!r} could not be reached: {self._certificate_wanted()}", unsent=True
            )
        if lost.received:
            return UpstreamBroken(f"upstream {self.name!r} broke off in its response head")
        return UpstreamUnreachable(f"upstream {self.name!r} closed the connection without an answer")


def _send(connection: Http1Connection, exchange: Exchange, request: UpstreamRequest, head: bytes) -> None:
    """Send a request; raise :class:`ConnectionLost` if the connection is gone."""
    body = request.body
    if isinstance(body, bytes) and len(body) <= _SPLIT_BYTES:
        head += body
        body = None
    if not connection.begin(exchange, head):
        raise ConnectionLost(received=False)
    if isinstance(body, bytes):
        connection.write(body)
    elif body is not None:
        exchange.send(body, chunked=_length(request) is None)


def _length(request: UpstreamRequest) -> str | None:
    """Return the length of a body that comes in pieces, ``None`` if the client did not say it."""
    length = first(request.headers, "content-length")
    return length if length.isascii() and length.isdigit() else None


def _reason(exc: Exception) -> str:
    """Return why there is no connection, without the URL, the address or the peer's words."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return "its TLS certificate is not trusted"
    if isinstance(exc, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(exc, socket.gaierror):
        return "its host name was not found"
    if isinstance(exc, OSError) and exc.errno == errno.ECONNREFUSED:
        return "connection refused"
    return "no connection"
