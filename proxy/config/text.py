"""The settings as text for people, generated from their models: a commented file and a table."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from proxy.base.plain_text import HIDDEN
from proxy.config.checks.faults import fields_of, model_of, tables_of
from proxy.config.secret import Secret
from proxy.config.settings import Config

_HEAD: Final = """\
# Configuration of toolrelay.  Paths are relative to this file.  Secrets are written "env:NAME" or
# "file:/path".  The environment wins: TOOLRELAY_SERVER__PORT=9000 sets port in [server].

[upstreams.default]
base_url = "https://api.openai.com/v1"
api_key = "env:OPENAI_API_KEY"

[policy]
# The server tools that may run, such as "core__*".
allow = []


# All settings with their defaults.  To change one, remove the "#" before it and before its [section],
# or write the line into that section above: a section may stand in a file only once.
"""

_HIDDEN: Final = re.compile(f"[{HIDDEN}]")


def initial_config() -> str:
    """Return a ``toolrelay.toml``: what nearly everybody sets, and below it, commented out, every key with
    its default and its meaning.

    It loads as the defaults. Lines to use begin with ``#`` alone, words for people with ``# ``.
    """
    return _HEAD + "".join(_section(dotted, model, info) for dotted, model, info in tables_of(Config))


class Setting(Struct, frozen=True):
    """One setting. ``name`` is dotted, with ``*`` for a name that the user chooses.

    ``default`` is a TOML value, empty for a setting that is required. ``meaning`` is Markdown.
    """

    name: str
    default: str
    meaning: str


def settings() -> Iterator[Setting]:
    """Yield every setting, table by table."""
    for dotted, model, _ in tables_of(Config):
        for key, info in fields_of(model).items():
            default = "" if info.is_required() else toml_value(_default(info))
            yield Setting(f"{dotted}.{key}", default, info.description or "")


def _section(dotted: str, model: type[BaseModel], info: FieldInfo) -> str:
    """Return one table. Tables whose name the user chooses have no default, except ``upstreams.default``."""
    extra = _extra(info)
    name = dotted.replace("*", str(extra.get("shown_as", "")))
    about = (model.__doc__ or "").strip().splitlines()[0]
    if "example" in extra:
        lines = [f"[{name}]", *str(extra["example"]).splitlines()]
        shown = "".join(f"#{line}\n" for line in lines)
        keys = "".join(f"#   {key}: {field.description}\n" for key, field in fields_of(model).items())
        return f"\n# {about}  For example:\n{keys}{shown}"
    body = "".join(_setting(key, field) for key, field in fields_of(model).items())
    tables = "".join(_table(name, key, field) for key, field in fields_of(model).items())
    return f"\n# {about}\n#[{name}]\n{body}{tables}"


def _setting(key: str, info: FieldInfo) -> str:
    if "example" in _extra(info):
        return ""
    return f"# {info.description}\n#{key} = {toml_value(_default(info))}\n"


def _table(section: str, key: str, info: FieldInfo) -> str:
    """Return a table inside a section: one whose keys the user chooses (``tools.aliases``), or one that is
    empty by default (``ui.login``)."""
    extra = _extra(info)
    if "example" in extra and "." not in section and model_of(info.annotation) is not None:
        lines = "".join(f"#{line}\n" for line in str(extra["example"]).splitlines())
        return f"\n# {info.description}  For example:\n#[{section}.{key}]\n{lines}"
    if "example" not in extra or "shown_as" in extra:
        return ""
    return f"\n# {info.description}  For example: {extra['example']}\n#[{section}.{key}]\n"


def _extra(info: FieldInfo) -> Mapping[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _default(info: FieldInfo) -> Any:
    value = info.default
    return value.reference if isinstance(value, Secret) else value


def toml_value(value: Any) -> str:
    """Return a default as a TOML value; the inverse of ``tomllib`` for the types that settings have."""
    match value:
        case None:
            return '""'
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
        case str():
            # TOML has the escapes of JSON, and forbids a plain DEL. Other characters that hide are escaped,
            # too: somebody else may have written the text, and people read and copy the line.
            return _HIDDEN.sub(_escaped, json.dumps(value, ensure_ascii=False))
        case tuple() | list():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case BaseModel():
            return "{}"
        case Mapping():
            inner = ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items())
            return f"{{{inner}}}"
        case _:
            raise TypeError(f"a setting has a value that TOML cannot write: {type(value).__name__}")


def _escaped(match: re.Match[str]) -> str:
    """Return a character as TOML's escape."""
    code = ord(match[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
