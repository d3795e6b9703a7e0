"""A :class:`~proxy.net.resolver.Resolver` for aiohttp's client.

It is a separate module, because a supervisor must not load aiohttp.
"""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from proxy.net.resolver import Resolver


class AiohttpResolver(AbstractResolver):
    """Adapts a :class:`Resolver` to the interface of aiohttp's client."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of ``host`` in this family; raise ``OSError`` as :meth:`Resolver.resolve`
        does."""
        return [
            ResolveResult(
                hostname=host,
                host=str(info[4][0]),
                port=port,
                family=info[0],
                proto=info[2],
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for info in await self._resolver.resolve(host, port)
            if family in (socket.AF_UNSPEC, info[0])
        ]

    async def close(self) -> None:
        """Do nothing: a look-up in progress ends by itself."""
