"""HTTP sessions for tools, which reach no address that tools may not reach."""

import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct
from yarl import URL

from proxy.net.authorities import is_unknown_authority
from proxy.net.keepalive import watch_peer
from proxy.net.outgoing import NO_PROXIES, HttpProxy, ProxyRules
from proxy.net.public_addresses import is_inner_name, is_literal, is_public_address

_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRefused(OSError):
    """A host name has no address that tools may reach."""


class NameNotResolved(OSError):
    """A host name that must be checked before a proxy hears it cannot be resolved here."""


class CheckedResolver(AbstractResolver):
    """A resolver that drops every address that tools may not reach."""

    def __init__(
        self, inner: AbstractResolver, allowed: Sequence[_IPNetwork], *, wholly: bool = False
    ) -> None:
        """With ``wholly`` one forbidden address refuses a host, since somebody else chooses among them."""
        self._wholly = wholly
        self._inner = inner
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of ``host`` that tools may reach; raise ``OSError`` if there are none."""
        addresses = await self._inner.resolve(host, port, family)
        kept = [address for address in addresses if is_public_address(address["host"], self._allowed)]
        if not kept or (self._wholly and len(kept) < len(addresses)):
            raise AddressRefused(None, "no address of this host may be reached")
        return kept

    async def close(self) -> None:
        await self._inner.close()


def _watched_socket(info: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(*info[:3])
    watch_peer(sock)
    return sock


class WayOut(Struct, frozen=True):
    """How requests leave this network.

    ``proxies`` are the forward proxies on the way. With ``proxy_resolves`` they alone resolve host names,
    because this machine cannot; then nothing here checks to which addresses a name leads. ``tls`` is the
    context for https; ``None`` for that of the system.
    """

    proxies: ProxyRules = NO_PROXIES
    proxy_resolves: bool = False
    tls: ssl.SSLContext | None = None


DIRECTLY: Final = WayOut()


class CheckedSessions:
    """The sessions of one pool: one for direct requests, and one for those through forward proxies."""

    def __init__(
        self,
        resolver: AbstractResolver | None,
        allowed: Sequence[_IPNetwork],
        user_agent: str,
        way: WayOut,
    ) -> None:
        """The arguments are those of :class:`~proxy.tools.access.egress.EgressPool`."""
        self._resolver = resolver
        self._allowed = allowed
        self._user_agent = user_agent
        self._way = way
        self._session: aiohttp.ClientSession | None = None
        self._proxied: aiohttp.ClientSession | None = None

    async def way_to(self, url: URL) -> tuple[aiohttp.ClientSession, HttpProxy | None]:
        """Return the session for a request, and the proxy that it goes through.

        The session for proxies connects to them only, so it may use any address. The host's own addresses
        are checked here, before the proxy hears its name. Raises :class:`AddressRefused`, or
        :class:`NameNotResolved`.
        """
        host, port = url.host or "", url.port or 443
        proxy = self._way.proxies.proxy_for(url.scheme, host, port)
        inner = self._resolver or aiohttp.ThreadedResolver()
        if proxy is None:
            if self._session is None:
                self._session = self._opened(CheckedResolver(inner, self._allowed))
            return self._session, None
        if self._way.proxy_resolves:
            if is_inner_name(host):
                raise AddressRefused(None, "this name leads into a private network")
        elif not is_literal(host):
            try:
                await CheckedResolver(inner, self._allowed, wholly=True).resolve(host, port)
            except AddressRefused:
                raise
            except OSError as error:
                raise NameNotResolved from error
        if self._proxied is None:
            self._proxied = self._opened(inner)
        return self._proxied, proxy

    def _opened(self, resolver: AbstractResolver) -> aiohttp.ClientSession:
        """Open a session, inside the event loop."""
        connector = aiohttp.TCPConnector(
            resolver=resolver,
            limit=64,
            limit_per_host=16,
            ttl_dns_cache=10,
            socket_factory=_watched_socket,
            ssl=self._way.tls or True,
        )
        return aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def leads_inside(self, url: URL) -> bool:
        """Return whether a URL's host has IP addresses and none of them is public."""
        host = url.host or ""
        if is_literal(host):
            return not is_public_address(host)
        inner = self._resolver or aiohttp.ThreadedResolver()
        try:
            addresses = await inner.resolve(host, url.port or 443)
        except OSError:
            return False
        return bool(addresses) and not any(is_public_address(address["host"]) for address in addresses)

    async def aclose(self) -> None:
        """Close all connections."""
        opened = (self._session, self._proxied)
        self._session = self._proxied = None
        for session in opened:
            if session is not None:
                await session.close()


def proxy_headers(proxy: HttpProxy | None) -> Mapping[str, str]:
    """Return the headers that are for a proxy alone."""
    if proxy is None or not proxy.credentials:
        return {}
    return {"Proxy-Authorization": f"Basic {proxy.credentials}"}


def named(proxy: HttpProxy | None) -> str:
    """Return words for a proxy that name its setting."""
    return "the proxy" if proxy is None else f"the proxy of {proxy.setting}"


def proxy_refusal(proxy: HttpProxy | None, status: int) -> str:
    """Return why a proxy refused a request; its status is not the service's."""
    what = "wants another user name and password" if status == 407 else "does not connect to this host"
    return f"{named(proxy)} {what} (status {status})"


def untrusted(error: Exception) -> str:
    """Return why a service's certificate is not trusted."""
    hint = "; network.ca_file can name the authority that signed it" if is_unknown_authority(error) else ""
    return f"the service's TLS certificate is not trusted{hint}"
