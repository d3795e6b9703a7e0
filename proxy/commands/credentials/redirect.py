"""Receives the browser's redirect at a listener on this machine, or as an address that a person pastes.

Source: RFC 8252, section 7.3 (redirects to the loopback interface).
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from aiohttp import web

from proxy.base.errors import ConfigError
from proxy.commands.printing import say, say_error
from proxy.tools.oauth.clients import LoginAttempt
from proxy.tools.oauth.port import ForeignRedirect, OAuthFault

_PATIENCE_S: Final = 600.0
_MOST_TRIES: Final = 3
_PAGE: Final = (
    "<!doctype html><meta charset=utf-8><title>toolrelay</title>"
    "<p>toolrelay has received the answer. The terminal shows whether the login succeeded. "
    "You can close this page."
)
_OTHER_PAGE: Final = (
    "<!doctype html><meta charset=utf-8><title>toolrelay</title>"
    "<p>This is not the answer to the login that toolrelay is waiting for. Start again in the terminal."
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Redirects:
    """Waits for the browser's redirect. ``uri`` is the address to which it must return."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._path = urlsplit(uri).path
        self._attempt: LoginAttempt | None = None
        self._code: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def expect(self, attempt: LoginAttempt) -> None:
        """Accept only the answer to this attempt from now on."""
        self._attempt = attempt

    async def code(self) -> str:
        """Return the authorization code from the browser.

        Raises :class:`~proxy.tools.oauth.port.OAuthFault` if the server refused, or no browser came within
        ten minutes.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._code
        except TimeoutError:
            raise OAuthFault(
                f"no browser came back to {self.uri} within {_PATIENCE_S / 60:g} minutes"
            ) from None

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a browser's request. A request that does not belong to the attempt changes nothing."""
        if self._attempt is None or request.method != "GET" or request.path != self._path:
            return web.Response(status=404, headers=_HEADERS)
        try:
            code = self._attempt.code_of(request.path_qs)
        except ForeignRedirect:
            return web.Response(
                status=400, text=_OTHER_PAGE, content_type="text/html", charset="utf-8", headers=_HEADERS
            )
        except OAuthFault as fault:
            if not self._code.done():
                self._code.set_exception(fault)
        else:
            if not self._code.done():
                self._code.set_result(code)
        return web.Response(text=_PAGE, content_type="text/html", charset="utf-8", headers=_HEADERS)


@asynccontextmanager
async def listening(redirect_uri: str) -> AsyncIterator[Redirects]:
    """Listen at a redirect address, on any free port if it names none. Raises ConfigError."""
    parts = urlsplit(redirect_uri)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or "127.0.0.1"
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, parts.port or 0))
    except OSError as error:
        listener.close()
        raise ConfigError(
            "redirect_uri",
            f"toolrelay cannot listen at {redirect_uri}: {error.strerror}",
            "Free the port, write another one, or use --paste",
        ) from None
    redirects = Redirects(with_port(redirect_uri, listener.getsockname()[1]))
    server = web.Server(redirects.answer, access_log=None)
    runner = web.ServerRunner(server)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=16).start()
        yield redirects
    finally:
        await runner.cleanup()
        listener.close()


def with_port(redirect_uri: str, port: int) -> str:
    """Add the port to an address that has none."""
    parts = urlsplit(redirect_uri)
    if parts.port is not None:
        return redirect_uri
    return urlunsplit(parts._replace(netloc=f"{parts.netloc}:{port}"))


def pasted(attempt: LoginAttempt) -> str:
    """Ask a person to paste the address, and take the code from it.

    Raises :class:`~proxy.tools.oauth.port.OAuthFault`.
    """
    for _ in range(_MOST_TRIES):
        print("The address that the browser ended at: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            break
        try:
            return attempt.code_of(line)
        except ForeignRedirect:
            say_error(
                f"that is not the answer to this login; the address must begin with {attempt.redirect_uri}"
            )
    say("")
    raise OAuthFault("none of the pasted addresses answers this login")
