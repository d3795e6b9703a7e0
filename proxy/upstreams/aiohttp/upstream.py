"""A model provider behind HTTP, over one aiohttp session.

The session is told to change nothing: no decompression, no redirects, no cookies, no proxy from
the environment, no re-encoding of the target.  Every wait is bounded here, not by aiohttp.
"""

import asyncio
import errno
import io
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar

from yarl import URL

import aiohttp
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.http.rules import HeaderRules, accept_encoding, first, without
from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import Resolver
from proxy.upstreams.aiohttp.protocol import Attempt, WatchfulConnector
from proxy.upstreams.aiohttp.response import HttpResponse
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.origin import checked_base_url, checked_headers, secret_shapes

__all__ = ["HttpUpstream"]

_MAX_HEADER_LINE_BYTES = 16 * 1024
_MAX_HEADERS = 256
_READ_BUFFER_BYTES = 64 * 1024
"""aiohttp stops reading from the socket at twice this much unread data."""

_CONNECT_RETRY_BUDGET_S = 5.0
"""No connection failure is retried later than this after the request came."""

_FIRST_BACKOFF_S = 0.1

_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What aiohttp would add by itself."""


class HttpUpstream:
    """An :class:`~proxy.upstreams.base.Upstream` that is reached over HTTP or HTTPS."""

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
        max_connections: int = 0,
        keepalive_s: float = 15.0,
        ssl_context: ssl.SSLContext | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        """``base_url`` ends before ``/chat/completions``.  Times are seconds.

        ``retries`` counts further attempts to connect.  ``max_connections`` of 0 sets no bound.
        With ``forward_authorization`` a client's own ``Authorization`` goes out in place of the
        key.  Raises :class:`~proxy.errors.ConfigError` for a URL or header that cannot be used.
        """
        self._name = name
        self._base = checked_base_url(name, base_url)
        self._key = api_key
        self._configured = checked_headers(name, headers or {})
        self._rules = HeaderRules(name, forward_headers, forward_response_headers)
        self._connect_timeout_s = connect_timeout_s
        self._first_byte_timeout_s = first_byte_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._retries = retries
        self._forward_authorization = forward_authorization
        self._pool_options = {
            "limit": max_connections,
            "limit_per_host": 0,
            "keepalive_timeout": keepalive_s,
            "ssl": ssl_context if ssl_context is not None else True,
        }
        self._secrets = secret_shapes(api_key, self._configured)
        self._current: ContextVar[Attempt] = ContextVar(f"attempt-{name}")
        self._pooled: aiohttp.ClientSession | None = None
        self._unpooled: aiohttp.ClientSession | None = None
        self._resolver = resolver or Resolver("this upstream")
        self._closed = False

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._name

    async def open(self, request: UpstreamRequest) -> HttpResponse:
        """Send the request; see :meth:`proxy.upstreams.base.Upstream.open`."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _CONNECT_RETRY_BUDGET_S
        can_repeat = request.body is None or isinstance(request.body, bytes)
        connect_failures = 0
        fresh = False
        while True:
            attempt = Attempt()
            try:
                response = await self._send(request, attempt, fresh=fresh)
            except aiohttp.ClientConnectorCertificateError as exc:
                raise self._unreachable(exc) from exc
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
                pause = _FIRST_BACKOFF_S * 2**connect_failures
                connect_failures += 1
                too_late = loop.time() + pause > give_up_at
                if not can_repeat or connect_failures > self._retries or too_late:
                    raise self._unreachable(exc) from exc
                await asyncio.sleep(pause)
            except aiohttp.ClientConnectionError as exc:
                if attempt.body_error is not None:
                    raise attempt.body_error from None
                # The upstream may close an idle connection in the very moment it is reused.  The
                # second attempt gets a new connection, so there is no third.
                if attempt.received or not attempt.reused or not can_repeat:
                    raise self._lost(attempt) from exc
                fresh = True
            except (aiohttp.ClientError, ValueError) as exc:
                if attempt.body_error is not None:
                    raise attempt.body_error from None
                raise UpstreamBroken(f"upstream {self._name!r} sent a malformed response head") from exc
            else:
                return HttpResponse(
                    self._name,
                    response,
                    self._idle_timeout_s,
                    self._rules,
                    self._secrets,
                    decode=request.expect_stream,
                )

    async def aclose(self) -> None:
        """Close pooled connections.  Nothing can be opened after."""
        self._closed = True
        for session in (self._pooled, self._unpooled):
            if session is not None:
                await session.close()

    async def _send(
        self, request: UpstreamRequest, attempt: Attempt, *, fresh: bool
    ) -> aiohttp.ClientResponse:
        """One attempt.  Raises aiohttp's exceptions, and UpstreamTimeout past the first-byte time."""
        session = self._session(fresh=fresh)
        attempt.first_byte_timeout_s = self._first_byte_timeout_s
        token = self._current.set(attempt)
        try:
            # The time begins when a connection is there: until then aiohttp's connect time holds.
            async with asyncio.timeout(None) as attempt.timer:
                response = await session.request(
                    request.method,
                    self._target(request),
                    data=_payload(request.body, attempt),
                    headers=self._request_headers(request),
                    skip_auto_headers=_AUTO_HEADERS,
                    allow_redirects=False,
                )
        except aiohttp.ServerTimeoutError:
            raise
        except TimeoutError:
            raise UpstreamTimeout(
                f"upstream {self._name!r} did not answer within {self._first_byte_timeout_s:g} s"
            ) from None
        finally:
            attempt.timer = None
            self._current.reset(token)
        if response.status < 200:
            response.close()
            raise UpstreamBroken(f"upstream {self._name!r} switched protocols unasked")
        return response

    def _session(self, *, fresh: bool) -> aiohttp.ClientSession:
        """The session that keeps connections, or the one that never reuses any."""
        if self._closed:
            raise UpstreamUnreachable(f"upstream {self._name!r} is closed")
        if fresh:
            if self._unpooled is None:
                self._unpooled = self._new_session(force_close=True, keepalive_timeout=None)
            return self._unpooled
        if self._pooled is None:
            self._pooled = self._new_session()
        return self._pooled

    def _new_session(self, **pool: object) -> aiohttp.ClientSession:
        connector = WatchfulConnector(
            self._current, resolver=AiohttpResolver(self._resolver), **{**self._pool_options, **pool}
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=_MAX_HEADER_LINE_BYTES,
            max_field_size=_MAX_HEADER_LINE_BYTES,
            max_headers=_MAX_HEADERS,
        )

    def _target(self, request: UpstreamRequest) -> URL:
        if not request.path.startswith("/"):
            raise ValueError(f"an upstream path starts with a slash: {request.path!r}")
        query = f"?{request.query}" if request.query else ""
        return URL(f"{self._base}{request.path}{query}", encoded=True)

    def _request_headers(self, request: UpstreamRequest) -> list[tuple[str, str]]:
        headers = list(self._rules.request_headers(request.headers))
        length = first(request.headers, "content-length")
        if length.isascii() and length.isdigit() and isinstance(request.body, AsyncIterator):
            headers.append(("Content-Length", length))
        coding = "identity" if request.expect_stream else accept_encoding(request.headers)
        if coding is not None:
            headers.append(("Accept-Encoding", coding))
        authorization = first(request.headers, "authorization")
        if self._forward_authorization and authorization:
            headers.append(("Authorization", authorization))
        elif self._key:
            headers.append(("Authorization", f"Bearer {self._key}"))
        headers = without(headers, *(name.lower() for name in self._configured))
        return [*headers, *self._configured.items()]

    def _unreachable(self, exc: Exception) -> UpstreamError:
        if isinstance(exc, aiohttp.ConnectionTimeoutError):
            return UpstreamTimeout(
                f"upstream {self._name!r} could not be reached within {self._connect_timeout_s:g} s",
                unsent=True,
            )
        return UpstreamUnreachable(
            f"upstream {self._name!r} could not be reached: {_reason(exc)}", unsent=True
        )

    def _lost(self, attempt: Attempt) -> UpstreamError:
        if attempt.received:
            return UpstreamBroken(f"upstream {self._name!r} broke off in its response head")
        return UpstreamUnreachable(f"upstream {self._name!r} closed the connection without an answer")


def _reason(exc: Exception) -> str:
    """Why there is no connection, without URL, address or anything the peer said."""
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return "its TLS certificate is not trusted"
    if isinstance(exc, aiohttp.ClientSSLError):
        return "the TLS handshake failed"
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return "its host name was not found"
    if isinstance(exc, OSError) and exc.errno == errno.ECONNREFUSED:
        return "connection refused"
    return "no connection"


def _payload(body: bytes | AsyncIterator[bytes] | None, attempt: Attempt) -> object:
    """The body as aiohttp takes it: anew for each attempt, and in pieces where it is long."""
    if body is None or isinstance(body, bytes):
        return io.BytesIO(body) if body and len(body) > _READ_BUFFER_BYTES else body
    return _watched(body, attempt)


async def _watched(body: AsyncIterator[bytes], attempt: Attempt) -> AsyncIterator[bytes]:
    """The body's pieces; each puts off the first-byte time, and its own failure is kept."""
    try:
        async for piece in body:
            attempt.progress()
            yield piece
    # The boundary to aiohttp, which would turn any failure of the client's body into one of the
    # upstream's; it is raised again by whoever sent the request.
    except Exception as exc:
        attempt.body_error = exc
        raise
