"""A response of which the first bytes have been looked at, to see what it is where its label does not say."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, cast

from proxy.upstreams.base import PulledResponse, UpstreamResponse, read_whole

__all__ = ["Begun", "begins_stream"]

_MOST_LOOKED_AT: Final = 64 * 1024
"""Bytes of blanks before the first word of a response."""

_FIELD = re.compile(rb"(?:data|event|id|retry)?[ \t]*:")
_BEGUN_FIELD = re.compile(rb"d(?:a(?:ta?)?)?|e(?:v(?:e(?:nt?)?)?)?|id?|r(?:e(?:t(?:ry?)?)?)?")
_BEFORE = b" \t\r\n\xef\xbb\xbf"


def begins_stream(data: bytes) -> bool | None:
    """Whether these first bytes of a body begin an event stream; ``None`` while that is open.

    JSON may begin with blanks as well: some servers send them while they think.
    """
    word = data.lstrip(_BEFORE)
    if _FIELD.match(word):
        return True
    if not word or _BEGUN_FIELD.fullmatch(word.rstrip(b" \t")):
        return None
    return False


class Begun(PulledResponse):
    """A response that is looked at before it is read; what was seen comes first when it is."""

    def __init__(self, response: UpstreamResponse, upstream: str) -> None:
        """``upstream`` is its name."""
        self._response = response
        self._upstream = upstream
        self._seen: list[bytes] = []
        self._rest: AsyncIterator[bytes] | None = None
        self.status = response.status
        self.headers = response.headers
        self.content_type = response.content_type

    async def is_stream(self) -> bool:
        """Whether it begins as an event stream does; waits for the bytes that say so.

        Raises as :meth:`chunks` does.
        """
        self._rest = self._response.chunks()
        begun = b""
        async for piece in self._rest:
            self._seen.append(piece)
            begun += piece
            is_stream = begins_stream(begun)
            if is_stream is not None or len(begun) > _MOST_LOOKED_AT:
                return bool(is_stream)
        return False

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives; see :meth:`proxy.upstreams.base.UpstreamResponse.chunks`."""
        while self._seen:
            yield self._seen.pop(0)
        async for piece in self._rest or self._response.chunks():
            yield piece

    async def read(self, limit: int) -> bytes:
        """The whole body; raises :class:`~proxy.errors.UpstreamBroken` past ``limit`` bytes."""
        return await read_whole(self, self._upstream, limit)

    async def aclose(self) -> None:
        """Let go of the response."""
        rest, self._rest = self._rest, None
        await self._response.aclose()
        if rest is not None:
            await cast("AsyncGenerator[bytes, None]", rest).aclose()
