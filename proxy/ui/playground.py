"""Answer ``/ui/api/play``: requests of the playground, served like those of a caller with few rights.

The page sends them with its session. They are served for the caller ``ui`` with the rights and limits of
``[ui]``, never with those of an administrator.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.rights.callers import Caller
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.telemetry.hooks import RequestFacts
from proxy.ui.surface import UiRequest

ServeAs = Callable[[EdgeRequest, RequestFacts, Target, Caller], Awaitable[web.StreamResponse]]
"""Serves a request for a target on behalf of a caller, with the full trace of its tool calls."""

ReadTarget = Callable[[str, str], Target]
_POSTED: Final = frozenset({"generate"})
_READ: Final = frozenset({"models"})


class Playground:
    """Serves requests as ``caller``, which has no end user. Without ``caller`` the playground is off.

    ``serve`` is set once the server that answers them exists.
    """

    def __init__(self, caller: Caller | None, read_target: ReadTarget) -> None:
        self._caller = caller
        self._read_target = read_target
        self.serve: ServeAs | None = None

    async def answer(self, request: UiRequest) -> web.StreamResponse:
        """Return the response, streamed like that of the API; raises as the API does, and 404 for other
        paths."""
        if self._caller is None or self.serve is None:
            raise RequestError(404, "The playground is off: ui.playground_models is empty.", code="not_found")
        method = request.method
        target = self._read_target(method, f"/{request.rest}")
        kinds = _POSTED if method == "POST" else _READ if method == "GET" else frozenset()
        if target.below is None or target.endpoint.kind not in kinds or request.target.query:
            raise request.unknown()
        # The record distinguishes the users; their names are not sent upstream.
        caller = replace(self._caller, end_user=request.session.user or request.session.name)
        return await self.serve(request.edge_request, request.facts, target, caller)
