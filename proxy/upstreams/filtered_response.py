"""A response whose body is decoded and scrubbed as it arrives, whatever HTTP client brings it."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable

import orjson

from proxy.errors import UpstreamError
from proxy.http.bodies import Inflater, Scrubber
from proxy.http.headers import Headers, described
from proxy.http.rules import without
from proxy.upstreams.base import PulledResponse, read_whole
from proxy.wires.dialects.openai import OPENAI
from proxy.wires.dialects.table import STREAM_TYPES

__all__ = ["FilteredResponse"]

_UNSCRUBBABLE = "the upstream's error body came in a coding that cannot be read here, and is withheld"


class FilteredResponse(PulledResponse):
    """An :class:`~proxy.upstreams.base.UpstreamResponse` less the connection it comes over.

    ``headers`` say what is true of the body that :meth:`chunks` gives; ``content_type`` is the media type
    in lower case without parameters.  A subclass brings the raw body (:meth:`_next`) and lets go of the
    connection (:meth:`_close`); it may push the body itself while that ``is_raw``, given as it comes.
    """

    def __init__(
        self, upstream: str, status: int, headers: Headers, secrets: tuple[bytes, ...], *, decode: bool
    ) -> None:
        """``headers`` are clean; ``secrets`` are taken out of the body where the status is an error.

        ``decode`` says that somebody here has to read the body, whatever it is.
        """
        self._upstream = upstream
        self._scrubber: Scrubber | None = None
        self._inflater: Inflater | None = None
        self._instead: bytes | None = None
        self.is_raw = True
        self.status = status
        self.headers: Headers = headers
        self.content_type, coding = described(headers)
        if coding or status >= 400:
            self._prepare(headers, coding, secrets, decode or self.content_type in STREAM_TYPES)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives; see :meth:`proxy.upstreams.base.UpstreamResponse.chunks`."""
        if self._instead is not None:
            self._close()
            yield self._instead
            return
        try:
            while raw := await self._next():
                for piece in self._decoded(raw):
                    if piece := self._scrub(piece):
                        yield piece
                    if self._inflater is not None:
                        # One read can decode to a great deal; others are served in between.
                        await asyncio.sleep(0)
            if self._inflater is not None:
                self._inflater.finish()
        except UpstreamError:
            self._close()
            raise
        if self._scrubber is not None and (rest := self._scrubber.finish()):
            yield rest

    async def read(self, limit: int) -> bytes:
        """The whole body; raises :class:`~proxy.errors.UpstreamBroken` past ``limit`` bytes."""
        return await read_whole(self, self._upstream, limit)

    async def aclose(self) -> None:
        """Let go of the response, and of its connection where the body was not read to its end."""
        self._close()

    @abstractmethod
    async def _next(self) -> bytes:
        """What arrived next, ``b""`` at the end of the message; raises as :meth:`chunks` does."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the connection.  May be called again."""

    def _prepare(self, headers: Headers, coding: str, secrets: tuple[bytes, ...], decode: bool) -> None:
        """Choose what is done to the body, and the headers that fit what will come out of it."""
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

    def _scrub(self, piece: bytes) -> bytes:
        return piece if self._scrubber is None else self._scrubber.feed(piece)

    def _decoded(self, raw: bytes) -> Iterable[bytes]:
        return (raw,) if self._inflater is None else self._inflater.feed(raw)


def _error_json(message: str) -> bytes:
    return orjson.dumps(OPENAI.errors.body(message, type="upstream_error", code="upstream_error"))
