"""The grants by which each kind of connection gets its tokens from a token endpoint."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from proxy.tools.oauth.clients import Client, configured_client
from proxy.tools.oauth.metadata import Discovery, discover, resource_of
from proxy.tools.oauth.port import OAuthFault, OAuthHttp
from proxy.tools.oauth.stored_tokens import StoredTokens, updated_tokens
from proxy.tools.oauth.tokens import TokenAnswer, ask_for_tokens

_REFRESH: Final = "refresh_token"


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """The configuration of a connection that gets access tokens from ``token_url`` with a refresh token.

    ``server_url`` is the URL of the MCP server that the tokens are for; empty for tools.
    """

    token_url: str
    client_id: str = field(repr=False)
    refresh_token: str = field(repr=False)
    client_secret: str = field(default="", repr=False)
    server_url: str = ""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """A client that gets tokens from ``issuer`` in its own name (RFC 6749, section 4.4).

    ``server_url`` is the URL of the MCP server that the tokens are for; empty for tools. Without ``scopes``
    the client requests those that the server asks for.
    """

    issuer: str
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    server_url: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A connection for which a person logs in with a command.

    The fields are as in :class:`ClientCredentials`; all may be empty. Without ``issuer`` the server names
    it. Without ``client_id`` the client is the one that ``document_url`` describes (a client id metadata
    document), or the proxy registers one. With ``per_user`` each end user logs in.
    """

    issuer: str = ""
    server_url: str = ""
    client_id: str = field(default="", repr=False)
    client_secret: str = field(default="", repr=False)
    document_url: str = ""
    scopes: tuple[str, ...] = ()
    per_user: bool = False


class OAuthGrant(Protocol):
    """The way in which one connection gets its tokens."""

    @property
    def place(self) -> str:
        """The key of its tokens in a vault."""

    @property
    def is_login(self) -> bool:
        """Whether a person must log in, and may log in again or out at any time."""

    def fits(self, tokens: StoredTokens) -> bool:
        """Return whether stored tokens belong to the connection as it is configured now."""

    async def ask(
        self, http: OAuthHttp, tokens: StoredTokens | None, now: Callable[[], float]
    ) -> StoredTokens:
        """Request new tokens; raise :class:`~proxy.tools.oauth.port.OAuthFault` if that fails."""


def grant_of(
    name: str, connection: OAuthToken | ClientCredentials | LoggedIn, person: str = ""
) -> OAuthGrant:
    """Return the grant of the connection with this name; for ``person`` if that is not empty."""
    if isinstance(connection, OAuthToken):
        return _RefreshTokenGrant(name, connection)
    if isinstance(connection, ClientCredentials):
        return _ClientCredentialsGrant(name, connection)
    return _LoginGrant(name, connection, person)


def login_command(name: str, person: str = "") -> str:
    """Return the command with which an operator logs in, or somebody for a person."""
    return f"toolrelay credentials login {name}" + (f" --user {person}" if person else "")


def login_place(name: str, person: str = "") -> str:
    """Return the key of a login in a vault: one per name and person, whatever the configuration is."""
    return _digest("user login", name, person) if person else _digest("login", name)


class _RefreshTokenGrant:
    """The grant that uses the configured refresh token, and the ones by which the provider replaces it."""

    is_login = False

    def __init__(self, name: str, connection: OAuthToken) -> None:
        self._connection = connection
        # The refresh token is part of the key. So after an operator has configured a new one, the tokens
        # that came from the old one are not used.
        self.place = _digest(name, connection.token_url, connection.client_id, connection.refresh_token)

    def fits(self, tokens: StoredTokens) -> bool:
        return bool(tokens.refresh_token) and tokens.login is None

    async def ask(
        self, http: OAuthHttp, tokens: StoredTokens | None, now: Callable[[], float]
    ) -> StoredTokens:
        connection = self._connection
        token = tokens.refresh_token if tokens is not None else connection.refresh_token
        fields = {"grant_type": _REFRESH, "refresh_token": token}
        if connection.server_url:
            fields["resource"] = resource_of(connection.server_url)
        method = "client_secret_post" if connection.client_secret else "none"
        client = Client(connection.client_id, "configured", connection.client_secret, method)
        answer = await ask_for_tokens(http, connection.token_url, client, fields)
        return updated_tokens(answer, now(), None, token)


