"""Outgoing HTTP for tools: named hosts only, public IP addresses only, bounded in size and time.

A model may influence a tool's URL. So the host must be one that the tool declared. The IP address is
checked in the connector's own resolver, on every connection, so that a name cannot change its address between
check and use. Address literals never reach a resolver and are checked before the request.
"""

import asyncio
import codecs
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver
from msgspec import Struct
from yarl import URL

from proxy.json.size import count_values
from proxy.net.outgoing import HttpProxy
from proxy.net.public_addresses import is_literal, is_public_address
from proxy.tools.access.addresses import (
    DIRECTLY,
    AddressRefused,
    CheckedSessions,
    NameNotResolved,
    WayOut,
    named,
    proxy_headers,
    proxy_refusal,
    untrusted,
)
from proxy.tools.access.hosts import check_headers, may_call
from proxy.tools.access.placement import GIVEN, Placement
from proxy.tools.access.retrying import has_idempotency_key, parse_retry_after, wait_before_retry
from proxy.tools.contract.bounds import ArgumentBound, FetchBounds
from proxy.tools.contract.capabilities import AdjustableClient, HttpFailure, QueryParams, TextPage

__all__ = [
    "AddressForbidden",
    "Answer",
    "Authorizer",
    "EgressClient",
    "EgressPool",
    "HttpFailure",
    "decode_text",
]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_JSON_HEADERS: Mapping[str, str] = MappingProxyType({"Accept": "application/json"})
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/xhtml+xml"})
_CHARSET = re.compile(rb"charset\s*+=\s*+(?:[\"']\s*+)?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_NOT_FOR_PAGES = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7"})
"""Python codecs that no web page uses; some are very slow on a long text."""
_MOST_VALUES = 200_000
"""The most JSON values in a service's response; each takes some hundred bytes of memory."""
_MAX_REDIRECTS = 3


class AddressForbidden(HttpFailure):
    """A request to an IP address that tools may not reach; nothing was sent."""


class Authorizer(Protocol):
    """The source of one connection's credentials for a header; see :mod:`proxy.tools.access.credentials`."""

    async def authorization(self) -> str:
        """Return the header's current value; raise :class:`ToolFailure` if there is none."""

    async def renew(self, refused: str) -> str | None:
        """Return another value after a 401 for ``refused``; ``None`` if there is none."""


class EgressPool:
    """The HTTP connections of all tools. Create it in the event loop that uses it; close it at the end.

    Args:
        allowed_networks: IP ranges that tools may reach beside the public ones, such as ``127.0.0.0/8``.
        schemes: the URL schemes that may be used.
        max_bytes: the largest response body.
        timeout_s: the seconds for one request, redirects and retries included.
        retries: the number of retries after 429 and 503.
        user_agent: the ``User-Agent`` header of all requests.
        sleep: waits between tries; tests replace it.
        resolver: resolves host names; by default the system does.
        way: the forward proxies on the way to hosts, and the authorities of certificates.
    """

    def __init__(
        self,
        *,
        allowed_networks: Sequence[str] = (),
        schemes: Sequence[str] = ("https",),
        max_bytes: int = 1 << 20,
        timeout_s: float = 8.0,
        retries: int = 2,
        user_agent: str = "toolrelay",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        resolver: AbstractResolver | None = None,
        way: WayOut = DIRECTLY,
    ) -> None:
        self.allowed = tuple(ipaddress.ip_network(network) for network in allowed_networks)
        self.schemes = frozenset(schemes)
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s
        self.retries = retries
        self.sleep = sleep
        self.sessions = CheckedSessions(resolver, self.allowed, user_agent, way)

    def client(
        self, hosts: Sequence[str], authorizer: Authorizer | None = None, *, place: Placement = GIVEN
    ) -> "EgressClient":
        """Return a client that reaches only ``hosts``: ``api.example.com``, ``*.example.com``, ``host:8443``.

        An entry without a port means the default port of the scheme. ``*`` alone means every public host.
        With an ``authorizer`` each request has its value in that ``place``. The client sends it over plain
        HTTP only to an IP literal in a network that the operator opened.
        """
        return EgressClient(self, tuple(host.lower() for host in hosts), authorizer, place=place)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.sessions.aclose()


