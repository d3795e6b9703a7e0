"""The settings of the server itself: its address, the record, the log, the web UI."""

from typing import Annotated, Literal, TypedDict
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from proxy.config.addresses import (
    check_allowed_hosts,
    check_collector_url,
    check_origins,
    check_proxies,
    check_public_url,
    check_store_url,
)
from proxy.config.sections.identity import LoginConfig
from proxy.config.types import Bytes, LimitList, OptionalSecret, Patterns, Seconds, Secrets, Section, Strings


class ServerConfig(Section):
    """The address that the proxy listens on, and its limits for requests and connections."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253, description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    public_url: Annotated[str, AfterValidator(check_public_url)] = Field(
        default="",
        max_length=200,
        description="The address by which people reach the proxy in a browser: https://ai.example.com. Links "
        "at which users log in lead there.",
    )
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


class SealKeys(TypedDict):
    """The arguments that open a record that is or was sealed."""

    seal_key: str
    old_seal_keys: list[str]
    seal: bool


class StoreConfig(Section):
    """The record of runs and tool calls."""

    url: Annotated[str, AfterValidator(check_store_url)] = Field(
        default="sqlite:///toolrelay.db",
        description="Where runs and tool calls are recorded: memory:, sqlite:///FILE or postgresql://…; "
        "plugin:NAME for a store that an entry point of toolrelay.stores opens.",
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
    requests: bool = Field(
        default=True,
        description="Record each request that has no run (it passed through, was refused, or failed before "
        "a run began): who asked, model, status, tokens and cost, never content. false: no rows, and tokens "
        "of what passes through are read only under limits.",
    )
    max_requests: int = Field(
        default=1_000_000,
        ge=0,
        description="Number of such rows to keep; the oldest are deleted first, and all after keep_days. "
        "0: no limit.",
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


class RecordConfig(Section):
    """What is saved as fixtures, by `toolrelay record` and `toolrelay runs save`."""

    scrub: Strings = Field(
        default=(),
        description="Texts to replace by [redacted], besides secrets. One * stands for any characters "
        "up to a space, quote or backslash.",
    )


class LogConfig(Section):
    """The log, on standard error."""

    format: Literal["json", "console"] = Field(
        default="json",
        description="json or console. Not set: console on a terminal, else json.",
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
    content: bool = Field(
        default=False,
        description="Send what models are sent and answer, and the redacted arguments and results of tools, "
        "in traces. Everybody who can read the traces can then read the conversations.",
    )
    content_max_chars: int = Field(
        default=32768,
        ge=1024,
        le=1048576,
        description="Longest attribute of a span with content, in characters: long texts are cut, then the "
        "oldest messages left out.",
    )


class UiConfig(Section):
    """The web UI at /ui."""

    enabled: bool = Field(
        default=True,
        description='Serve /ui. With auth.mode = "open", only on a loopback address.',
    )
    session_s: int = Field(
        default=28800,
        ge=60,
        le=604800,
        description="Seconds after which a sign-in ends; without requests it ends after an hour.",
    )
    capture: Literal["asked", "off"] = Field(
        default="asked",
        description="asked: an administrator may ask to capture the bytes of the next requests, and until "
        "then nothing is captured. off: nothing can be captured.",
    )
    playground_models: Strings = Field(
        default=("*",), description="Models that the playground may use: names or patterns. Empty: none."
    )
    playground_tools: Patterns = Field(
        default=("*",),
        description="Tools that the playground may use, out of those that policy.allow names: names or "
        "patterns.",
    )
    playground_requests: LimitList = Field(
        default=("30/minute",), description="Requests that all users of the playground may make together."
    )
    login: LoginConfig = Field(
        default=LoginConfig(),
        description="Login of people at the OpenID provider of auth.jwt: see ui.login.",
        json_schema_extra={
            "example": 'client_id = "toolrelay-ui"\nclient_secret = "env:UI_CLIENT_SECRET"\n'
            'url = "https://proxy.example.com"',
            "shown_as": "login",
        },
    )
