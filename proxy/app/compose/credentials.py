"""Builds connections from their settings, and the broker of their credentials."""

import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from proxy.app.compose.upstreams import own_authorities
from proxy.config.credentials import CredentialConfig, server_of
from proxy.config.load import Config
from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import Resolver
from proxy.records.rows import TokenVault
from proxy.toolbox.web.engines import TOKEN_HEADERS
from proxy.tools.access.addresses import WayOut
from proxy.tools.access.credentials import Connection, CredentialBroker, StaticToken
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.oauth_http import OAuthPools
from proxy.tools.oauth.grants import ClientCredentials, LoggedIn, OAuthToken
from proxy.tools.oauth.port import OAuthHttp
from proxy.tools.oauth.user_logins import UserConnection, UserLogins


class OpenCredentials(Struct, frozen=True):
    """The credentials of a process, until they are closed. ``logins`` are those of end users, if any."""

    broker: CredentialBroker
    pools: OAuthPools
    logins: UserLogins | None = None

    async def aclose(self) -> None:
        """Close the connections to authorization servers."""
        await self.pools.aclose()


def open_credentials(
    config: Config, egress: EgressPool, vault: TokenVault | None, now: Callable[[], float] = time.time
) -> OpenCredentials:
    """Open the credentials of all connections; tools call their services over ``egress``.

    ``now`` is the clock of the ``vault``, in seconds since the epoch.
    """
    pools = oauth_pools(config)
    connections = {name: connection_of(config, name) for name in config.credentials}

    def http(connection: Connection) -> OAuthHttp:
        return pools.http(issuer=_issuer(connection), server_url=connection.server_url)

    logins = _user_logins(config, connections, http, vault, now)
    link = logins.link if logins is not None else None
    broker = CredentialBroker(connections, egress, http, vault=vault, now=now, link=link)
    return OpenCredentials(broker, pools, logins)


def _user_logins(
    config: Config,
    connections: Mapping[str, Connection],
    http: Callable[[Connection], OAuthHttp],
    vault: TokenVault | None,
    now: Callable[[], float],
) -> UserLogins | None:
    """Return the logins of end users; ``None`` if no connection has them, or nothing can keep them."""
    owned = {
        name: UserConnection(connection, config.credentials[name].authorization_parameters)
        for name, connection in connections.items()
        if isinstance(connection, LoggedIn) and connection.per_user
    }
    return (
        UserLogins(owned, http, vault, config.server.public_url, now) if owned and vault is not None else None
    )


def oauth_pools(config: Config) -> OAuthPools:
    """Build the HTTP clients for authorization servers."""
    network = config.network
    tls = own_authorities(network)
    return OAuthPools(
        tools=config.tools.networks,
        servers=config.mcp.networks,
        resolver=lambda: AiohttpResolver(Resolver("oauth")),
        tools_way=WayOut(network.rules(config.tools.proxy, "tools.proxy"), config.tools.proxy_resolves, tls),
        servers_way=WayOut(network.rules(config.mcp.proxy, "mcp.proxy"), tls=tls),
    )


def connection_of(config: Config, name: str) -> Connection:
    """Return a connection in the form of the tools package, with its secrets revealed."""
    settings = config.credentials[name]
    user = server_of(name, config.mcp)
    server_url = config.mcp.servers[user].url if user else ""
    if settings.token is not None:
        header = "" if server_url else TOKEN_HEADERS.get(name, "")
        return StaticToken(settings.token.reveal(), server_url, header)
    secret = settings.client_secret.reveal() if settings.client_secret else ""
    if settings.grant == "client_credentials":
        return ClientCredentials(settings.issuer, settings.own_client_id, secret, server_url, settings.scopes)
    if settings.grant == "authorization_code":
        return _login(settings, secret, server_url)
    refresh_token = settings.refresh_token.reveal() if settings.refresh_token else ""
    return OAuthToken(settings.token_url, settings.own_client_id, refresh_token, secret, server_url)


def _login(config: CredentialConfig, secret: str, server_url: str) -> LoggedIn:
    return LoggedIn(
        issuer=config.issuer,
        server_url=server_url,
        client_id=config.own_client_id,
        client_secret=secret,
        document_url=config.client_metadata_url,
        scopes=config.scopes,
        per_user=config.per_user,
    )


def _issuer(connection: Connection) -> str:
    """Return the configured address of the authorization server; empty if there is none."""
    if isinstance(connection, OAuthToken):
        return connection.token_url
    return "" if isinstance(connection, StaticToken) else connection.issuer
