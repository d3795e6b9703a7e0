"""The options of ``toolrelay prices``."""

from pathlib import Path
from typing import Annotated

import typer

from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault

__all__ = ["prices_app"]

prices_app = typer.Typer(help="Show the prices of models, and update the list of them.", cls=ListByDefault)


@prices_app.callback()
def prices() -> None:
    """Without a command, list."""


@prices_app.command("list")
def prices_list(
    config: ConfigOption = None,
    upstream: Annotated[str | None, typer.Option(metavar="NAME", help="Only this upstream.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The price of this model, as a request would get it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the prices of each upstream come from, or the price of one model."""
    from proxy.commands.prices import listing

    listing.list_prices(common.load(config, need_secrets=False), upstream, model, as_json=as_json)


@prices_app.command("update")
def prices_update(
    config: ConfigOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write this file. Default: the one that billing.price_list names."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE|URL", help="Read the data from here instead of its project."),
    ] = None,
) -> None:
    """Download the list prices of providers; nothing else ever does."""
    from proxy.commands.prices import updating

    common.run_async(updating.update_prices(common.load(config, need_secrets="network"), out, source))
