"""The rights of a client key as written: in ``[keys.NAME]``, on the command line, in the store."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from proxy.config.types import (
    Bounds,
    Patterns,
    Strings,
    Trace,
    check_cost_limits,
    check_limits,
    check_unique,
    each_fits,
    setting_fault,
)
from proxy.rights.callers import CallerBound, Rights
from proxy.rights.limit_rules import KeyLimits, parse_cost_limits, parse_limits

_ALL = ("*",)
_LISTS = ("requests", "tool_calls", "tokens", "cost")
_KINDS = (*_LISTS, "concurrent_streams")
_ENDPOINT = re.compile(r"/[A-Za-z0-9\-._~*?/]{1,200}\Z")
_MODEL = re.compile(r"[^\x00-\x20\x7f]{1,200}\Z")
_MOST_STREAMS = 1_000_000


def check_key_limits(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a key, each kind as a list of texts; raise a fault that names the kind."""
    checked: dict[str, Any] = {}
    for kind, value in values.items():
        if kind not in _KINDS:
            raise setting_fault(f"a key has no limit {kind[:40]!r}; its limits are {', '.join(_KINDS)}")
        if kind == "concurrent_streams":
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_STREAMS:
                raise setting_fault(f"concurrent_streams must be a whole number from 1 to {_MOST_STREAMS}")
            checked[kind] = value
            continue
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise setting_fault(f'{kind} must be a list like ["600/minute"]')
        checked[kind] = check_cost_limits(tuple(texts)) if kind == "cost" else check_limits(tuple(texts))
    return checked


def key_limits(values: Mapping[str, Any]) -> KeyLimits | None:
    """Return checked limits as :class:`KeyLimits`; ``None`` if there are none."""
    if not values:
        return None
    lists = {
        kind: (parse_cost_limits if kind == "cost" else parse_limits)(f"limits.{kind}", values[kind])
        for kind in _LISTS
        if kind in values
    }
    return KeyLimits(**lists, concurrent_streams=values.get("concurrent_streams"))


_check_models = each_fits(_MODEL, "not a model name; write a name, with * for any part of it")


def _check_endpoints(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check patterns of paths, and make all of them relative to ``/v1``."""
    endpoints = []
    for value in values:
        if not _ENDPOINT.match(value) or "//" in value or ".." in value:
            raise setting_fault(f"{value[:80]!r} is not a path; write a path such as /files* or /v1/batches*")
        endpoints.append(value.removeprefix("/v1") if value.startswith("/v1/") else value)
    return check_unique(tuple(endpoints))


def read_expiry(value: Any) -> Any:
    """Convert a date or a time, as TOML value or text, into seconds since the epoch; without an offset it is
    UTC."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise setting_fault(
                f"{value[:40]!r} is not a time; write one like 2027-01-31 or 2027-01-31T12:00"
            ) from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    return value


class KeyGrants(BaseModel):
    """The rights of a client key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    models: Annotated[Strings, AfterValidator(_check_models)] = Field(
        default=_ALL, description="Models that the key may use: names or patterns."
    )
    upstreams: Annotated[Strings, AfterValidator(check_unique)] = Field(
        default=(), description="Upstreams that the key may use, by their names in this file. Empty: all."
    )
    tools: Patterns = Field(
        default=_ALL,
        description="Tools that the key may use, out of those that policy.allow names: names or patterns.",
    )
    arguments: Bounds = Field(
        default={},
        description="Limits of arguments in addition to those of policy.arguments, written in the same way; "
        "both apply.",
    )
    endpoints: Annotated[Strings, AfterValidator(_check_endpoints)] = Field(
        default=(),
        description="Paths below /v1 that the key may call in addition to inference: patterns like "
        '"/files*".',
    )
    trace_max: Trace = Field(
        default="events", description="The most that the key may see of server tools, within tools.trace_max."
    )
    limits: Annotated[dict[str, Any], AfterValidator(check_key_limits)] = Field(
        default={},
        description="The key's own limits, which replace the general ones: requests, tool_calls, tokens, "
        "cost, concurrent_streams.",
    )
    expires: Annotated[float | None, BeforeValidator(read_expiry)] = Field(
        default=None, description="When the key stops being valid: 2027-01-31, a time, or empty."
    )
    admin: bool = Field(default=False, description="Whether the key may read /admin.")
    approves: Patterns = Field(
        default=(),
        description="Tools whose calls the key may approve or deny, on /admin/approvals and on the page "
        'Approvals of /ui: names or patterns like "pay__*". It sees the approvals of these tools only.',
    )
    mint: bool = Field(
        default=False, description="Whether the key may make short-lived tokens (POST /v1/toolrelay/tokens)."
    )

    shared: bool = Field(
        default=False,
        description="Whether several people use the key: a request that does not name its end user then "
        "gets no hidden turns back and is never treated as a repeat.",
    )

    def rights(self, tools: str, arguments: str) -> Rights:
        """Return the key's rights; ``tools`` and ``arguments`` are the names of their settings, for
        messages."""
        return Rights(
            models=() if self.models == _ALL else (self.models,),
            upstreams=frozenset(self.upstreams) if self.upstreams else None,
            tools=() if self.tools == _ALL else ((tools, self.tools),),
            arguments=tuple(
                CallerBound(arguments, pattern, path, bound.bound())
                for pattern, bounds in self.arguments.items()
                for path, bound in bounds.items()
            ),
            endpoints=self.endpoints,
            trace_max=self.trace_max,
            isolated=True,
            shared=self.shared,
        )

    def stored(self) -> dict[str, Any]:
        """Return the grants as a store keeps them, without the expiry, which has a column of its own."""
        return self.model_dump(exclude={"expires"}, exclude_none=True)
