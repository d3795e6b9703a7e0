"""``/ui/api/play``: requests of the playground, answered as the API answers a caller with few rights.

The page sends them with its session.  What is asked is then served as a request of the caller ``ui``, with
the rights and limits of ``[ui]``, and never with those of an administrator.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from aiohttp import web

from proxy.errors import RequestError
from proxy.server.callers import Caller
from proxy.server.serving.request import EdgeRequest
from proxy.server.serving.target import Target
from proxy.server.telemetry.hooks import RequestFacts
from proxy.server.ui.surface import UiRequest

__all__ = ["PLAYGROUND", "Playground", "ServeAs"]

PLAYGROUND: Final = "ui"
"""What the record calls the playground; behind a slash comes who sits there."""

ServeAs = Callable[[EdgeRequest, RequestFacts, Target, Caller], Awaitable[web.StreamResponse]]
"""Serves a request for a target as somebody's, with all that is shown of tools."""

ReadTarget = Callable[[str, str], Target]
_POSTED: Final = frozenset({"generate"})
_READ: Final = frozenset({"models"})


class Playground:
    """Serves requests as ``caller``, which has no end user.  Without ``caller`` there is no playground.

    ``serve`` is set once what serves is there.
    """

    def __init__(self, caller: Caller | None, read_target: ReadTarget) -> None:
        self._caller = caller
        self._read_target = read_target
        self.serve: ServeAs | None = None

    async def answer(self, asked: UiRequest) -> web.StreamResponse:
        """The answer, streamed as the API streams it; raises what the API raises, and 404 for other paths."""
        if self._caller is None or self.serve is None:
            raise RequestError(
                404, "There is no playground: ui.playground_models is empty.", code="not_found"
            )
        method = asked.method
        target = self._read_target(method, f"/{asked.rest}")
        kinds = _POSTED if method == "POST" else _READ if method == "GET" else frozenset()
        if target.below is None or target.endpoint.kind not in kinds or asked.target.query:
            raise asked.unknown()
        # The record tells people apart, and no name of an operator goes upstream.
        caller = replace(self._caller, end_user=asked.session.name)
        return await self.serve(asked.request, asked.facts, target, caller)
