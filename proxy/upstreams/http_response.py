"""One HTTP response whose body is read, watched, decoded and scrubbed as it arrives."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, error_body
from proxy.upstreams.base import Headers
from proxy.upstreams.body_filters import REDACTED, Inflater, Scrubber
from proxy.upstreams.header_rules import clean_response_headers, first, media_type, without

__all__ = ["HttpResponse"]

_UNSCRUBBABLE = "the upstream's error body came in a coding that cannot be read here, and is withheld"


class HttpResponse:
    """An :class:`~proxy.upstreams.base.UpstreamResponse` over one aiohttp response."""

    def __init__(
        self,
        upstream: str,
        response: aiohttp.ClientResponse,
        idle_timeout_s: float,
        secrets: tuple[bytes, ...],
    ) -> None:
        """``secrets`` are taken out of headers, and out of the body where the status is an error."""
        self._upstream = upstream
        self._response = response
        self._idle_timeout_s = idle_timeout_s
        self._failure: UpstreamError | None = None
        self._scrubber: Scrubber | None = None
        self._inflater: Inflater | None = None
        self._instead: bytes | None = None
        self._headers = self._prepare(clean_response_headers(response.raw_headers), secrets)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def headers(self) -> Headers:
        """End-to-end headers in order, saying what is true of the body that :meth:`chunks` gives."""
        return self._headers

    @property
    def content_type(self) -> str:
        """The media type in lower case without parameters."""
        return media_type(self._headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives; see :meth:`proxy.upstreams.base.UpstreamResponse.chunks`."""
        if self._instead is not None:
            await self.aclose()
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
            self._response.close()
            raise
        if self._scrubber is not None and (rest := self._scrubber.finish()):
            yield rest

    async def read(self, limit: int) -> bytes:
        """The whole body; raises :class:`~proxy.errors.UpstreamBroken` past ``limit`` bytes."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self.chunks():
            size += len(piece)
            if size > limit:
                await self.aclose()
                raise UpstreamBroken(f"upstream {self._upstream!r} sent a body of over {limit} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Let go of the response, and of its connection where the body was not read to its end."""
        self._response.close()

    def _prepare(self, headers: list[tuple[str, str]], secrets: tuple[bytes, ...]) -> list[tuple[str, str]]:
        """Choose what is done to the body; the headers that fit what will come out of it."""
        headers = [(name, _scrubbed(value, secrets)) for name, value in headers]
        must_scrub = self._response.status >= 400 and bool(secrets)
        coding = _sole_coding(headers)
        if coding and (must_scrub or media_type(headers) == "text/event-stream"):
            if coding in Inflater.CODINGS:
                self._inflater = Inflater(coding)
                headers = without(headers, "content-encoding", "content-length")
            elif must_scrub:
                self._instead = _error_json(_UNSCRUBBABLE)
                headers = without(headers, "content-encoding", "content-length", "content-type")
                return [*headers, ("Content-Type", "application/json")]
        if must_scrub:
            self._scrubber = Scrubber(secrets)
            headers = without(headers, "content-length")
        return headers

    def _scrub(self, piece: bytes) -> bytes:
        return piece if self._scrubber is None else self._scrubber.feed(piece)

    def _decoded(self, raw: bytes) -> Iterable[bytes]:
        return (raw,) if self._inflater is None else self._inflater.feed(raw)

    async def _next(self) -> bytes:
        """What arrived next, ``b""`` at the end of the message.

        What came before a failure is given first, the failure raised on the next call.
        """
        if self._failure is not None:
            raise self._failure
        content = self._response.content
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                return await content.readany()
        except TimeoutError:
            self._response.close()
            self._failure = UpstreamTimeout(
                f"upstream {self._upstream!r} sent nothing for {self._idle_timeout_s:g} s"
            )
            raise self._failure from None
        # RuntimeError is aiohttp's word for reading on after the connection was closed.
        except (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError) as exc:
            arrived = _left_over(content)
            self._response.close()
            self._failure = UpstreamBroken(f"upstream {self._upstream!r} broke off its response")
            if arrived:
                return arrived
            raise self._failure from exc


def _left_over(content: StreamReader) -> bytes:
    """What arrived before the failure and was not read yet.

    aiohttp refuses to hand it out once an exception is set, through every public method.
    """
    return content._read_nowait(-1) if getattr(content, "_buffer", None) else b""


def _sole_coding(headers: Headers) -> str:
    """The body's content coding in lower case, "" where there is none; several count as one unknown."""
    return first(headers, "content-encoding").strip().lower().removeprefix("identity")


def _scrubbed(value: str, secrets: tuple[bytes, ...]) -> str:
    raw = value.encode()
    if not any(secret in raw for secret in secrets):
        return value
    for secret in secrets:
        raw = raw.replace(secret, REDACTED)
    return raw.decode("utf-8", "replace")


def _error_json(message: str) -> bytes:
    return orjson.dumps(error_body(message, type="upstream_error", code="upstream_error"))
