"""Outgoing HTTP for tools: named hosts only, public addresses only, bounded in size and time.

A tool's URL may be shaped by what a model wrote.  So the host must be one that the tool declared,
and the address is checked where it is connected to: in the connector's own resolver, on every
connection, so that a name cannot point elsewhere between check and use.  Address literals never
reach a resolver and are checked before the request.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from proxy.errors import ToolFailure
from proxy.tools.capabilities import QueryParams

__all__ = ["EgressClient", "EgressPool", "HttpFailure", "is_public_address"]

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RETRIED = frozenset({429, 503})
_MAX_REDIRECTS = 3
_MAX_WAIT_S = 2.0
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052; its local-use sibling is refused as a whole.
# What ``is_global`` lets through, in some version of Python or in all of them: Azure's metadata
# server, IETF protocol assignments (Oracle's metadata server is one), 6to4 relays, local-use NAT64
# and site-local addresses.
_REFUSED = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "64:ff9b:1::/48",
        "fec0::/10",
    )
)


class HttpFailure(ToolFailure):
    """A request that brought no usable answer.  ``status`` is the HTTP status, if there was one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class _AddressRefused(OSError):
    """Every address of a name is one that tools may not reach."""


def is_public_address(text: str, allowed: Sequence[_IPNetwork] = ()) -> bool:
    """Whether tools may connect to an IP address.

    Private, loopback, link-local, carrier-grade NAT, multicast, reserved and metadata addresses
    are refused, and so is an IPv6 address that stands for such an IPv4 one (mapped, compatible,
    NAT64, 6to4, Teredo).  ``allowed`` are networks that the operator opened.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if any(address.version == network.version and address in network for network in allowed):
        return True
    return all(_is_plainly_public(one) for one in (address, *_embedded(address)))


def _is_plainly_public(address: _IPAddress) -> bool:
    """Whether one address, taken as it is, is a public unicast one."""
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not any(address in network for network in _REFUSED if network.version == address.version)
    ) or address in _NAT64


def _embedded(address: _IPAddress) -> list[_IPAddress]:
    """The IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[_IPAddress] = [one for one in (address.ipv4_mapped, address.sixtofour) if one is not None]
    if address.teredo is not None:
        found.extend(address.teredo)
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64 or int(address) >> 32 == 0:
        found.append(last)
    return found


