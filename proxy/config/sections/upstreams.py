"""The settings of an upstream."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from proxy.config.addresses import check_base_url
from proxy.config.per_model import ModelTable, ProfileConfig, TextCallForm
from proxy.config.secret import Secret
from proxy.config.sections.network import ProxyAddress
from proxy.config.types import (
    HeaderValue,
    OptionalSecret,
    Seconds,
    Section,
    WireName,
    check_headers,
    check_models,
    check_query_names,
    check_unique,
    check_upstream_tools,
    setting_fault,
)

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY = "env:OPENAI_API_KEY"

_Models = list[str] | dict[str, str]
_Tools = bool | Literal["native", "prompt"] | list[str]


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
    )
    wires: Annotated[tuple[WireName, ...], Field(strict=False), AfterValidator(check_unique)] = Field(
        default=("chat", "responses"),
        min_length=1,
        description="Dialects that the upstream speaks: chat, responses, anthropic, ollama.",
    )
    models: Annotated[
        tuple[str, ...] | dict[str, str],
        PlainValidator(check_models, json_schema_input_type=_Models),
    ] = Field(
        default=("*",),
        description='Models that the upstream serves (patterns), or a table that renames them: {"fast" = '
        '"gpt-4o-mini"}.',
    )
    tools: Annotated[
        bool | Literal["native", "prompt"] | tuple[str, ...],
        PlainValidator(
            check_upstream_tools, json_schema_input_type=bool | Literal["native", "prompt"] | list[str]
        ),
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
    free: bool = Field(
        default=False,
        description="Its models cost nothing, such as those of a server of one's own: their cost is 0, and "
        "no limit of cost refuses them.",
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
    proxy: ProxyAddress = Field(
        default="",
        description="Proxy through which the upstream is reached: http://HOST:PORT, or env:NAME or "
        "file:/path for an address with a user name and password. Not set: the proxies of network. direct: "
        "none.",
    )
    ca_file: str = Field(
        default="",
        max_length=4096,
        description="File in PEM format with authorities to trust for this upstream, in addition to those of "
        "the system and of network.ca_file.",
    )
    client_cert: str = Field(
        default="",
        max_length=4096,
        description="File in PEM format with this proxy's own certificate and its chain, for an upstream "
        "that wants one (mutual TLS).",
    )
    client_key: str = Field(
        default="",
        max_length=4096,
        description="File in PEM format with the private key of client_cert, without a pass phrase. Not set: "
        "it is in client_cert.",
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
        dict[str, HeaderValue],
        AfterValidator(check_headers),
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

    @model_validator(mode="after")
    def _has_use_for_its_key(self) -> "UpstreamConfig":
        if self.client_key and not self.client_cert:
            raise setting_fault("has client_key, but no client_cert that the key belongs to")
        if (self.client_cert or self.ca_file) and not self.base_url.lower().startswith("https://"):
            raise setting_fault("has client_cert or ca_file, which have a use with https:// only")
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
