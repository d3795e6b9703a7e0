"""Builds connections from their settings, and the broker of their credentials."""

import time
from collections.abc import Callable

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


class OpenCredentials(Struct, frozen=True):
    """The credentials of a process, until they are closed."""

    broker: CredentialBroker
    pools: OAuthPools

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
    broker = CredentialBroker(
        connections,
        egress,
        lambda connection: pools.http(issuer=_issuer(connection), server_url=connection.server_url),
        vault=vault,
        now=now,
    )
    return OpenCredentials(broker, pools)


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
    )


def _issuer(connection: Connection) -> str:
    """Return the configured address of the authorization server; empty if there is none."""
    if isinstance(connection, OAuthToken):
        return connection.token_url
    return "" if isinstance(connection, StaticToken) else connection.issuer
