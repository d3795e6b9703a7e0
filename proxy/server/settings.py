"""Every setting as data: its type, its default, its bounds, and one line of what it means.

The descriptions are the only place where a setting is explained: ``toolrelay init`` and the
README's table are made from them.  How a file becomes one of these models stands in ``config.py``.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

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

from proxy.errors import ConfigError
from proxy.server.limits import parse_limits
from proxy.server.secret import Secret

__all__ = [
    "DEFAULT_BASE_URL",
    "DEFAULT_KEY",
    "AuthConfig",
    "Config",
    "CredentialConfig",
    "KeyConfig",
    "LimitsConfig",
    "LogConfig",
    "PolicyConfig",
    "PriceConfig",
    "ServerConfig",
    "StoreConfig",
    "TelemetryConfig",
    "ToolsConfig",
    "UpstreamConfig",
    "Wire",
]

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY = "env:OPENAI_API_KEY"

Wire = Literal["chat", "responses", "anthropic", "ollama"]
Trace = Literal["silent", "reasoning", "status", "events"]
TRACES: tuple[Trace, ...] = ("silent", "reasoning", "status", "events")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,128}\Z")
_SAFETY = re.compile(r"[A-Za-z0-9_*?-]{1,64}=[^=\x00-\x1f]{1,64}\Z")
_HOST = re.compile(r"[A-Za-z0-9*?_.-]{1,253}(:[0-9*]{1,5})?\Z")
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


def _fault(message: str) -> PydanticCustomError:
    """A validation error whose message is already fit for the operator (and carries no value)."""
    return PydanticCustomError("setting", "{message}", {"message": message})


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise _fault(f"{value!r} stands there twice")
    return values


def _patterns(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _PATTERN.match(value):
            raise _fault(f"{value[:80]!r} is no tool pattern; write a tool's name, * for any part of it")
    return _unique(values)


def _safety_patterns(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _SAFETY.match(value):
            raise _fault(f"{value[:80]!r} is no safety pattern; write one like threat_level=high")
    return _unique(values)


def _names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in values:
        if not _NAME.match(name):
            raise _fault(f"{name[:80]!r} is no name; use letters, digits, - and _, 64 at most")
    return values


def _aliases(values: dict[str, str]) -> dict[str, str]:
    for name, target in values.items():
        if not _FUNCTION.match(name):
            raise _fault(f"{name[:80]!r} is no function name; use letters, digits, - and _, 64 at most")
        if not _FUNCTION.match(target) or "__" not in target:
            raise _fault(f"{target[:80]!r} is no tool's name; tools are named like core__get_weather")
    return values


def _base_url(value: str) -> str:
    """An address that a key may be sent to, without its trailing slash.  Never repeats the value."""
    if any(character.isspace() or not character.isprintable() for character in value):
        raise _fault("must not contain spaces or control characters")
    if value.startswith("replay:"):
        return value
    parts = urlsplit(value)
    if parts.scheme.lower() not in ("http", "https"):
        raise _fault("must start with http://, https:// or replay:")
    if parts.username is not None or parts.password is not None:
        raise _fault("must not carry a user name or password; use api_key or headers")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise _fault("must not carry a query or a fragment; use headers")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise _fault("has a port that is no number from 1 to 65535")
    if not parts.hostname:
        raise _fault("names no host")
    return value.rstrip("/")


def _service_url(value: str) -> str:
    """Where a service of a tool answers: a base address over HTTP."""
    if value.startswith("replay:"):
        raise _fault("must start with http:// or https://")
    return _base_url(value)


def _token_url(value: str) -> str:
    """A token endpoint.  What goes there is worth more than any token, so it goes over TLS."""
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme.lower() != "https" and parts.hostname not in ("127.0.0.1", "::1"):
        raise _fault("must start with https://")
    return _service_url(value)


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ip_network(value)
        except ValueError:
            raise _fault(f"{value[:80]!r} is no network; write one like 10.0.0.0/8 or fd00::/8") from None
    return _unique(values)


def _hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _HOST.match(value):
            raise _fault(f"{value[:80]!r} is no host; write one like docs.example.com or *.example.com")
    return _unique(values)


def _models(value: Any) -> Any:
    """``models`` is a list of names or a table that renames: one clear line for anything else."""
    if isinstance(value, dict):
        if not value or not all(isinstance(name, str) and name and target for name, target in value.items()):
            raise _fault('expected a table like {"fast" = "gpt-4o-mini"}, with no empty name in it')
        if not all(isinstance(target, str) for target in value.values()):
            raise _fault('expected a table of strings like {"fast" = "gpt-4o-mini"}')
        return dict(value)
    if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
        if not value:
            raise _fault('is empty; write ["*"] for every model')
        return _unique(tuple(value))
    raise _fault('expected a list of model names like ["*"], or a table like {"fast" = "gpt-4o-mini"}')


def _headers(values: dict[str, "str | Secret"]) -> dict[str, "str | Secret"]:
    for name, value in values.items():
        if not _HEADER.match(name):
            raise _fault(f"{name[:80]!r} is no header name")
        if name.lower() in _FRAMING:
            raise _fault(f"{name!r} belongs to the connection and cannot be set")
        if name.lower() in _SECRET_HEADERS and not isinstance(value, Secret):
            raise _fault(f"{name!r} may not stand here as plain text; write env:NAME or file:/path")
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise _fault(f"the value of {name!r} is not printable ASCII")
    return values


def _header_value(value: Any) -> "str | Secret":
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise _fault("expected a string")
    return Secret.parse(value) if value.startswith(("env:", "file:")) else value


def _store_url(value: str) -> str:
    if value.startswith(("postgresql://", "postgres://")):
        try:
            found = urlsplit(value)
            _ = found.port, found.password
        except ValueError:
            raise _fault("is no address; write postgresql://USER@HOST:5432/DATABASE") from None
        return value
    if value == "memory:":
        return value
    if value.startswith("sqlite:///") and value[len("sqlite:///") :] not in ("", "/", ":memory:"):
        return value
    raise _fault("must be memory:, sqlite:///FILE or postgresql://…")


def _passwords(url: str) -> list[str]:
    """What of a store's address may not be shown, as written and as meant."""
    if not url.startswith("postgres"):
        return []
    parts = urlsplit(url)
    found = [parts.password or "", *parse_qs(parts.query).get("password", ())]
    return sorted({word for each in found if each for word in (each, unquote(each))})


