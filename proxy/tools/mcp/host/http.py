"""Talk to a server with a URL: the SDK's streamable HTTP over an HTTP client that restricts its targets.

If the server has a connection, its requests get the header that a worker provides; see
:mod:`proxy.tools.mcp.host.authorization`.

For every request, this module resolves the host, checks the IP address and connects to exactly that address,
so that a name cannot change its address between check and use. Through a forward proxy the same check comes
first, but the proxy gets the name and resolves it again; a name that only the proxy can resolve is left to
it, since the operator wrote the URL. Redirects are followed only within the origin. The authorities of
certificates are those of the system, or of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``, with those of
``network.ca_file``. An answer has a size limit, which holds for what it is after decompression.
"""

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import orjson
from mcp.client.streamable_http import streamable_http_client

from proxy.net.authorities import client_context
from proxy.net.outgoing import NO_PROXIES, HttpProxy, ProxyRules
from proxy.net.public_addresses import is_inner_name, is_public_address
from proxy.tools.mcp.host.authorization import Ask, NotAuthorized
from proxy.tools.mcp.host.bounds import (
    MAX_LINE,
    NO_MESSAGE,
    TOO_LONG,
    TOO_LONG_WORDS,
    Budget,
    Room,
    has_too_many_values,
)
from proxy.tools.mcp.host.stdio import Streams
from proxy.tools.mcp.servers import HostSettings, Server
from proxy.tools.oauth.challenges import read_challenge

_READ_S: Final = 3600.0
"""The most seconds between two pieces of a response: calls have their own limit; open streams may be idle."""

UNAUTHORIZED: Final = -32401
"""The code of the JSON-RPC error for a request that was not authorized."""

SESSION_GONE: Final = -32404
"""The code of the JSON-RPC error for a request whose session the server no longer knows."""

_MAX_STREAMS: Final = 1000
_STREAMS_S: Final = 10.0
"""A server may have its clients open so many event streams in so many seconds; each may say ``retry: 0``."""

_ENCODINGS: Final = ("gzip", "x-gzip", "deflate")
_PIECE: Final = 1 << 16
"""The most bytes that are decompressed at once."""

_LOST_SESSION: Final = re.compile(r"session|not initialized", re.IGNORECASE)
_NOT_FOUND: Final = b"-32601"
_MOST_TRIES: Final = 2

OnRefused = Callable[[NotAuthorized | None], None]
"""Called with the reason why a request was not authorized; ``None`` if missing scopes are now granted."""


class CheckedTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that connects only to allowed IP addresses and bounds the size of an answer."""

    def __init__(
        self,
        networks: Sequence[str] = (),
        *,
        inner: httpx2.AsyncBaseTransport | None = None,
        proxies: ProxyRules = NO_PROXIES,
        ca_file: str = "",
    ) -> None:
        """``proxies`` are the forward proxies on the way; ``ca_file`` names further authorities."""
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._proxies = proxies
        self._verify = _authorities(ca_file)
        self._inner = inner or self._transport(None)
        self._proxied: dict[HttpProxy, httpx2.AsyncBaseTransport] = {}
        self._room = Room()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raise httpx2.ConnectError for a host that must not be reached."""
        host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
        proxy = self._proxies.proxy_for(request.url.scheme, host, port)
        address = await self._address(host, port, must_resolve=proxy is None)
        if proxy is None:
            sent = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            response = await self._inner.handle_async_request(sent)
        else:
            response = await self._through(proxy, request)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            encoding = response.headers.pop("content-encoding", "identity").strip().lower()
            if encoding not in (*_ENCODINGS, "", "identity"):
                await response.aclose()
                raise httpx2.DecodingError("the answer is compressed, and not by gzip")
            kind = response.headers.get("content-type", "").lower().partition(";")[0].rstrip()
            stream = _inflated(response.stream) if encoding in _ENCODINGS else aiter(response.stream)
            bounded = _BoundedEvents if kind.endswith("/event-stream") else _Bounded
            response.stream = bounded(response.stream, stream, self._room)
        return response

    def _transport(self, proxy: httpx2.Proxy | None) -> httpx2.AsyncBaseTransport:
        return httpx2.AsyncHTTPTransport(verify=self._verify, trust_env=False, retries=0, proxy=proxy)

    async def _through(self, proxy: HttpProxy, request: httpx2.Request) -> httpx2.Response:
        """Send a request through a proxy, which gets the host's name and resolves it again."""
        if proxy not in self._proxied:
            headers = {"Proxy-Authorization": f"Basic {proxy.credentials}"} if proxy.credentials else {}
            self._proxied[proxy] = self._transport(httpx2.Proxy(proxy.url, headers=headers))
        try:
            response = await self._proxied[proxy].handle_async_request(request)
        except httpx2.ProxyError as error:
            # The message begins with the status; what follows is the proxy's own text.
            status = str(error)[:3]
            shown = f" (status {status})" if status.isdigit() else ""
            raise httpx2.ConnectError(f"the proxy of {proxy.setting} refuses the connection{shown}") from None
        if response.status_code == 407:
            await response.aclose()
            raise httpx2.ConnectError(f"the proxy of {proxy.setting} refuses the connection (status 407)")
        return response

    async def _address(self, host: str, port: int, *, must_resolve: bool) -> str:
        """Return the first IP address of a host; raise httpx2.ConnectError if any of them is not allowed.

        A host that has none here is a fault only if it ``must_resolve``; it is "" otherwise.
        """
        try:
            resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if not must_resolve and not is_inner_name(host):
                return ""
            raise httpx2.ConnectError(f"the host was not found: {error.strerror}") from None
        addresses = [str(address[4][0]) for address in resolved]
        for address in addresses:
            if not is_public_address(address, self._networks):
                raise httpx2.ConnectError(
                    "the address is not public; add its network to mcp.networks to reach it all the same"
                )
        return addresses[0]

    async def aclose(self) -> None:
        for transport in (self._inner, *self._proxied.values()):
            await transport.aclose()


