"""A response whose body is decoded and scrubbed as it arrives, for any HTTP client."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator

import orjson

from proxy.base.errors import UpstreamError
from proxy.http.bodies import Inflater, Scrubber
from proxy.http.headers import Headers, media_type_and_coding
from proxy.http.rules import without
from proxy.upstreams.base import PulledResponse, read_whole
from proxy.wires.openai.dialect import OPENAI
from proxy.wires.registry.table import STREAM_TYPES

_UNSCRUBBABLE = "the upstream's error body came in a coding that cannot be read here, and is withheld"


class FilteredResponse(PulledResponse):
    """An :class:`~proxy.upstreams.base.UpstreamResponse` without its connection.

    ``headers`` are true of the body that :meth:`chunks` yields. ``content_type`` is the media type in lower
    case without parameters. A subclass reads the raw body (:meth:`_next`) and releases the connection
    (:meth:`_close`). If ``is_raw``, the body passes unchanged, and the subclass may push it itself.
    """

    def __init__(
        self, upstream: str, status: int, headers: Headers, secrets: tuple[bytes, ...], *, decode: bool
    ) -> None:
        """``headers`` are clean. ``secrets`` are removed from the body of an error status.

        ``decode`` says that the proxy must read the body, whatever its type is.
        """
        self._upstream = upstream
        self._scrubber: Scrubber | None = None
        self._inflater: Inflater | None = None
        self._instead: bytes | None = None
        self.is_raw = True
        self.status = status
        self.headers: Headers = headers
        self.content_type, coding = media_type_and_coding(headers)
        if coding or status >= 400:
            self._prepare(headers, coding, secrets, decode or self.content_type in STREAM_TYPES)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; see :meth:`proxy.upstreams.base.UpstreamResponse.chunks`."""
        if self._instead is not None:
            self._close()
            yield self._instead
            return
        try:
            while raw := await self._next():
                for piece in (raw,) if self._inflater is None else self._inflater.feed(raw):
                    if piece := (piece if self._scrubber is None else self._scrubber.feed(piece)):
                        yield piece
                    if self._inflater is not None:
                        # One read can decode to a lot of data, so other tasks get their turn.
                        await asyncio.sleep(0)
            if self._inflater is not None:
                self._inflater.finish()
        except UpstreamError:
            self._close()
            raise
        if self._scrubber is not None and (rest := self._scrubber.finish()):
            yield rest

    async def read(self, limit: int) -> bytes:
        """Return the whole body; raise :class:`~proxy.base.errors.UpstreamBroken` past ``limit`` bytes."""
        return await read_whole(self, self._upstream, limit)

    async def aclose(self) -> None:
        """Release the response, and close its connection if the body was not read to its end."""
        self._close()

    @abstractmethod
    async def _next(self) -> bytes:
        """Return the next bytes, ``b""`` at the end of the message; raise as :meth:`chunks` does."""

    @abstractmethod
    def _close(self) -> None:
        """Release the connection. Idempotent."""

    def _prepare(self, headers: Headers, coding: str, secrets: tuple[bytes, ...], decode: bool) -> None:
        """Choose the filters of the body, and adapt the headers to their output."""
        must_scrub = self.status >= 400 and bool(secrets)
        self.is_raw = not must_scrub
        if coding and (must_scrub or decode):
            if coding in Inflater.CODINGS:
                self._inflater = Inflater(coding)
                self.is_raw = False
                headers = without(headers, "content-encoding", "content-length")
            elif must_scrub:
                self._instead = _error_json(_UNSCRUBBABLE)
                headers = without(headers, "content-encoding", "content-length", "content-type")
                self.headers = [*headers, ("Content-Type", "application/json")]
                self.content_type = "application/json"
                return
        if must_scrub:
            self._scrubber = Scrubber(secrets)
            headers = without(headers, "content-length")
        self.headers = headers


def _error_json(message: str) -> bytes:
    return orjson.dumps(OPENAI.errors.body(message, type="upstream_error", code="upstream_error"))
