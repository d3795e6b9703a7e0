"""Every setting as data: its type, its default, its bounds, and one line of what it means.

The descriptions are the only place where a setting is explained: ``toolrelay init`` and the
README's table are made from them.  How a file becomes one of these models stands in ``config.py``.
"""

from typing import Annotated, Literal, TypedDict
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    model_validator,
)

from proxy.server.config.key_grants import KeyGrants
from proxy.server.config.secret import Secret
from proxy.server.config.types import (
    TRACES,
    Bounds,
    Bytes,
    CostLimitList,
    LimitList,
    OptionalSecret,
    Patterns,
    Seconds,
    Secrets,
    Section,
    Strings,
    Trace,
    Wire,
    check_aliases,
    check_allowed_hosts,
    check_base_url,
    check_collector_url,
    check_end_user,
    check_headers,
    check_hosts,
    check_models,
    check_names,
    check_networks,
    check_origins,
    check_proxies,
    check_query_names,
    check_safety_patterns,
    check_service_url,
    check_store_url,
    check_token_url,
    check_unique,
    check_upstream_tools,
    passwords_in,
    read_header_value,
    read_optional,
    read_storage,
    setting_fault,
)

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


class ServerConfig(Section):
    """Where the proxy listens and how much it takes."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253, description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    workers: int = Field(default=1, ge=1, le=1024, description="Processes that serve.")
    max_body_bytes: Bytes = Field(
        default=33554432, description="Largest body of a request that is read whole (JSON for inference)."
    )
    max_json_values: int = Field(
        default=400_000,
        ge=1000,
        le=100_000_000,
        description="Most values in the JSON of a request; an empty object or list counts for two.",
    )
    max_upload_bytes: Bytes = Field(
        default=536870912, description="Largest body of a request that is streamed through (files, forms)."
    )
    header_timeout_s: Seconds = Field(
        default=20, description="Seconds in which the whole head of a request must have arrived."
    )
    max_pending_heads: int = Field(
        default=1024,
        ge=16,
        description="Requests of one process whose head has begun and is not whole; one more gets a 503.",
    )
    max_pending_heads_per_address: int = Field(
        default=512, ge=4, description="The same, of one client address that is no trusted proxy's."
    )
    body_timeout_s: Seconds = Field(
        default=120, description="Seconds that max_body_bytes may take to arrive; larger uploads longer."
    )
    send_timeout_s: Seconds = Field(
        default=60, description="Seconds that a client may take nothing of a response that waits for it."
    )
    allowed_hosts: Annotated[Strings, AfterValidator(check_allowed_hosts)] = Field(
        default=(),
        description="Names that clients may call the proxy by, beside addresses and localhost: "
        "proxy.example.com, *.example.com.",
    )
    cors_origins: Annotated[Strings, AfterValidator(check_origins)] = Field(
        default=(),
        description="Origins of web pages that may call, as browsers write them: https://app.example.com.",
    )
    trusted_proxies: Annotated[Strings, AfterValidator(check_proxies)] = Field(
        default=(),
        description="Addresses or networks of proxies in front, whose X-Forwarded-For is believed.",
    )
    notice_s: float = Field(
        default=0,
        ge=0,
        le=600,
        allow_inf_nan=False,
        description="Seconds after SIGTERM in which /readyz says no and requests are still served.",
    )
    drain_s: float = Field(
        default=25,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds that open streams get after SIGTERM.",
    )


class UpstreamConfig(Section):
    """A model provider.  Several are allowed; the first is the default."""

    base_url: Annotated[str, AfterValidator(check_base_url)] = Field(
        default=DEFAULT_BASE_URL,
        description="The provider's OpenAI-compatible address, with /v1; replay:FOLDER plays fixtures.",
    )
    api_key: OptionalSecret = Field(
        default=Secret(DEFAULT_KEY),
        description="The provider's key: env:NAME or file:/path. Not set: OPENAI_API_KEY, "
        f"sent to {urlsplit(DEFAULT_BASE_URL).hostname} only. Empty: no key.",
        json_schema_extra={"commented": True},
    )
    wires: Annotated[tuple[Wire, ...], Field(strict=False), AfterValidator(check_unique)] = Field(
        default=("chat", "responses"), min_length=1, description="Dialects that it speaks."
    )
    models: Annotated[tuple[str, ...] | dict[str, str], PlainValidator(check_models)] = Field(
        default=("*",),
        description='Models it serves (patterns), or a table that renames: {"fast" = "gpt-4o-mini"}.',
    )
    tools: Annotated[bool | tuple[str, ...], PlainValidator(check_upstream_tools)] = Field(
        default=True,
        description="Whether its models take tools, or which of the allowed ones they are offered "
        '(patterns): ["core__*"].',
    )
    force_usage: bool = Field(default=False, description="Ask for token usage even where the client did not.")
    responses_state: Literal["auto", "chained", "stateless"] = Field(
        default="auto", description="How turns of the Responses API are joined: auto, chained or stateless."
    )
    connect_timeout_s: Seconds = Field(default=10, description="Seconds to connect.")
    first_byte_timeout_s: Seconds = Field(
        default=600,
        description="Seconds until the response begins, and at most two more until it is given up.",
    )
    idle_timeout_s: Seconds = Field(
        default=120,
        description="Seconds between two pieces of a response, and at most two more until it is given up.",
    )
    total_timeout_s: Seconds = Field(default=3600, description="Seconds for a response that passes through.")
    http_client: Literal["lean", "aiohttp"] = Field(
        default="lean",
        description="What speaks HTTP to it: lean costs least; aiohttp is there should an upstream need it.",
    )
    retries: int = Field(
        default=2, ge=0, le=10, description="Further tries of a failed connection or later turn."
    )
    breaker_failures: int = Field(
        default=5, ge=0, le=1000, description="Failures in a row until others are asked instead; 0: never."
    )
    breaker_open_s: Seconds = Field(
        default=30, description="Seconds until one request tries it again, after such failures."
    )
    headers: Annotated[
        dict[str, Annotated[str | Secret, PlainValidator(read_header_value)]], AfterValidator(check_headers)
    ] = Field(
        default={},
        description='Headers added to every request: {"x-team" = "env:TEAM"}; secrets as for api_key.',
    )
    forward_headers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Further headers of clients that it gets; a prefix ends in -*: "
        '["http-referer", "x-title", "x-litellm-*"].',
    )
    forward_response_headers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description='Further headers of its responses that clients get, written alike: ["x-litellm-*"].',
    )
    forward_query: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(check_query_names)] = Field(
        default=(),
        description="Query parameters of inference requests that it gets beside api-version and beta.",
    )

    def header_pairs(self) -> tuple[tuple[str, str], ...]:
        """The configured headers as they go out; raises ConfigError for an unresolved secret."""
        return tuple(
            (name, value.reveal() if isinstance(value, Secret) else value)
            for name, value in self.headers.items()
        )

    def key_setting(self, name: str) -> str:
        """Where the key that goes to this upstream comes from, with its environment variable or file."""
        if self.api_key is not None:
            return f"upstreams.{name}.api_key ({self.api_key.reference})"
        secrets = [value.reference for value in self.headers.values() if isinstance(value, Secret)]
        if secrets:
            return f"upstreams.{name}.headers ({', '.join(secrets)})"
        return f"upstreams.{name}.api_key (not set)"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: what a key is bound to."""
        parts = urlsplit(self.base_url)
        scheme = parts.scheme.lower()
        if scheme not in ("http", "https"):
            return (scheme, "", 0)
        return (scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80))


