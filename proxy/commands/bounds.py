"""Limits for tool arguments, given on the command line."""

import tomllib
from collections.abc import Sequence
from typing import Any

from proxy.base.errors import ConfigError


def read_bounds(given: Sequence[str], example: str) -> dict[str, Any]:
    """Parse limits in TOML, in the form they have in or below ``policy.arguments``.

    Raises :class:`~proxy.base.errors.ConfigError` for ``--arguments``; its remedy shows ``example``.
    """
    try:
        return tomllib.loads("\n".join(given))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--arguments", f"is not a valid limit: {error}", f"Write {example}") from None
