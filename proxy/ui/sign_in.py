"""Sign users in and out of the web UI, and find the user of a request below ``/ui/api``."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from aiohttp import hdrs, web

from proxy.base.errors import RequestError
from proxy.server.connections.client_address import counted_address
from proxy.server.messages.request import EdgeRequest
from proxy.ui.cookies import cookie_header
from proxy.ui.requests import COOKIE, SECURE_COOKIE, check_origin, cookies_of, is_secure, read_object
from proxy.ui.sessions import Sessions, UiSession

_WINDOW_S: Final = 60.0
_MOST_FAILURES: Final = 5
"""The most failed sign-ins from one address per minute, in each process."""
_MOST_OF_ALL: Final = 100
"""The same for all addresses together."""


class _Failures:
    """Counts the failed sign-ins of the current minute, by address.

    It bounds log lines and answers, and never refuses a key or a link that is right: behind a proxy or a NAT,
    one address is everybody. A key is not guessed in any number of tries, since it has 256 random bits or the
    length that the configuration demands.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._count: dict[str, int] = {}

    def add(self, address: str) -> None:
        """Count a failure; raise :class:`~proxy.base.errors.RequestError` (429) if there were too many."""
        left = self._began + _WINDOW_S - time.monotonic()
        if left <= 0:
            self._began, self._count, left = time.monotonic(), {}, _WINDOW_S
        failed = self._count.get(address, 0)
        if failed >= _MOST_FAILURES or sum(self._count.values()) >= _MOST_OF_ALL:
            raise RequestError(
                429,
                "The sign-in failed, and too many before it did. A key or link that is right still works.",
                type="rate_limit_error",
                code="too_many_sign_ins",
                headers={"Retry-After": str(int(left) + 1)},
            )
        self._count[address] = failed + 1


class SignIn:
    """Answers ``/ui/api/session``. ``facts`` returns what the page gets in addition to the session."""

    def __init__(
        self,
        sessions: Sessions,
        facts: Callable[[UiSession], dict[str, Any]],
        end_address: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """``end_address`` returns where a person logs out of their OpenID provider; empty for nowhere."""
        self._sessions = sessions
        self._facts = facts
        self._end_address = end_address
        self._failures = _Failures()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    async def session(self, request: EdgeRequest) -> UiSession:
        """Return the session of a request.

        Raises :class:`RequestError`: 403 if another site's page may have sent it, 401 if it has
        no valid session.
        """
        check_origin(request)
        for cookie in cookies_of(request):
            session = await self._sessions.by_cookie(cookie)
            if session is not None:
                return session
        raise RequestError(
            401,
            "You are not signed in, or the session has ended. Run `toolrelay ui` for a link, or sign in with "
            "the key of an administrator or approver.",
            type="authentication_error",
            code="not_signed_in",
        )

    async def still_valid(self, session: UiSession) -> bool:
        """Return whether a session is still valid; a stream asks this, because it sends no further
        request."""
        return await self._sessions.by_cookie(self._sessions.cookie(session)) is not None

    async def answer(self, request: EdgeRequest) -> web.Response:
        """Return the response; raises :class:`RequestError` as :meth:`session` does, 429 and
        405."""
        if request.method == "POST":
            return await self._begin(request)
        session = await self.session(request)
        if request.method == "DELETE":
            await self._sessions.end(session)
            self._log.info("ui_signed_out", caller=session.caller)
            address = await self._end_address() if session.user and self._end_address else ""
            shown = {"object": "ui.signed_out", "continue_at": address}
            response = web.json_response(shown) if address else web.Response(status=204)
            for name in cookie_names(request):
                response.headers.add(hdrs.SET_COOKIE, cookie_header(name, "", 0))
            return response
        if request.method not in ("GET", "HEAD"):
            raise RequestError(
                405,
                "This path accepts only GET, POST and DELETE.",
                headers={"Allow": "GET, HEAD, POST, DELETE"},
            )
        return web.json_response(self._shown(session))

    def renew(self, request: EdgeRequest, session: UiSession, response: web.StreamResponse) -> None:
        """Extend the session's idle time, if its cookie is old enough and a new one can still be sent."""
        renewed = self._sessions.renewed(session) if not response.prepared else None
        if renewed is not None and response.status < 400 and hdrs.SET_COOKIE not in response.headers:
            self._set(response, renewed, cookie_names(request)[0])

    async def _begin(self, request: EdgeRequest) -> web.Response:
        check_origin(request)
        secure = is_secure(request)
        address = counted_address(request)
        body = await read_object(request, {"key": str, "code": str})
        if len(body) != 1:
            raise RequestError(400, "Send either code (from `toolrelay ui`) or key (a client key).")
        if "code" in body:
            session = await self._sessions.by_code(body["code"])
        else:
            session = await self._sessions.by_key(body["key"].strip())
        if session is None:
            self._failures.add(address)
            self._log.warning("ui_sign_in_failed", address=address)
            raise RequestError(
                401,
                "The sign-in failed. A link works once and for a short time: run `toolrelay ui` for a new "
                "one. A key must be an administrator's or an approver's: toolrelay keys create NAME --admin "
                "(or --approves TOOLS)",
                type="authentication_error",
                code="sign_in_failed",
            )
        self._log.info("ui_signed_in", caller=session.caller, via=session.via)
        response = web.json_response(self._shown(session))
        self._set(response, session, SECURE_COOKIE if secure else COOKIE)
        return response

    def _set(self, response: web.StreamResponse, session: UiSession, name: str) -> None:
        left = max(1, int(session.expires_at - session.seen))
        response.headers.add(hdrs.SET_COOKIE, cookie_header(name, self._sessions.cookie(session), left))

    def _shown(self, session: UiSession) -> dict[str, Any]:
        return {
            "object": "ui.session",
            "name": session.name,
            "key_id": session.key_id,
            "role": session.role,
            "via": session.via,
            "own_runs": bool(session.user),
            "expires_at": session.expires_at,
            "idle_at": session.idle_at,
            **self._facts(session),
        }


def cookie_names(request: EdgeRequest) -> list[str]:
    """Return the names under which a request sent the cookie, the secure one first; at least one name."""
    text = "; ".join(request.headers.getall(hdrs.COOKIE, ()))
    return [SECURE_COOKIE, COOKIE] if SECURE_COOKIE in text else [COOKIE]
