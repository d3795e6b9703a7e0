"""Answer ``/ui/login``, which sends a browser to the OpenID provider, and the address to which it returns."""

import html
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import structlog
from aiohttp import hdrs, web

from proxy.api.reference.html_page import PAGE_STYLE_HEADERS, html_page
from proxy.base.errors import RequestError, StoreError
from proxy.base.hard_timeout import HardTimeout
from proxy.server.messages.errors import ERROR_CODE
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.ui.cookies import cookie_header, values_of
from proxy.ui.login.openid import DONE_PATH, LOGIN_S, START_PATH, LoginRefused, OpenIdLogin
from proxy.ui.requests import COOKIE, SECURE_COOKIE
from proxy.ui.sessions import Sessions

_COOKIE: Final = "toolrelay_login"
_HOST_COOKIE: Final = "__Host-toolrelay_login"
"""The cookie's name over HTTPS: no other host, not even below the same domain, can set it."""
_MOST_COOKIES: Final = 4
_MOST_FIELDS: Final = 50
_LONGEST_S: Final = 30.0
"""The most seconds that a browser waits for the provider."""
_HEADERS: Final[Mapping[str, str]] = {**PAGE_STYLE_HEADERS, hdrs.CACHE_CONTROL: "no-store"}


class LoginPages:
    """Answers the browser of a person who logs in; without ``login`` there is no provider."""

    def __init__(self, login: OpenIdLogin | None, sessions: Sessions) -> None:
        self.login = login
        self._sessions = sessions
        self._hard_timeout = HardTimeout()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    def serves(self, target: Target) -> bool:
        """Return whether a path is one of the login."""
        return self.login is not None and target.path in (START_PATH, DONE_PATH)

    def offer(self) -> dict[str, Any]:
        """Return what the sign-in page shows about the provider; everybody may read it."""
        own = self.login
        return {
            "object": "ui.login",
            "provider": own.provider if own is not None else None,
            "address": f"{own.url}{START_PATH}" if own is not None else None,
        }

    async def answer(self, request: EdgeRequest, target: Target) -> web.Response:
        """Return a redirect, or a page that says why the login failed.

        Raises :class:`~proxy.base.errors.RequestError` (405).
        """
        login = self.login
        if login is None or request.method != "GET":
            raise RequestError(405, "This path accepts only GET.", headers={"Allow": "GET"})
        name = _HOST_COOKIE if login.url.startswith("https:") else _COOKIE
        if target.path == START_PATH:
            work = self._begin(login, target, name)
        else:
            work = self._finish(login, request, target, name)
        try:
            return await self._hard_timeout.run(work, _LONGEST_S)
        except LoginRefused as refused:
            self._log.warning("ui_login_failed", reason=refused.reason)
            return _failed(refused.status, str(refused), name)
        except (StoreError, TimeoutError):
            return _failed(503, "The record of this server cannot be read now. Try again in a moment.", name)

    async def _begin(self, login: OpenIdLogin, target: Target, name: str) -> web.Response:
        address, cookie = await login.begin(_then(target.query))
        response = _redirect(address)
        _set(response, name, cookie, int(LOGIN_S))
        return response

    async def _finish(
        self, login: OpenIdLogin, request: EdgeRequest, target: Target, name: str
    ) -> web.Response:
        # Over HTTPS only the name that no other host can set: with a cookie of somebody else's login, their
        # answer would sign this browser in as them.
        cookies = values_of(request.headers.getall(hdrs.COOKIE, []), frozenset({name}), _MOST_COOKIES)
        found = await login.finish(target.query, cookies)
        session = await self._sessions.by_person(found.person, found.shown, found.state, LOGIN_S)
        if session is None:
            raise LoginRefused(400, "This login was completed before. Begin again.")
        self._log.info("ui_signed_in", caller=session.caller, via="openid")
        response = _redirect(found.then)
        _set(response, name, "", 0)
        own = SECURE_COOKIE if name == _HOST_COOKIE else COOKIE
        left = max(1, int(session.expires_at - session.seen))
        response.headers.add(hdrs.SET_COOKIE, cookie_header(own, self._sessions.cookie(session), left))
        return response


def _then(query: str) -> str:
    """Return the page that a query names; empty if it names none, or cannot be read."""
    try:
        return dict(parse_qsl(query, max_num_fields=_MOST_FIELDS)).get("then", "")
    except ValueError:
        return ""


def _set(response: web.Response, name: str, value: str, max_age: int) -> None:
    # Lax: the provider's page sends the browser back, which is a navigation from another site.
    response.headers.add(hdrs.SET_COOKIE, cookie_header(name, value, max_age, path="/", same_site="Lax"))


def _redirect(address: str) -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, hdrs.LOCATION: quote(address, safe=_IN_ADDRESS)})


_IN_ADDRESS: Final = "!#$%&'()*+,/:;=?@[]~"
"""Characters of an address that stay as they are."""


def _failed(status: int, message: str, name: str) -> web.Response:
    body = (
        f"<p>{html.escape(message)}\n"
        f'<p><a href="{START_PATH}">Log in again</a> or <a href="/ui/">sign in with a key</a>.'
    )
    headers = dict(_HEADERS) | ({hdrs.RETRY_AFTER: "5"} if status == 503 else {})
    response = web.Response(
        status=status, text=html_page("The login failed", body), content_type="text/html", headers=headers
    )
    response[ERROR_CODE] = "sign_in_failed"
    _set(response, name, "", 0)
    return response