def _limit_list(values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parse_limits("limits", values)
    except ConfigError as error:
        raise _fault(error.problem) from None
    return values


def _end_user(value: str) -> str:
    place, _, name = value.partition(":")
    if value and (place not in ("header", "body") or not _HEADER.match(name)):
        raise _fault('must be "header:NAME" or "body:NAME", or empty')
    return value


def _optional_secret(value: Any) -> Any:
    return None if value == "" else value


Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A TOML list of strings; the list itself may come as list or tuple, its elements must be strings."""

OptionalSecret = Annotated[Secret | None, BeforeValidator(_optional_secret)]
Patterns = Annotated[Strings, AfterValidator(_patterns)]
LimitList = Annotated[Strings, AfterValidator(_limit_list)]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1024, le=1 << 40)]


class _Section(BaseModel):
    """What all sections share: nothing unknown, nothing converted, nothing changed later."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, validate_default=False
    )


class ServerConfig(_Section):
    """Where the proxy listens and how much it takes."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253, description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    workers: int = Field(default=1, ge=1, le=1024, description="Processes that serve.")
    max_body_bytes: Bytes = Field(
        default=33554432, description="Largest body of a request that is read whole (chat, responses)."
    )
    max_upload_bytes: Bytes = Field(
        default=536870912, description="Largest body of a request that is streamed through (files, audio)."
    )
    cors_origins: Strings = Field(default=(), description="Web origins that browsers may call from, exactly.")
    trusted_proxies: Strings = Field(default=(), description="Addresses whose X-Forwarded-For is believed.")
    drain_s: float = Field(
        default=25,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds that open streams get after SIGTERM.",
    )


class UpstreamConfig(_Section):
    """A model provider.  Several are allowed; the first is the default."""

    base_url: Annotated[str, AfterValidator(_base_url)] = Field(
        default=DEFAULT_BASE_URL,
        description="The provider's OpenAI-compatible address, with /v1; replay:FOLDER plays fixtures.",
    )
    api_key: OptionalSecret = Field(
        default=Secret(DEFAULT_KEY),
        description="The provider's key: env:NAME or file:/path. Not set: OPENAI_API_KEY, "
        f"sent to {urlsplit(DEFAULT_BASE_URL).hostname} only. Empty: no key.",
        json_schema_extra={"commented": True},
    )
    wires: Annotated[tuple[Wire, ...], Field(strict=False), AfterValidator(_unique)] = Field(
        default=("chat", "responses"), min_length=1, description="Dialects that it speaks."
    )
    models: Annotated[tuple[str, ...] | dict[str, str], PlainValidator(_models)] = Field(
        default=("*",),
        description='Models it serves (patterns), or a table that renames: {"fast" = "gpt-4o-mini"}.',
    )
    tools: bool = Field(default=True, description="Whether its models take tools.")
    force_usage: bool = Field(default=False, description="Ask for token usage even where the client did not.")
    responses_state: Literal["auto", "chained", "stateless"] = Field(
        default="auto", description="How turns of the Responses API are joined: auto, chained or stateless."
    )
    connect_timeout_s: Seconds = Field(default=10, description="Seconds to connect.")
    first_byte_timeout_s: Seconds = Field(default=600, description="Seconds until the response begins.")
    idle_timeout_s: Seconds = Field(default=120, description="Seconds between two pieces of a response.")
    retries: int = Field(
        default=2, ge=0, le=10, description="Further tries of a failed connection or later turn."
    )
    headers: Annotated[
        dict[str, Annotated[str | Secret, PlainValidator(_header_value)]], AfterValidator(_headers)
    ] = Field(
        default={},
        description='Headers added to every request: {"x-team" = "env:TEAM"}; secrets as for api_key.',
    )

    def header_pairs(self) -> tuple[tuple[str, str], ...]:
        """The configured headers as they go out; raises ConfigError for an unresolved secret."""
        return tuple(
            (name, value.reveal() if isinstance(value, Secret) else value)
            for name, value in self.headers.items()
        )

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: what a key is bound to."""
        parts = urlsplit(self.base_url)
        scheme = parts.scheme.lower()
        if scheme not in ("http", "https"):
            return (scheme, "", 0)
        return (scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80))


