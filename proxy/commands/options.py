"""Options that several commands share."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from proxy.base.errors import ConfigError


def read_bounds(given: Sequence[str], example: str) -> dict[str, Any]:
    """Parse limits in TOML, in the form they have in or below ``policy.arguments``.

    Raises :class:`~proxy.base.errors.ConfigError` for ``--arguments``; its remedy shows ``example``.
    """
    try:
        return tomllib.loads("\n".join(given))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--arguments", f"is not a valid limit: {error}", f"Write {example}") from None


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration file. Default: ./toolrelay.toml, if it exists.",
    ),
]
NamedUpstreamOption = Annotated[
    str | None,
    typer.Option(metavar="NAME|URL", help="The name of an upstream in the configuration, or a base URL."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
ContentOption = Annotated[
    bool,
    typer.Option(
        "--content", help="Also show what users and models wrote. toolrelay logs that somebody read it."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only what started at this time or later: 2026-01-31, 2026-01-31T12:00, or 36h for "
        "36 hours ago.",
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only what started before this time, in the same notation as --since."),
]

ScrubOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scrub",
        metavar="TEXT",
        help="Replace this text by [redacted], as secrets are; one * stands for any characters up to a space "
        "or quote. Repeat the option for more.",
    ),
]


class ListByDefault(TyperGroup):
    """A group of commands that runs ``list``, with its options, if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
