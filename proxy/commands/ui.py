"""``toolrelay ui``: a link that signs in to the web UI; also the lines about it at a server's start."""

import sys
import webbrowser
from typing import Final

from proxy.app.app import App
from proxy.app.open_record import opened_record
from proxy.base.errors import ConfigError
from proxy.commands.common import say, say_error
from proxy.config.checks.rules import is_loopback
from proxy.config.load import Config
from proxy.ui.sessions import CODE_S, login_code, signing_key

START_LINK_S: Final = 600.0
"""Seconds for which the link is valid that a server prints on a terminal when it starts."""


async def print_link(config: Config, *, address: str | None, browse: bool) -> None:
    """Print a link for the server of this configuration; with ``browse``, also open it.

    ``address`` is the URL at which the browser reaches the server. Raises ConfigError and StoreError.
    """
    if not config.ui.enabled:
        raise ConfigError("ui.enabled", "is false", "Set it to true, and restart the server")
    if config.store.url == "memory:":
        raise ConfigError(
            "store.url",
            "only the server's own process can read a store in memory, so this command cannot make a link",
            "Use the link that the server printed at its start, or sign in with an administrator's key",
        )
    base = (address or default_address(config)).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise ConfigError("--url", f"{base[:80]!r} is not an address", "Write one like https://proxy.example")
    async with opened_record(config, must_exist=True) as store:
        _, hash_key = await store.hash_key()
        made = link(base, login_code(signing_key(hash_key), now=store.now()))
    say_error(f"This link signs in once, within {CODE_S:g} seconds:")
    say(made)
    if browse and not webbrowser.open(made):
        say_error("no browser could be opened; open the link by hand")


def default_address(config: Config) -> str:
    """Return the URL for a browser on this machine; raises ConfigError if the port is not known."""
    server = config.server
    if server.port == 0:
        raise ConfigError(
            "server.port",
            "is 0, so the port is not known here",
            "Give the address: --url http://127.0.0.1:PORT",
        )
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


def link(address: str, code: str) -> str:
    """Build the link with a code. The code is in the fragment, which browsers do not send to servers."""
    return f"{address}/ui/#login={code}"


def ui_lines(app: App, config: Config, address: str) -> list[str]:
    """Return the lines about the web UI at a server's start: a link on a terminal, else how to get one."""
    if app.sessions is None:
        return []
    if sys.stdout.isatty() and is_loopback(config.server.host):
        code = app.sessions.code(START_LINK_S)
        return [f"web UI: {link(address, code)} (signs in once, within {START_LINK_S / 60:g} minutes)"]
    login = config.ui.login.url
    if login:
        return [
            f"web UI: {login}/ui/ (sign in: your OpenID provider, toolrelay ui, or an administrator's key)"
        ]
    return [f"web UI: {address}/ui/ (sign in: toolrelay ui, or an administrator's key)"]
