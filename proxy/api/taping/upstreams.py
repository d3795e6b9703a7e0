"""Record requests to upstreams, and their responses, on the tape of the run that sends them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from proxy.api.taping.tape import Leg, RunTape
from proxy.base.errors import UpstreamError
from proxy.http.secrets import Sink
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse


class TapedUpstream:
    """An upstream that records its traffic while any run is recorded, and is called directly otherwise.

    ``current`` returns the tape of the current run, or ``None``.
    """

    def __init__(self, inner: Upstream, current: Callable[[], RunTape | None]) -> None:
        self.name = inner.name
        self._inner = inner
        self._current = current
        self.open: Callable[[UpstreamRequest], Any] = inner.open

    def listen(self, on: bool) -> None:
        """Record the requests of recorded runs (``on``), or call the upstream directly."""
        self.open = self._open if on else self._inner.open

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _open(self, request: UpstreamRequest) -> UpstreamResponse:
        tape = self._current()
        if tape is None:
            return await self._inner.open(request)
        number = tape.asked(self.name, request.path, request.body)
        try:
            response = await self._inner.open(request)
        except UpstreamError as error:
            tape.failed(number, error.code, error.message)
            raise
        return _TapedResponse(response, tape, tape.answered(number, response.status, response.content_type))


class _TapedResponse:
    """A response that records its pieces as they arrive."""

    def __init__(self, inner: UpstreamResponse, tape: RunTape, leg: Leg) -> None:
        self._inner = inner
        self._tape = tape
        self._leg = leg
        self.status = inner.status
        self.headers = inner.headers
        self.content_type = inner.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        with self._broken():
            async for piece in self._inner.chunks():
                self._tape.record(self._leg, piece)
                yield piece

    def push(self, sink: Sink) -> Awaitable[None] | None:
        with self._broken():
            rest = self._inner.push(self._tape.recording_sink(self._leg, sink))
        return None if rest is None else self._rest(rest)

    async def _rest(self, rest: Awaitable[None]) -> None:
        with self._broken():
            await rest

    async def read(self, limit: int) -> bytes:
        with self._broken():
            whole = await self._inner.read(limit)
        self._tape.record(self._leg, whole)
        return whole

    @contextmanager
    def _broken(self) -> Iterator[None]:
        """Record the error if the upstream breaks off."""
        try:
            yield
        except UpstreamError as error:
            self._leg.error = (error.code, error.message)
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()
