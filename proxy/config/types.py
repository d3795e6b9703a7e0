"""The types of settings, with their checks.

Every fault has a message for the operator, which never contains a value that may be secret.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from proxy.base.errors import ConfigError
from proxy.config.secret import Secret
from proxy.rights.limit_rules import parse_cost_limits, parse_limits
from proxy.tools.contract.bounds import ArgumentBound, Scalar
from proxy.wires.registry.table import BY_WIRE

if TYPE_CHECKING:
    WireName = str
else:
    WireName = Literal[tuple(BY_WIRE)]
"""The dialects that upstreams may speak: those of the registry."""

Trace = Literal["silent", "reasoning", "status", "events"]
TRACES: tuple[Trace, ...] = ("silent", "reasoning", "status", "events")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,128}\Z")
_SAFETY = re.compile(r"[A-Za-z0-9_*?-]{1,64}=[^=\x00-\x1f]{1,64}\Z")
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
    """Return a validation error whose message is ready for the operator (and contains no secret value)."""
    return PydanticCustomError("setting", "{message}", {"message": message})


def check_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise setting_fault(f"lists {value!r} twice")
    return values


def each_fits(pattern: re.Pattern[str], problem: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return a validator: each value must match a pattern, and must not be repeated."""

    def check(values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if not pattern.match(value):
                raise setting_fault(f"{value[:80]!r} is {problem}")
        return check_unique(values)

    return check


check_patterns = each_fits(_PATTERN, "not a tool pattern; write a tool's name, with * for any part of it")
check_safety_patterns = each_fits(_SAFETY, "not a safety pattern; write one like threat_level=high")


def check_names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in values:
        if not _NAME.match(name):
            raise setting_fault(f"{name[:80]!r} is not a valid name; use at most 64 letters, digits, - and _")
    return values


def check_aliases(values: dict[str, str]) -> dict[str, str]:
    for name, target in values.items():
        if not _FUNCTION.match(name):
            raise setting_fault(
                f"{name[:80]!r} is not a valid function name; use at most 64 letters, digits, - and _"
            )
        if not _FUNCTION.match(target) or "__" not in target:
            raise setting_fault(f"{target[:80]!r} is not a tool's name; write one like core__get_weather")
    return values


def check_models(value: Any) -> Any:
    """Check ``models``: a list of names or a table that renames; one clear message for anything else."""
    if isinstance(value, dict):
        if not value or not all(isinstance(name, str) and name and target for name, target in value.items()):
            raise setting_fault('must be a table like {"fast" = "gpt-4o-mini"}, without an empty name')
        if not all(isinstance(target, str) for target in value.values()):
            raise setting_fault('must be a table of strings like {"fast" = "gpt-4o-mini"}')
        return dict(value)
    if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
        if not value:
            raise setting_fault('is empty; write ["*"] for every model')
        return check_unique(tuple(value))
    raise setting_fault('must be a list of model names like ["*"], or a table like {"fast" = "gpt-4o-mini"}')


def check_upstream_tools(value: Any) -> Any:
    """Check ``tools`` of an upstream: a switch, a word or a list of patterns; one message for others."""
    if isinstance(value, bool) or value in ("native", "prompt"):
        return value
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return check_patterns(tuple(value))
    raise setting_fault('must be true, false, "native", "prompt" or a list of tool patterns like ["core__*"]')


def check_pattern(value: str | None) -> str | None:
    try:
        ArgumentBound(pattern=value)
    except ValueError as error:
        raise setting_fault(f"{error}; look-around and back-references are not supported") from None
    return value


def check_bounds(values: dict[str, Any]) -> dict[str, Any]:
    """Check the keys of the tables: tool patterns and argument paths."""
    check_patterns(tuple(values))
    for pattern, bounds in values.items():
        for path in bounds:
            if not all(path.split(".")) or len(path) > 256:
                raise setting_fault(
                    f"{path[:80]!r} of {pattern!r} is not an argument path; write one like city or "
                    "slices.*.origin"
                )
    return values


IMAGES_AT: Final = "upstream:"
"""The beginning of a setting that names an upstream which makes images, and perhaps a model."""


def check_hosted(values: dict[str, str]) -> dict[str, str]:
    for kind, target in values.items():
        if target.startswith(IMAGES_AT) and kind != "image_generation":
            raise setting_fault(
                f"{kind} needs the id of a server tool; only image_generation can name an upstream"
            )
    return values


def check_tool_prices(values: dict[str, float]) -> dict[str, float]:
    check_patterns(tuple(values))
    return values


def check_headers(values: dict[str, "str | Secret"]) -> dict[str, "str | Secret"]:
    for name, value in values.items():
        if not _HEADER.match(name):
            raise setting_fault(f"{name[:80]!r} is not a header name")
        if name.lower() in _FRAMING:
            raise setting_fault(
                f"{name!r} cannot be set: the proxy sets the headers of the connection itself"
            )
        if name.lower() in _SECRET_HEADERS and not isinstance(value, Secret):
            raise setting_fault(
                f"{name!r} may not be written here as plain text; write env:NAME or file:/path"
            )
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise setting_fault(f"the value of {name!r} contains characters other than printable ASCII")
    return values


def check_query_names(values: tuple[str, ...]) -> tuple[str, ...]:
    for name in values:
        if not _QUERY_NAME.fullmatch(name):
            raise setting_fault(f"{name[:80]!r} is not the name of a query parameter")
        if name.lower().startswith("model"):
            raise setting_fault(f"{name!r} would let a client choose another model than its body names")
    return values


def read_header_value(value: Any) -> "str | Secret":
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise setting_fault("expected a string")
    return Secret.parse(value) if value.startswith(("env:", "file:")) else value


def _with_example(error: ConfigError) -> str:
    """Return what is wrong with a limit, and how to write one."""
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


def check_end_user(value: str) -> str:
    place, _, name = value.partition(":")
    if value and (place not in ("header", "body") or not _HEADER.match(name)):
        raise setting_fault('must be "header:NAME" or "body:NAME", or empty')
    return value


def read_optional(value: Any) -> Any:
    return None if value == "" else value


HeaderValue = Annotated[str | Secret, PlainValidator(read_header_value, json_schema_input_type=str)]

Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A TOML list of strings; the value may be a list or tuple, its elements must be strings."""

OptionalSecret = Annotated[Secret | None, BeforeValidator(read_optional)]
Secrets = Annotated[tuple[Secret, ...], Field(strict=False)]
Patterns = Annotated[Strings, AfterValidator(check_patterns)]
LimitList = Annotated[Strings, AfterValidator(check_limits)]
CostLimitList = Annotated[Strings, AfterValidator(check_cost_limits)]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1024, le=1 << 40)]


class Section(BaseModel):
    """The base of all sections: no unknown keys, no conversions, immutable."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, validate_default=False
    )


