"""An upstream of recorded exchanges behind a real socket."""

from aiohttp import web

from proxy.base.errors import UpstreamError
from proxy.upstreams.base import Upstream, UpstreamRequest
from proxy.wires.openai.dialect import OPENAI
from proxy.wires.registry.table import SERVED


def serve_replay(upstream: Upstream, prefix: str = "/v1") -> web.Application:
    """Build an application with one route that gives the same answers over a real socket.

    ``prefix`` precedes the upstream's paths, except those of a dialect with whole paths of its own (Ollama's
    ``/api/chat``). If a response breaks off, the connection ends before the end of its message.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        rooted = SERVED.find(request.method, request.path).dialect.rooted
        if not rooted and not request.path.startswith(prefix + "/"):
            return web.json_response(
                OPENAI.errors.body("no such path", type="invalid_request_error"), status=404
            )
        response = await upstream.open(
            UpstreamRequest(
                request.method,
                request.path.removeprefix(prefix),
                request.query_string,
                tuple(request.headers.items()),
                await request.read(),
            )
        )
        try:
            sent = web.StreamResponse(status=response.status)
            for name, value in response.headers:
                sent.headers.add(name, value)
            await sent.prepare(request)
            try:
                async for piece in response.chunks():
                    await sent.write(piece)
            except UpstreamError:
                if request.transport is not None:
                    request.transport.abort()
                return sent
            await sent.write_eof()
            return sent
        finally:
            await response.aclose()

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", answer)
    return app
