"""An upstream of this process behind a socket: clients reach it as they reach a model provider."""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from proxy.base.errors import UpstreamError
from proxy.http.headers import Headers
from proxy.http.rules import HOP_BY_HOP, without
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.dialect import Dialect
from proxy.wires.registry.table import SERVED

MOST_REQUEST_BYTES: Final = 64 * 1024 * 1024
_NO_PATH: Final = (
    "no fixture can answer this path: begin it with /v1 for OpenAI and Anthropic, with /api for Ollama"
)


def provider_app(upstream: Upstream) -> web.Application:
    """Build an application that answers the paths of all dialects from one upstream.

    If a response breaks off, the connection ends before the end of its message.
    """
    app = web.Application(client_max_size=MOST_REQUEST_BYTES)
    app.router.add_route("*", "/{path:.*}", _answering(upstream))
    return app


def _answering(upstream: Upstream) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        below = SERVED.below(request.path)
        dialect = SERVED.find(request.method, below or "").dialect
        if below is None:
            return _error(dialect, 404, _NO_PATH)
        if (request.content_length or 0) > MOST_REQUEST_BYTES:
            return _error(dialect, 413, f"the request body is over {MOST_REQUEST_BYTES} bytes")
        headers: Headers = tuple(request.headers.items())
        asked = UpstreamRequest(
            request.method,
            below,
            request.query_string,
            headers,
            await request.read(),
            expect_stream=True,
            rooted=dialect.rooted,
        )
        try:
            response = await upstream.open(asked)
        except UpstreamError as error:
            return _error(dialect, 502, str(error))
        try:
            return await _send(request, response)
        finally:
            await response.aclose()

    return answer


async def _send(request: web.Request, response: UpstreamResponse) -> web.StreamResponse:
    sent = web.StreamResponse(status=response.status)
    for name, value in without(response.headers, *HOP_BY_HOP):
        sent.headers.add(name, value)
    await sent.prepare(request)
    try:
        async for piece in response.chunks():
            await sent.write(piece)
    except UpstreamError:
        if request.transport is not None:
            request.transport.abort()
        return sent
    except ConnectionError:  # The client has left.
        return sent
    await sent.write_eof()
    return sent


def _error(dialect: Dialect, status: int, message: str) -> web.Response:
    kind = dict(dialect.errors.types).get(status, "invalid_request_error")
    return web.json_response(dialect.errors.body(message, type=kind, code=None), status=status)
