"""Every setting as data: its type, its default, its bounds, and one line about its meaning.

The descriptions are the only explanation of the settings: ``toolrelay init`` and the table of
docs/reference/settings.md are generated from them. ``load.py`` reads a file into these models.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from proxy.config.addresses import check_hosts, check_networks, check_service_url, passwords_in
from proxy.config.agents import AgentConfig, check_agent_names
from proxy.config.credentials import CredentialConfig
from proxy.config.mcp.servers import McpConfig, secrets_of
from proxy.config.openapi import OpenApiConfig, check_api_names, patterns_of_apis, secrets_of_apis
from proxy.config.secret import Secret
from proxy.config.sections.access import (
    ApprovalsConfig,
    AuthConfig,
    BillingConfig,
    KeyConfig,
    LimitsConfig,
    PolicyConfig,
    PriceConfig,
)
from proxy.config.sections.extensions import HooksConfig, PluginsConfig
from proxy.config.sections.network import NetworkConfig, ProxyAddress, credentials_of
from proxy.config.sections.operation import (
    LogConfig,
    RecordConfig,
    ServerConfig,
    StoreConfig,
    TelemetryConfig,
    UiConfig,
)
from proxy.config.sections.upstreams import DEFAULT_BASE_URL, DEFAULT_KEY, UpstreamConfig
from proxy.config.types import (
    IMAGES_AT,
    TRACES,
    Patterns,
    Seconds,
    Section,
    Strings,
    ToolPrices,
    Trace,
    check_aliases,
    check_hosted,
    check_names,
    setting_fault,
)

__all__ = [
    "DEFAULT_BASE_URL",
    "DEFAULT_KEY",
    "AuthConfig",
    "Config",
    "LimitsConfig",
    "LogConfig",
    "PolicyConfig",
    "ServerConfig",
    "StoreConfig",
    "TelemetryConfig",
    "ToolsConfig",
    "UpstreamConfig",
]


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
    proxy: ProxyAddress = Field(
        default="",
        description="Proxy for the requests of tools, in place of those of network: http://HOST:PORT, "
        "env:NAME or file:/path; direct for none.",
    )
    proxy_resolves: bool = Field(
        default=False,
        description="Let the proxy alone resolve the host names of tools, because this machine cannot. Then "
        "the proxy decides which addresses tools reach; false checks them here first.",
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
    hooks: HooksConfig = HooksConfig()
    plugins: PluginsConfig = PluginsConfig()
    openapi: Annotated[dict[str, OpenApiConfig], AfterValidator(check_api_names)] = Field(
        default={},
        json_schema_extra={
            "shown_as": "petstore",
            "example": 'url = "https://petstore3.swagger.io/api/v3/openapi.json"\n'
            'operations = ["findPetsByStatus", "GET /pet/{petId}"]',
        },
    )
    credentials: Annotated[dict[str, CredentialConfig], AfterValidator(check_names)] = Field(
        default={}, json_schema_extra={"shown_as": "duffel", "example": 'token = "env:DUFFEL_TOKEN"'}
    )
    store: StoreConfig = StoreConfig()
    network: NetworkConfig = NetworkConfig()
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
    billing: BillingConfig = BillingConfig()
    log: LogConfig = LogConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    ui: UiConfig = UiConfig()
    record: RecordConfig = RecordConfig()

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
    def pinned_patterns(self) -> tuple[str, ...]:
        """The patterns of the tools that an operator allows one by one: of MCP servers and of APIs."""
        return (*self.mcp.patterns, *patterns_of_apis(self.openapi))

    @property
    def default_upstream(self) -> str:
        """The name of the first upstream."""
        return next(iter(self.upstreams))

    def key_settings(self) -> dict[str, str]:
        """Return the setting of each upstream's operator key; with ``forward`` clients send theirs."""
        if self.auth.mode == "forward":
            return {}
        return {name: upstream.key_setting(name) for name, upstream in self.upstreams.items()}

    def secrets(self) -> tuple[str, ...]:
        """Return the value of every resolved secret, to find and mask them. Handle with care."""
        storage = self.limits.storage
        secrets: list[Secret | None] = [self.store.seal_key, *self.store.old_seal_keys]
        secrets += [
            self.approvals.webhook_secret,
            self.ui.login.client_secret,
            *(key.secret for key in self.keys.values()),
        ]
        secrets += [*secrets_of(self.mcp), *secrets_of_apis(self.openapi)]
        secrets += [storage] if isinstance(storage, Secret) else []
        network = self.network
        proxies = [network.http_proxy, network.https_proxy, self.tools.proxy, self.mcp.proxy]
        for upstream in self.upstreams.values():
            proxies.append(upstream.proxy)
            secrets.append(upstream.api_key)
            secrets.extend(value for value in upstream.headers.values() if isinstance(value, Secret))
        for connection in self.credentials.values():
            secrets += [value for _, value in connection if isinstance(value, Secret)]
        values = [secret.reveal() for secret in secrets if secret is not None and secret.resolved]
        values += [self._start_token] if self._start_token else []
        if isinstance(storage, str) or storage.resolved:
            values += passwords_in(self.limits.storage_url)
        return (*values, *passwords_in(self.store.url), *credentials_of(*proxies))

    def log_secrets(self) -> tuple[str, ...]:
        """Return the secrets that the log masks: all but those that are words of a setting's name.

        The mask of such a word would hide which setting a line advises to change, and tell everybody the
        secret.
        """
        tables = [self, *(each for _, each in self if isinstance(each, Section))]
        names = {name for table in tables for name in type(table).model_fields}
        own_words = names | {word for name in names for word in name.split("_")}
        return tuple(each for each in self.secrets() if each not in own_words)
