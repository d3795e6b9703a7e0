"""The options of ``toolrelay credentials``."""

from typing import Annotated

import typer

from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault

credentials_app = typer.Typer(
    help="List the connections of tools and MCP servers, log in and log out.", cls=ListByDefault
)

UserOption = Annotated[
    str,
    typer.Option(
        metavar="CALLER",
        help="For a connection per user: whose login it is, as `toolrelay runs list` names the caller.",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="The connection, as in [credentials.NAME].")]


@credentials_app.callback()
def credentials() -> None:
    """Without a command, list."""


@credentials_app.command("list")
def credentials_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the connections and whether somebody has logged in, without secrets."""
    from proxy.commands.credentials import listing

    common.run_or_fail(listing.list_credentials(common.load(config), as_json=as_json))


@credentials_app.command("login")
def credentials_login(
    name: NameArgument,
    config: ConfigOption = None,
    paste: Annotated[
        bool,
        typer.Option("--paste", help="Do not listen; ask for the address that the browser ends at."),
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, but do not open a browser.")
    ] = False,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="A scope in addition to the configured ones and those of the last login. Repeatable."
        ),
    ] = None,
    user: UserOption = "",
) -> None:
    """Log in to a connection once, in a browser; the record keeps the login encrypted."""
    from proxy.commands.credentials import login

    loaded = common.load(config)
    work = login.log_in(
        loaded, name, paste=paste, browser=not no_browser, scopes=tuple(scope or ()), user=user
    )
    try:
        common.run_or_fail(work)
    except KeyboardInterrupt:
        common.say_error("stopped; no login was stored")
        raise typer.Exit(130) from None


@credentials_app.command("logout")
def credentials_logout(name: NameArgument, config: ConfigOption = None, user: UserOption = "") -> None:
    """Delete a login, and revoke its tokens if the authorization server supports that."""
    from proxy.commands.credentials import listing

    common.run_or_fail(listing.log_out(common.load(config, need_secrets=False), name, user))