def _authorities(ca_file: str) -> ssl.SSLContext | bool:
    """Return the authorities that the settings or the environment name, as for upstreams; ``True`` for the
    system's."""
    if ca_file:
        return client_context((("network.ca_file", ca_file),))
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context() if named else True


class AnswerTooLong(httpx2.ReadError):
    """An answer that is too large."""

    def __init__(self) -> None:
        super().__init__(TOO_LONG_WORDS)


async def _inflated(stream: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    """Yield a gzip or deflate stream decompressed, in small pieces whatever its ratio is."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        async for piece in stream:
            inflated = inflater.decompress(piece, _PIECE)
            while inflated:
                yield inflated
                inflated = inflater.decompress(inflater.unconsumed_tail, _PIECE)
    except zlib.error:
        raise httpx2.DecodingError("the answer is not compressed as it says") from None


_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The ends of an event. Source: the HTML standard, "Interpreting an event stream"."""


class _Bounded(httpx2.AsyncByteStream):
    """A response's body with a size limit; ``pieces`` are those of ``stream``, decompressed."""

    def __init__(self, stream: httpx2.AsyncByteStream, pieces: AsyncIterator[bytes], room: Room) -> None:
        self._stream = stream
        self._pieces = pieces
        self._room = room

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        try:
            async for piece in self._pieces:
                read += len(piece)
                if not self._room.take(len(piece)) or read > MAX_LINE:
                    raise AnswerTooLong
                yield piece
        finally:
            self._room.give_back(read)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BoundedEvents(_Bounded):
    """An event stream, passed on by whole events, with a size limit for each of them.

    After an event past the limit the stream is an event with an error, which the SDK takes as the answer to
    the request of this stream, and its end.
    """

    _END = b"data: " + orjson.dumps(
        {"jsonrpc": "2.0", "id": 0, "error": {"code": TOO_LONG, "message": TOO_LONG_WORDS}}
    )

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        try:
            async for piece in self._pieces:
                # An empty line ends an event; it may be split over two pieces.
                start = max(0, len(held) - 3)
                held += piece
                has_room = self._room.take(len(piece))
                ends = ((held.rfind(mark, start), len(mark)) for mark in _EVENT_ENDS)
                end = max((match + size for match, size in ends if match >= 0), default=0)
                complete = bytes(held[:end])
                if not has_room or len(held) > MAX_LINE or has_too_many_values(complete):
                    yield self._END + b"\n\n"
                    return
                if complete:
                    del held[:end]
                    self._room.give_back(end)
                    yield complete
            yield bytes(held)
        finally:
            self._room.give_back(len(held))


class AuthorizedTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that adds the header of the server's connection to requests to this server only.

    If the server refuses a request (401, or 403 for a scope), it is sent once more if there is another token.
    Otherwise its answer is a JSON-RPC error, so that the session and its other calls continue.
    """

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, server: Server, ask: Ask, refused: OnRefused
    ) -> None:
        self._inner = inner
        self._server = server
        self._ask = ask
        self._refused = refused
        self._origin = _origin(httpx2.URL(server.url))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raise httpx2.ConnectError if it is to another origin."""
        if not self._server.connection:
            return await self._without_token(request)
        if _origin(request.url) != self._origin:
            raise httpx2.ConnectError("a token of this server goes to no other origin")
        try:
            value = await self._ask("", None)
            scopes: tuple[str, ...] | None = None
            for _ in range(_MOST_TRIES):
                request.headers["authorization"] = value
                response = await self._inner.handle_async_request(request)
                lacked, scopes = scopes, _missing_scopes(response)
                if response.status_code != 401 and scopes is None:
                    if lacked is not None:
                        self._refused(None)
                    return response
                await response.aclose()
                value = await self._ask(value, scopes)
            raise NotAuthorized("the server refuses every token")
        except NotAuthorized as reason:
            self._refused(reason)
            error = {"code": UNAUTHORIZED, "message": "the request was not authorized"}
            return httpx2.Response(401, json={"jsonrpc": "2.0", "id": None, "error": error})

    async def _without_token(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.status_code == 401:
            where = f"mcp.servers.{self._server.name}"
            self._refused(NotAuthorized(f"the server wants a token (401); write {where}.connection"))
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class SessionTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that reports when a server no longer knows a session, for example after a restart.

    The SDK alone would fail each further call of the session with an error that a tool could also return.
    Sources: the specification of MCP 2025-11-25, Transports, "Session Management": 404 to a request with
    the session's id; modelcontextprotocol/typescript-sdk#389 and python-sdk#1727: many servers say 400, with
    an error that has no id, since they have not looked at the request.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, gone: Callable[[], None]) -> None:
        """``gone`` is called before the request gets its error."""
        self._inner = inner
        self._gone = gone

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        in_session = request.method == "POST" and "mcp-session-id" in request.headers
        if not in_session or response.status_code not in (400, 404):
            return response
        body = await response.aread()
        if response.status_code == 404:
            # Some servers also use this status for an unknown method.
            is_lost = _NOT_FOUND not in body
        else:
            is_lost = _id_of(body) is None and tells_of_lost_session(body[:4096].decode("utf-8", "replace"))
        if not is_lost:
            return response
        await response.aclose()
        self._gone()
        error = {"code": SESSION_GONE, "message": "the server no longer knows the session"}
        return httpx2.Response(404, json={"jsonrpc": "2.0", "id": None, "error": error})

    async def aclose(self) -> None:
        await self._inner.aclose()


def tells_of_lost_session(text: str) -> bool:
    """Return whether the words of an error may say that the server does not know the session."""
    return _LOST_SESSION.search(text[:4096]) is not None


class AnswerTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that replaces a JSON answer without the id of its request, or with too many values,
    by an error.

    With an answer of another id the SDK would let the call wait for its time-out. Answers that are event
    streams belong to the request that opened the stream, whatever their ids.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner
        self._streams = Budget(_MAX_STREAMS, _STREAMS_S)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and not self._streams.take():
            raise httpx2.ConnectError("the server ends its event streams too often")
        response = await self._inner.handle_async_request(request)
        kind = response.headers.get("content-type", "").lower()
        if request.method != "POST" or not kind.startswith("application/json"):
            return response
        number = _id_of(request.content)
        error = {"code": NO_MESSAGE, "message": "the answer is none to this request"}
        try:
            body = await response.aread()
            if has_too_many_values(body):
                raise AnswerTooLong
            # An answer with another status may have no id: see SessionTransport.
            if not response.is_success or number is None or _id_of(body) == number:
                return response
        except AnswerTooLong as fault:
            error = {"code": TOO_LONG, "message": str(fault)}
        await response.aclose()
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": number, "error": error})

    async def aclose(self) -> None:
        await self._inner.aclose()


def _id_of(body: bytes) -> int | str | None:
    """Return the id of a JSON-RPC message; ``None`` if there is none."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    number = message.get("id") if isinstance(message, dict) else None
    return number if isinstance(number, int | str) else None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _missing_scopes(response: httpx2.Response) -> tuple[str, ...] | None:
    """Return the scopes for which a request was refused, if named; ``None`` for any other answer."""
    if response.status_code != 403:
        return None
    challenge = read_challenge(response.headers.get("www-authenticate", ""))
    return challenge.scopes if challenge.error == "insufficient_scope" else None


class HttpServer:
    """A server that is reached over HTTP."""

    def __init__(
        self,
        server: Server,
        settings: HostSettings,
        ask: Ask,
        refused: OnRefused,
        gone: Callable[[], None],
    ) -> None:
        """``gone`` is the callback of :class:`SessionTransport`."""
        self._server = server
        self._settings = settings
        self._ask = ask
        self._refused = refused
        self._gone = gone
        self.stderr = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Yield the streams of a session; this sends nothing yet."""
        checked = CheckedTransport(
            self._settings.networks, proxies=self._settings.proxies, ca_file=self._settings.ca_file
        )
        authorized = AuthorizedTransport(checked, self._server, self._ask, self._refused)
        client = httpx2.AsyncClient(
            transport=AnswerTransport(SessionTransport(authorized, self._gone)),
            headers={"user-agent": "toolrelay", "accept-encoding": "gzip", **self._server.headers},
            timeout=httpx2.Timeout(30.0, read=_READ_S),
            follow_redirects=False,
            trust_env=False,
        )
        async with client:
            connected = streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MAX_LINE
            )
            async with connected as (read, write):
                yield read, write  # type: ignore[misc]