class BoundConfig(Section):
    """The limits of one argument of a tool."""

    enum: tuple[Scalar, ...] | None = Field(
        default=None, strict=False, min_length=1, description="Its values."
    )
    min: float | None = Field(default=None, allow_inf_nan=False, description="Smallest number.")
    max: float | None = Field(default=None, allow_inf_nan=False, description="Largest number.")
    max_length: int | None = Field(
        default=None, ge=0, description="Most characters of a text, or elements of a list."
    )
    pattern: Annotated[str | None, AfterValidator(check_pattern)] = Field(
        default=None, description="A regular expression that the whole text must match."
    )
    required: bool = Field(default=False, description="Whether the argument must be given.")
    forbidden: bool = Field(default=False, description="Whether the argument must not be given.")

    def bound(self) -> ArgumentBound:
        """Return the bound that arguments are checked against."""
        return ArgumentBound(**dict(self))

    @model_validator(mode="after")
    def _sets_a_limit(self) -> "BoundConfig":
        given = {name for name, value in self if value is not None and value is not False}
        if not given:
            raise setting_fault(
                "sets no limit; write enum, min, max, max_length, pattern, required or forbidden"
            )
        if self.forbidden and len(given) > 1:
            raise setting_fault("sets forbidden and other limits; write only one of them")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise setting_fault("has a min above its max")
        return self


ToolPrices = Annotated[
    dict[str, Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]],
    AfterValidator(check_tool_prices),
]
"""Prices of one call, by tool or pattern."""

Bounds = Annotated[dict[str, dict[str, BoundConfig]], AfterValidator(check_bounds)]
"""Bounds of arguments by tool pattern and path."""
