"""How each kind of connection gets its tokens from a token endpoint."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from proxy.tools.oauth.clients import Client, configured_client
from proxy.tools.oauth.discovery import Discovery, discover
from proxy.tools.oauth.kept import Kept, with_answer
from proxy.tools.oauth.metadata import resource_of
from proxy.tools.oauth.port import OAuthFault, OAuthHttp
from proxy.tools.oauth.tokens import ask_for_tokens

__all__ = [
    "ClientCredentials",
    "Grant",
    "LoggedIn",
    "OAuthToken",
    "grant_of",
    "login_command",
    "login_place",
]

_REFRESH: Final = "refresh_token"


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """What it takes to get access tokens from ``token_url``.

    ``server_url`` is that of the MCP server that the tokens are for; empty for tools.
    """

    token_url: str
    client_id: str = field(repr=False)
    refresh_token: str = field(repr=False)
    client_secret: str = field(default="", repr=False)
    server_url: str = ""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """A client that gets tokens of ``issuer`` in its own name (RFC 6749, section 4.4).

    ``server_url`` is that of the MCP server that they are for; empty for tools.  No ``scopes`` means those
    that the server asks for.
    """

    issuer: str
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    server_url: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """Somebody logs in with a command.

    Fields as in :class:`ClientCredentials`; all may be empty.  ``issuer`` is then the one that the server
    names, and the client is the one that ``document_url`` describes (a client id metadata document), or one
    that registers itself.
    """

    issuer: str = ""
    server_url: str = ""
    client_id: str = field(default="", repr=False)
    client_secret: str = field(default="", repr=False)
    document_url: str = ""
    scopes: tuple[str, ...] = ()


class Grant(Protocol):
    """How one connection gets its tokens."""

    @property
    def place(self) -> str:
        """Where its tokens are kept in a vault."""
        ...

    @property
    def is_login(self) -> bool:
        """Whether only a person can begin it, who may do so anew, or end it, at any time."""
        ...

    def fits(self, kept: Kept) -> bool:
        """Whether what is kept is of the connection as it is configured now."""
        ...

    async def ask(self, http: OAuthHttp, kept: Kept | None, now: Callable[[], float]) -> Kept:
        """New tokens; raises :class:`~proxy.tools.oauth.port.OAuthFault`."""
        ...


def grant_of(name: str, connection: OAuthToken | ClientCredentials | LoggedIn) -> Grant:
    """How the connection of this name gets its tokens."""
    if isinstance(connection, OAuthToken):
        return _Configured(name, connection)
    if isinstance(connection, ClientCredentials):
        return _InItsOwnName(name, connection)
    return _ByLogin(name, connection)


def login_command(name: str) -> str:
    """The command with which an operator logs in."""
    return f"toolrelay credentials login {name}"


def login_place(name: str) -> str:
    """Where a login is kept: one for each name, whatever the configuration says of it by now."""
    return _digest("login", name)


class _Configured:
    """A refresh token of the configuration, and whatever the provider puts in its place."""

    is_login = False

    def __init__(self, name: str, connection: OAuthToken) -> None:
        self._connection = connection
        # Another refresh token in the configuration is another place: so an operator who puts a new one
        # there is not answered with what came of the old one.
        self.place = _digest(name, connection.token_url, connection.client_id, connection.refresh_token)

    def fits(self, kept: Kept) -> bool:
        return bool(kept.refresh_token) and kept.login is None

    async def ask(self, http: OAuthHttp, kept: Kept | None, now: Callable[[], float]) -> Kept:
        connection = self._connection
        token = kept.refresh_token if kept is not None else connection.refresh_token
        fields = {"grant_type": _REFRESH, "refresh_token": token}
        if connection.server_url:
            fields["resource"] = resource_of(connection.server_url)
        method = "client_secret_post" if connection.client_secret else "none"
        client = Client(connection.client_id, "configured", connection.client_secret, method)
        answer = await ask_for_tokens(http, connection.token_url, client, fields)
        return with_answer(answer, now(), None, token)


class _InItsOwnName:
    """Tokens without a person.  The authorization server is looked for once, and again after a failure."""

    is_login = False

    def __init__(self, name: str, connection: ClientCredentials) -> None:
        self._connection = connection
        self._found: Discovery | None = None
        told = (connection.issuer, connection.server_url, connection.client_id, " ".join(connection.scopes))
        self.place = _digest("client_credentials", name, *told, connection.client_secret)

    def fits(self, kept: Kept) -> bool:
        return kept.login is None

    async def ask(self, http: OAuthHttp, kept: Kept | None, now: Callable[[], float]) -> Kept:
        own = self._connection
        found = self._found
        if found is None:
            found = await discover(http, server_url=own.server_url, issuer=own.issuer)
        self._found = None
        client = configured_client(found.server, own.client_id, own.client_secret)
        scopes = own.scopes or found.scopes
        fields = {
            "grant_type": "client_credentials",
            **({"scope": " ".join(scopes)} if scopes else {}),
            **({"resource": found.resource} if found.resource else {}),
        }
        answer = await ask_for_tokens(http, found.server.token_endpoint, client, fields)
        self._found = found
        return with_answer(answer, now(), None)


class _ByLogin:
    """Tokens of a login, which is all in the vault."""

    is_login = True

    def __init__(self, name: str, connection: LoggedIn) -> None:
        self._name = name
        self._connection = connection
        self._ended = ""
        self.place = login_place(name)

    def fits(self, kept: Kept) -> bool:
        own = self._connection
        return kept.login is not None and kept.login.is_for(
            resource=own.server_url, issuer=own.issuer, client_id=own.client_id
        )

    async def ask(self, http: OAuthHttp, kept: Kept | None, now: Callable[[], float]) -> Kept:
        command = login_command(self._name)
        if kept is None or kept.login is None:
            raise OAuthFault(f"nobody has logged in; run: {command}", needs_login=True)
        login = kept.login
        if not kept.refresh_token:
            why = "the login has ended, and the server gave no refresh token"
            raise OAuthFault(f"{why}; run: {command}", needs_login=True)
        if kept.refresh_token == self._ended:
            raise OAuthFault(f"the login has ended (invalid_grant); run: {command}", needs_login=True)
        fields = {
            "grant_type": _REFRESH,
            "refresh_token": kept.refresh_token,
            **({"resource": login.resource} if login.resource else {}),
        }
        client = login.client
        if client.kind == "configured":
            # The secret may have been replaced in the configuration since.
            secret = self._connection.client_secret
            client = Client(client.id, "configured", secret, client.method if secret else "none")
        try:
            answer = await ask_for_tokens(http, login.token_endpoint, client, fields)
        except OAuthFault as fault:
            if fault.code != "invalid_grant":
                raise
            # To send it again could shut the account, and cannot help.
            self._ended = kept.refresh_token
            raise OAuthFault(
                f"the login has ended (invalid_grant); run: {command}",
                status=fault.status,
                code=fault.code,
                needs_login=True,
            ) from None
        return with_answer(answer, now(), kept, kept.refresh_token)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
