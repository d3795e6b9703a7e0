"""The interface of upstreams: an upstream takes one HTTP-shaped request and streams one response."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from typing import NamedTuple, Protocol

from proxy.base.errors import UpstreamBroken
from proxy.http.headers import Headers
from proxy.http.secrets import Sink
from proxy.json.in_thread import LARGE_BYTES, in_thread


class UpstreamRequest(NamedTuple):
    """One request to a provider.

    ``path`` is below the upstream's base URL and starts with a slash (``/chat/completions``). If ``rooted``,
    it is not below the base URL, but below that URL without its version (``/v1``). ``query`` is the raw
    query string without its ``?``. Both are normalised already and are sent unchanged. ``headers`` are the
    client's headers that may be forwarded; the upstream adds its own key and its configured headers. After a
    connection failure, a ``body`` of bytes can be sent again, an iterator cannot. ``expect_stream`` asks for
    a body that the proxy can read: without a content coding. If gzip or deflate comes nevertheless, the
    upstream decodes it.
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
        """The end-to-end headers in order, without hop-by-hop headers and cookies.

        ``Content-Length`` and ``Content-Encoding`` are there only if they are true of what :meth:`chunks`
        yields.
        """

    @property
    def content_type(self) -> str:
        """The media type in lower case without parameters; empty if there is none."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, each piece at once and none empty.

        The iterator ends only if the message was complete by its HTTP framing. Raises
        :class:`UpstreamBroken` if it was not, and :class:`UpstreamTimeout` if the
        next piece took too long.
        """

    def push(self, sink: Sink) -> Awaitable[None] | None:
        """Give the body to ``sink``: what has arrived at once, and the rest as it arrives.

        If possible, ``sink`` gets a piece within the read that brings it. The caller must await the returned
        object for the rest; ``None`` means that ``sink`` has the whole body. Both end and raise as
        :meth:`chunks` does, and raise what ``sink`` raises.
        """

    async def read(self, limit: int) -> bytes:
        """Return the whole body; raise :class:`UpstreamBroken` if it has more than ``limit``
        bytes.

        If the body cannot be read whole, or the call is cancelled, the response is released.
        """

    async def aclose(self) -> None:
        """Release the response. If it was not read to its end, its connection is closed. Idempotent."""


class PulledResponse(ABC):
    """The base of an :class:`UpstreamResponse` that cannot push: it gives each of its chunks to the sink."""

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]: ...

    def push(self, sink: Sink) -> Awaitable[None] | None:
        return self._hand_over(sink)

    async def _hand_over(self, sink: Sink) -> None:
        async for piece in self.chunks():
            if (wait := sink(piece)) is not None:
                await wait


async def read_whole(response: UpstreamResponse, upstream: str, limit: int) -> bytes:
    """Return the whole body; raise :class:`UpstreamBroken` if it has more than ``limit`` bytes.

    If this raises or is cancelled, the response is closed, because no one else holds it yet.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in response.chunks():
            size += len(piece)
            if size > limit:
                raise UpstreamBroken(f"upstream {upstream!r} sent a body of over {limit} bytes")
            pieces.append(piece)
    except BaseException:  # In no case may a reader that gives up keep the connection.
        await response.aclose()
        raise
    return await in_thread(b"".join, pieces) if size > LARGE_BYTES else b"".join(pieces)


class Upstream(Protocol):
    """A model provider, or something that stands in for one."""

    @property
    def name(self) -> str: ...

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send the request, and return when the response's head has arrived.

        The upstream itself retries after a connection failure, and after a reused connection died before any
        byte of the response, if the body allows it. An HTTP error status is a response, not an exception.
        Raises :class:`~proxy.base.errors.UpstreamUnreachable`, :class:`~proxy.base.errors.UpstreamTimeout` or
        :class:`~proxy.base.errors.UpstreamBroken`.
        """

    async def aclose(self) -> None:
        """Close pooled connections."""
