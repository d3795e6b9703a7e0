"""The options of ``toolrelay mcp``."""

from pathlib import Path
from typing import Annotated

import typer

from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault

__all__ = ["mcp_app"]

mcp_app = typer.Typer(
    help="List and test MCP servers, and import them from other programs.", cls=ListByDefault
)


@mcp_app.callback()
def mcp() -> None:
    """Without a command, list."""


@mcp_app.command("list")
def mcp_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Connect to every server; list its tools and which of them are offered."""
    from proxy.commands.mcp import listing

    if not common.run_async(listing.list_servers(common.load_quietly(config), as_json=as_json)):
        raise typer.Exit(1)


@mcp_app.command("test")
def mcp_test(
    name: Annotated[str, typer.Argument(help="The name of the server, as in [mcp.servers.NAME].")],
    config: ConfigOption = None,
) -> None:
    """Connect to one server; print the result, and what the server wrote to standard error."""
    from proxy.commands.mcp import listing

    if not common.run_async(listing.test_server(common.load_quietly(config), name)):
        raise typer.Exit(1)


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
