"""Every setting as data: its type, its default, its bounds, and one line about its meaning.

The descriptions are the only explanation of the settings: ``toolrelay init`` and the table of
docs/reference/settings.md are generated from them. ``load.py`` reads a file into these models.
"""

from typing import Annotated, Literal, TypedDict
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, PrivateAttr, model_validator

from proxy.config.addresses import (
    check_allowed_hosts,
    check_base_url,
    check_collector_url,
    check_hosts,
    check_networks,
    check_origins,
    check_proxies,
    check_service_url,
    check_store_url,
    passwords_in,
    read_storage,
)
from proxy.config.agents import AgentConfig, check_agent_names
from proxy.config.credentials import CredentialConfig
from proxy.config.key_grants import KeyGrants
from proxy.config.mcp.servers import McpConfig, secrets_of
from proxy.config.per_model import ModelTable, ProfileConfig, TextCallForm
from proxy.config.secret import Secret
from proxy.config.types import (
    IMAGES_AT,
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
    ToolPrices,
    Trace,
    WireName,
    check_aliases,
    check_end_user,
    check_headers,
    check_hosted,
    check_models,
    check_names,
    check_query_names,
    check_safety_patterns,
    check_unique,
    check_upstream_tools,
    read_header_value,
    read_optional,
    setting_fault,
)
from proxy.config.ui import UiConfig

__all__ = [
    "DEFAULT_BASE_URL",
    "DEFAULT_KEY",
    "ApprovalsConfig",
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
    "UiConfig",
    "UpstreamConfig",
    "WireName",
]

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY = "env:OPENAI_API_KEY"