class _ClientCredentialsGrant:
    """The client credentials grant. It finds the authorization server once, and again after a failure."""

    is_login = False

    def __init__(self, name: str, connection: ClientCredentials) -> None:
        self._connection = connection
        self._discovery: Discovery | None = None
        parts = (connection.issuer, connection.server_url, connection.client_id, " ".join(connection.scopes))
        self.place = _digest("client_credentials", name, *parts, connection.client_secret)

    def fits(self, tokens: StoredTokens) -> bool:
        return tokens.login is None

    async def ask(
        self, http: OAuthHttp, tokens: StoredTokens | None, now: Callable[[], float]
    ) -> StoredTokens:
        own = self._connection
        discovery = self._discovery
        if discovery is None:
            discovery = await discover(http, server_url=own.server_url, issuer=own.issuer)
        self._discovery = None
        client = configured_client(discovery.server, own.client_id, own.client_secret)
        scopes = own.scopes or discovery.scopes
        fields = {
            "grant_type": "client_credentials",
            **({"scope": " ".join(scopes)} if scopes else {}),
            **({"resource": discovery.resource} if discovery.resource else {}),
        }
        answer = await ask_for_tokens(http, discovery.server.token_endpoint, client, fields)
        self._discovery = discovery
        return updated_tokens(answer, now(), None)


class _LoginGrant:
    """The grant that uses the refresh token of a login; all it needs is in the vault."""

    is_login = True

    def __init__(self, name: str, connection: LoggedIn, person: str) -> None:
        self._command = login_command(name, person)
        self._connection = connection
        self._ended = ""
        self.place = login_place(name, person)

    def fits(self, tokens: StoredTokens) -> bool:
        own = self._connection
        return tokens.login is not None and tokens.login.is_for(
            resource=own.server_url, issuer=own.issuer, client_id=own.client_id
        )

    async def ask(
        self, http: OAuthHttp, tokens: StoredTokens | None, now: Callable[[], float]
    ) -> StoredTokens:
        command = self._command
        if tokens is None or tokens.login is None:
            raise OAuthFault(f"nobody has logged in; run: {command}", needs_login=True)
        login = tokens.login
        if not tokens.refresh_token:
            why = "the login has ended, and the server gave no refresh token"
            raise OAuthFault(f"{why}; run: {command}", needs_login=True)
        if tokens.refresh_token == self._ended:
            raise OAuthFault(f"the login has ended (invalid_grant); run: {command}", needs_login=True)
        fields = {
            "grant_type": _REFRESH,
            "refresh_token": tokens.refresh_token,
            # Without it Microsoft Entra gives a token of another scope; it may name what was granted: RFC
            # 6749, section 6.
            **({"scope": " ".join(login.scopes)} if login.scopes else {}),
            **({"resource": login.resource} if login.resource else {}),
        }
        client = login.client
        if client.kind == "configured":
            # The configured secret may have changed since the login.
            secret = self._connection.client_secret
            client = Client(client.id, "configured", secret, client.method if secret else "none")
        try:
            answer = await _refreshed(http, login.token_endpoint, client, fields)
        except OAuthFault as fault:
            if fault.code != "invalid_grant":
                raise
            # A second try with this token cannot help and could block the account.
            self._ended = tokens.refresh_token
            raise OAuthFault(
                f"the login has ended (invalid_grant); run: {command}",
                status=fault.status,
                code=fault.code,
                needs_login=True,
            ) from None
        return updated_tokens(answer, now(), tokens, tokens.refresh_token)


async def _refreshed(
    http: OAuthHttp, endpoint: str, client: Client, fields: Mapping[str, str]
) -> TokenAnswer:
    """Request tokens with a refresh token; without ``scope`` if the server refuses the scopes, as one does
    that granted fewer than were requested and did not say so."""
    try:
        return await ask_for_tokens(http, endpoint, client, fields)
    except OAuthFault as fault:
        if fault.code != "invalid_scope" or "scope" not in fields:
            raise
    without = {name: value for name, value in fields.items() if name != "scope"}
    return await ask_for_tokens(http, endpoint, client, without)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