class ToolsConfig(Section):
    """Server tools: which are loaded, how they are offered, and their budgets."""

    enabled: bool = Field(
        default=True, description="false makes everything passthrough; so does ENABLE_TOOLS=false."
    )
    modules: Strings = Field(
        default=(),
        description="Your own tools: Python files (my_tools.py) or importable modules with @tool functions.",
    )
    networks: Annotated[Strings, AfterValidator(check_networks)] = Field(
        default=(),
        description="Address ranges beyond the public ones that tools' HTTP may reach (10.0.0.0/8); "
        "then plain http:// too.",
    )
    web_hosts: Annotated[Strings, AfterValidator(check_hosts)] = Field(
        default=(),
        description="Hosts whose pages web__fetch_page may fetch: a.example.com, *.example.com, * for all.",
    )
    base_urls: dict[
        Literal["calendar", "flights", "geocoding", "weather"],
        Annotated[str, AfterValidator(check_service_url)],
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
    max_parallel: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="Read-only calls of one run at one time; limits.concurrent_tools* bound all runs.",
    )
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
    aliases: Annotated[dict[str, str], AfterValidator(check_aliases)] = Field(
        default={},
        description="A function of this name declared by a client is run here.",
        json_schema_extra={"example": 'get_weather = "core__get_weather"'},
    )

    @model_validator(mode="after")
    def _trace_within_bound(self) -> "ToolsConfig":
        if TRACES.index(self.trace) > TRACES.index(self.trace_max):
            raise setting_fault(
                f'trace = "{self.trace}" shows more than trace_max = "{self.trace_max}" lets it'
            )
        return self


