"""Request bodies: read whole under a bound, or streamed under a bound."""

from collections.abc import AsyncIterator

from aiohttp import web

from proxy.errors import RequestError

__all__ = ["read_body", "stream_body"]


def _check(request: web.Request, limit: int) -> None:
    coding = request.headers.get("Content-Encoding", "identity").lower()
    if coding not in ("", "identity"):
        raise RequestError(415, "Request bodies must not be compressed.", code="unsupported_content_encoding")
    if (request.content_length or 0) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body.  Raises :class:`RequestError` (413, 415) before reading what it must not."""
    _check(request, limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
    return b"".join(pieces)


def stream_body(request: web.Request, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives.  Raises :class:`RequestError` at once for what must not be read.

    A bound that turns out to be passed only while reading breaks the upload off.
    """
    _check(request, limit)
    return _pieces(request, limit)


async def _pieces(request: web.Request, limit: int) -> AsyncIterator[bytes]:
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        yield piece