class _CheckedResolver(AbstractResolver):
    """Resolves names and drops every address that tools may not reach."""

    def __init__(self, inner: AbstractResolver, allowed: Sequence[_IPNetwork]) -> None:
        self._inner = inner
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of ``host`` that may be connected to; ``OSError`` if there are none."""
        found = await self._inner.resolve(host, port, family)
        kept = [one for one in found if is_public_address(one["host"], self._allowed)]
        if not kept:
            raise _AddressRefused(None, "no address of this host may be reached")
        return kept

    async def close(self) -> None:
        await self._inner.close()


class EgressPool:
    """The connections of all tools.  Make one in the event loop that uses it; close it at the end.

    Args:
        allowed_networks: address ranges opened beyond the public ones, such as ``127.0.0.0/8``.
        schemes: URL schemes that may be used.
        max_bytes: the largest response body.
        timeout_s: seconds for one ``get_json``, redirects and retries included.
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

    def client(self, hosts: Sequence[str]) -> "EgressClient":
        """A client that reaches ``hosts`` only: ``api.example.com``, ``*.example.com``, ``host:8443``.

        An entry without a port means the scheme's own.  ``*`` alone is every public host.
        """
        return EgressClient(self, tuple(host.lower() for host in hosts))

    def session(self) -> aiohttp.ClientSession:
        """The one session, made when first needed, inside the loop."""
        if self._session is None:
            inner = self._resolver or aiohttp.ThreadedResolver()
            connector = aiohttp.TCPConnector(
                resolver=_CheckedResolver(inner, self.allowed), limit=64, limit_per_host=16, ttl_dns_cache=10
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={
                    "User-Agent": self._user_agent,
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                },
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class EgressClient:
    """One tool's view of the pool.  Implements :class:`~proxy.tools.capabilities.HttpClient`."""

    def __init__(self, pool: EgressPool, hosts: tuple[str, ...]) -> None:
        self._pool = pool
        self._hosts = hosts

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """The JSON of a 2xx answer; raises :class:`HttpFailure` for anything else."""
        try:
            target = URL(url).update_query({key: str(value) for key, value in (params or {}).items()})
        except ValueError:
            raise HttpFailure("the address of the service is not valid") from None
        try:
            async with asyncio.timeout(self._pool.timeout_s):
                body = await self._get_with_retries(target)
        except TimeoutError:
            raise HttpFailure("the service took too long to answer") from None
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise HttpFailure("the service answered with something that is not JSON") from None

    async def _get_with_retries(self, url: URL) -> bytes:
        """One answer's body; 429 and 503 are tried again after a growing wait."""
        for attempt in range(self._pool.retries + 1):
            status, body, retry_after = await self._follow(url)
            if 200 <= status < 300:
                return body
            if status not in _RETRIED or attempt == self._pool.retries:
                break
            wanted = retry_after if retry_after is not None else 0.25 * 2.0**attempt
            if wanted > _MAX_WAIT_S:
                break  # A service that asks for longer than that gets no second call at all.
            await self._pool.sleep(wanted)
        raise HttpFailure(f"the service answered with status {status}", status=status)

    async def _follow(self, url: URL) -> tuple[int, bytes, float | None]:
        """One answer after at most three redirects on the same host, each checked like the first."""
        origin = url
        for _ in range(_MAX_REDIRECTS + 1):
            self._check(url)
            status, body, retry_after, location = await self._get(url)
            if status not in _REDIRECTS or location is None:
                return status, body, retry_after
            try:
                url = url.join(URL(location))
            except ValueError:
                break
            if (url.host, url.port) != (origin.host, origin.port) or url.scheme != origin.scheme:
                raise HttpFailure("the service sends its callers to another host, which is not followed")
        raise HttpFailure("the service redirects its callers too often")

    def _check(self, url: URL) -> None:
        """Refuse a URL that is not of this tool's hosts, or is an address tools may not reach."""
        host = (url.host or "").lower()
        if (
            url.scheme not in self._pool.schemes
            or not host
            or url.user is not None
            or url.password is not None
        ):
            raise HttpFailure("the address of the service is not one that may be called")
        name = host if url.is_default_port() else f"{host}:{url.port}"
        if not any(fnmatchcase(name, pattern) or pattern == "*" for pattern in self._hosts):
            raise HttpFailure("this tool may not call that host")
        if _is_literal(host) and not is_public_address(host, self._pool.allowed):
            raise HttpFailure("this tool may not call that address")

    async def _get(self, url: URL) -> tuple[int, bytes, float | None, str | None]:
        """One request: status, bounded body, ``Retry-After`` in seconds, ``Location``."""
        try:
            async with self._pool.session().get(url, allow_redirects=False) as response:
                location = response.headers.get("Location")
                retry_after = _seconds(response.headers.get("Retry-After"))
                body = b"" if response.status in _REDIRECTS else await self._read(response)
                return response.status, body, retry_after, location
        except _AddressRefused:
            raise HttpFailure("this tool may not call that address") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, _AddressRefused):
                raise HttpFailure("this tool may not call that address") from None
            raise HttpFailure("the service cannot be reached") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise HttpFailure("the service's answer did not arrive whole") from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, unless it is coded or larger than its bound."""
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise HttpFailure("the service answered in a coding that was not asked for")
        body = bytearray()
        async for chunk in response.content.iter_chunked(65536):
            body += chunk
            if len(body) > self._pool.max_bytes:
                response.close()
                raise HttpFailure("the service's answer is larger than is taken")
        return bytes(body)


def _is_literal(host: str) -> bool:
    """Whether a URL's host is an IP address in its canonical form; aiohttp refuses other forms."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _seconds(value: str | None) -> float | None:
    """``Retry-After`` given in seconds; its date form is ignored."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
