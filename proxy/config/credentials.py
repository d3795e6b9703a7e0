"""The settings of connections: how tools and MCP servers get their credentials."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from proxy.base.errors import ConfigError
from proxy.config.addresses import check_token_url
from proxy.config.mcp.servers import McpConfig
from proxy.config.secret import Secret
from proxy.config.types import OptionalSecret, Section, Strings, read_header_value, setting_fault
from proxy.net.public_addresses import may_carry_secrets
from proxy.tools.oauth.parameters import PROTOCOL_PARAMETERS, read_scopes

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OF_GRANTS = (
    "per_user",
    "issuer",
    "client_metadata_url",
    "scopes",
    "redirect_uri",
    "authorization_parameters",
)
_OF_LOGINS = ("per_user", "client_metadata_url", "redirect_uri", "authorization_parameters")


def _check_issuer(value: str) -> str:
    if value and (not may_carry_secrets(value) or urlsplit(value).query or "#" in value):
        raise setting_fault(
            "is not an issuer URL; write one like https://auth.example.com, exactly as the server does"
        )
    return value


def _check_document(value: str) -> str:
    if value:
        parts = urlsplit(value)
        if (
            parts.scheme != "https"
            or parts.path in ("", "/")
            or not may_carry_secrets(value)
            or parts.fragment
        ):
            raise setting_fault(
                "is not the URL of a document; write one like https://example.com/client.json"
            )
    return value


def _check_redirect(value: str) -> str:
    try:
        parts = urlsplit(value)
        fits = parts.scheme == "http" and parts.hostname in _LOOPBACK and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not parts.path.startswith("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise setting_fault(
            "is not an address of this machine; write http://127.0.0.1/callback, or "
            "http://127.0.0.1:PORT/callback for a fixed port"
        )
    return value


def _check_scopes(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if read_scopes([value]) != (value,):
            raise setting_fault(
                f"{value[:80]!r} is not a scope; write each scope as an element of its own, without spaces"
            )
    return values


def _check_parameters(values: Mapping[str, str]) -> Mapping[str, str]:
    for name in values:
        if name in PROTOCOL_PARAMETERS:
            raise setting_fault(f"{name!r} cannot be set: toolrelay sets this parameter itself")
    return values


class CredentialConfig(Section):
    """One connection that tools or an MCP server use by its name: a token, OAuth 2 with a refresh token, or
    an OAuth grant."""

    token: OptionalSecret = Field(default=None, description="The token as env:NAME or file:/path.")
    grant: Literal["", "authorization_code", "client_credentials"] = Field(
        default="",
        description="How toolrelay gets OAuth tokens: authorization_code (log in once with `toolrelay "
        "credentials login NAME`) or client_credentials. Empty: from token or refresh_token.",
    )
    per_user: bool = Field(
        default=False,
        description="Each end user logs in with an account of their own, at a link that a call without a "
        "login gives; needs server.public_url. Only [openapi.NAME] can use such a connection.",
    )
    issuer: Annotated[str, AfterValidator(_check_issuer)] = Field(
        default="",
        max_length=2048,
        description="Issuer URL of the authorization server, exactly as the server writes it: "
        "https://accounts.google.com. Empty: the one that the MCP server names.",
    )
    client_id: Annotated[
        str | Secret | None, PlainValidator(lambda value: _read_client_id(value), json_schema_input_type=str)
    ] = Field(
        default=None,
        description="OAuth client id. Empty with authorization_code: toolrelay registers itself.",
    )
    client_secret: OptionalSecret = Field(
        default=None, description="OAuth client secret. Leave it empty for a public client."
    )
    client_metadata_url: Annotated[str, AfterValidator(_check_document)] = Field(
        default="",
        max_length=2048,
        description="URL of your client ID metadata document. It is used as the client id if the "
        "authorization server supports that.",
    )
    scopes: Annotated[Strings, AfterValidator(_check_scopes)] = Field(
        default=(), description="Scopes to ask for. Empty: those that the MCP server asks for."
    )
    redirect_uri: Annotated[str, AfterValidator(_check_redirect)] = Field(
        default="http://127.0.0.1/callback",
        max_length=200,
        description="Address of this machine to which a login redirects; without a port, any free one is "
        "used.",
    )
    authorization_parameters: Annotated[dict[str, str], AfterValidator(_check_parameters)] = Field(
        default={},
        description='Additional parameters of a login that some providers need: {access_type = "offline"}.',
    )
    refresh_token: OptionalSecret = Field(
        default=None, description="OAuth 2 refresh token that you obtained elsewhere."
    )
    token_url: Annotated[str, AfterValidator(check_token_url)] = Field(
        default="",
        description="Token endpoint for the refresh token: https://oauth2.googleapis.com/token.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> "CredentialConfig":
        if self.grant:
            return self._fits_grant()
        oauth = {
            "client_id": self.client_id,
            "refresh_token": self.refresh_token,
            "token_url": self.token_url,
        }
        for name in _OF_GRANTS:
            if name in self.model_fields_set and getattr(self, name):
                raise setting_fault(f'has {name}, which needs grant: write grant = "authorization_code"')
        given = [name for name, value in (*oauth.items(), ("client_secret", self.client_secret)) if value]
        if self.token is not None and given:
            raise setting_fault(f"has both token and {given[0]}; write one of them")
        missing = [name for name, value in oauth.items() if not value]
        if self.token is None and missing:
            raise setting_fault(
                "needs token or grant" if not given else f"also needs {' and '.join(missing)}, or grant"
            )
        return self

    def _fits_grant(self) -> "CredentialConfig":
        for name in ("token", "refresh_token", "token_url"):
            if getattr(self, name):
                raise setting_fault(f"has both grant and {name}; write one of them")
        if self.grant == "client_credentials":
            for name in _OF_LOGINS:
                if name in self.model_fields_set and getattr(self, name):
                    raise setting_fault(f'has {name}, which belongs to grant = "authorization_code"')
            missing = [name for name in ("issuer", "client_id", "client_secret") if not getattr(self, name)]
            if missing:
                raise setting_fault(f"also needs {' and '.join(missing)}")
        if self.client_id and self.client_metadata_url:
            raise setting_fault("has both client_id and client_metadata_url; write one of them")
        if self.client_secret and not self.client_id:
            raise setting_fault("also needs client_id")
        if self.client_secret and not self.issuer:
            # Otherwise the MCP server would choose who gets the secret.
            raise setting_fault("also needs issuer: it says who gets the client secret")
        return self

    @property
    def own_client_id(self) -> str:
        """The client id, revealed; empty for none."""
        return self.client_id.reveal() if isinstance(self.client_id, Secret) else self.client_id or ""


def _read_client_id(value: object) -> "str | Secret | None":
    return None if value in ("", None) else read_header_value(value)


def server_of(name: str, mcp: McpConfig) -> str:
    """Return the name of the MCP server that uses a connection; empty if none does."""
    return next((server for server, config in mcp.servers.items() if config.connection == name), "")


def find_credential_conflicts(
    credentials: Mapping[str, CredentialConfig],
    mcp: McpConfig,
    *,
    seals: bool,
    public_url: str = "",
    used_by_apis: Collection[str] = (),
) -> Iterator[ConfigError]:
    """Yield the faults of connections whose settings are valid alone but not together.

    ``seals`` says whether the record keeps secrets encrypted for all processes. ``public_url`` is the address
    of the proxy for people, and ``used_by_apis`` are the connections of APIs.
    """
    users: dict[str, str] = {}
    for name, server in mcp.servers.items():
        where, connection = f"mcp.servers.{name}.connection", server.connection
        if not connection:
            continue
        if connection not in credentials:
            yield ConfigError(
                where,
                f"there is no connection {connection[:80]!r}",
                f'Write [credentials.{connection[:80]}] with grant = "authorization_code", or with token',
            )
        elif connection in users:
            yield ConfigError(
                where,
                f"mcp.servers.{users[connection]} already uses {connection!r}, and a token is for one server",
                "Write a separate connection for this server",
            )
        users.setdefault(connection, name)
        if server.url and not may_carry_secrets(server.url):
            yield ConfigError(
                f"mcp.servers.{name}.url", "is not encrypted, but its connection sends a token", "Use https"
            )
    for name, config in credentials.items():
        if config.grant != "authorization_code":
            continue
        if config.per_user:
            yield from _of_users(name, public_url=public_url, used=name in used_by_apis)
        if not config.issuer and name not in users:
            yield ConfigError(
                f"credentials.{name}.issuer",
                "is missing, and no MCP server uses this connection and could name the issuer",
                f'Write the address of the authorization server, or mcp.servers.NAME.connection = "{name}"',
            )
        if not seals:
            yield ConfigError(
                "store.seal_key",
                f"the record is not encrypted, but credentials.{name} keeps its login there",
                "Name a SQLite file in store.url and do not set store.seal = false; for PostgreSQL write "
                'seal_key = "env:TOOLRELAY_SEAL_KEY", with a key that `openssl rand -hex 32` makes',
            )


def _of_users(name: str, *, public_url: str, used: bool) -> Iterator[ConfigError]:
    """Yield the faults of a connection to which each user logs in; ``used`` says that an API has it."""
    if name == "callback":
        yield ConfigError(
            f"credentials.{name}",
            "has the name of the page to which logins of users come back",
            "Give the connection another name",
        )
    if not public_url:
        yield ConfigError(
            "server.public_url",
            f"is missing, and credentials.{name} sends users there to log in",
            'Write the address of this proxy: public_url = "https://ai.example.com"',
        )
    if not used:
        yield ConfigError(
            f"credentials.{name}.per_user",
            "works only with a connection of [openapi.NAME]; MCP servers and built-in tools have one account "
            "for all",
            "Remove per_user, or name the connection there",
        )
