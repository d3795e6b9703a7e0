"""Requests that may change an upstream for all its users. Only keys that name the path may send them."""

from aiohttp import web

from proxy.api.context import Context
from proxy.api.pipeline import EndpointHandler
from proxy.base.errors import RequestError
from proxy.base.globs import fits


class Managed:
    """The handler of paths that pull, create, copy or delete models, and of paths that no dialect knows."""

    def __init__(self, passthrough: EndpointHandler) -> None:
        self._passthrough = passthrough

    async def answer(self, context: Context) -> web.StreamResponse:
        """Refuse or forward the request; see :class:`~proxy.api.pipeline.EndpointHandler`.

        Raises :class:`~proxy.base.errors.RequestError` (403), also for callers that need no key.
        """
        below, rights = context.target.below or "", context.caller.rights
        if not any(fits(below, pattern) for pattern in rights.endpoints):
            raise RequestError(
                403,
                f"{context.request.method} {context.target.shown} may change the upstream for everybody, "
                "so the proxy allows it only with a client key. Create a key whose endpoints include "
                "this path, and send it.",
                code="endpoint_not_allowed",
            )
        return await self._passthrough.answer(context)
