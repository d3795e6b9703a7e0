"""The options of ``toolrelay mcp``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault

if TYPE_CHECKING:
    from proxy.config.load import Config

mcp_app = typer.Typer(
    help="List and test MCP servers, and import them from other programs.", cls=ListByDefault
)


@mcp_app.callback()
def mcp() -> None:
    """Without a command, list."""


def _loaded(config: Path | None, below: str = "") -> "Config":
    """Load the configuration; of its secrets only those of MCP servers are needed, not a provider's key."""
    return common.load_quietly(config, need_secrets=f"mcp.servers.{below}")


@mcp_app.command("list")
def mcp_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Connect to every server; list its tools and which of them are offered."""
    from proxy.commands.mcp import listing

    common.run_or_fail(listing.list_servers(_loaded(config), as_json=as_json))


@mcp_app.command("test")
def mcp_test(
    name: Annotated[str, typer.Argument(help="The name of the server, as in [mcp.servers.NAME].")],
    config: ConfigOption = None,
) -> None:
    """Connect to one server; print the result, and what the server wrote to standard error."""
    from proxy.commands.mcp import listing

    common.run_or_fail(listing.test_server(_loaded(config, f"{name}."), name))


@mcp_app.command("add")
def mcp_add(
    name: Annotated[str, typer.Argument(help="The server's name: lower-case letters, digits and -.")],
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND… | URL", help="What starts the server, with its arguments, or its address."
        ),
    ],
    config: ConfigOption = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Pass this environment variable to the command; repeatable."),
    ] = None,
    read_only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Tools that only read, by the server's own names; repeatable."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Add the server and allow its tools without asking.")
    ] = False,
) -> None:
    """Add a server to the configuration, show its tools, and allow them after one question."""
    from proxy.commands.mcp import adding

    common.run_or_fail(
        adding.add_server(config, name, target, env=env or (), yes=yes, read_only=read_only or ())
    )


@mcp_app.command("import")
def mcp_import(
    file: Annotated[
        Path, typer.Argument(help="A configuration file of Claude, Cursor, VS Code, Codex or Gemini.")
    ],
) -> None:
    """Print the servers of another program's file as lines for toolrelay.toml."""
    from proxy.commands.mcp import importing

    if not importing.import_servers(file):
        raise typer.Exit(1)


openapi_app = typer.Typer(help="List the operations of APIs.", cls=ListByDefault)


@openapi_app.callback()
def openapi() -> None:
    """Without a command, list."""


@openapi_app.command("list")
def openapi_list(
    name: Annotated[
        str, typer.Argument(help="The name of the API, as in [openapi.NAME]; by default all.")
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read the documents of APIs; list their operations and which of them are offered."""
    from proxy.commands.mcp import listing

    loaded = common.load_quietly(config, need_secrets="openapi.")
    common.run_or_fail(listing.list_apis(loaded, name, as_json=as_json))
