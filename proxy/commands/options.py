"""Options that several commands share, and how their words are read."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from proxy.errors import ConfigError

__all__ = [
    "ConfigOption",
    "ContentOption",
    "JsonOption",
    "ListByDefault",
    "SinceOption",
    "UntilOption",
    "parse_moment",
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

_AGE = re.compile(r"(\d{1,9})([smhdw])(?: ago)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class ListByDefault(TyperGroup):
    """A group whose ``list`` is meant where no command is named, options and all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def parse_moment(option: str, text: str | None, now: Callable[[], float] = time.time) -> float | None:
    """A time in seconds since the epoch, from a date, a date with a time, or an age (``90m``, ``7d``).

    A time without an offset is UTC, as everything that the commands print.  Raises ConfigError.
    """
    if text is None:
        return None
    age = _AGE.fullmatch(text.strip())
    if age is not None:
        return now() - int(age[1]) * _SECONDS[age[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(
            option,
            f"{text[:40]!r} is no time",
            "Write 2026-01-31, 2026-01-31T12:00 (UTC), or an age like 36h",
        ) from None