class PolicyConfig(Section):
    """Which tools may run.  Everything is denied unless allowed."""

    allow: Patterns = Field(
        default=(), description='Tools that may run: names or patterns like "mcp__files__*".'
    )
    approve_effects: Annotated[
        tuple[Literal["read_only", "state_change", "external_side_effect"], ...],
        Field(strict=False),
        AfterValidator(check_unique),
    ] = Field(
        default=(), description="Effects that need an approval first: state_change, external_side_effect."
    )
    approve: Patterns = Field(default=(), description="Tools that need an approval first: names or patterns.")
    approve_safety: Annotated[Strings, AfterValidator(check_safety_patterns)] = Field(
        default=(),
        description="Safety metadata of tools that needs an approval first: patterns like threat_level=high.",
    )
    after_untrusted: Literal["approve", "allow"] = Field(
        default="approve",
        description="What tools with effects or egress need once the model has read an untrusted result: "
        "approve or allow.",
    )
    arguments: Bounds = Field(
        default={},
        description="Bounds of arguments, by tool pattern and argument (dotted, * for every element): "
        "enum, min, max, max_length, pattern (matches whole), required, forbidden.",
        json_schema_extra={"example": '"core__get_weather" = {days = {max = 3}}'},
    )
    max_argument_bytes: int = Field(
        default=8192, ge=2, le=1 << 24, description="Largest arguments of one call."
    )
    max_result_bytes: int = Field(
        default=32768, ge=256, le=1 << 26, description="Largest result of one call."
    )
    max_image_bytes: int = Field(
        default=4 << 20, ge=0, le=1 << 24, description="Most bytes of images in one result; 0 for none."
    )


