"""What an upstream is: something that takes one HTTP-shaped request and streams one response."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from typing import NamedTuple, Protocol

from proxy.errors import UpstreamBroken
from proxy.http.headers import Headers
from proxy.http.secrets import Sink
from proxy.in_thread import LARGE_BYTES, in_thread

__all__ = [
    "PulledResponse",
    "Upstream",
    "UpstreamRequest",
    "UpstreamResponse",
    "read_whole",
]


class UpstreamRequest(NamedTuple):
    """One request to a provider.

    ``path`` is below the upstream's base URL and starts with a slash (``/chat/completions``);
    ``query`` is the raw query string without its ``?``.  Both are already normalised and are sent
    as they stand.  ``headers`` are the client's that may be forwarded; the upstream adds its own
    key and configured headers.  ``body`` given as bytes can be sent again after a connection
    failure, an iterator cannot.  ``expect_stream`` asks for a body that can be read here: without a
    coding, and gzip or deflate are taken off where it comes in one all the same.  A ``rooted`` path is not
    below the base URL, but where that URL begins without its version (``/v1``).
    """

    method: str
    path: str
    query: str = ""
    headers: Headers = ()
    body: bytes | AsyncIterator[bytes] | None = None
    expect_stream: bool = False
    rooted: bool = False


class UpstreamResponse(Protocol):
    """One response whose body has not been read yet."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers:
        """End-to-end headers in order; hop-by-hop ones and cookies are gone.

        ``Content-Length`` and ``Content-Encoding`` are there only where they are true of what
        :meth:`chunks` gives.
        """
        ...

    @property
    def content_type(self) -> str:
        """The media type in lower case without parameters; empty where there is none."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, every piece as soon as it is there, never an empty one.

        Ends only where the message was complete by its HTTP framing.  Raises
        :class:`~proxy.errors.UpstreamBroken` where it was not and
        :class:`~proxy.errors.UpstreamTimeout` where the next piece took too long.
        """
        ...

    def push(self, sink: Sink) -> Awaitable[None] | None:
        """Give the body to ``sink``: what is here at once, the rest as it arrives, where it can be
        within the read that brings it.

        What it returns is to be awaited for the rest; ``None``: the whole body was here.  Both end and
        raise as :meth:`chunks` does, and raise what ``sink`` does.
        """
        ...

    async def read(self, limit: int) -> bytes:
        """The whole body; raises :class:`~proxy.errors.UpstreamBroken` past ``limit`` bytes.

        Whatever keeps it from being read whole, a cancellation too, lets go of the response.
        """
        ...

    async def aclose(self) -> None:
        """Let go of the response; one not read to its end has its connection closed. Idempotent."""
        ...


class PulledResponse(ABC):
    """The part of an :class:`UpstreamResponse` that cannot push: its chunks are handed over."""

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]: ...

    def push(self, sink: Sink) -> Awaitable[None] | None:
        return self._hand_over(sink)

    async def _hand_over(self, sink: Sink) -> None:
        async for piece in self.chunks():
            if (wait := sink(piece)) is not None:
                await wait


async def read_whole(response: UpstreamResponse, upstream: str, limit: int) -> bytes:
    """A whole body; raises :class:`~proxy.errors.UpstreamBroken` past ``limit`` bytes.

    Where it raises, or is cancelled, the response is let go of: nobody else may have it yet.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in response.chunks():
            size += len(piece)
            if size > limit:
                raise UpstreamBroken(f"upstream {upstream!r} sent a body of over {limit} bytes")
            pieces.append(piece)
    except BaseException:  # A reader that gives up, for whatever reason, holds no connection.
        await response.aclose()
        raise
    return await in_thread(b"".join, pieces) if size > LARGE_BYTES else b"".join(pieces)


class Upstream(Protocol):
    """A model provider, or something that stands in for one."""

    @property
    def name(self) -> str: ...

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send the request and return when the response's head is there.

        Connection failures, and a reused connection that died before any response byte, are
        retried inside where the body allows it.  An HTTP error status is a response, not an
        exception.  Raises :class:`~proxy.errors.UpstreamUnreachable`,
        :class:`~proxy.errors.UpstreamTimeout` or :class:`~proxy.errors.UpstreamBroken`.
        """
        ...

    async def aclose(self) -> None:
        """Close pooled connections."""
        ...
