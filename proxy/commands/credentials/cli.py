"""``toolrelay credentials``: its options."""

from typing import Annotated

import typer

from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault

__all__ = ["credentials_app"]

credentials_app = typer.Typer(help="Connections of tools and MCP servers: log in to them.", cls=ListByDefault)

NameArgument = Annotated[str, typer.Argument(help="The connection, as in [credentials.NAME].")]


@credentials_app.callback()
def credentials() -> None:
    """Connections; without a command: list."""


@credentials_app.command("list")
def credentials_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Every connection, and whether somebody has logged in; never a secret."""
    from proxy.commands.credentials import listing

    if not common.run_async(listing.list_credentials(common.load(config), as_json=as_json)):
        raise typer.Exit(1)


@credentials_app.command("login")
def credentials_login(
    name: NameArgument,
    config: ConfigOption = None,
    paste: Annotated[
        bool,
        typer.Option("--paste", help="Ask for the address at which the browser ends, in place of listening."),
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address only; open no browser.")
    ] = False,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="A scope beyond the configured ones and those of the last login.  Several times."),
    ] = None,
) -> None:
    """Log in to a connection in a browser, once; the record keeps the login, sealed."""
    from proxy.commands.credentials import login

    loaded = common.load(config)
    work = login.log_in(loaded, name, paste=paste, browser=not no_browser, scopes=tuple(scope or ()))
    try:
        done = common.run_async(work)
    except KeyboardInterrupt:
        common.say_error("stopped; nothing was kept")
        raise typer.Exit(130) from None
    if not done:
        raise typer.Exit(1)


@credentials_app.command("logout")
def credentials_logout(name: NameArgument, config: ConfigOption = None) -> None:
    """Delete a login, and have its authorization server revoke it where it can."""
    from proxy.commands.credentials import listing

    if not common.run_async(listing.log_out(common.load(config, need_secrets=False), name)):
        raise typer.Exit(1)