class _Request(Struct, frozen=True):
    """A request as the tool makes it, before redirects and retries.

    ``roams`` allows a redirect to change the host. ``repeatable`` says that a repeat has no second effect.
    ``unread`` leaves the response body unread. ``bounds`` apply to the URL and to every redirect.
    """

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None = None
    roams: bool = False
    repeatable: bool = True
    unread: bool = False
    bounds: tuple[ArgumentBound, ...] = ()


class Answer(Struct, frozen=True):
    """A complete response. ``retry_after_s`` is the wait before a retry, if the service says so."""

    url: URL
    status: int
    body: bytes
    retry_after_s: float | None
    location: str | None
    content_type: str
    challenge: str = ""


class EgressClient(AdjustableClient):
    """One tool's view of the pool. Implements :class:`~proxy.tools.contract.capabilities.HttpClient`.

    ``reads`` says that the tool changes nothing, so that its POST requests may be repeated. ``timeout_s`` is
    the time limit of one request, by default the pool's; ``fetches`` bounds the URLs that one call requests.
    """

    def __init__(
        self,
        pool: EgressPool,
        hosts: tuple[str, ...],
        authorizer: Authorizer | None,
        *,
        place: Placement = GIVEN,
        reads: bool = False,
        timeout_s: float | None = None,
        fetches: FetchBounds | None = None,
    ) -> None:
        self._pool = pool
        self._hosts = hosts
        self._authorizer = authorizer
        self._place = place
        self._reads = reads
        self._timeout_s = timeout_s
        self._fetches = fetches

    def for_reading(self) -> "EgressClient":
        return self._with(reads=True)

    def with_time(self, tool_s: float) -> "EgressClient":
        """Return this client with 80 % of a tool's own time limit; the rest is for the error message."""
        return self._with(timeout_s=0.8 * tool_s)

    def within(self, fetches: FetchBounds) -> "EgressClient":
        return self._with(fetches=fetches)

    def _with(self, **changes: Any) -> "EgressClient":
        own = {"reads": self._reads, "timeout_s": self._timeout_s, "fetches": self._fetches}
        return EgressClient(
            self._pool, self._hosts, self._authorizer, place=self._place, **{**own, **changes}
        )

    def _bounds(self, address: str, *, page: bool = False) -> tuple[ArgumentBound, ...]:
        return () if self._fetches is None else self._fetches.starting_at(address, page=page)

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Return the JSON of a 2xx response; raise :class:`HttpFailure` for anything else.

        Raises ``ValueError`` for a header that a tool may not set.
        """
        check_headers(headers or {})
        sent = {**_JSON_HEADERS, **(headers or {})}
        request = _Request("GET", _address(url, params), sent, bounds=self._bounds(url))
        answer = await self._send(request)
        return _json(answer)

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """POST ``body``; return the JSON of a 2xx response, raise :class:`HttpFailure` for anything else.

        Redirects are not followed. Raises ``ValueError`` for a header that a tool may not set.
        """
        check_headers(headers or {})
        request = _Request(
            "POST",
            _address(url, params),
            {**_JSON_HEADERS, "Content-Type": "application/json", **(headers or {})},
            orjson.dumps(body),
            repeatable=self._reads or has_idempotency_key(headers or {}, body),
            bounds=self._bounds(url),
        )
        answer = await self._send(request)
        return _json(answer) if answer.body else None

    async def post_form(self, url: str, fields: Mapping[str, str], authorization: str | None = None) -> Any:
        """POST a form; return the JSON of a 2xx response, ``None`` if it is empty.

        OAuth 2 token endpoints require forms. Tools cannot call this.
        """
        headers = {**_JSON_HEADERS, "Content-Type": "application/x-www-form-urlencoded"}
        if authorization is not None:
            headers["Authorization"] = authorization
        body = urlencode(fields).encode("ascii")
        request = _Request("POST", _address(url, None), headers, body, repeatable=False)
        answer = await self._send(request)
        return _json(answer) if answer.body else None

    async def challenge(self, url: str, body: Any, headers: Mapping[str, str]) -> str:
        """POST JSON; return the ``WWW-Authenticate`` of the response, whatever its status; ``""`` if missing.

        Tools cannot call this.
        """
        return (await self._post_unread(url, orjson.dumps(body), headers)).challenge

    async def notify(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """POST JSON and return the status without reading the body; redirects are not followed.

        Tools cannot call this.
        """
        return (await self._post_unread(url, body, headers)).status

    async def _post_unread(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """POST JSON once, and return the response without its body."""
        sent = {**headers, "Content-Type": "application/json"}
        request = _Request("POST", _address(url, None), sent, body, unread=True)
        try:
            async with asyncio.timeout(self._timeout_s or self._pool.timeout_s):
                return await self._follow(request, None)
        except TimeoutError:
            raise HttpFailure("the service took too long to answer", transient=True) from None

    async def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, *, repeatable: bool
    ) -> Answer:
        """Send any request, with the URL as it is encoded; return a 2xx response, raise :class:`HttpFailure`
        with the body for anything else. Tools cannot call this."""
        try:
            address = URL(url, encoded=True)
            _ = address.host, address.port
        except ValueError:
            raise HttpFailure("the address of the service is not valid") from None
        return await self._send(_Request(method, address, headers, body, repeatable=repeatable))

    async def get_text(self, url: str) -> TextPage:
        """Return a page; raise :class:`HttpFailure` if it is not text or the request fails.

        A redirect may lead to another of the tool's hosts, unless the requests carry credentials.
        """
        headers = {"Accept": "text/html, text/plain;q=0.9, application/xhtml+xml, */*;q=0.1"}
        bounds = self._bounds(url, page=True)
        request = _Request("GET", _address(url, None), headers, roams=self._authorizer is None, bounds=bounds)
        answer = await self._send(request)
        media_type, _, parameters = answer.content_type.partition(";")
        media_type = media_type.strip().lower()
        if not _is_text(media_type):
            raise HttpFailure("the answer is not a page of text")
        text = decode_text(answer.body, parameters, is_html=media_type.endswith("html"))
        return TextPage(str(answer.url), media_type, text)

    async def _send(self, request: _Request) -> Answer:
        """Return a 2xx response within the time limit."""
        try:
            async with asyncio.timeout(self._timeout_s or self._pool.timeout_s):
                return await self._send_with_retries(request)
        except TimeoutError:
            raise HttpFailure("the service took too long to answer", transient=True) from None

    async def _send_with_retries(self, request: _Request) -> Answer:
        """Send a request; retry after 429 and 503 with growing waits, once after 401 with a new header."""
        authorization = await self._authorizer.authorization() if self._authorizer else None
        attempt = 0
        renewed = False
        while True:
            answer = await self._follow(request, authorization)
            if 200 <= answer.status < 300:
                return answer
            if answer.status == 401 and self._authorizer and authorization and not renewed:
                renewed = True
                authorization = await self._authorizer.renew(authorization)
                if authorization is None:
                    break
                continue
            wait_s = wait_before_retry(
                answer.status, answer.retry_after_s, attempt, repeatable=request.repeatable
            )
            if wait_s is None or attempt >= self._pool.retries:
                break
            await self._pool.sleep(wait_s)
            attempt += 1
        raise HttpFailure(
            f"the service answered with status {answer.status}", status=answer.status, body=answer.body
        )

    async def _follow(self, request: _Request, authorization: str | None) -> Answer:
        """Return a response after at most three redirects, each checked like the first URL."""
        url = origin = request.url
        for _ in range(_MAX_REDIRECTS + 1):
            self._check(url, authorization is not None)
            if request.bounds and not FetchBounds.allow(str(url), request.bounds):
                raise HttpFailure("policy does not allow this address, or the one that it redirects to")
            answer = await self._request(request, url, authorization)
            if answer.status not in _REDIRECTS or answer.location is None:
                return answer
            if request.method != "GET":
                raise HttpFailure("the service redirects its callers, which is not followed here")
            try:
                url = url.join(_url(answer.location))
            except ValueError:
                break
            moved = (url.host, url.port) != (origin.host, origin.port) or url.scheme != origin.scheme
            if moved and not request.roams:
                raise HttpFailure("the service sends its callers to another host, which is not followed")
        raise HttpFailure("the service redirects its callers too often")

    def _check(self, url: URL, with_credentials: bool) -> None:
        """Raise :class:`HttpFailure` for a URL of another host, or with an IP that tools may not reach."""
        host = (url.host or "").lower()
        if (
            url.scheme not in self._pool.schemes
            or not host
            or url.user is not None
            or url.password is not None
        ):
            raise HttpFailure("the address of the service is not one that may be called")
        if not may_call(url, self._hosts):
            raise HttpFailure("this tool may not call that host")
        literal = is_literal(host)
        if literal and not is_public_address(host, self._pool.allowed):
            raise AddressForbidden("this tool may not call that address")
        if with_credentials and url.scheme != "https" and not (literal and not is_public_address(host)):
            raise HttpFailure("credentials are not sent over plain HTTP")

    async def _request(self, request: _Request, url: URL, authorization: str | None) -> Answer:
        """Send one request and return its bounded response."""
        headers = dict(request.headers)
        proxy: HttpProxy | None = None
        place = url if authorization is None else self._place.place(authorization, url, headers)
        try:
            session, proxy = await self._pool.sessions.way_to(url)
            if url.scheme == "http":  # There is no tunnel, so the proxy reads the request's own headers.
                headers.update(proxy_headers(proxy))
            async with session.request(
                request.method,
                place,
                data=request.body,
                headers=headers,
                allow_redirects=False,
                proxy=proxy.url if proxy is not None else None,
                proxy_headers=proxy_headers(proxy),
            ) as response:
                status = response.status
                if proxy is not None and status == 407:
                    raise HttpFailure(proxy_refusal(proxy, status))
                body = b"" if request.unread or status in _REDIRECTS else await self._read(response)
                return Answer(
                    url=url,
                    status=status,
                    body=body if authorization is None else self._place.blanked(body, authorization),
                    retry_after_s=parse_retry_after(status, response.headers),
                    location=response.headers.get("Location"),
                    content_type=response.headers.get("Content-Type", ""),
                    challenge=", ".join(response.headers.getall("WWW-Authenticate", ())),
                )
        except AddressRefused:
            raise AddressForbidden("this tool may not call that address") from None
        except NameNotResolved:
            reason = (
                "the service's name cannot be resolved here, where it is checked before the proxy is asked"
            )
            raise HttpFailure(reason, transient=True) from None
        except aiohttp.ClientHttpProxyError as error:
            raise HttpFailure(proxy_refusal(proxy, error.status)) from None
        except aiohttp.ClientProxyConnectionError:
            raise HttpFailure(f"{named(proxy)} cannot be reached", transient=True) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise HttpFailure(untrusted(error.certificate_error)) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, AddressRefused):
                raise AddressForbidden("this tool may not call that address") from None
            raise HttpFailure("the service cannot be reached", transient=True) from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise HttpFailure("the service's answer did not arrive whole", transient=True) from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the body; raise :class:`HttpFailure` if it has a content coding or is too large."""
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise HttpFailure("the service answered in a coding that was not asked for")
        body = bytearray()
        async for chunk in response.content.iter_chunked(65536):
            body += chunk
            if len(body) > self._pool.max_bytes:
                response.close()
                raise HttpFailure(f"the service's answer is larger than {self._pool.max_bytes} bytes")
        return bytes(body)


