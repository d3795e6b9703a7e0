"""The part of a faulty configuration that ``check`` can still examine. It is never served."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from proxy.config.checks.rules import resolve_secrets
from proxy.config.settings import Config, StoreConfig

COMPARED_SECTIONS: Final = frozenset(
    {"agents", "auth", "keys", "limits", "prices", "server", "store", "tools", "upstreams"}
)
"""Sections whose settings are compared with other sections: a default in one could cause a false fault in
another."""


def without_faulty_settings(
    data: Mapping[str, Any], details: Sequence[ErrorDetails]
) -> tuple[Config | None, set[str]]:
    """Return the configuration without its faulty settings, and the sections that had them.

    The configuration is ``None`` if something is still wrong.
    """
    rest = copy.deepcopy(dict(data))
    for detail in details:
        _take_out(rest, detail)
    spoilt = {str(detail["loc"][0]) for detail in details if detail["loc"]}
    try:
        return Config.model_validate(rest), spoilt
    except ValidationError:
        return None, spoilt


def _take_out(data: dict[str, Any], detail: ErrorDetails) -> None:
    """Remove the faulty setting; if a setting is missing, remove the table that lacks it."""
    path: list[tuple[dict[str, Any], Any]] = []
    section: Any = data
    for part in detail["loc"]:
        if not isinstance(section, dict) or part not in section:
            break
        path.append((section, part))
        section = section[part]
    if path:
        table, name = path[-1]
        del table[name]


def without_secrets(config: Config, env: Mapping[str, str], folder: Path) -> Config | None:
    """Return the configuration with the secrets that can be read; the seal's keys are read all or none."""
    resolved, _ = resolve_secrets(config, env, folder, need=False)
    if resolved is None:
        unsealed = config.model_copy(update={"store": StoreConfig(url=config.store.url)})
        resolved, _ = resolve_secrets(unsealed, env, folder, need=False)
    return resolved
