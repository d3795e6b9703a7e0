"""The values that settings take: their types, and the checks that make them.

Every fault is raised with a message fit for the operator, which carries no value that may be secret.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from proxy.errors import ConfigError
from proxy.server.config.secret import Secret
from proxy.server.limits.rules import parse_cost_limits, parse_limits
from proxy.tools.contract.bounds import ArgumentBound, Scalar

__all__ = [
    "TRACES",
    "BoundConfig",
    "Bounds",
    "Bytes",
    "CostLimitList",
    "LimitList",
    "OptionalSecret",
    "Patterns",
    "Seconds",
    "Secrets",
    "Section",
    "Strings",
    "Trace",
    "Wire",
    "check_aliases",
    "check_allowed_hosts",
    "check_base_url",
    "check_collector_url",
    "check_cost_limits",
    "check_end_user",
    "check_headers",
    "check_hosts",
    "check_limits",
    "check_models",
    "check_names",
    "check_networks",
    "check_origins",
    "check_pattern",
    "check_patterns",
    "check_proxies",
    "check_query_names",
    "check_safety_patterns",
    "check_service_url",
    "check_storage_url",
    "check_store_url",
    "check_token_url",
    "check_unique",
    "check_upstream_tools",
    "passwords_in",
    "read_header_value",
    "read_optional",
    "read_storage",
    "setting_fault",
]

Wire = Literal["chat", "responses", "anthropic", "ollama"]
Trace = Literal["silent", "reasoning", "status", "events"]
TRACES: tuple[Trace, ...] = ("silent", "reasoning", "status", "events")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,128}\Z")
_SAFETY = re.compile(r"[A-Za-z0-9_*?-]{1,64}=[^=\x00-\x1f]{1,64}\Z")
_HOST = re.compile(r"[A-Za-z0-9*?_.-]{1,253}(:[0-9*]{1,5})?\Z")
_NAMED_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?\Z")
_QUERY_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z")
_FRAMING = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SECRET_HEADERS = frozenset({"api-key", "authorization", "cookie", "x-api-key", "x-goog-api-key"})


def setting_fault(message: str) -> PydanticCustomError:
    """A validation error whose message is already fit for the operator (and carries no value)."""
    return PydanticCustomError("setting", "{message}", {"message": message})


def check_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise setting_fault(f"{value!r} stands there twice")
    return values


def check_patterns(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _PATTERN.match(value):
            raise setting_fault(
                f"{value[:80]!r} is no tool pattern; write a tool's name, * for any part of it"
            )
    return check_unique(values)


def check_safety_patterns(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _SAFETY.match(value):
            raise setting_fault(f"{value[:80]!r} is no safety pattern; write one like threat_level=high")
    return check_unique(values)


def check_names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in values:
        if not _NAME.match(name):
            raise setting_fault(f"{name[:80]!r} is no name; use letters, digits, - and _, 64 at most")
    return values


def check_aliases(values: dict[str, str]) -> dict[str, str]:
    for name, target in values.items():
        if not _FUNCTION.match(name):
            raise setting_fault(
                f"{name[:80]!r} is no function name; use letters, digits, - and _, 64 at most"
            )
        if not _FUNCTION.match(target) or "__" not in target:
            raise setting_fault(f"{target[:80]!r} is no tool's name; tools are named like core__get_weather")
    return values


def check_base_url(value: str) -> str:
    """An address that a key may be sent to, without its trailing slash.  Never repeats the value."""
    if any(character.isspace() or not character.isprintable() for character in value):
        raise setting_fault("must not contain spaces or control characters")
    if value.startswith("replay:"):
        return value
    parts = urlsplit(value)
    if parts.scheme.lower() not in ("http", "https"):
        raise setting_fault("must start with http://, https:// or replay:")
    if parts.username is not None or parts.password is not None:
        raise setting_fault("must not carry a user name or password; use api_key or headers")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise setting_fault("must not carry a query or a fragment; use headers")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise setting_fault("has a port that is no number from 1 to 65535")
    if not parts.hostname:
        raise setting_fault("names no host")
    return value.rstrip("/")


def check_service_url(value: str) -> str:
    """Where a service of a tool answers: a base address over HTTP."""
    if not value.lower().startswith(("http://", "https://")):
        raise setting_fault("must start with http:// or https://")
    return check_base_url(value)


def check_collector_url(value: str) -> str:
    """A collector of traces, or none."""
    return check_service_url(value) if value else value


def check_token_url(value: str) -> str:
    """A token endpoint.  What goes there is worth more than any token, so it goes over TLS."""
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme.lower() != "https" and parts.hostname not in ("127.0.0.1", "::1"):
        raise setting_fault("must start with https://")
    return check_service_url(value)


def check_networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ip_network(value)
        except ValueError:
            raise setting_fault(
                f"{value[:80]!r} is no network; write one like 10.0.0.0/8 or fd00::/8"
            ) from None
    return check_unique(values)


def check_hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _HOST.match(value):
            raise setting_fault(
                f"{value[:80]!r} is no host; write one like docs.example.com or *.example.com"
            )
    return check_unique(values)


def check_allowed_hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    """Names in lower case; addresses as the ``ipaddress`` module writes them."""
    return check_unique(tuple(_allowed_host(value.lower()) for value in values))


def _allowed_host(value: str) -> str:
    try:
        return str(ip_address(value.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if value == "*":
        raise setting_fault('"*" would let web pages in that rebind their name; write the names themselves')
    if len(value) > 253 or not _NAMED_HOST.match(value):
        raise setting_fault(
            f"{value[:80]!r} is no host name; write one like proxy.example.com, without scheme and port"
        )
    return value


def check_origins(values: tuple[str, ...]) -> tuple[str, ...]:
    """Origins exactly as browsers write them, since they are compared as they are."""
    for value in values:
        _check_origin(value)
    return check_unique(values)


def _check_origin(value: str) -> None:
    shown = repr(value[:80])
    if "*" in value:
        raise setting_fault(f"{shown} has a wildcard; write each origin out, like https://app.example.com")
    if value == "null":
        raise setting_fault(f"{shown} is the origin of any page that hides its own")
    found = _ORIGIN.match(value)
    if found is None:
        written = _ORIGIN.match("/".join(value.lower().split("/")[:3]))
        what = f"; write {written[0]}" if written else "; write one like https://app.example.com"
        raise setting_fault(f"{shown} is no origin as browsers write it{what}")
    scheme, port = found[1], found[3]
    if scheme == "file":
        raise setting_fault(f"{shown} is no origin: browsers name none for files")
    if port is not None and (int(port) > 65535 or {"http": "80", "https": "443"}.get(scheme) == port):
        raise setting_fault(f"{shown} has a port that browsers do not write; write {value[: -len(port) - 1]}")


def check_proxies(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in check_networks(values):
        if ip_network(value).prefixlen == 0:
            raise setting_fault(f"{value!r} would believe everybody; write the addresses of your proxies")
    return values


def check_models(value: Any) -> Any:
    """``models`` is a list of names or a table that renames: one clear line for anything else."""
    if isinstance(value, dict):
        if not value or not all(isinstance(name, str) and name and target for name, target in value.items()):
            raise setting_fault('expected a table like {"fast" = "gpt-4o-mini"}, with no empty name in it')
        if not all(isinstance(target, str) for target in value.values()):
            raise setting_fault('expected a table of strings like {"fast" = "gpt-4o-mini"}')
        return dict(value)
    if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
        if not value:
            raise setting_fault('is empty; write ["*"] for every model')
        return check_unique(tuple(value))
    raise setting_fault('expected a list of model names like ["*"], or a table like {"fast" = "gpt-4o-mini"}')


def check_upstream_tools(value: Any) -> Any:
    """``tools`` of an upstream is a switch or a list of patterns: one clear line for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return check_patterns(tuple(value))
    raise setting_fault('expected true, false or a list of tool patterns like ["core__*"]')


