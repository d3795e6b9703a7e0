"""A proxy before ``/mcp`` that renames tools, because the conformance suite knows no provider names.

A tool's id begins with its provider: the suite calls ``test_simple_text``, and our tool is
``suite_tools__test_simple_text``. The rest of a request or an answer stays unchanged.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from in_process import serving_app

HEADERS = ("accept", "content-type", "mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name")


@asynccontextmanager
async def renaming(url: str, prefix: str, names: frozenset[str]) -> AsyncIterator[str]:
    """Yield an address at which the tools ``names`` of the server at ``url`` have no ``prefix``."""

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
        body = await request.text()
        for name in names:
            body = body.replace(f'"name":"{name}"', f'"name":"{prefix}{name}"')
        async with session.request(request.method, url, data=body.encode(), headers=headers) as answer:
            text = (await answer.text()).replace(f'"{prefix}', '"')
            kept = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
            return web.Response(body=text.encode(), status=answer.status, headers=kept)

    app = web.Application()
    app.router.add_route("*", "/mcp", forward)
    async with aiohttp.ClientSession() as session, serving_app(app) as address:
        yield f"{address}/mcp"