class CredentialConfig(Section):
    """One connection that tools may ask for by its name: a token, or OAuth 2 with a refresh token."""

    token: OptionalSecret = Field(default=None, description="The token as env:NAME or file:/path.")
    client_id: OptionalSecret = Field(default=None, description="OAuth 2 client id.")
    client_secret: OptionalSecret = Field(
        default=None, description="OAuth 2 client secret. Empty for a public client."
    )
    refresh_token: OptionalSecret = Field(default=None, description="OAuth 2 refresh token.")
    token_url: Annotated[str, AfterValidator(check_token_url)] = Field(
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
            raise setting_fault(f"has a token and {given[0]}; write the one or the other")
        missing = [name for name, value in oauth.items() if not value]
        if self.token is None and missing:
            raise setting_fault("needs token" if not given else f"needs {' and '.join(missing)}, too")
        return self


class SealKeys(TypedDict):
    """The arguments by which a record is opened that is sealed, or was."""

    seal_key: str
    old_seal_keys: list[str]


class StoreConfig(Section):
    """The record of runs and tool calls."""

    url: Annotated[str, AfterValidator(check_store_url)] = Field(
        default="sqlite:///toolrelay.db", description="memory:, sqlite:///FILE or postgresql://…"
    )
    content: Literal["all", "tools", "none"] = Field(
        default="tools",
        description="Which content is kept: all (requests and answers too), tools (tool turns) or none.",
    )
    keep_days: float = Field(
        default=30, gt=0, le=36500, allow_inf_nan=False, description="Days that content is kept."
    )
    max_bytes: int = Field(
        default=8 * 2**30,
        ge=0,
        description="Largest size of the store; the oldest content goes first. 0 means no bound. "
        "`memory:` holds 64 MiB of each kind of content at most.",
    )
    max_per_caller: int = Field(
        default=10_000,
        ge=0,
        description="How many suspended turns, hidden turns, responses and large results each one caller "
        "keeps; the oldest go first. 0 means no bound.",
    )
    max_bytes_per_caller: int = Field(
        default=2**30,
        ge=0,
        description="How many bytes of each kind of content, requests too, one caller keeps; the oldest "
        "go first. 0 means no bound.",
    )
    seal_key: OptionalSecret = Field(
        default=None,
        description="Key that seals kept content, as env:NAME or file:/path: 32 bytes in base64 or "
        "hexadecimal. Empty: not sealed.",
    )
    old_seal_keys: Secrets = Field(
        default=(),
        description="Keys that sealed content before seal_key and still open it, each as env:NAME or "
        "file:/path. `toolrelay migrate --reseal` makes them dispensable.",
    )
    synchronous: Literal["normal", "full"] = Field(
        default="normal", description="full survives power loss, normal a crash of the process."
    )
    history: bool = Field(
        default=True, description="Give hidden tool turns back to the model in later requests."
    )

    def seal_keys(self) -> SealKeys:
        """The keys' own values, as whatever opens the record takes them.  Handle with care."""
        return SealKeys(
            seal_key=self.seal_key.reveal() if self.seal_key else "",
            old_seal_keys=[key.reveal() for key in self.old_seal_keys],
        )

    @property
    def shown_url(self) -> str:
        """The address without whatever of it may be a secret."""
        if not self.url.startswith("postgres"):
            return self.url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class LimitsConfig(Section):
    """How much one caller may do."""

    requests: LimitList = Field(default=("600/minute",), description="Requests of one caller.")
    tool_calls: LimitList = Field(default=("600/minute",), description="Tool calls of one caller.")
    tokens: LimitList = Field(
        default=(), description="Tokens of one caller; what a request used is known at its end."
    )
    cost: CostLimitList = Field(
        default=(), description='Cost of one caller in the currency of the prices: "5/day", "0.50/hour".'
    )
    concurrent_tools: int = Field(
        default=64, ge=1, le=10_000, description="Read-only tools that run at one time."
    )
    concurrent_tools_per_caller: int = Field(
        default=16,
        ge=1,
        le=10_000,
        description="Of these, the tools of one key with all its end users, or of all who come without one.",
    )
    concurrent_streams: int = Field(
        default=256, ge=1, le=1_000_000, description="Requests served at one time."
    )
    storage: Annotated[str | Secret, PlainValidator(read_storage)] = Field(
        default="memory://",
        description="Where limits are counted: memory://, redis://HOST:6379/0 or rediss://…; with a "
        "password as env:NAME or file:/path.",
    )
    on_error: Literal["open", "closed"] = Field(
        default="open",
        description="open lets requests in when the limits cannot be counted, closed refuses them.",
    )

    @property
    def storage_url(self) -> str:
        """The address with whatever of it is secret; raises ConfigError where it was not resolved."""
        return self.storage.reveal() if isinstance(self.storage, Secret) else self.storage


class AuthConfig(Section):
    """Who may come in."""

    mode: Literal["auto", "open", "start_token", "keys", "forward"] = Field(
        default="auto",
        description="open (to everybody), start_token (clients need what serve prints when it starts), keys "
        "(clients need a key), forward (clients bring the provider's key), or auto: keys once there ever was "
        "one, else start_token on loopback, and no start elsewhere.",
    )
    end_user: Annotated[str, AfterValidator(check_end_user)] = Field(
        default="", description='Where a request names its end user: "header:NAME" or "body:user".'
    )


class KeyConfig(KeyGrants):
    """A client key and what it may do."""

    secret: Secret = Field(
        description="The key as env:NAME or file:/path: 32 characters or more, from openssl rand -base64 32."
    )


class PriceConfig(Section):
    """Prices of one model, or of all that fit a pattern, per million tokens."""

    input: float = Field(default=0, ge=0, allow_inf_nan=False, description="Input tokens.")
    cached_input: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(read_optional)
    ] = Field(default=None, description="Input tokens that the provider had cached. Empty: as input.")
    output: float = Field(default=0, ge=0, allow_inf_nan=False, description="Output tokens.")