def check_pattern(value: str | None) -> str | None:
    try:
        ArgumentBound(pattern=value)
    except ValueError as error:
        raise setting_fault(f"{error}; look-around and back references are not taken") from None
    return value


def check_bounds(values: dict[str, Any]) -> dict[str, Any]:
    """Tool patterns and argument paths as the keys of tables."""
    check_patterns(tuple(values))
    for pattern, bounds in values.items():
        for path in bounds:
            if not all(path.split(".")) or len(path) > 256:
                raise setting_fault(
                    f"{path[:80]!r} of {pattern!r} is no argument; write a name, or a path: slices.*.origin"
                )
    return values


def check_headers(values: dict[str, "str | Secret"]) -> dict[str, "str | Secret"]:
    for name, value in values.items():
        if not _HEADER.match(name):
            raise setting_fault(f"{name[:80]!r} is no header name")
        if name.lower() in _FRAMING:
            raise setting_fault(f"{name!r} belongs to the connection and cannot be set")
        if name.lower() in _SECRET_HEADERS and not isinstance(value, Secret):
            raise setting_fault(f"{name!r} may not stand here as plain text; write env:NAME or file:/path")
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise setting_fault(f"the value of {name!r} is not printable ASCII")
    return values


def check_query_names(values: tuple[str, ...]) -> tuple[str, ...]:
    for name in values:
        if not _QUERY_NAME.fullmatch(name):
            raise setting_fault(f"{name[:80]!r} is no name of a query parameter")
        if name.lower().startswith("model"):
            raise setting_fault(f"{name!r} would let a client name another model than the body does")
    return values


