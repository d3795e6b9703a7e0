"""The pages below ``/connect/``, at which an end user logs in to a connection of tools.

No key opens them: a browser has none. A link, which the call of a tool gave to its user, says whom it binds.
A cookie ties the browser that began to the one that comes back.

1. ``/connect/NAME?t=LINK`` shows whom the login binds, and asks. It gives the browser a secret.
2. The same with ``go`` leads on to the authorization server. ``go`` is made of the secret, so that only the
   page that this browser was shown leads on.
3. ``/connect/callback`` takes the answer.
"""

import hashlib
import hmac
import html
from typing import Final
from urllib.parse import parse_qsl, urlencode

import structlog
from aiohttp import hdrs, web

from proxy.base.errors import RequestError
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.tools.oauth.port import OAuthFault
from proxy.tools.oauth.user_logins import LINK_LASTS_S, NotThisLogin, Ticket, UserLogins, new_browser

CONNECT: Final = "/connect/"
"""The beginning of the paths."""

_CALLBACK: Final = "callback"
_COOKIE: Final = "toolrelay-connect"
_SECURE_COOKIE: Final = "__Host-toolrelay-connect"
"""The prefix keeps pages of neighbouring domains from setting it."""

_LONGEST: Final = 4096
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>toolrelay: {title}</title>
<h1>{title}</h1>
{text}
"""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_AGAIN: Final = "<p>Ask again in your conversation for a new link."


class ConnectPages:
    """The handler of the paths. ``secure`` says that people reach the proxy over https."""

    def __init__(self, logins: UserLogins, *, secure: bool) -> None:
        self._logins = logins
        self._cookie = _SECURE_COOKIE if secure else _COOKIE
        self._attributes = f"; Path=/; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    def serves(self, target: Target) -> bool:
        """Return whether a path is one of these."""
        return target.path.startswith(CONNECT)

    async def answer(self, request: EdgeRequest, target: Target) -> web.Response:
        """Return a page, or lead the browser on. Raises :class:`RequestError` (405) for another method, and
        :class:`~proxy.base.errors.StoreError`."""
        if request.method not in ("GET", "HEAD"):
            raise RequestError(405, "This path accepts only GET.", headers={"Allow": "GET, HEAD"})
        name = target.path.removeprefix(CONNECT)
        if name == _CALLBACK:
            return await self._finished(request, target.query)
        return await self._begun(request, name, target.query)

    async def _begun(self, request: EdgeRequest, name: str, query: str) -> web.Response:
        """Show whom a link binds, or lead the browser to the authorization server."""
        given = _fields(query)
        ticket = self._logins.read(name, given.get("t", ""))
        if ticket is None:
            return _page(
                400, "This link does not work", f"<p>It is not a link of this server, or too old.{_AGAIN}"
            )
        if await self._logins.is_used(ticket):
            return _page(409, "This link was used", "<p>A login has happened since it was made.")
        browser, _ = self._read_cookie(request)
        go = given.get("go")
        if go is None or not browser:
            browser = browser or new_browser()
            page = self._question(ticket, given["t"], browser)
            page.headers[hdrs.SET_COOKIE] = self._set(browser, f"{name}.{given['t']}")
            return page
        if not hmac.compare_digest(go.encode(), _go(browser, given["t"]).encode()):
            return _page(400, "This is not the page that this browser was shown", _AGAIN)
        try:
            place = await self._logins.begin(ticket, browser)
        except OAuthFault as fault:
            return self._failed(name, fault)
        headers = {**_HEADERS, "Location": place}
        answer = web.Response(status=303, headers=headers)
        answer.headers[hdrs.SET_COOKIE] = self._set(browser, f"{name}.{given['t']}")
        return answer

    def _question(self, ticket: Ticket, text: str, browser: str) -> web.Response:
        """Return the page that asks whether the reader is whom a login binds."""
        key, _, user = ticket.person.name.partition("/")
        whose = (
            f"the user <b>{html.escape(ticket.person.shown or user)}</b> of the key" if user else "the key"
        )
        name, where = html.escape(ticket.connection), html.escape(self._logins.where(ticket.connection))
        query = html.escape(urlencode({"t": text, "go": _go(browser, text)}))
        said = (
            f"<p>A tool needs an account of yours at <b>{where}</b>. It will be used for {whose} "
            f"<b>{html.escape(key)}</b> of this server, and for nobody else."
            "<p><strong>Go on only if this is you, and if you have just asked for it in a conversation of "
            "your own.</strong> If somebody else sent you this link, close this page: they could act with "
            f'your account.<p><a href="{CONNECT}{name}?{query}">This is me: log in at {where}</a>'
        )
        return _page(200, f"Log in to {name}", said)

    async def _finished(self, request: EdgeRequest, query: str) -> web.Response:
        """Take what the authorization server answered."""
        browser, rest = self._read_cookie(request)
        name, _, text = rest.partition(".")
        ticket = self._logins.read(name, text) if browser else None
        if ticket is None or await self._logins.is_used(ticket):
            return _page(
                400, "There is no login to end here", f"<p>It was begun elsewhere, or ended.{_AGAIN}"
            )
        try:
            await self._logins.finish(ticket, browser, query)
        except NotThisLogin:
            return _page(400, "This is not the answer to your login", _AGAIN)
        except OAuthFault as fault:
            page = self._failed(name, fault)
        else:
            self._log.info("user_logged_in", connection=name, caller=ticket.person.name)
            page = _page(200, f"Logged in to {html.escape(name)}", "<p>Close this page, and ask again.")
        page.headers[hdrs.SET_COOKIE] = f"{self._cookie}={self._attributes}; Max-Age=0"
        return page

    def _failed(self, name: str, fault: OAuthFault) -> web.Response:
        self._log.warning("user_login_failed", connection=name, status=fault.status, reason=str(fault))
        return _page(502, "The login failed", f"<p>{html.escape(str(fault))}{_AGAIN}")

    def _set(self, browser: str, rest: str) -> str:
        return f"{self._cookie}={browser}.{rest}{self._attributes}; Max-Age={LINK_LASTS_S:.0f}"

    def _read_cookie(self, request: EdgeRequest) -> tuple[str, str]:
        """Return the browser's secret and what it began; empty without a cookie, or with two of them."""
        pairs = "; ".join(request.headers.getall(hdrs.COOKIE, ())).split(";")
        values = [
            value
            for name, _, value in (pair.strip().partition("=") for pair in pairs)
            if name == self._cookie
        ]
        if len(values) != 1 or len(values[0]) > _LONGEST:
            return "", ""
        browser, _, rest = values[0].partition(".")
        return browser, rest


def _go(browser: str, text: str) -> str:
    """Return what stands in the link of the page that a browser was shown."""
    return hmac.new(browser.encode(), text.encode(), hashlib.sha256).hexdigest()


def _fields(query: str) -> dict[str, str]:
    """Return the fields of a query; of one that stands twice, none."""
    pairs = parse_qsl(query, max_num_fields=10) if len(query) <= _LONGEST and query.count("&") < 10 else []
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}


def _page(status: int, title: str, text: str) -> web.Response:
    """Return a page; what stands in it is escaped already."""
    body = _PAGE.format(title=title, text=text)
    return web.Response(status=status, text=body, content_type="text/html", charset="utf-8", headers=_HEADERS)
