"""Answer ``/ui``: pages and files for everyone, and JSON below ``/ui/api`` for signed-in users."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import structlog
from aiohttp import hdrs, web
from msgspec import Struct

from proxy.api.admin.queries import parse_query
from proxy.base.errors import RequestError, StoreError
from proxy.base.hard_timeout import HardTimeout
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.telemetry.hooks import RequestFacts
from proxy.ui.login.pages import LoginPages
from proxy.ui.sessions import UiSession
from proxy.ui.sign_in import SignIn
from proxy.ui.static_files import API_PREFIX, PAGE_HEADERS, UI_PREFIX, StaticFiles, not_found

_LONGEST_S: Final = 30.0
"""The time limit, in seconds, of an answer that is not a stream."""


class UiRequest(Struct, frozen=True):
    """A request of a signed-in user. ``rest`` is the path below the route's own name."""

    edge_request: EdgeRequest
    facts: RequestFacts
    target: Target
    session: UiSession
    rest: str

    @property
    def method(self) -> str:
        """The method; GET for HEAD."""
        return "GET" if self.edge_request.method == "HEAD" else self.edge_request.method

    def unknown(self) -> RequestError:
        """Return the error for an unknown path."""
        return not_found(self.target.path)

    def allow(self, *methods: str) -> None:
        """Raise :class:`~proxy.base.errors.RequestError`: 405 for any other method, 404 if there is none."""
        if not methods:
            raise self.unknown()
        if self.method not in methods:
            raise RequestError(
                405, f"This path accepts only {', '.join(methods)}.", headers={"Allow": ", ".join(methods)}
            )

    def only_get(self) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` unless this is a GET of the route itself, without
        query."""
        self.allow("GET")
        parse_query(self.target.query)
        if self.rest:
            raise self.unknown()


def not_permitted() -> RequestError:
    """Return the error for what only administrators may do."""
    return RequestError(
        403,
        "This session may only see and decide approvals of its tools, and after a login at the OpenID "
        "provider the runs of its own user.",
        type="permission_error",
        code="not_allowed",
    )


Handler = Callable[[UiRequest], Coroutine[Any, Any, web.StreamResponse]]
"""Answers the requests below one name of ``/ui/api``."""


class UiRoute(Struct, frozen=True):
    """The handler of a name. ``approvers``: approvers may use it, too; ``own``: people who logged in may, and
    it shows them what is theirs. ``streams``: it has no time limit."""

    answer: Handler
    approvers: bool = False
    own: bool = False
    streams: bool = False

    def serves(self, session: UiSession) -> bool:
        """Return whether a user may use it."""
        if session.role == "admin" or (self.approvers and session.role == "approver"):
            return True
        return self.own and bool(session.user)


class Ui:
    """Answers all paths below ``/ui``; ``routes`` maps the first name below ``/ui/api`` to its handler."""

    def __init__(
        self, files: StaticFiles, sign_in: SignIn, login: LoginPages, routes: Mapping[str, UiRoute]
    ) -> None:
        self._files = files
        self._sign_in = sign_in
        self._login = login
        self._routes = routes
        self._hard_timeout = HardTimeout()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    def serves(self, target: Target) -> bool:
        """Return whether a path is ``/ui`` or below it."""
        return f"{target.path}/".startswith(f"{UI_PREFIX}/")

    async def answer(self, request: EdgeRequest, facts: RequestFacts, target: Target) -> web.StreamResponse:
        """Return the response; raises :class:`RequestError` with the headers of all pages."""
        if not f"{target.path}/".startswith(API_PREFIX):
            if self._login.serves(target):
                return await self._login.answer(request, target)
            return self._files.answer(request, target)
        try:
            response = await self._data(request, facts, target)
        except RequestError as error:
            error.headers = {**_DATA_HEADERS, **(error.headers or {})}
            raise
        except (StoreError, TimeoutError) as error:
            self._log.warning("ui_store_unavailable", reason=str(error) or "no answer in time")
            raise RequestError(
                503,
                "The store cannot be read now. Try again in a moment.",
                type="server_error",
                code="store_unavailable",
                headers={"Retry-After": "1", **_DATA_HEADERS},
            ) from None
        if not response.prepared:
            for name, value in _DATA_HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _data(self, request: EdgeRequest, facts: RequestFacts, target: Target) -> web.StreamResponse:
        name, _, rest = target.path.removeprefix(API_PREFIX).partition("/")
        if name == "session" and not rest:
            return await self._hard_timeout.run(self._sign_in.answer(request), _LONGEST_S)
        if name == "login" and not rest and request.method in ("GET", "HEAD"):
            return web.json_response(self._login.offer())
        session = await self._hard_timeout.run(self._sign_in.session(request), _LONGEST_S)
        facts.caller = session.caller
        route = self._routes.get(name)
        if session.role != "admin" and (route is None or not route.serves(session)):
            raise not_permitted()
        if route is None:
            raise not_found(target.path)
        work = route.answer(UiRequest(request, facts, target, session, rest))
        response = await work if route.streams else await self._hard_timeout.run(work, _LONGEST_S)
        self._sign_in.renew(request, session, response)
        return response


_DATA_HEADERS: Final[Mapping[str, str]] = {**PAGE_HEADERS, hdrs.CACHE_CONTROL: "no-store"}
