"""A response whose first bytes are examined, because its content type may not say what it is."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, cast

from proxy.upstreams.base import PulledResponse, UpstreamResponse, read_whole
from proxy.wires.dialect import Framing

_MOST_LOOKED_AT: Final = 64 * 1024
"""The most bytes of a response that are examined."""


class SniffedResponse(PulledResponse):
    """A response that can be examined before it is read; reading begins with the examined bytes."""

    def __init__(self, response: UpstreamResponse, upstream: str) -> None:
        """``upstream`` is the upstream's name."""
        self._response = response
        self._upstream = upstream
        self._seen: list[bytes] = []
        self._rest: AsyncIterator[bytes] | None = None
        self.status = response.status
        self.headers = response.headers
        self.content_type = response.content_type

    async def is_stream(self, framing: Framing) -> bool:
        """Return whether the body begins as a stream of a dialect does; wait for enough bytes to tell.

        Raise what :meth:`chunks` raises.
        """
        self._rest = self._response.chunks()
        begun = b""
        async for piece in self._rest:
            self._seen.append(piece)
            begun += piece
            is_stream = framing.begins(begun)
            if is_stream is not None or len(begun) > _MOST_LOOKED_AT:
                return bool(is_stream)
        return False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; see :meth:`proxy.upstreams.base.UpstreamResponse.chunks`."""
        while self._seen:
            yield self._seen.pop(0)
        async for piece in self._rest or self._response.chunks():
            yield piece

    async def read(self, limit: int) -> bytes:
        """Return the whole body; raise :class:`~proxy.base.errors.UpstreamBroken` past ``limit`` bytes."""
        return await read_whole(self, self._upstream, limit)

    async def aclose(self) -> None:
        """Close the response."""
        rest, self._rest = self._rest, None
        await self._response.aclose()
        if rest is not None:
            await cast("AsyncGenerator[bytes, None]", rest).aclose()
