"""Parses filters of runs, in the same way for the command line and for a query."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import get_args

from proxy.base.errors import ConfigError
from proxy.records.rows import RunStatus
from proxy.store.base import RunFilter

_AGE = re.compile(r"(\d{1,9})([smhdw])(?: ago)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_filter(
    *,
    since: str | None,
    until: str | None,
    status: str | None,
    model: str | None,
    tool: str | None,
    key: str | None,
    errors: bool,
    agents: bool = False,
    prefix: str = "",
) -> RunFilter:
    """Build the filter for these values; ``None`` sets no condition. ``agents`` includes the runs of agents.

    Raises ConfigError for an invalid value; it names the option with ``prefix`` (``--``) before it.
    """
    known = next((word for word in get_args(RunStatus) if word == status), None)
    if status is not None and known is None:
        raise ConfigError(
            f"{prefix}status",
            f"there is no status {status[:40]!r}",
            f"Choose one of: {', '.join(get_args(RunStatus))}",
        )
    return RunFilter(
        since=parse_moment(f"{prefix}since", since),
        until=parse_moment(f"{prefix}until", until),
        status=known,
        model=model,
        tool=tool,
        caller=key,
        errors_only=errors,
        agents=agents,
    )


def parse_moment(option: str, text: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Return seconds since the epoch for a date, a date with a time, or an age (``90m``, ``7d``).

    A time without an offset is UTC, like all times that the commands print. Raises ConfigError.
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
            f"{text[:40]!r} is not a time",
            "Write 2026-01-31, 2026-01-31T12:00 (UTC), or an age like 36h",
        ) from None
