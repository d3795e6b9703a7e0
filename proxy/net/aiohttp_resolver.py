"""A :class:`~proxy.net.resolver.Resolver` for aiohttp's client, apart: a supervisor loads no aiohttp."""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from proxy.net.resolver import Resolver

__all__ = ["AiohttpResolver"]


class AiohttpResolver(AbstractResolver):
    """A :class:`Resolver` as aiohttp's client asks one."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of ``host`` of this family; raises ``OSError`` as :meth:`Resolver.resolve`."""
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
