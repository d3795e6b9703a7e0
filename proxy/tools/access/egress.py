"""Outgoing HTTP for tools: named hosts only, public addresses only, bounded in size and time.

A tool's URL may be shaped by what a model wrote.  So the host must be one that the tool declared,
and the address is checked where it is connected to: in the connector's own resolver, on every
connection, so that a name cannot point elsewhere between check and use.  Address literals never
reach a resolver and are checked before the request.
"""

import asyncio
import codecs
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver
from yarl import URL

from proxy.json_size import count_values
from proxy.net.keepalive import watch_peer
from proxy.net.public_addresses import is_literal, is_public_address
from proxy.tools.access.addresses import AddressRefused, CheckedResolver
from proxy.tools.access.hosts import check_headers, may_call
from proxy.tools.access.retrying import names_its_effect, told_wait, wait_before_retry
from proxy.tools.contract.bounds import ArgumentBound, FetchBounds
from proxy.tools.contract.capabilities import HttpFailure, QueryParams, TextPage

__all__ = ["AddressForbidden", "Authorizer", "EgressClient", "EgressPool", "HttpFailure", "decode_text"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_JSON_HEADERS: Mapping[str, str] = MappingProxyType({"Accept": "application/json"})
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/xhtml+xml"})
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_NOT_FOR_PAGES = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7"})
"""Codecs of Python that no page is written in; some take very long for a long text."""
_MOST_VALUES = 200_000
"""JSON values of a service's answer; each takes some hundred bytes."""
_MAX_REDIRECTS = 3


def _watched_socket(info: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(*info[:3])
    watch_peer(sock)
    return sock


class AddressForbidden(HttpFailure):
    """A request to an address that tools may not reach; nothing was sent."""


class Authorizer(Protocol):
    """Gives the ``Authorization`` header of one connection; see :mod:`proxy.tools.access.credentials`."""

    async def authorization(self) -> str:
        """The header's value now; raises :class:`~proxy.errors.ToolFailure` where there is none."""
        ...

    async def renew(self, refused: str) -> str | None:
        """Another value after a 401 for ``refused``; ``None`` where none is to be had."""
        ...


class EgressPool:
    """The connections of all tools.  Make one in the event loop that uses it; close it at the end.

    Args:
        allowed_networks: address ranges opened beyond the public ones, such as ``127.0.0.0/8``.
        schemes: URL schemes that may be used.
        max_bytes: the largest response body.
        timeout_s: seconds for one request, redirects and retries included.
        retries: further tries after 429 and 503.
        user_agent: what the tools say they are.
        sleep: waits between tries; given by tests.
        resolver: looks names up; the system's unless given.
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
    ) -> None:
        self.allowed = tuple(ipaddress.ip_network(network) for network in allowed_networks)
        self.schemes = frozenset(schemes)
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s
        self.retries = retries
        self.sleep = sleep
        self._user_agent = user_agent
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    def client(self, hosts: Sequence[str], authorizer: Authorizer | None = None) -> "EgressClient":
        """A client that reaches ``hosts`` only: ``api.example.com``, ``*.example.com``, ``host:8443``.

        An entry without a port means the scheme's own.  ``*`` alone is every public host.  With an
        ``authorizer`` each request carries its header; it is never sent over plain HTTP, but to an
        address that the operator opened.
        """
        return EgressClient(self, tuple(host.lower() for host in hosts), authorizer)

    def session(self) -> aiohttp.ClientSession:
        """The one session, made when first needed, inside the loop."""
        if self._session is None:
            inner = self._resolver or aiohttp.ThreadedResolver()
            connector = aiohttp.TCPConnector(
                resolver=CheckedResolver(inner, self.allowed),
                limit=64,
                limit_per_host=16,
                ttl_dns_cache=10,
                socket_factory=_watched_socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    async def leads_inside(self, url: URL) -> bool:
        """Whether every address of a URL's host is one that only ``allowed_networks`` open, if it has any."""
        host = url.host or ""
        if is_literal(host):
            return not is_public_address(host)
        inner = self._resolver or aiohttp.ThreadedResolver()
        try:
            found = await inner.resolve(host, url.port or 443)
        except OSError:
            return False
        return bool(found) and not any(is_public_address(one["host"]) for one in found)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked for, whatever it takes to get it.

    ``roams`` lets a redirect change the host; ``repeatable`` says that nothing comes of asking twice;
    ``unread`` leaves the body of the answer alone.  ``bounds`` hold for every address on the way.
    """

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None = None
    roams: bool = False
    repeatable: bool = True
    unread: bool = False
    bounds: tuple[ArgumentBound, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answer:
    """One response, read whole.  ``told_wait_s`` are the seconds after which to ask again, if it says so."""

    url: URL
    status: int
    body: bytes
    told_wait_s: float | None
    location: str | None
    content_type: str
    challenge: str = ""


class EgressClient:
    """One tool's view of the pool.  Implements :class:`~proxy.tools.contract.capabilities.HttpClient` and
    :class:`~proxy.tools.contract.capabilities.RepeatingClient`.

    ``reads`` says that the tool changes nothing, so that its POST requests may be repeated.
    ``timeout_s`` are the seconds for one request, the pool's unless given; ``fetches`` bounds where the
    requests of one call go.
    """

    def __init__(
        self,
        pool: EgressPool,
        hosts: tuple[str, ...],
        authorizer: Authorizer | None,
        *,
        reads: bool = False,
        timeout_s: float | None = None,
        fetches: FetchBounds | None = None,
    ) -> None:
        self._pool = pool
        self._hosts = hosts
        self._authorizer = authorizer
        self._reads = reads
        self._timeout_s = timeout_s
        self._fetches = fetches

    def for_reading(self) -> "EgressClient":
        """The same client for a tool without effects."""
        return self._with(reads=True)

    def with_time(self, tool_s: float) -> "EgressClient":
        """The same client for a tool with a time limit of its own, less what it needs to say why."""
        return self._with(timeout_s=0.8 * tool_s)

    def within(self, fetches: FetchBounds) -> "EgressClient":
        """The same client for one call whose addresses are bounded."""
        return self._with(fetches=fetches)

    def _with(self, **changes: Any) -> "EgressClient":
        own = {"reads": self._reads, "timeout_s": self._timeout_s, "fetches": self._fetches}
        return EgressClient(self._pool, self._hosts, self._authorizer, **{**own, **changes})

    def _bounds(self, address: str, *, page: bool = False) -> tuple[ArgumentBound, ...]:
        return () if self._fetches is None else self._fetches.starting_at(address, page=page)

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """The JSON of a 2xx answer; raises :class:`HttpFailure` for anything else."""
        request = _Request("GET", _address(url, params), _JSON_HEADERS, bounds=self._bounds(url))
        answer = await self._send(request)
        return _json(answer)

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON of a 2xx answer to ``body``; raises :class:`HttpFailure` for anything else.

        No redirect is followed.  ``ValueError`` for a header that is not the tool's to set.
        """
        check_headers(headers or {})
        request = _Request(
            "POST",
            _address(url, params),
            {**_JSON_HEADERS, "Content-Type": "application/json", **(headers or {})},
            orjson.dumps(body),
            repeatable=self._reads or names_its_effect(headers or {}, body),
            bounds=self._bounds(url),
        )
        answer = await self._send(request)
        return _json(answer) if answer.body else None

    async def post_form(self, url: str, fields: Mapping[str, str], authorization: str | None = None) -> Any:
        """The JSON of a 2xx answer to a form, as OAuth 2 token endpoints take it; ``None`` for an empty one.

        No tool has this.
        """
        headers = {**_JSON_HEADERS, "Content-Type": "application/x-www-form-urlencoded"}
        if authorization is not None:
            headers["Authorization"] = authorization
        body = urlencode(fields).encode("ascii")
        request = _Request("POST", _address(url, None), headers, body, repeatable=False)
        answer = await self._send(request)
        return _json(answer) if answer.body else None

    async def challenge(self, url: str, body: Any, headers: Mapping[str, str]) -> str:
        """``WWW-Authenticate`` of the answer to JSON, whatever its status; empty if it is not there.

        No tool has this.
        """
        sent = {**headers, "Content-Type": "application/json"}
        request = _Request("POST", _address(url, None), sent, orjson.dumps(body), unread=True)
        try:
            async with asyncio.timeout(self._timeout_s or self._pool.timeout_s):
                return (await self._follow(request, None)).challenge
        except TimeoutError:
            raise HttpFailure("the service took too long to answer", transient=True) from None

    async def notify(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send JSON whose answer nobody reads; its status.  No redirect is followed.

        No tool has this.
        """
        sent = {**headers, "Content-Type": "application/json"}
        request = _Request("POST", _address(url, None), sent, body, repeatable=False, unread=True)
        try:
            async with asyncio.timeout(self._timeout_s or self._pool.timeout_s):
                return (await self._follow(request, None)).status
        except TimeoutError:
            raise HttpFailure("the service took too long to answer", transient=True) from None

    async def get_text(self, url: str) -> TextPage:
        """A page; raises :class:`HttpFailure` for one that is not text, and for all else that fails.

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

    async def _send(self, request: _Request) -> _Answer:
        """A 2xx answer within the time there is."""
        try:
            async with asyncio.timeout(self._timeout_s or self._pool.timeout_s):
                return await self._send_with_retries(request)
        except TimeoutError:
            raise HttpFailure("the service took too long to answer", transient=True) from None

    async def _send_with_retries(self, request: _Request) -> _Answer:
        """429 and 503 are tried again after a growing wait, 401 once with other credentials."""
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
                answer.status, answer.told_wait_s, attempt, repeatable=request.repeatable
            )
            if wait_s is None or attempt >= self._pool.retries:
                break
            await self._pool.sleep(wait_s)
            attempt += 1
        raise HttpFailure(
            f"the service answered with status {answer.status}", status=answer.status, body=answer.body
        )

    async def _follow(self, request: _Request, authorization: str | None) -> _Answer:
        """One answer after at most three redirects, each checked like the first address."""
        url = origin = request.url
        for _ in range(_MAX_REDIRECTS + 1):
            self._check(url, authorization is not None)
            if request.bounds and not FetchBounds.hold(str(url), request.bounds):
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
        """Refuse a URL that is not of this tool's hosts, or is an address tools may not reach."""
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

    async def _request(self, request: _Request, url: URL, authorization: str | None) -> _Answer:
        """One request and its bounded answer."""
        headers = dict(request.headers)
        if authorization is not None:
            headers["Authorization"] = authorization
        try:
            async with self._pool.session().request(
                request.method, url, data=request.body, headers=headers, allow_redirects=False
            ) as response:
                status = response.status
                return _Answer(
                    url=url,
                    status=status,
                    body=b"" if request.unread or status in _REDIRECTS else await self._read(response),
                    told_wait_s=told_wait(status, response.headers),
                    location=response.headers.get("Location"),
                    content_type=response.headers.get("Content-Type", ""),
                    challenge=", ".join(response.headers.getall("WWW-Authenticate", ())),
                )
        except AddressRefused:
            raise AddressForbidden("this tool may not call that address") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, AddressRefused):
                raise AddressForbidden("this tool may not call that address") from None
            raise HttpFailure("the service cannot be reached", transient=True) from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise HttpFailure("the service's answer did not arrive whole", transient=True) from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, unless it is coded or larger than its bound."""
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
    """A URL with its parameters; raises :class:`HttpFailure` for what is no URL."""
    try:
        return _url(url).update_query({key: str(value) for key, value in (params or {}).items()})
    except ValueError:
        raise HttpFailure("the address of the service is not valid") from None


def _url(text: str) -> URL:
    """A URL whose host can be read: that happens only where it is asked for.  Raises ``ValueError``."""
    url = URL(text)
    _ = url.host, url.port
    return url


def _json(answer: _Answer) -> Any:
    """The body of an answer as JSON."""
    if count_values(answer.body, _MOST_VALUES) > _MOST_VALUES:
        raise HttpFailure(f"the service answered with more than {_MOST_VALUES} JSON values")
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise HttpFailure("the service answered with something that is not JSON") from None


def _is_text(media_type: str) -> bool:
    """Whether a media type is one that can be read as text."""
    return (
        media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+xml", "+json"))
    )


def decode_text(body: bytes, parameters: str = "", *, is_html: bool = False) -> str:
    """The text of a body: by its mark, its ``charset`` parameter, what HTML says of itself, or UTF-8.

    Bytes that make no sense become replacement characters.
    """
    if body.startswith(b"\xef\xbb\xbf"):
        return body[3:].decode("utf-8", "replace")
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return body.decode("utf-16", "replace")
    found = _CHARSET.search(parameters.encode("ascii", "ignore"))
    if found is None and is_html:
        found = _CHARSET.search(body[:1024])  # Where HTML's own rules look for it.
    name = found[1].decode("ascii") if found else "utf-8"
    try:
        if codecs.lookup(name).name in _NOT_FOR_PAGES:
            name = "utf-8"
        return body.decode(name, "replace")  # bytes.decode takes codecs of text only.
    except (LookupError, UnicodeError):
        return body.decode("utf-8", "replace")
