"""A proxy that only forwards, with aiohttp on both sides: ``python -m bench.passthrough PORT UPSTREAM``."""

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

_HOP = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)


def make_app(upstream: str) -> web.Application:
    """Build an application that sends each request on to ``upstream`` and streams the response back."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )

    async def handle(request: web.Request) -> web.StreamResponse:
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _HOP]
        body = await request.read()
        async with session.request(
            request.method, upstream + request.path_qs, data=body or None, headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP:
                    response.headers.add(name, value)
            response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def close(_: web.Application) -> None:
        await session.close()

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{tail:.*}", handle)
    app.on_cleanup.append(close)
    return app


async def main(port: int, upstream: str) -> None:
    """Serve until killed."""
    runner = web.AppRunner(make_app(upstream), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
