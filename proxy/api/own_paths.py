"""Answers the proxy's own paths outside of the API: pages, probes, metrics, administration, UI."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from proxy.api.admin.admin import Admin
from proxy.api.connect import ConnectPages
from proxy.api.front_page import front_page, health, not_found_error
from proxy.api.reference.error_pages import ErrorPages
from proxy.server.auth.authenticate import Authenticator
from proxy.server.connections.draining import Draining
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.store.base import Store
from proxy.telemetry.hooks import RequestFacts
from proxy.telemetry.metrics import render


class Surface(Protocol):
    """A part that answers some paths itself: the web UI."""

    def serves(self, target: Target) -> bool:
        """Return whether it answers this path."""

    async def answer(self, request: EdgeRequest, facts: RequestFacts, target: Target) -> web.StreamResponse:
        """Return the response; raise :class:`~proxy.base.errors.RequestError` if the request is refused."""


class OwnPaths:
    """The handler of paths that are below no prefix of a dialect.

    Without a ``snapshot`` it serves no metrics, without ``ui`` no pages, without
    ``connect`` no logins of end users. ``needs_record`` says that the
    server is not ready while its record does not answer.
    """

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        draining: Draining,
        store: Store,
        snapshot: Callable[[], Awaitable[bytes]] | None,
        admin: Admin,
        ui: Surface | None = None,
        connect: ConnectPages | None = None,
        needs_record: bool = False,
    ) -> None:
        self._authenticator = authenticator
        self._draining = draining
        self._store = store
        self._snapshot = snapshot
        self._admin = admin
        self._ui = ui
        self._connect = connect
        self._needs_record = needs_record
        self._errors = ErrorPages()

    async def answer(self, request: EdgeRequest, facts: RequestFacts, target: Target) -> web.StreamResponse:
        """Return the response; raise :class:`RequestError` (404) if there is no such path."""
        if request.method in ("GET", "HEAD"):
            if target.path == "/":
                return front_page(request, has_ui=self._ui is not None)
            if self._errors.serves(target.path):
                return self._errors.answer(request, target.path)
            if target.path == "/healthz":
                return health("ok")
            if target.path == "/readyz":
                return await self._readiness()
            if target.path == "/metrics" and self._snapshot is not None:
                await self._authenticator.admit_scraper(request, target)
                text, kind = render(await self._snapshot(), request.headers.get("Accept", ""))
                return web.Response(body=text, headers={"Content-Type": kind})
        if f"{target.path}/".startswith("/admin/"):
            self._draining.check()
            return await self._admin.answer(request, facts, target)
        if self._connect is not None and self._connect.serves(target):
            self._draining.check()
            return await self._connect.answer(request, target)
        if self._ui is not None and self._ui.serves(target):
            self._draining.check()
            return await self._ui.answer(request, facts, target)
        raise not_found_error(request, target.path)

    async def _readiness(self) -> web.Response:
        """Say whether a load balancer should send requests here, and whether the record answers.

        Most requests are served without a record, which all servers may share. So a record that does not
        answer takes a server out of service only if the operator wants that.
        """
        if self._draining.leaving:
            return health("draining")
        record = "ok" if await self._store.healthy() else "unavailable"
        if record != "ok" and self._needs_record:
            return health("store unavailable", record=record)
        return health("ok", record=record)