def read_header_value(value: Any) -> "str | Secret":
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise setting_fault("expected a string")
    return Secret.parse(value) if value.startswith(("env:", "file:")) else value


def check_store_url(value: str) -> str:
    if value.startswith(("postgresql://", "postgres://")):
        try:
            found = urlsplit(value)
            _ = found.port, found.password
        except ValueError:
            raise setting_fault("is no address; write postgresql://USER@HOST:5432/DATABASE") from None
        return value
    if value == "memory:":
        return value
    if value.startswith("sqlite:///") and value[len("sqlite:///") :] not in ("", "/", ":memory:"):
        return value
    raise setting_fault("must be memory:, sqlite:///FILE or postgresql://…")


def passwords_in(url: str) -> list[str]:
    """What of a server's address may not be shown, as written and as meant."""
    if not url.startswith(("postgres", "redis")):
        return []
    parts = urlsplit(url)
    found = [parts.password or "", *parse_qs(parts.query).get("password", ())]
    return sorted({word for each in found if each for word in (each, unquote(each))})


def _with_example(error: ConfigError) -> str:
    """What is wrong with a limit, and how one is written."""
    return f"{error.problem}; {error.remedy[:1].lower()}{error.remedy[1:]}" if error.remedy else error.problem


def check_limits(values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parse_limits("limits", values)
    except ConfigError as error:
        raise setting_fault(_with_example(error)) from None
    return values


def check_cost_limits(values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parse_cost_limits("limits", values)
    except ConfigError as error:
        raise setting_fault(_with_example(error)) from None
    return values


def check_storage_url(value: str) -> str:
    """Where limits are counted.  Never repeats the value."""
    if value == "memory://":
        return value
    fault = setting_fault("must be memory://, redis://HOST:6379/0 or rediss://…")
    if not value.startswith(("redis://", "rediss://")) or not value.isprintable() or " " in value:
        raise fault
    try:
        parts = urlsplit(value)
        _ = parts.password
        usable = parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable or parts.fragment or not re.fullmatch(r"/?\d{0,5}", parts.path):
        raise fault
    return value


def read_storage(value: Any) -> "str | Secret":
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise setting_fault("expected a string")
    return Secret.parse(value) if value.startswith(("env:", "file:")) else check_storage_url(value)


def check_end_user(value: str) -> str:
    place, _, name = value.partition(":")
    if value and (place not in ("header", "body") or not _HEADER.match(name)):
        raise setting_fault('must be "header:NAME" or "body:NAME", or empty')
    return value


def read_optional(value: Any) -> Any:
    return None if value == "" else value


Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A TOML list of strings; the list itself may come as list or tuple, its elements must be strings."""

OptionalSecret = Annotated[Secret | None, BeforeValidator(read_optional)]
Secrets = Annotated[tuple[Secret, ...], Field(strict=False)]
Patterns = Annotated[Strings, AfterValidator(check_patterns)]
LimitList = Annotated[Strings, AfterValidator(check_limits)]
CostLimitList = Annotated[Strings, AfterValidator(check_cost_limits)]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1024, le=1 << 40)]


class Section(BaseModel):
    """What all sections share: nothing unknown, nothing converted, nothing changed later."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, validate_default=False
    )


class BoundConfig(Section):
    """What one argument of a tool may be."""

    enum: tuple[Scalar, ...] | None = Field(
        default=None, strict=False, min_length=1, description="Its values."
    )
    min: float | None = Field(default=None, allow_inf_nan=False, description="Smallest number.")
    max: float | None = Field(default=None, allow_inf_nan=False, description="Largest number.")
    max_length: int | None = Field(
        default=None, ge=0, description="Characters of a text, elements of a list."
    )
    pattern: Annotated[str | None, AfterValidator(check_pattern)] = Field(
        default=None, description="What the whole of a text matches."
    )
    required: bool = Field(default=False, description="Whether it must be given.")
    forbidden: bool = Field(default=False, description="Whether it must not be given.")

    def bound(self) -> ArgumentBound:
        """The same, to hold arguments to."""
        return ArgumentBound(**dict(self))

    @model_validator(mode="after")
    def _says_something(self) -> "BoundConfig":
        given = {name for name, value in self if value is not None and value is not False}
        if not given:
            raise setting_fault(
                "bounds nothing; write enum, min, max, max_length, pattern, required or forbidden"
            )
        if self.forbidden and len(given) > 1:
            raise setting_fault("is forbidden and has other bounds; write the one or the others")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise setting_fault("has a min above its max")
        return self


Bounds = Annotated[dict[str, dict[str, BoundConfig]], AfterValidator(check_bounds)]
"""Bounds of arguments by tool pattern and path."""
