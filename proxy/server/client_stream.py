"""A client's response over aiohttp."""

from aiohttp import web

from proxy.upstreams.base import Headers

__all__ = ["STARTED", "HttpClientStream"]

STARTED = web.RequestKey("response_started", bool)
"""Set on a request once its response's head has gone out."""


class HttpClientStream:
    """A :class:`~proxy.relay.base.ClientStream` that answers one request.

    ``headers`` go out with every response, whatever its status.
    """

    def __init__(self, request: web.Request, headers: Headers) -> None:
        self._request = request
        self._headers = headers
        self._response: web.StreamResponse | None = None

    @property
    def started(self) -> bool:
        return self._response is not None

    @property
    def response(self) -> web.StreamResponse:
        """What was sent, for the server to take note of."""
        if self._response is None:
            raise RuntimeError("nothing has been sent to the client")
        return self._response

    async def start(self, status: int, headers: Headers) -> None:
        response = web.StreamResponse(status=status)
        for name, value in (*headers, *self._headers):
            response.headers.add(name, value)
        self._response = response
        self._request[STARTED] = True
        await response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        await self.response.write(data)

    async def finish(self) -> None:
        await self.response.write_eof()

    def abort(self) -> None:
        if (transport := self._request.transport) is not None:
            transport.close()
