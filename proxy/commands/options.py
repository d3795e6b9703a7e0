"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

__all__ = [
    "ConfigOption",
    "ContentOption",
    "JsonOption",
    "ListByDefault",
    "SinceOption",
    "UntilOption",
]

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration; ./toolrelay.toml if it is there."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line, for machines.")]
ContentOption = Annotated[
    bool, typer.Option("--content", help="What people and models said, too.  That it was read is logged.")
]
SinceOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="From then on: 2026-01-31, 2026-01-31T12:00, or 36h ago.")
]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help="Before then; read like --since.")]


class ListByDefault(TyperGroup):
    """A group whose ``list`` is meant where no command is named, options and all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
