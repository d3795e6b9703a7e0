"""The settings of who may do what: client keys, limits, policy, approvals, prices."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from proxy.config.addresses import check_collector_url, check_networks, read_storage
from proxy.config.key_grants import KeyGrants
from proxy.config.secret import Secret
from proxy.config.sections.identity import JwtConfig
from proxy.config.types import (
    Bounds,
    CostLimitList,
    LimitList,
    OptionalSecret,
    Patterns,
    Section,
    Strings,
    check_end_user,
    check_safety_patterns,
    check_unique,
    read_optional,
)


class AuthConfig(Section):
    """Authentication of clients."""

    mode: Literal["auto", "open", "start_token", "keys", "jwt", "forward"] = Field(
        default="auto",
        description="open (everybody may call), start_token (clients send the token that serve prints at "
        "start), keys (clients send a client key), jwt (clients send a token of an "
        "OpenID provider, or a client key: see auth.jwt), forward (clients send the provider's key), "
        "or auto: keys as soon as a client key has been made; before that start_token on a "
        "loopback address, and on any other address the proxy does not start.",
    )
    end_user: Annotated[str, AfterValidator(check_end_user)] = Field(
        default="", description='Where a request names its end user: "header:NAME" or "body:user".'
    )
    jwt: JwtConfig = Field(
        default=JwtConfig(),
        description='Tokens of an OpenID provider, with mode = "jwt": see auth.jwt.',
        json_schema_extra={
            "example": 'issuer = "https://id.example.com"\naudience = ["toolrelay"]',
            "shown_as": "jwt",
        },
    )


class KeyConfig(KeyGrants):
    """A client key and its rights."""

    secret: Secret = Field(
        description="The key as env:NAME or file:/path: at least 32 characters, for example from openssl "
        "rand -base64 32."
    )


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
    storage: Annotated[str | Secret, PlainValidator(read_storage, json_schema_input_type=str)] = Field(
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
    reasoning: Annotated[float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(read_optional)] = (
        Field(
            default=None,
            description="Output tokens that the model thought with. Empty: the same as output.",
        )
    )
    image_input: Annotated[float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(read_optional)] = (
        Field(
            default=None,
            description="Input tokens of images, where the provider reports them. Empty: the same as input.",
        )
    )
    request: float = Field(
        default=0, ge=0, allow_inf_nan=False, description="Each response of the model, beside its tokens."
    )


class BillingConfig(Section):
    """The currency of costs, and the list prices of providers."""

    currency: str = Field(
        default="USD",
        pattern=r"^[A-Za-z]{1,12}$",
        description="Name of the currency of all prices and costs, as it is shown.",
    )
    price_list: str = Field(
        default="bundled",
        min_length=1,
        max_length=4096,
        description="List prices for models at their providers' own addresses, where [prices] has none: "
        "bundled (in US dollars, used with that currency only), a file that `toolrelay prices update` "
        "made, or off.",
    )
