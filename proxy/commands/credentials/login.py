"""``toolrelay credentials login``: a person logs in once, and the record stores the login."""

import os
import random
import sys
import threading
import time
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from proxy.app.compose.credentials import connection_of, oauth_pools
from proxy.base.errors import ConfigError
from proxy.base.plain_text import plain_text
from proxy.commands.common import say, say_error
from proxy.commands.credentials.redirect import Redirects, listening, pasted, with_port
from proxy.commands.credentials.vault import make_vault
from proxy.config.load import Config
from proxy.records.rows import TokenVault
from proxy.tools.oauth.clients import LoginAttempt
from proxy.tools.oauth.grants import LoggedIn, login_place
from proxy.tools.oauth.login import begin_login, end_login
from proxy.tools.oauth.parameters import read_scopes
from proxy.tools.oauth.port import OAuthFault
from proxy.tools.oauth.stored_tokens import StoredTokens, read_stored_tokens

_FREE_PORTS: Final = range(49152, 65535)
"""Ports for the redirect address if the user pastes it; nothing listens there."""


async def log_in(
    config: Config, name: str, *, paste: bool, browser: bool, scopes: tuple[str, ...], user: str = ""
) -> bool:
    """Log in to a connection, for ``user`` if each user has a login; return whether that succeeded.

    Raises ConfigError for a connection without logins, and StoreError.
    """
    connection = _need_login(config, name, user)
    if read_scopes(scopes) != scopes:
        raise ConfigError(
            "--scope", "is not a scope", "Give each scope separately: --scope read --scope write"
        )
    settings = config.credentials[name]
    pools = oauth_pools(config)
    http = pools.http(issuer=connection.issuer, server_url=connection.server_url)
    try:
        async with make_vault(config) as vault, _way_back(settings.redirect_uri, paste) as way:
            attempt = await begin_login(
                http,
                connection,
                redirect_uri=way if isinstance(way, str) else way.uri,
                now=time.time(),
                before=read_stored_tokens(await vault.load(login_place(name, user))),
                scopes=scopes,
                parameters=settings.authorization_parameters,
            )
            _say_attempt(name, connection, attempt)
            if isinstance(way, str):
                code = pasted(attempt)
            else:
                way.expect(attempt)
                _send_browser(attempt, way, browser=browser)
                code = await way.code()
            tokens = await end_login(http, attempt, code, time.time())
            await _keep(vault, login_place(name, user), tokens)
    except OAuthFault as fault:
        say_error(f"credentials.{name}: {fault}")
        return False
    finally:
        await pools.aclose()
    _say_done(name, attempt, tokens)
    return True


def need_connection(config: Config, name: str) -> None:
    """Raise ConfigError for a connection that is not configured."""
    if name in config.credentials:
        return
    near = get_close_matches(name, config.credentials, n=1, cutoff=0.6)
    known = ", ".join(config.credentials) or "none"
    raise ConfigError(
        f"credentials.{name[:80]}",
        "is missing",
        f"Did you mean {near[0]}?" if near else f"Configured are: {known}",
    )


def need_user(config: Config, name: str, user: str) -> None:
    """Raise ConfigError if a user is missing, or given where one login is for all."""
    settings = config.credentials.get(name)
    if settings is None or settings.per_user == bool(user):
        return
    raise ConfigError(
        "--user",
        f"is missing: each user logs in to {name}"
        if settings.per_user
        else f"is not for {name}, which is for all",
        "Name the caller, as in toolrelay runs list: --user webui/0123456789abcdef01234567"
        if settings.per_user
        else "Leave it out",
    )


def _need_login(config: Config, name: str, user: str) -> LoggedIn:
    need_connection(config, name)
    need_user(config, name, user)
    connection = connection_of(config, name)
    if isinstance(connection, LoggedIn):
        return connection
    grant = config.credentials[name].grant
    raise ConfigError(
        f"credentials.{name}.grant",
        f"is {grant}, which needs no login" if grant else "is missing, and a configured token needs no login",
        'To log in, write grant = "authorization_code"',
    )


@asynccontextmanager
async def _way_back(redirect_uri: str, paste: bool) -> AsyncIterator[Redirects | str]:
    """Choose where the browser's answer goes: to a listener, or to an address where nothing listens."""
    if paste:
        yield with_port(redirect_uri, random.choice(_FREE_PORTS))
        return
    async with listening(redirect_uri) as redirects:
        yield redirects


def _say_attempt(name: str, connection: LoggedIn, attempt: LoginAttempt) -> None:
    what = f" for {connection.server_url}" if connection.server_url else ""
    scopes = f", with the scopes {' '.join(attempt.scopes)}" if attempt.scopes else ""
    say(plain_text(f"{name}: log in at {attempt.server.issuer}{what}{scopes}", 4000))
    say("Open this address in a browser:")
    say("")
    say(attempt.url)
    say("")


def _send_browser(attempt: LoginAttempt, redirects: Redirects, *, browser: bool) -> None:
    """Open a browser if there is one; print how to log in from another machine."""
    port = urlsplit(redirects.uri).port
    say(
        f"Waiting at {redirects.uri}. From another machine: forward the port (ssh -L {port}:127.0.0.1:{port} "
        "HOST), or use --paste."
    )
    if browser and _has_browser():
        # Opening some browsers blocks until they exit.
        threading.Thread(target=webbrowser.open, args=(attempt.url,), daemon=True).start()


def _has_browser() -> bool:
    """Return whether there is a graphical browser; a text browser would take over the terminal."""
    named = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in named)


async def _keep(vault: TokenVault, place: str, tokens: StoredTokens) -> None:
    # A worker that is refreshing the earlier login must not overwrite these tokens.
    async with vault.exclusive(place):
        await vault.save(place, tokens.to_json())


def _say_done(name: str, attempt: LoginAttempt, tokens: StoredTokens) -> None:
    login = tokens.login
    if login is None:
        return
    say(plain_text(f"{name}: logged in{_scope_words(login.scopes)}", 4000))
    lacking = [scope for scope in attempt.scopes if scope not in login.scopes]
    if lacking:
        say_error(f"credentials.{name}: scopes not granted: {' '.join(lacking)}")
    if not tokens.refresh_token:
        say_error(
            f"credentials.{name}: there is no refresh token, so the login ends when its access token "
            "expires; some servers issue one for a scope like offline_access, Google for "
            "authorization_parameters = "
            '{access_type = "offline", prompt = "consent"}'
        )


def _scope_words(scopes: tuple[str, ...]) -> str:
    return f", with the scopes {' '.join(scopes)}" if scopes else ""
