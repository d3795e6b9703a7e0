"""Talk to a server with a URL: the SDK's streamable HTTP over an HTTP client that restricts its targets.

If the server has a connection, its requests get the header that a worker provides; see
:mod:`proxy.tools.mcp.host.authorization`.

For every request, this module resolves the host, checks the IP address and connects to exactly that address,
so that a name cannot change its address between check and use.  Redirects are followed only within the
origin, proxies of the environment are not used, and an answer has a size limit.
"""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import orjson
from mcp.client.streamable_http import streamable_http_client

from proxy.net.public_addresses import is_public_address
from proxy.tools.mcp.host.authorization import Ask, NotAuthorized
from proxy.tools.mcp.host.stdio import MAX_LINE, NO_MESSAGE, Streams
from proxy.tools.mcp.servers import Server
from proxy.tools.oauth.challenges import read_challenge

__all__ = [
    "SESSION_GONE",
    "TOO_LONG",
    "UNAUTHORIZED",
    "AnswerTooLong",
    "AnswerTransport",
    "AuthorizedTransport",
    "CheckedTransport",
    "HttpServer",
    "OnRefused",
    "SessionTransport",
]

_READ_S: Final = 3600.0
"""The most seconds between two pieces of a response: calls have their own limit; open streams may be idle."""

UNAUTHORIZED: Final = -32401
"""The code of the JSON-RPC error for a request that was not authorized."""

SESSION_GONE: Final = -32404
"""The code of the JSON-RPC error for a request whose session the server no longer knows."""

TOO_LONG: Final = -32413
"""The code of the JSON-RPC error for a request whose answer is too large."""

_SLACK: Final = 1 << 20
_NOT_FOUND: Final = b"-32601"
_MOST_TRIES: Final = 2

OnRefused = Callable[[NotAuthorized | None], None]
"""Called with the reason why a request was not authorized; ``None`` if missing scopes are now granted."""


class CheckedTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that connects only to allowed IP addresses and bounds the size of an answer."""

    def __init__(
        self, networks: Sequence[str] = (), *, inner: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._inner = inner or httpx2.AsyncHTTPTransport(trust_env=False, retries=0)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raise httpx2.ConnectError for a host that must not be reached."""
        host = request.url.host
        address = await self._address(
            host, request.url.port or (443 if request.url.scheme == "https" else 80)
        )
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await self._inner.handle_async_request(sent)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            # The SDK itself ends a stream with an event above the limit, and reports it.
            kind = response.headers.get("content-type", "").lower().partition(";")[0].rstrip()
            events = kind.endswith("/event-stream")
            response.stream = _Bounded(response.stream, MAX_LINE + (_SLACK if events else 0))
        return response

    async def _address(self, host: str, port: int) -> str:
        """Return the first IP address of a host; raise httpx2.ConnectError if any of them is not allowed."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx2.ConnectError(f"the host was not found: {error.strerror}") from None
        addresses = [str(one[4][0]) for one in found]
        for address in addresses:
            if not is_public_address(address, self._networks):
                raise httpx2.ConnectError(
                    "the address is not public; add its network to mcp.networks to reach it all the same"
                )
        return addresses[0]

    async def aclose(self) -> None:
        await self._inner.aclose()


class AnswerTooLong(httpx2.ReadError):
    """An answer that is too large."""


_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The ends of an event.  Source: the HTML standard, "Interpreting an event stream"."""


class _Bounded(httpx2.AsyncByteStream):
    """A response's body with a size limit; in an event stream the limit is for each event."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        before = b""
        async for piece in self._stream:
            # An empty line ends an event; it may be split over two pieces.
            seen = before + piece
            end = max(seen.rfind(mark) for mark in _EVENT_ENDS)
            read = len(seen) - end if end >= 0 else read + len(piece)
            before = seen[-3:]
            if read > self._most:
                raise AnswerTooLong(f"the answer is longer than {self._most} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


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
    Source: the specification of MCP 2025-11-25, Transports, "Session Management": 404 to a request with
    the session's id.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, gone: Callable[[], None]) -> None:
        """``gone`` is called before the request gets its error."""
        self._inner = inner
        self._gone = gone

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.status_code != 404 or request.method != "POST" or "mcp-session-id" not in request.headers:
            return response
        if _NOT_FOUND in await response.aread():
            # Some servers also use this status for an unknown method.
            return response
        await response.aclose()
        self._gone()
        error = {"code": SESSION_GONE, "message": "the server no longer knows the session"}
        return httpx2.Response(404, json={"jsonrpc": "2.0", "id": None, "error": error})

    async def aclose(self) -> None:
        await self._inner.aclose()


class AnswerTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that replaces a JSON answer without the id of its request by an error.

    With such an answer the SDK would let the call wait for its time-out.  Answers that are event streams
    belong to the request that opened the stream, whatever their ids.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        kind = response.headers.get("content-type", "").lower()
        if request.method != "POST" or not response.is_success or not kind.startswith("application/json"):
            return response
        number = _id_of(request.content)
        error = {"code": NO_MESSAGE, "message": "the answer is none to this request"}
        try:
            if number is None or _id_of(await response.aread()) == number:
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
        networks: Sequence[str],
        ask: Ask,
        refused: OnRefused,
        gone: Callable[[], None],
    ) -> None:
        """``gone`` is the callback of :class:`SessionTransport`."""
        self._server = server
        self._networks = networks
        self._ask = ask
        self._refused = refused
        self._gone = gone
        self.stderr = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Yield the streams of a session; this sends nothing yet."""
        checked = CheckedTransport(self._networks)
        authorized = AuthorizedTransport(checked, self._server, self._ask, self._refused)
        client = httpx2.AsyncClient(
            transport=AnswerTransport(SessionTransport(authorized, self._gone)),
            headers={"user-agent": "toolrelay", **self._server.headers},
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