class ToolsConfig(_Section):
    """Server tools: which are loaded, how they are offered, and their budgets."""

    enabled: bool = Field(
        default=True, description="false makes everything passthrough; so does ENABLE_TOOLS=false."
    )
    modules: Strings = Field(
        default=(),
        description="Your own tools: Python files (my_tools.py) or importable modules with @tool functions.",
    )
    networks: Annotated[Strings, AfterValidator(_networks)] = Field(
        default=(),
        description="Address ranges beyond the public ones that tools' HTTP may reach (10.0.0.0/8); "
        "then plain http:// too.",
    )
    web_hosts: Annotated[Strings, AfterValidator(_hosts)] = Field(
        default=(),
        description="Hosts whose pages web__fetch_page may fetch: a.example.com, *.example.com, * for all.",
    )
    base_urls: dict[
        Literal["calendar", "flights", "geocoding", "weather"], Annotated[str, AfterValidator(_service_url)]
    ] = Field(
        default={},
        description="Where the service behind a tool answers, if not at its usual address: calendar, "
        "flights, geocoding, weather.",
        json_schema_extra={"example": 'flights = "https://api.duffel.com"'},
    )
    inject: bool = Field(
        default=True, description="Offer allowed tools without being asked to by the request."
    )
    trace: Trace = Field(
        default="silent", description="What a client sees of server tools unless it asks for more."
    )
    trace_max: Trace = Field(
        default="status", description="The most a client may ask for: silent, reasoning, status or events."
    )
    parallel: bool = Field(default=True, description="Run the read-only calls of one turn together.")
    max_turns: int = Field(default=8, ge=1, le=1000, description="Model responses in one run.")
    max_calls: int = Field(default=32, ge=1, le=10000, description="Tool calls in one run.")
    max_tokens: int = Field(default=0, ge=0, description="Tokens in one run; 0 means no bound.")
    max_cost: float = Field(
        default=0, ge=0, allow_inf_nan=False, description="Cost of one run; 0 means no bound."
    )
    timeout_s: Seconds = Field(
        default=10, description="Seconds for one tool call, unless the tool says otherwise."
    )
    request_timeout_s: Seconds = Field(default=300, description="Seconds for one run.")
    keepalive_s: Seconds = Field(
        default=10, description="Seconds between keep-alive comments while tools run."
    )
    aliases: Annotated[dict[str, str], AfterValidator(_aliases)] = Field(
        default={},
        description="A function of this name declared by a client is run here.",
        json_schema_extra={"example": 'get_weather = "core__get_weather"'},
    )

    @model_validator(mode="after")
    def _trace_within_bound(self) -> "ToolsConfig":
        if TRACES.index(self.trace) > TRACES.index(self.trace_max):
            raise _fault(f'trace = "{self.trace}" shows more than trace_max = "{self.trace_max}" lets it')
        return self


