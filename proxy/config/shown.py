"""All settings in force, for people to read, without secrets."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from proxy.config.secret import Secret

_HIDDEN: Final = "…"
_OF_STRANGERS: Final = frozenset({"args", "env", "headers", "webhook"})
"""Settings whose texts may contain a secret that was not written as a reference."""


def shown_settings(config: BaseModel) -> list[dict[str, Any]]:
    """Return each setting: its dotted name, value, default, whether it differs, and its meaning.

    A secret is shown by its reference (``env:NAME``), and an address without the parts that may be secret.
    """
    return _rows("", config)


def _rows(prefix: str, model: BaseModel) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for attribute, info in type(model).model_fields.items():
        name, value = f"{prefix}{info.alias or attribute}", getattr(model, attribute)
        if isinstance(value, BaseModel):
            rows += _rows(f"{name}.", value)
        elif isinstance(value, Mapping) and any(isinstance(member, BaseModel) for member in value.values()):
            for key, member in value.items():
                rows += _rows(f"{name}.{key}.", member)
        else:
            default = info.get_default(call_default_factory=False)
            known = default is not PydanticUndefined
            hides = attribute in _OF_STRANGERS
            rows.append(
                {
                    "name": name,
                    "value": _shown(value, hides=hides),
                    "default": _shown(default, hides=hides) if known else None,
                    "changed": not known or value != default,
                    "secret": isinstance(value, Secret),
                    "description": info.description,
                }
            )
    return rows


def _shown(value: Any, *, hides: bool) -> Any:
    """Return a value in the form for JSON."""
    match value:
        case Secret():
            return value.reference
        case BaseModel():
            return {name: _shown(getattr(value, name), hides=hides) for name in type(value).model_fields}
        case Mapping():
            return {str(key): _shown(member, hides=hides) for key, member in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_shown(member, hides=hides) for member in value]
        case str():
            return _HIDDEN if hides and value else shown_address(value)
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)


def shown_address(text: str) -> str:
    """Return an address without user, password and query; any other text unchanged."""
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return _HIDDEN
    query = _HIDDEN if parts.query else ""
    return urlunsplit((parts.scheme, host, parts.path, query, ""))
