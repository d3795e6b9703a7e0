"""``/v1/toolrelay/tokens``: makes tokens that a client key gives to its own users."""

from typing import Final

from aiohttp import web

from proxy.api.context import Context
from proxy.base.errors import RequestError
from proxy.server.auth.authenticate import TOKENS_PATH, credential
from proxy.server.auth.minting import Minting
from proxy.server.messages.body import read_body

_MAX_BYTES: Final = 16 * 1024


class Tokens:
    """The handler that makes tokens; without ``minting`` it makes none. ``timeout_s`` is the time limit for
    the body."""

    def __init__(self, minting: Minting | None, timeout_s: float) -> None:
        self._minting = minting
        self._timeout_s = timeout_s

    async def answer(self, context: Context) -> web.StreamResponse:
        """Return a new token for one of the caller's own users; raise RequestError (404) for any other path
        below."""
        request, target = context.request, context.target
        if self._minting is None or (request.method, target.below) != ("POST", TOKENS_PATH):
            raise RequestError(404, f"There is no endpoint at {target.path[:100]}.", code="not_found")
        body = await read_body(request, _MAX_BYTES, self._timeout_s)
        made = await self._minting.mint(credential(request, target.endpoint.dialect.credentials), body)
        return web.json_response(made, headers={"Cache-Control": "no-store"})