class ServerConfig(Section):
    """The address that the proxy listens on, and its limits for requests and connections."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253, description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    workers: int = Field(default=1, ge=1, le=1024, description="Number of processes that serve requests.")
    max_body_bytes: Bytes = Field(
        default=33554432, description="Largest request body that the proxy reads whole (JSON for inference)."
    )
    max_json_values: int = Field(
        default=400_000,
        ge=1000,
        le=100_000_000,
        description="Largest number of values in the JSON of a request; an empty object or list counts as "
        "two.",
    )
    max_upload_bytes: Bytes = Field(
        default=536870912, description="Largest request body that the proxy streams through (files, forms)."
    )
    header_timeout_s: Seconds = Field(
        default=20, description="Answer 408 if the head of a request is not complete after this many seconds."
    )
    max_pending_heads: int = Field(
        default=1024,
        ge=16,
        description="Number of incomplete request heads that one process waits for; one more gets a 503.",
    )
    max_pending_heads_per_address: int = Field(
        default=512, ge=4, description="The same for one client address that is not a trusted proxy."
    )
    body_timeout_s: Seconds = Field(
        default=120,
        description="Answer 408 if a body of max_body_bytes takes longer than this many seconds; larger "
        "uploads get more time.",
    )
    send_timeout_s: Seconds = Field(
        default=60, description="Close the connection if the client reads nothing for this many seconds."
    )
    websocket_idle_s: Seconds = Field(
        default=900, description="Close a WebSocket if no message comes for this many seconds."
    )
    websocket_lifetime_s: Seconds = Field(
        default=3600,
        description="Close a WebSocket after this many seconds; a running response may end first.",
    )
    allowed_hosts: Annotated[Strings, AfterValidator(check_allowed_hosts)] = Field(
        default=(),
        description="Host names that clients may use for the proxy, in addition to IP addresses and "
        "localhost: proxy.example.com, *.example.com.",
    )
    cors_origins: Annotated[Strings, AfterValidator(check_origins)] = Field(
        default=(),
        description="Origins of web pages that may call the proxy from a browser: https://app.example.com.",
    )
    trusted_proxies: Annotated[Strings, AfterValidator(check_proxies)] = Field(
        default=(),
        description="Addresses or networks of reverse proxies whose X-Forwarded-For is trusted.",
    )
    notice_s: float = Field(
        default=0,
        ge=0,
        le=600,
        allow_inf_nan=False,
        description="After SIGTERM, keep serving for this many seconds while /readyz answers 503.",
    )
    ready_needs_record: bool = Field(
        default=False,
        description="Whether /readyz answers 503 while the record does not answer; else it only says so.",
    )
    drain_s: float = Field(
        default=25,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds that open streams may continue after SIGTERM.",
    )


class UpstreamConfig(Section):
    """A model provider. Several are allowed; the first is the default."""

    base_url: Annotated[str, AfterValidator(check_base_url)] = Field(
        default=DEFAULT_BASE_URL,
        description="The provider's address, with /v1; replay:FOLDER replays recorded fixtures.",
    )
    api_key: OptionalSecret = Field(
        default=Secret(DEFAULT_KEY),
        description="The provider's key: env:NAME or file:/path. Not set: OPENAI_API_KEY, "
        f"sent to {urlsplit(DEFAULT_BASE_URL).hostname} only. Empty: no key.",
        json_schema_extra={"commented": True},
    )
    wires: Annotated[tuple[WireName, ...], Field(strict=False), AfterValidator(check_unique)] = Field(
        default=("chat", "responses"),
        min_length=1,
        description="Dialects that the upstream speaks: chat, responses, anthropic, ollama.",
    )
    models: Annotated[tuple[str, ...] | dict[str, str], PlainValidator(check_models)] = Field(
        default=("*",),
        description='Models that the upstream serves (patterns), or a table that renames them: {"fast" = '
        '"gpt-4o-mini"}.',
    )
    tools: Annotated[
        bool | Literal["native", "prompt"] | tuple[str, ...], PlainValidator(check_upstream_tools)
    ] = Field(
        default=True,
        description="Whether to offer server tools to the models of this upstream, or which of the allowed "
        'tools (patterns): ["core__*"]. "prompt": describe the tools in the prompt.',
    )
    text_calls: TextCallForm | None = Field(
        default=None,
        description="Form of the tool calls that the models write into their text: off, auto (by the "
        "model's name), seed, hermes, qwen-xml, llama3, mistral, deepseek, dsml, kimi, glm, "
        "harmony, minimax or cohere. Not set: off, or auto with tools = 'prompt'.",
        json_schema_extra={"commented": True},
    )
    text_calls_repair: bool = Field(
        default=False,
        description="Repair mistakes in such calls: single quotes, an extra comma, a missing end or marker, "
        "a code fence around them.",
    )
    per_model: ModelTable = Field(
        default={},
        description="text_calls, text_calls_repair, tools (native or prompt) and profile for some models, by "
        "patterns of the upstream's own model names; the first pattern that matches applies.",
        json_schema_extra={"example": '"qwen2.5*" = {text_calls = "hermes", tools = "prompt"}'},
    )
    profile: ProfileConfig = Field(
        default=ProfileConfig(),
        description="What its models take of requests of other dialects, where that is not known from the "
        "address and the model's name: see upstreams.*.profile.",
        json_schema_extra={"example": 'provider = "vllm"', "shown_as": "default"},
    )
    native: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=("auto",),
        description="Types of tools that this upstream understands itself although the client runs them, "
        'such as namespace, shell, apply_patch or bash, and web_search if it searches itself; ["*"] for all, '
        "[] for none. The proxy replaces all others by functions. auto: all for OpenAI, Azure and Anthropic, "
        "none for other addresses.",
    )
    strict_bridge: bool = Field(
        default=False,
        description="Refuse a request of another dialect if this upstream's dialect cannot express one of "
        "its fields, instead of leaving the field out.",
    )
    max_tokens: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default={},
        description="Number of output tokens to request if a client of another dialect sets no limit, by "
        "patterns of the upstream's own model names; the first pattern that matches applies. For Anthropic's "
        "models the default is each model's maximum.",
        json_schema_extra={"example": '"claude-*" = 32000'},
    )
    force_usage: bool = Field(
        default=False, description="Ask the upstream for token usage even if the client did not."
    )
    repair: Literal["auto", "off", "always"] = Field(
        default="auto",
        description="When to rewrite a stream that has defects clients cannot read: auto (from the event "
        "that shows the defect), always or off. docs/doctor.md lists the defects.",
    )
    responses_state: Literal["auto", "chained", "stateless"] = Field(
        default="auto",
        description="How the proxy continues a conversation on the Responses API: auto, chained or "
        "stateless.",
    )
    connect_timeout_s: Seconds = Field(default=10, description="Seconds to wait for a connection.")
    first_byte_timeout_s: Seconds = Field(
        default=600,
        description="Seconds to wait for the start of a response; the proxy gives up at most two seconds "
        "later.",
    )
    idle_timeout_s: Seconds = Field(
        default=120,
        description="Seconds to wait for the next piece of a response; the proxy gives up at most two "
        "seconds later.",
    )
    total_timeout_s: Seconds = Field(
        default=3600, description="Seconds that a response without server tools may take in total."
    )
    retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="Number of retries after a failed connection, or after a failed later turn of a run.",
    )
    breaker_failures: int = Field(
        default=5,
        ge=0,
        le=1000,
        description="Number of failures in a row after which other upstreams are asked instead; 0: never.",
    )
    breaker_open_s: Seconds = Field(
        default=30, description="Seconds after these failures until one request tries the upstream again."
    )
    headers: Annotated[
        dict[str, Annotated[str | Secret, PlainValidator(read_header_value)]], AfterValidator(check_headers)
    ] = Field(
        default={},
        description='Headers to add to every request: {"x-team" = "env:TEAM"}; write secrets as for api_key.',
    )
    forward_headers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Further request headers to pass on from clients; -* at the end matches a prefix: "
        '["http-referer", "x-title", "x-litellm-*"].',
    )
    forward_response_headers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Further response headers to pass on to clients, written in the same way: "
        '["x-litellm-*"].',
    )
    forward_query: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(check_query_names)] = Field(
        default=(),
        description="Query parameters of inference requests to pass on, in addition to api-version and beta.",
    )

    @model_validator(mode="after")
    def _tools_fit_text_calls(self) -> "UpstreamConfig":
        for tools, text_calls in (
            (self.tools, self.text_calls),
            *((model.tools, model.text_calls) for model in self.per_model.values()),
        ):
            if tools == "prompt" and text_calls == "off":
                raise setting_fault(
                    'tools = "prompt" makes models write their calls as text, but text_calls = "off" '
                    "ignores such calls; remove text_calls, or set it to a form"
                )
        return self

    @property
    def tool_patterns(self) -> tuple[str, ...] | None:
        """The patterns of the only tools that its models are offered; ``None`` if it offers all of them."""
        if isinstance(self.tools, tuple):
            return self.tools
        return () if self.tools is False else None

    def header_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the configured headers for requests; raise ConfigError for an unresolved secret."""
        return tuple(
            (name, value.reveal() if isinstance(value, Secret) else value)
            for name, value in self.headers.items()
        )

    def key_setting(self, name: str) -> str:
        """Return the setting of this upstream's key, with its environment variable or file."""
        if self.api_key is not None:
            return f"upstreams.{name}.api_key ({self.api_key.reference})"
        secrets = [value.reference for value in self.headers.values() if isinstance(value, Secret)]
        if secrets:
            return f"upstreams.{name}.headers ({', '.join(secrets)})"
        return f"upstreams.{name}.api_key (not set)"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port; a key is bound to them."""
        parts = urlsplit(self.base_url)
        scheme = parts.scheme.lower()
        if scheme not in ("http", "https"):
            return (scheme, "", 0)
        return (scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80))


class ToolsConfig(Section):
    """Server tools: which are loaded, how they are offered, and their budgets."""

    enabled: bool = Field(
        default=True,
        description="false turns server tools off: every request passes through. ENABLE_TOOLS=false does "
        "the same.",
    )
    modules: Strings = Field(
        default=(),
        description="Your own tools: Python files (my_tools.py) or importable modules with @tool functions.",
    )
    networks: Annotated[Strings, AfterValidator(check_networks)] = Field(
        default=(),
        description="Address ranges that tools may reach over HTTP in addition to public addresses "
        "(10.0.0.0/8); with one, plain http:// is allowed too.",
    )
    web_hosts: Annotated[Strings, AfterValidator(check_hosts)] = Field(
        default=(),
        description="Hosts from which web__fetch_page may fetch pages: a.example.com, *.example.com, or * "
        "for all.",
    )
    web_search: Literal["", "searxng", "brave", "tavily", "exa"] = Field(
        default="",
        description="Engine of web__search: searxng (at base_urls.web_search), brave, tavily or exa (with "
        "the token of the connection of that name). Empty: there is no web__search.",
    )
    base_urls: dict[
        Literal["calendar", "flights", "geocoding", "weather", "web_search"],
        Annotated[str, AfterValidator(check_service_url)],
    ] = Field(
        default={},
        description="Address of the service behind a tool, if it is not the usual one: calendar, flights, "
        "geocoding, weather, web_search.",
        json_schema_extra={"example": 'flights = "https://api.duffel.com"'},
    )
    inject: bool = Field(
        default=True,
        description="Offer the allowed tools to the model even if the request does not ask for them.",
    )
    trace: Trace = Field(
        default="silent",
        description="What a client sees of server tools by default: silent, reasoning, status or events.",
    )
    trace_max: Trace = Field(
        default="status",
        description="The most that a client may ask to see: silent, reasoning, status or events.",
    )
    parallel: bool = Field(default=True, description="Run the read-only calls of one turn together.")
    max_parallel: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="Number of read-only calls that one run makes at the same time; limits.concurrent_tools "
        "and limits.concurrent_tools_per_caller limit all runs together.",
    )
    max_turns: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="Largest number of model responses in one run that may call server tools. If the last of "
        "them does, the model is asked once more, without tools, for its answer.",
    )
    max_calls: int = Field(default=32, ge=1, le=10000, description="Largest number of tool calls in one run.")
    max_tokens: int = Field(default=0, ge=0, description="Largest number of tokens in one run; 0: no limit.")
    max_cost: float = Field(
        default=0, ge=0, allow_inf_nan=False, description="Highest cost of one run; 0: no limit."
    )
    timeout_s: Seconds = Field(
        default=10, description="Seconds that a tool call may take, unless the tool sets its own time."
    )
    request_timeout_s: Seconds = Field(default=300, description="Seconds that a run may take.")
    resume_s: float = Field(
        default=60,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds that a run continues without its client if the request has "
        "x-toolrelay-resume: on; 0: never.",
    )
    background_s: Seconds = Field(
        default=3600, description="Seconds that a response in the background may take."
    )
    keepalive_s: Seconds = Field(
        default=10,
        description="Longest silence, in seconds, of a stream that waits for tools, or that the proxy "
        "composes or holds back; then the client gets a keep-alive.",
    )
    search: Literal["auto", "on", "off"] = Field(
        default="auto",
        description='Whether models search for server tools instead of being shown all of them: "on", "off", '
        'or "auto" for requests above the two limits below, and for upstreams that take fewer tools.',
    )
    search_above_tools: int = Field(
        default=40,
        ge=0,
        le=10000,
        description='Number of server tools in a request above which search = "auto" searches.',
    )
    search_above_bytes: int = Field(
        default=65536,
        ge=0,
        description='Bytes of the definitions of server tools above which search = "auto" searches; '
        "a token has about four.",
    )
    search_shows: Patterns = Field(
        default=("core__*",),
        description="Tools that models are always shown, without a search: names or patterns.",
    )
    search_finds: int = Field(
        default=5, ge=1, le=20, description="Largest number of tools that one search finds."
    )
    programs: Literal["auto", "on", "off"] = Field(
        default="off",
        description='Whether models write programs that call server tools, in one call each: "on", "off", '
        'or "auto" for requests whose models would otherwise search. Needs the extra programs.',
    )
    programs_timeout_s: Seconds = Field(
        default=60, description="Seconds that a program may take, with its calls."
    )
    programs_compute_s: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = Field(
        default=5, description="Seconds that a program may compute, without its calls."
    )
    programs_memory: int = Field(
        default=64 * 2**20, ge=2**20, le=2**29, description="Bytes of memory that a program may use."
    )
    aliases: Annotated[dict[str, str], AfterValidator(check_aliases)] = Field(
        default={},
        description="If a client declares a function of this name, run this server tool in its place.",
        json_schema_extra={"example": 'get_weather = "core__get_weather"'},
    )

    hosted: Annotated[
        dict[
            Literal["web_search", "web_fetch", "image_generation"],
            Annotated[str, Field(min_length=1, max_length=256)],
        ],
        AfterValidator(check_hosted),
    ] = Field(
        default={},
        description="Server tools that run what a client declares as its provider's own tool, if the "
        "upstream does not run it (upstreams.*.native): web_search, web_fetch, image_generation. "
        'image_generation = "upstream:NAME" or "upstream:NAME/MODEL" is the tool images__generate, which '
        "makes images at that upstream.",
        json_schema_extra={"example": 'web_search = "web__search"'},
    )

    prices: ToolPrices = Field(
        default={},
        description="Price of one call, by tool or pattern; the first pattern that matches applies. A call "
        "costs it once the tool runs, even if it fails; a cached result costs nothing.",
        json_schema_extra={"example": '"web__search" = 0.005'},
    )

    @property
    def images_at(self) -> tuple[str, str] | None:
        """The upstream that makes images, and the model that it is asked for (empty: its own default).

        ``None`` if none makes any.
        """
        target = self.hosted.get("image_generation", "")
        if not target.startswith(IMAGES_AT):
            return None
        upstream, _, model = target.removeprefix(IMAGES_AT).partition("/")
        return upstream, model

    @model_validator(mode="after")
    def _engine_has_address(self) -> "ToolsConfig":
        if self.web_search == "searxng" and "web_search" not in self.base_urls:
            raise setting_fault(
                'web_search = "searxng" needs the address of the server; write '
                'base_urls.web_search = "https://searx.example.com"'
            )
        return self

    @model_validator(mode="after")
    def _trace_within_bound(self) -> "ToolsConfig":
        if TRACES.index(self.trace) > TRACES.index(self.trace_max):
            raise setting_fault(
                f'trace = "{self.trace}" shows more than trace_max = "{self.trace_max}" allows'
            )
        return self


class PolicyConfig(Section):
    """Which tools may run. Everything is denied unless allowed."""

    allow: Patterns = Field(
        default=(), description='Tools that may run: names or patterns like "mcp__files__*".'
    )
    approve_effects: Annotated[
        tuple[Literal["read_only", "state_change", "external_side_effect"], ...],
        Field(strict=False),
        AfterValidator(check_unique),
    ] = Field(
        default=(),
        description="Effects of tools that need approval first: state_change, external_side_effect.",
    )
    approve: Patterns = Field(default=(), description="Tools that need approval first: names or patterns.")
    approve_safety: Annotated[Strings, AfterValidator(check_safety_patterns)] = Field(
        default=(),
        description="Safety metadata of tools that need approval first: patterns like threat_level=high.",
    )
    after_untrusted: Literal["approve", "allow"] = Field(
        default="approve",
        description="Whether tools with effects or egress need approval after the model has read an "
        "untrusted result: approve or allow.",
    )
    arguments: Bounds = Field(
        default={},
        description="Limits of arguments, by tool pattern and argument (dotted path, * for every element): "
        "enum, min, max, max_length, pattern (must match the whole value), required, forbidden.",
        json_schema_extra={"example": '"core__get_weather" = {days = {max = 3}}'},
    )
    max_argument_bytes: int = Field(
        default=8192, ge=2, le=1 << 24, description="Largest size of the arguments of one call."
    )
    max_result_bytes: int = Field(
        default=32768, ge=256, le=1 << 26, description="Largest size of the result of one call."
    )
    max_image_bytes: int = Field(
        default=4 << 20,
        ge=0,
        le=1 << 24,
        description="Largest total size of the images in one result; 0: no images.",
    )


class ApprovalsConfig(Section):
    """How people approve the calls that need it (``policy.approve`` and similar settings)."""

    enabled: bool = Field(
        default=True,
        description="Offer tools that need approval, and ask about their calls. false: do not offer them.",
    )
    expires_s: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)] = Field(
        default=3600,
        description="Seconds that a call waits for a decision, and that an approved call waits to be run.",
    )
    by: Literal["caller", "admin"] = Field(
        default="caller",
        description="Who decides: caller (the caller that sent the request, or an administrator) "
        "or admin (only administrators and approvers, and never the key that sent the request).",
    )
    admin_only: Patterns = Field(
        default=(),
        description="Tools for which only administrators and approvers decide: names or patterns "
        'like "pay__*".',
    )
    edit: bool = Field(
        default=False,
        description="Let whoever may decide about a call change its arguments when they approve it.",
    )
    max_grant_s: Annotated[float, Field(ge=0, le=30 * 86400, allow_inf_nan=False)] = Field(
        default=86400,
        description="The longest time that a grant lasts, in seconds. A grant lets later calls of a tool run "
        "without a question. 0: no grants.",
    )
    public_url: Annotated[str, AfterValidator(check_collector_url)] = Field(
        default="",
        description="URL of a page where people decide; the client is told it. Empty: no URL.",
    )
    webhook: Annotated[str, AfterValidator(check_collector_url)] = Field(
        default="",
        description="URL that gets a signed POST for each call that starts to wait. Empty: none.",
    )
    webhook_secret: OptionalSecret = Field(
        default=None, description="The secret that signs these messages, as env:NAME or file:/path."
    )
    webhook_arguments: bool = Field(
        default=False, description="Send the call's arguments, without the tool's private fields, too."
    )
    webhook_networks: Annotated[Strings, AfterValidator(check_networks)] = Field(
        default=(),
        description="Address ranges in which the webhook may be, in addition to public addresses "
        "(10.0.0.0/8); with one, plain http:// is allowed too.",
    )


class SealKeys(TypedDict):
    """The arguments that open a record that is or was sealed."""

    seal_key: str
    old_seal_keys: list[str]
    seal: bool


class StoreConfig(Section):
    """The record of runs and tool calls."""

    url: Annotated[str, AfterValidator(check_store_url)] = Field(
        default="sqlite:///toolrelay.db",
        description="Where runs and tool calls are recorded: memory:, sqlite:///FILE or postgresql://…",
    )
    content: Literal["all", "tools", "none"] = Field(
        default="tools",
        description="Which content to keep: all (requests and responses too), tools (turns with tools) or "
        "none.",
    )
    wire_bytes: bool = Field(
        default=True,
        description='With content = "all", keep the bytes of each run too, as client and upstream sent and '
        "received them: for the wire inspector and for toolrelay runs replay. 4 MiB of a run at most, never "
        "headers, and only in an encrypted record.",
    )
    keep_days: float = Field(
        default=30, gt=0, le=36500, allow_inf_nan=False, description="Days to keep content."
    )
    max_bytes: int = Field(
        default=8 * 2**30,
        ge=0,
        description="Largest size of the store; the oldest content is deleted first. 0: no limit. `memory:` "
        "keeps at most 128 MiB and first deletes the oldest content of the caller that has the most.",
    )
    max_per_caller: int = Field(
        default=10_000,
        ge=0,
        description="Number of suspended turns, hidden turns, responses and large results to keep for each "
        "caller; the oldest are deleted first. 0: no limit.",
    )
    max_bytes_per_caller: int = Field(
        default=2**30,
        ge=0,
        description="Bytes of each kind of content, including requests, to keep for each caller; the oldest "
        "are deleted first. 0: no limit.",
    )
    seal: bool = Field(
        default=True,
        description="Encrypt the kept content. Without seal_key, a SQLite record makes a key and keeps it in "
        "FILE.seal-key beside its file; PostgreSQL needs seal_key. false: not encrypted.",
    )
    seal_key: OptionalSecret = Field(
        default=None,
        description="Key that encrypts the kept content, as env:NAME or file:/path: 32 bytes in base64 or "
        "hexadecimal. Empty: see seal.",
    )
    old_seal_keys: Secrets = Field(
        default=(),
        description="Earlier values of seal_key, which can still decrypt older content, each as env:NAME or "
        "file:/path. After `toolrelay migrate --reseal` they are no longer needed.",
    )
    max_clock_skew_s: float = Field(
        default=60.0,
        ge=0,
        description="A server does not start if its clock and that of PostgreSQL differ by more seconds. "
        "What hosts must agree on goes by the clock of PostgreSQL; the log warns above 2 s. 0: no limit.",
    )
    synchronous: Literal["normal", "full"] = Field(
        default="normal",
        description="full: nothing is lost if the power fails; normal: nothing is lost if only the process "
        "crashes.",
    )
    history: bool = Field(
        default=True, description="Give the hidden tool turns of earlier requests back to the model."
    )
    history_system: Literal["exact", "clock", "ignore"] = Field(
        default="clock",
        description="How system prompts are compared to find hidden turns: exact, clock (all but dates and "
        "times) or ignore. Use ignore only for one user, or if requests name their users otherwise.",
    )

    def seal_keys(self) -> SealKeys:
        """Return the values of the keys, as arguments that open the record. Handle with care."""
        return SealKeys(
            seal_key=self.seal_key.reveal() if self.seal_key else "",
            old_seal_keys=[key.reveal() for key in self.old_seal_keys],
            seal=self.seal,
        )

    @property
    def seals(self) -> bool:
        """Whether kept content is encrypted, with any key."""
        if self.url.startswith("memory:") or not self.seal:
            return False
        return self.seal_key is not None or self.url.startswith("sqlite:")

    @property
    def shown_url(self) -> str:
        """The address without the parts that may be secret."""
        if not self.url.startswith("postgres"):
            return self.url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class LimitsConfig(Section):
    """How much one caller may do."""

    requests: LimitList = Field(default=("600/minute",), description="Requests that one caller may make.")
    tool_calls: LimitList = Field(default=("600/minute",), description="Tool calls that one caller may make.")
    tokens: LimitList = Field(
        default=(), description="Tokens that one caller may use; they are counted when a request ends."
    )
    cost: CostLimitList = Field(
        default=(),
        description='Cost that one caller may cause, in the currency of the prices: "5/day", "0.50/hour".',
    )
    concurrent_tools: int = Field(
        default=64, ge=1, le=10_000, description="Number of read-only tools that may run at the same time."
    )
    concurrent_tools_per_caller: int = Field(
        default=16,
        ge=1,
        le=10_000,
        description="Number of these that may run for one key with all its end users, or for all callers "
        "without a key.",
    )
    concurrent_streams: int = Field(
        default=256, ge=1, le=1_000_000, description="Number of requests that are served at the same time."
    )
    background: int = Field(
        default=8,
        ge=0,
        le=100_000,
        description="Number of responses with server tools that may run in the background for one caller, in "
        "each process; 0: none.",
    )
    background_total: int = Field(
        default=64,
        ge=0,
        le=100_000,
        description="Number of responses that may run in the background of one process.",
    )
    websockets: int = Field(
        default=200,
        ge=0,
        le=100_000,
        description="Largest number of open WebSocket connections of the Responses API; 0 serves none.",
    )
    websockets_per_caller: int = Field(
        default=32, ge=1, le=100_000, description="Largest number of WebSocket connections of one caller."
    )
    storage: Annotated[str | Secret, PlainValidator(read_storage)] = Field(
        default="memory://",
        description="Where to count: memory://, redis://HOST:6379/0, "
        "redis+sentinel://HOST:26379,HOST:26379/NAME or redis+cluster://HOST:6379,HOST:6379; rediss for "
        "TLS, valkey and valkeys for Valkey. If the address has a password, write it as env:NAME or "
        "file:/path.",
    )
    on_error: Literal["open", "closed"] = Field(
        default="open",
        description="If the limits cannot be counted: open admits requests, closed refuses them.",
    )

    @property
    def storage_url(self) -> str:
        """The address with its secret parts; raises ConfigError if it was not resolved."""
        return self.storage.reveal() if isinstance(self.storage, Secret) else self.storage


class AuthConfig(Section):
    """Authentication of clients."""

    mode: Literal["auto", "open", "start_token", "keys", "forward"] = Field(
        default="auto",
        description="open (everybody may call), start_token (clients send the token that serve prints at "
        "start), keys (clients send a client key), forward (clients send the provider's key), "
        "or auto: keys as soon as a client key has been made; before that start_token on a "
        "loopback address, and on any other address the proxy does not start.",
    )
    end_user: Annotated[str, AfterValidator(check_end_user)] = Field(
        default="", description='Where a request names its end user: "header:NAME" or "body:user".'
    )


class KeyConfig(KeyGrants):
    """A client key and its rights."""

    secret: Secret = Field(
        description="The key as env:NAME or file:/path: at least 32 characters, for example from openssl "
        "rand -base64 32."
    )


class PriceConfig(Section):
    """Prices of one model, or of all that match a pattern, per million tokens."""

    input: float = Field(default=0, ge=0, allow_inf_nan=False, description="Input tokens.")
    cached_input: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(read_optional)
    ] = Field(
        default=None, description="Input tokens that the provider had cached. Empty: the same as input."
    )
    cache_write: Annotated[float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(read_optional)] = (
        Field(
            default=None,
            description="Input tokens that the provider wrote to its cache. Empty: the same as input.",
        )
    )
    output: float = Field(default=0, ge=0, allow_inf_nan=False, description="Output tokens.")


class LogConfig(Section):
    """The log, on standard error."""

    format: Literal["json", "console"] = Field(
        default="json",
        description="json or console. Not set: console on a terminal, else json.",
        json_schema_extra={"commented": True},
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level to log."
    )


class TelemetryConfig(Section):
    """Metrics and traces."""

    metrics: bool = Field(default=True, description="Serve /metrics. false: count nothing and answer 404.")
    otlp_endpoint: Annotated[str, AfterValidator(check_collector_url)] = Field(
        default="",
        description="Send traces over OTLP/HTTP to this address (needs the extra otel): "
        "http://127.0.0.1:4318.",
    )


class Config(Section):
    """All sections. Paths are absolute and secrets are resolved after ``load_config`` returns it."""

    server: ServerConfig = ServerConfig()
    upstreams: Annotated[dict[str, UpstreamConfig], AfterValidator(check_names)] = Field(
        default={"default": UpstreamConfig()}, json_schema_extra={"shown_as": "default"}
    )
    tools: ToolsConfig = ToolsConfig()
    policy: PolicyConfig = PolicyConfig()
    approvals: ApprovalsConfig = ApprovalsConfig()
    agents: Annotated[dict[str, AgentConfig], AfterValidator(check_agent_names)] = Field(
        default={},
        json_schema_extra={
            "shown_as": "researcher",
            "example": 'description = "Finds out about a topic and reports with sources."\n'
            'instructions = "Search the web and report in five sentences, with the addresses."\n'
            'tools = ["web__*"]',
        },
    )
    mcp: McpConfig = McpConfig()
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
    ui: UiConfig = UiConfig()

    # Not a setting: the serve command makes it, one for all processes of this start.
    _start_token: str = PrivateAttr(default="")

    def with_start_token(self, token: str) -> "Config":
        """Return the configuration for a start that requires this token if clients need one."""
        made = self.model_copy()
        made._start_token = token
        return made

    @property
    def start_token(self) -> str:
        """The token that clients send before there is a key; empty if this start made none."""
        return self._start_token

    @property
    def default_upstream(self) -> str:
        """The name of the first upstream."""
        return next(iter(self.upstreams))

    def key_settings(self) -> dict[str, str]:
        """Return the setting of each upstream's operator key; none with ``forward``, because clients send
        theirs."""
        if self.auth.mode == "forward":
            return {}
        return {name: upstream.key_setting(name) for name, upstream in self.upstreams.items()}

    def secrets(self) -> tuple[str, ...]:
        """Return the value of every resolved secret, to find and mask them. Handle with care."""
        storage = self.limits.storage
        secrets: list[Secret | None] = [self.store.seal_key, *self.store.old_seal_keys]
        secrets += [key.secret for key in self.keys.values()]
        secrets.append(self.approvals.webhook_secret)
        secrets += secrets_of(self.mcp)
        secrets += [storage] if isinstance(storage, Secret) else []
        for upstream in self.upstreams.values():
            secrets.append(upstream.api_key)
            secrets.extend(value for value in upstream.headers.values() if isinstance(value, Secret))
        for connection in self.credentials.values():
            secrets += [value for _, value in connection if isinstance(value, Secret)]
        values = [secret.reveal() for secret in secrets if secret is not None and secret.resolved]
        values += [self._start_token] if self._start_token else []
        if isinstance(storage, str) or storage.resolved:
            values += passwords_in(self.limits.storage_url)
        return (*values, *passwords_in(self.store.url))

    def log_secrets(self) -> tuple[str, ...]:
        """Return the secrets that the log masks: all but those that are words of a setting's name.

        The mask of such a word would hide which setting a line advises to change, and tell everybody the
        secret.
        """
        tables = [self, *(each for _, each in self if isinstance(each, Section))]
        names = {name for table in tables for name in type(table).model_fields}
        own_words = names | {word for name in names for word in name.split("_")}
        return tuple(each for each in self.secrets() if each not in own_words)