class LogConfig(Section):
    """The log, on standard error."""

    format: Literal["json", "console"] = Field(
        default="json",
        description="json or console. Not set: console on a terminal, else json.",
        json_schema_extra={"commented": True},
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is logged."
    )


class TelemetryConfig(Section):
    """Metrics and traces."""

    metrics: bool = Field(default=True, description="Serve /metrics. false: nothing is counted, 404.")
    otlp_endpoint: Annotated[str, AfterValidator(check_collector_url)] = Field(
        default="", description="Where traces go over OTLP/HTTP (extra otel): http://127.0.0.1:4318."
    )


class Config(Section):
    """All sections.  Paths in it are absolute and secrets resolved once ``load_config`` returns it."""

    server: ServerConfig = ServerConfig()
    upstreams: Annotated[dict[str, UpstreamConfig], AfterValidator(check_names)] = Field(
        default={"default": UpstreamConfig()}, json_schema_extra={"shown_as": "default"}
    )
    tools: ToolsConfig = ToolsConfig()
    policy: PolicyConfig = PolicyConfig()
    credentials: Annotated[dict[str, CredentialConfig], AfterValidator(check_names)] = Field(
        default={}, json_schema_extra={"shown_as": "duffel", "example": 'token = "env:DUFFEL_TOKEN"'}
    )
    store: StoreConfig = StoreConfig()
    limits: LimitsConfig = LimitsConfig()
    auth: AuthConfig = AuthConfig()
    keys: Annotated[dict[str, KeyConfig], AfterValidator(check_names)] = Field(
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

    # No setting: whoever serves makes it, for all processes of this start.
    _start_token: str = PrivateAttr(default="")

    def with_start_token(self, token: str) -> "Config":
        """The same for a start that asks for this token, where clients need one."""
        made = self.model_copy()
        made._start_token = token
        return made

    @property
    def start_token(self) -> str:
        """What clients show before there is a key; empty where nobody has made one."""
        return self._start_token

    @property
    def default_upstream(self) -> str:
        """The name of the first upstream."""
        return next(iter(self.upstreams))

    def key_settings(self) -> dict[str, str]:
        """Where the operator's key of each upstream comes from; clients bring theirs with ``forward``."""
        if self.auth.mode == "forward":
            return {}
        return {name: upstream.key_setting(name) for name, upstream in self.upstreams.items()}

    def secrets(self) -> tuple[str, ...]:
        """Every resolved secret's value, for the log's mask.  Handle with care."""
        storage = self.limits.storage
        found: list[Secret | None] = [self.store.seal_key, *self.store.old_seal_keys]
        found += [key.secret for key in self.keys.values()]
        found += [storage] if isinstance(storage, Secret) else []
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
        values += [self._start_token] if self._start_token else []
        if isinstance(storage, str) or storage.resolved:
            values += passwords_in(self.limits.storage_url)
        return (*values, *passwords_in(self.store.url))
