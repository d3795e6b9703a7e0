"""The settings of an OpenID provider: the tokens that it issues, and the login to the web UI."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from proxy.base.errors import ConfigError
from proxy.config.addresses import check_collector_url, check_networks
from proxy.config.key_grants import KeyGrants
from proxy.config.types import OptionalSecret, Section, Strings, check_unique, setting_fault
from proxy.net.public_addresses import may_carry_secrets

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"
]
ClaimPath = Annotated[str, Field(min_length=1, max_length=256)]


def _check_roles(values: dict[str, Any]) -> dict[str, Any]:
    names = list(values)
    if "*" in names[:-1]:
        raise setting_fault('has "*", which is every token, before other roles; write it last')
    for name in names:
        if not name.isprintable() or not 0 < len(name) <= 256:
            raise setting_fault(f"{name[:80]!r} is no name of a role")
    return values


class JwtRoleConfig(KeyGrants):
    """The rights of tokens with a role."""

    @model_validator(mode="after")
    def _is_no_key(self) -> "JwtRoleConfig":
        for name in ("expires", "mint", "shared"):
            if getattr(self, name):
                raise setting_fault(
                    f"has {name}, which only client keys have; a token names its own expiry and user"
                )
        return self


class JwtConfig(Section):
    """Tokens (JWT) of an OpenID provider, with ``auth.mode = "jwt"``."""

    issuer: Annotated[str, AfterValidator(check_collector_url)] = Field(
        default="", description="The provider's address, exactly as its tokens name it (iss)."
    )
    audience: Annotated[Strings, AfterValidator(check_unique)] = Field(
        default=(), description="Audiences (aud) for which tokens are made that the proxy accepts."
    )
    jwks_url: Annotated[str, AfterValidator(check_collector_url)] = Field(
        default="",
        description="Address of the provider's public keys. Empty: the one in its metadata, below "
        "/.well-known/openid-configuration.",
    )
    algorithms: Annotated[tuple[Algorithm, ...], Field(strict=False), AfterValidator(check_unique)] = Field(
        default=("RS256", "PS256", "ES256"),
        min_length=1,
        description="Algorithms by which tokens may be signed: RS256, RS384, RS512, PS256, PS384, PS512, "
        "ES256, ES384, ES512, Ed25519.",
    )
    leeway_s: float = Field(
        default=30,
        ge=0,
        le=300,
        allow_inf_nan=False,
        description="Seconds by which the clocks of the provider and the proxy may differ.",
    )
    user_claim: ClaimPath = Field(
        default="sub",
        description="Claim that names the user, as a dotted path. Limits count and the record is kept by it.",
    )
    roles_claim: ClaimPath = Field(
        default="groups",
        description="Claim with the user's roles or groups, as a dotted path such as realm_access.roles.",
    )
    networks: Annotated[Strings, AfterValidator(check_networks)] = Field(
        default=(),
        description="Address ranges in which the provider may be, in addition to public addresses "
        "(10.0.0.0/8).",
    )
    roles: Annotated[dict[str, JwtRoleConfig], AfterValidator(_check_roles)] = Field(
        default={},
        description="Rights by role, written like those of a client key; the first role that a token has "
        'applies, and "*" is every token. Without any role here, every valid token has the rights of a '
        "client key.",
        json_schema_extra={"shown_as": "developers", "example": 'models = ["gpt-*"]\ntools = ["core__*"]'},
    )


def _check_origin(value: str) -> str:
    """Check the address of the server as browsers see it: a scheme and a host, without a path."""
    if not value:
        return value
    parts = urlsplit(check_collector_url(value.rstrip("/")))
    loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.path or parts.query or parts.fragment or not (parts.scheme == "https" or loopback):
        raise setting_fault("must be https://HOST or https://HOST:PORT; http is only for localhost")
    return value.rstrip("/")


def _check_scopes(values: tuple[str, ...]) -> tuple[str, ...]:
    if "openid" not in values:
        raise setting_fault('must contain "openid", or the provider names no user')
    for value in values:
        if not value.isascii() or not value.isprintable() or set(' "\\') & set(value):
            raise setting_fault(f"{value[:80]!r} is no scope")
    return check_unique(values)


class LoginConfig(Section):
    """Login of people at the OpenID provider of ``auth.jwt``, for the web UI."""

    client_id: Annotated[str, Field(max_length=512)] = Field(
        default="",
        description="Id of the client that you registered at the provider of auth.jwt.issuer. Empty: nobody "
        "logs in at a provider.",
    )
    client_secret: OptionalSecret = Field(
        default=None,
        description="Secret of that client, as env:NAME or file:/path. Empty for a public client.",
    )
    url: Annotated[str, AfterValidator(_check_origin)] = Field(
        default="",
        description="Address at which browsers reach this server (https://proxy.example.com). Register "
        "URL/ui/login/done at the provider as the address to return to, and URL/ui/ for after a logout.",
    )
    scopes: Annotated[Strings, AfterValidator(_check_scopes)] = Field(
        default=("openid", "profile"),
        description="Scopes to ask for; the ID token must then have the claims that auth.jwt names.",
    )


def find_identity_conflicts(mode: str, config: JwtConfig, login: LoginConfig) -> Iterator[ConfigError]:
    """Yield the faults of settings that are valid alone but not together."""
    if not login.client_id and (login.client_secret or login.url):
        yield ConfigError("ui.login.client_id", "is missing", "Write the id of the client at the provider")
    if login.client_id and not login.url:
        yield ConfigError(
            "ui.login.url",
            "is missing, so the provider would not know where to send people back",
            "Write the address at which browsers reach this server, like https://proxy.example.com",
        )
    if mode != "jwt" and not login.client_id:
        if config.issuer:
            yield ConfigError(
                "auth.jwt.issuer",
                f'has no effect with auth.mode = "{mode}" and without ui.login',
                'Write auth.mode = "jwt", or configure ui.login',
            )
        return
    if not config.issuer:
        yield ConfigError("auth.jwt.issuer", "is missing", "Write the address of your OpenID provider")
    if mode == "jwt" and not config.audience:
        yield ConfigError(
            "auth.jwt.audience",
            "is missing, so tokens for any other service of the provider would be accepted",
            'Write the audience of your tokens: ["toolrelay"]',
        )
    for name in ("issuer", "jwks_url"):
        url = getattr(config, name)
        if url.startswith("http://") and not (config.networks and may_carry_secrets(url)):
            yield ConfigError(
                f"auth.jwt.{name}",
                "is not encrypted, so anybody on the way could replace the keys",
                "Use https; only an IP address in a network that auth.jwt.networks names may have http "
                f"({urlsplit(url).hostname} is no such address)",
            )