class PolicyConfig(_Section):
    """Which tools may run.  Everything is denied unless allowed."""

    allow: Patterns = Field(
        default=(), description='Tools that may run: names or patterns like "mcp__files__*".'
    )
    approve_effects: Annotated[
        tuple[Literal["read_only", "state_change", "external_side_effect"], ...],
        Field(strict=False),
        AfterValidator(_unique),
    ] = Field(
        default=(), description="Effects that need an approval first: state_change, external_side_effect."
    )
    approve: Patterns = Field(default=(), description="Tools that need an approval first: names or patterns.")
    approve_safety: Annotated[Strings, AfterValidator(_safety_patterns)] = Field(
        default=(),
        description="Safety metadata of tools that needs an approval first: patterns like threat_level=high.",
    )
    after_untrusted: Literal["approve", "allow"] = Field(
        default="approve",
        description="What tools with effects or egress need once the model has read an untrusted result: "
        "approve or allow.",
    )
    max_argument_bytes: int = Field(
        default=8192, ge=2, le=1 << 24, description="Largest arguments of one call."
    )
    max_result_bytes: int = Field(
        default=32768, ge=256, le=1 << 26, description="Largest result of one call."
    )


class CredentialConfig(_Section):
    """One connection that tools may ask for by its name: a token, or OAuth 2 with a refresh token."""

    token: OptionalSecret = Field(default=None, description="The token as env:NAME or file:/path.")
    client_id: OptionalSecret = Field(default=None, description="OAuth 2 client id.")
    client_secret: OptionalSecret = Field(
        default=None, description="OAuth 2 client secret. Empty for a public client."
    )
    refresh_token: OptionalSecret = Field(default=None, description="OAuth 2 refresh token.")
    token_url: Annotated[str, AfterValidator(_token_url)] = Field(
        default="", description="Where OAuth 2 access tokens come from: https://oauth2.googleapis.com/token."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> "CredentialConfig":
        oauth = {
            "client_id": self.client_id,
            "refresh_token": self.refresh_token,
            "token_url": self.token_url,
        }
        given = [name for name, value in (*oauth.items(), ("client_secret", self.client_secret)) if value]
        if self.token is not None and given:
            raise _fault(f"has a token and {given[0]}; write the one or the other")
        missing = [name for name, value in oauth.items() if not value]
        if self.token is None and missing:
            raise _fault("needs token" if not given else f"needs {' and '.join(missing)}, too")
        return self


class StoreConfig(_Section):
    """The record of runs and tool calls."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        default="sqlite:///toolrelay.db", description="memory:, sqlite:///FILE or postgresql://…"
    )
    content: Literal["all", "tools", "none"] = Field(
        default="tools",
        description="Which content is kept: all (requests and answers too), tools (tool turns) or none.",
    )
    keep_days: float = Field(
        default=30, gt=0, le=36500, allow_inf_nan=False, description="Days that content is kept."
    )
    max_bytes: int = Field(default=0, ge=0, description="Largest size of the store; 0 means no bound.")
    seal_key: OptionalSecret = Field(
        default=None,
        description="Key that seals kept content, as env:NAME or file:/path: 32 bytes in base64 or "
        "hexadecimal. Empty: not sealed.",
    )
    synchronous: Literal["normal", "full"] = Field(
        default="normal", description="full survives power loss, normal a crash of the process."
    )
    history: bool = Field(
        default=True, description="Give hidden tool turns back to the model in later requests."
    )

    @property
    def shown_url(self) -> str:
        """The address without whatever of it may be a secret."""
        if not self.url.startswith("postgres"):
            return self.url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class LimitsConfig(_Section):
    """How much one caller may do."""

    requests: LimitList = Field(default=("600/minute",), description="Requests of one caller.")
    tool_calls: LimitList = Field(default=("600/minute",), description="Tool calls of one caller.")
    tokens: LimitList = Field(default=(), description="Tokens of one caller.")
    cost: LimitList = Field(default=(), description="Cost of one caller.")
    concurrent_tools: int = Field(
        default=64, ge=1, le=10_000, description="Read-only tools that run at one time."
    )
    concurrent_tools_per_caller: int = Field(
        default=16, ge=1, le=10_000, description="Of these, the tools of one caller."
    )
    concurrent_streams: int = Field(
        default=256, ge=1, le=1_000_000, description="Requests served at one time."
    )
    storage: str = Field(
        default="memory://", min_length=1, description="Where limits are counted: memory:// or redis://…"
    )
    on_error: Literal["open", "closed"] = Field(
        default="open",
        description="open lets requests in when the limits cannot be counted, closed refuses them.",
    )


class AuthConfig(_Section):
    """Who may come in."""

    mode: Literal["auto", "open", "keys", "forward"] = Field(
        default="auto",
        description="auto is open on loopback and refuses to start elsewhere without client keys.",
    )
    end_user: Annotated[str, AfterValidator(_end_user)] = Field(
        default="", description='Where a request names its end user: "header:NAME" or "body:user".'
    )


class KeyConfig(_Section):
    """A client key and what it may do."""

    secret: Secret = Field(description="The key as env:NAME or file:/path.")
    models: Strings = Field(default=("*",), description="Models it may use.")
    tools: Patterns = Field(default=(), description="Tools it may use.")
    endpoints: Strings = Field(default=(), description="Paths it may call beyond inference.")
    limits: dict[str, Any] = Field(default={}, description="Its own limits.")
    admin: bool = Field(default=False, description="Whether it may read /admin.")


class PriceConfig(_Section):
    """Prices of one model per million tokens."""

    input: float = Field(default=0, ge=0, allow_inf_nan=False, description="Input tokens.")
    cached_input: float = Field(default=0, ge=0, allow_inf_nan=False, description="Cached input tokens.")
    output: float = Field(default=0, ge=0, allow_inf_nan=False, description="Output tokens.")


class LogConfig(_Section):
    """The log, on standard error."""

    format: Literal["json", "console"] = Field(
        default="json",
        description="json or console. Not set: console on a terminal, else json.",
        json_schema_extra={"commented": True},
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is logged."
    )


class TelemetryConfig(_Section):
    """Metrics and traces."""

    metrics: bool = Field(default=True, description="Serve /metrics.")
    otlp_endpoint: str = Field(default="", description="OTLP address for traces.")


class Config(_Section):
    """All sections.  Paths in it are absolute and secrets resolved once ``load_config`` returns it."""

    server: ServerConfig = ServerConfig()
    upstreams: Annotated[dict[str, UpstreamConfig], AfterValidator(_names)] = Field(
        default={"default": UpstreamConfig()}, json_schema_extra={"shown_as": "default"}
    )
    tools: ToolsConfig = ToolsConfig()
    policy: PolicyConfig = PolicyConfig()
    credentials: Annotated[dict[str, CredentialConfig], AfterValidator(_names)] = Field(
        default={}, json_schema_extra={"shown_as": "duffel", "example": 'token = "env:DUFFEL_TOKEN"'}
    )
    store: StoreConfig = StoreConfig()
    limits: LimitsConfig = LimitsConfig()
    auth: AuthConfig = AuthConfig()
    keys: Annotated[dict[str, KeyConfig], AfterValidator(_names)] = Field(
        default={},
        json_schema_extra={"shown_as": "webui", "example": 'secret = "env:WEBUI_KEY"\ntools = ["core__*"]'},
    )
    prices: dict[str, PriceConfig] = Field(
        default={},
        json_schema_extra={
            "shown_as": '"gpt-4o-mini"',
            "example": "input = 0.15\ncached_input = 0.075\noutput = 0.60",
        },
    )
    log: LogConfig = LogConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @property
    def default_upstream(self) -> str:
        """The name of the first upstream."""
        return next(iter(self.upstreams))

    def secrets(self) -> tuple[str, ...]:
        """Every resolved secret's value, for the log's mask.  Handle with care."""
        found: list[Secret | None] = [self.store.seal_key]
        for upstream in self.upstreams.values():
            found.append(upstream.api_key)
            found.extend(value for value in upstream.headers.values() if isinstance(value, Secret))
        for connection in self.credentials.values():
            found += [
                connection.token,
                connection.client_id,
                connection.client_secret,
                connection.refresh_token,
            ]
        values = [secret.reveal() for secret in found if secret is not None and secret.resolved]
        return (*values, *_passwords(self.store.url))
