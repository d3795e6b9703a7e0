"""Send requests to the URLs in OAuth documents, which are untrusted.

A URL must be https, or plain http to ``localhost`` or an IP literal that is not public. A document's URL may
use the networks that the operator opened only if the URLs that the operator wrote lead there too. Otherwise
a public server could name a URL inside the operator's network.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from aiohttp.abc import AbstractResolver
from yarl import URL

from proxy.net.public_addresses import may_carry_secrets
from proxy.tools.access.addresses import DIRECTLY, WayOut
from proxy.tools.access.egress import AddressForbidden, EgressClient, EgressPool
from proxy.tools.access.hosts import host_entry
from proxy.tools.contract.capabilities import HttpFailure

MAX_DOCUMENT: Final = 256 << 10
"""The size limit in bytes of a document and of a token endpoint's response."""

_PATIENCE_S: Final = 10.0

T = TypeVar("T")

_PROBE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
"""A request without side effects; a server that requires a token refuses it."""

_PROBE_HEADERS: Final = {
    "Accept": "application/json, */*",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "server/discover",
}


class CheckedOAuthHttp:
    """:class:`~proxy.tools.oauth.port.OAuthHttp` for one connection.

    Args:
        pool: also reaches the networks that the operator opened.
        public: reaches only public IP addresses.
        written: the URLs that the operator wrote: of the server, of the issuer, or both.
        setting: the name of the setting that opens networks, for error messages.
    """

    def __init__(self, pool: EgressPool, public: EgressPool, written: Sequence[str], setting: str) -> None:
        self._pool = pool
        self._public = public
        self._written = [URL(address) for address in written]
        self._setting = setting
        self._is_inside: bool | None = None

    async def get_json(self, url: str) -> Any:
        return await self._ask(url, lambda client: client.get_json(url))

    async def post_json(self, url: str, body: Any) -> Any:
        return await self._ask(url, lambda client: client.post_json(url, body))

    async def post_form(self, url: str, fields: Mapping[str, str], authorization: str | None = None) -> Any:
        return await self._ask(url, lambda client: client.post_form(url, fields, authorization))

    async def challenge(self, url: str) -> str:
        return await self._ask(url, lambda client: client.challenge(url, _PROBE, _PROBE_HEADERS))

    async def _ask(self, url: str, work: Callable[[EgressClient], Awaitable[T]]) -> T:
        if not may_carry_secrets(url):
            raise HttpFailure("its address is not https")
        try:
            entry = host_entry(url)
        except ValueError:  # A host that starts as an international name does, and is none.
            raise HttpFailure("its address is not valid") from None
        pool = self._pool if await self._may_go_inside(url) else self._public
        try:
            return await work(pool.client((entry,)))
        except AddressForbidden:
            hint = f"; {self._setting} can open its network" if pool is self._pool else ""
            raise HttpFailure(f"its address is not public{hint}") from None

    async def _may_go_inside(self, url: str) -> bool:
        """Return whether this URL may use the networks that the operator opened."""
        if not self._pool.allowed:
            return False
        if URL(url).origin() in [address.origin() for address in self._written]:
            return True
        if self._is_inside is None:
            inside = [await self._pool.sessions.leads_inside(address) for address in self._written]
            self._is_inside = all(inside)
        return self._is_inside


class OAuthPools:
    """The HTTP pools for requests to authorization servers, for all connections of a process.

    Create it in the event loop that uses it; close it at the end.
    """

    def __init__(
        self,
        *,
        tools: Sequence[str] = (),
        servers: Sequence[str] = (),
        resolver: Callable[[], AbstractResolver] | None = None,
        tools_way: WayOut = DIRECTLY,
        servers_way: WayOut = DIRECTLY,
    ) -> None:
        """``tools`` are the networks that are open to tools (``tools.networks``), ``servers`` those that are
        open to MCP servers (``mcp.networks``). ``resolver`` returns the name resolver, by default the
        system's. ``tools_way`` and ``servers_way`` are the ways to the authorization servers of each."""
        self._tools = _pool(tools, resolver, tools_way)
        self._servers = _pool(servers, resolver, servers_way)
        self._public_of_tools = _pool((), resolver, tools_way)
        self._public_of_servers = _pool((), resolver, servers_way)

    def http(
        self, *, issuer: str = "", server_url: str = "", setting: str = "mcp.networks"
    ) -> CheckedOAuthHttp:
        """Return the HTTP client of one connection, given the URLs that the operator wrote.

        ``setting`` opens networks to servers, for messages.
        """
        written = [address for address in (server_url, issuer) if address]
        if server_url:
            return CheckedOAuthHttp(self._servers, self._public_of_servers, written, setting)
        return CheckedOAuthHttp(self._tools, self._public_of_tools, written, "tools.networks")

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in (self._tools, self._servers, self._public_of_tools, self._public_of_servers):
            await pool.aclose()


def _pool(
    networks: Sequence[str], resolver: Callable[[], AbstractResolver] | None, way: WayOut
) -> EgressPool:
    return EgressPool(
        allowed_networks=networks,
        schemes=("https", "http") if networks else ("https",),
        max_bytes=MAX_DOCUMENT,
        timeout_s=_PATIENCE_S,
        resolver=resolver() if resolver is not None else None,
        way=way,
    )