def _address(url: str, params: QueryParams | None) -> URL:
    """Return a URL with its parameters; raise :class:`HttpFailure` for an invalid URL."""
    try:
        return _url(url).update_query({key: str(value) for key, value in (params or {}).items()})
    except ValueError:
        raise HttpFailure("the address of the service is not valid") from None


def _url(text: str) -> URL:
    """Parse a URL with its host and port, which yarl parses on access; raise ``ValueError`` if invalid."""
    url = URL(text)
    _ = url.host, url.port
    return url


def _json(answer: Answer) -> Any:
    """Return the body of a response as JSON."""
    if count_values(answer.body, _MOST_VALUES) > _MOST_VALUES:
        raise HttpFailure(f"the service answered with more than {_MOST_VALUES} JSON values")
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise HttpFailure("the service answered with something that is not JSON") from None


def _is_text(media_type: str) -> bool:
    """Return whether a media type can be read as text."""
    return (
        media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+xml", "+json"))
    )


def decode_text(body: bytes, parameters: str = "", *, is_html: bool = False) -> str:
    """Decode a body by its byte order mark, its ``charset`` parameter, the charset in its HTML, or UTF-8.

    Invalid bytes become replacement characters.
    """
    if body.startswith(b"\xef\xbb\xbf"):
        return body[3:].decode("utf-8", "replace")
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return body.decode("utf-16", "replace")
    match = _CHARSET.search(parameters.encode("ascii", "ignore"))
    if match is None and is_html:
        match = _CHARSET.search(body[:1024])  # HTML's own rules search the first 1024 bytes.
    name = match[1].decode("ascii") if match else "utf-8"
    try:
        if codecs.lookup(name).name in _NOT_FOR_PAGES:
            name = "utf-8"
        return body.decode(name, "replace")  # bytes.decode accepts only text codecs.
    except (LookupError, UnicodeError):
        return body.decode("utf-8", "replace")
