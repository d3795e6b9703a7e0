"""Resolve host names for tools and drop every address that tools may not reach."""

import ipaddress
import socket
from collections.abc import Sequence

from aiohttp.abc import AbstractResolver, ResolveResult

from proxy.net.public_addresses import is_public_address

_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRefused(OSError):
    """A host name has no address that tools may reach."""


class CheckedResolver(AbstractResolver):
    """A resolver that drops every address that tools may not reach."""

    def __init__(self, inner: AbstractResolver, allowed: Sequence[_IPNetwork]) -> None:
        self._inner = inner
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of ``host`` that tools may reach; raise ``OSError`` if there are none."""
        addresses = await self._inner.resolve(host, port, family)
        kept = [address for address in addresses if is_public_address(address["host"], self._allowed)]
        if not kept:
            raise AddressRefused(None, "no address of this host may be reached")
        return kept

    async def close(self) -> None:
        await self._inner.close()
