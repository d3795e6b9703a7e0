"""Logins at the servers of :mod:`oauth_server`, and credential brokers that use them."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from oauth_server import OAuthServer
from token_vault import Vault

from proxy.records.rows import TokenVault
from proxy.tools.access.credentials import Connection, CredentialBroker
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.oauth_http import OAuthPools
from proxy.tools.mcp.authorization import ServerAuthorizer
from proxy.tools.mcp.servers import Server
from proxy.tools.oauth.grants import LoggedIn, login_place
from proxy.tools.oauth.login import begin_login, end_login
from proxy.tools.oauth.stored_tokens import StoredTokens

LOOPBACK = ("127.0.0.0/8",)
REDIRECT = "http://127.0.0.1:1/callback"


async def redirected(url: str) -> str:
    """Return the address to which the server redirects a browser, without following it."""
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as answer:
        assert answer.status == 302, await answer.text()
        return answer.headers["Location"]


async def log_in(
    server: OAuthServer,
    vault: TokenVault,
    name: str = "issues",
    *,
    connection: LoggedIn | None = None,
    scopes: Sequence[str] = (),
    before: StoredTokens | None = None,
) -> StoredTokens:
    """Log in to the MCP server, and keep the tokens in a vault."""
    pools = OAuthPools(servers=LOOPBACK, tools=LOOPBACK)
    meant = connection or LoggedIn(server_url=server.mcp)
    http = pools.http(issuer=meant.issuer, server_url=meant.server_url)
    try:
        attempt = await begin_login(
            http, meant, redirect_uri=REDIRECT, now=time.time(), scopes=tuple(scopes), before=before
        )
        code = attempt.code_of(await redirected(attempt.url))
        tokens = await end_login(http, attempt, code, time.time())
    finally:
        await pools.aclose()
    async with vault.exclusive(login_place(name)):
        await vault.save(login_place(name), tokens.to_json())
    return tokens


@dataclass(frozen=True)
class Brokers:
    """Makes brokers that share one vault; in the product each process has one broker."""

    server: OAuthServer
    vault: Vault
    egress: EgressPool
    pools: OAuthPools

    def broker(self, connection: Connection | None = None, name: str = "issues") -> CredentialBroker:
        """Return the broker of a new process."""
        meant = connection or LoggedIn(server_url=self.server.mcp)
        http = self.pools.http(issuer=getattr(meant, "issuer", ""), server_url=self.server.mcp)
        return CredentialBroker({name: meant}, self.egress, lambda connection: http, vault=self.vault)

    def authorizer(self, *servers: Server) -> ServerAuthorizer:
        """Return the object that gives the headers for these servers."""
        return ServerAuthorizer(self.broker(), {server.name: server for server in servers})

    @property
    def mcp_server(self) -> Server:
        """The MCP server as the configuration has it."""
        return Server("issues", url=self.server.mcp, connection="issues")


@asynccontextmanager
async def brokers(server: OAuthServer) -> AsyncIterator[Brokers]:
    """Yield brokers before anybody has logged in."""
    egress = EgressPool(allowed_networks=LOOPBACK, schemes=("http",))
    pools = OAuthPools(servers=LOOPBACK, tools=LOOPBACK)
    try:
        yield Brokers(server, Vault(), egress, pools)
    finally:
        await egress.aclose()
        await pools.aclose()
