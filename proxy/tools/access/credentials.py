"""Credentials by name: static tokens, and OAuth access tokens kept fresh (rule T6).

A tool names a connection and gets an HTTP client that adds the ``Authorization`` header by itself.
It never sees a token, its own or another's.  A connection that an MCP server uses is of that server alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proxy.records import TokenVault
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.refreshing import Refreshed
from proxy.tools.contract.capabilities import HttpClient, Unconnected, unconnected
from proxy.tools.oauth.grants import ClientCredentials, LoggedIn, OAuthToken, grant_of
from proxy.tools.oauth.port import OAuthHttp

__all__ = ["Connection", "CredentialBroker", "StaticToken"]


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token that stays what it is.  ``server_url`` is that of the MCP server that it is for, if any."""

    token: str = field(repr=False)
    server_url: str = ""


Connection = StaticToken | OAuthToken | ClientCredentials | LoggedIn


class _Authorizer(Protocol):
    async def authorization(self) -> str: ...

    async def renew(self, refused: str) -> str | None: ...

    async def newer(self, refused: str) -> str | None: ...


class CredentialBroker:
    """All connections of the process.  Belongs to one event loop.

    Args:
        connections: the credentials of each connection by its name.
        pool: whose HTTP the clients of tools call services with.
        http: makes what the authorization server of a connection is called with.
        clock: monotonic seconds.
        vault: where refreshed tokens are shared with other processes and outlive this one.
        now: seconds since the epoch, which all processes agree on.
    """

    def __init__(
        self,
        connections: Mapping[str, Connection],
        pool: EgressPool,
        http: Callable[[Connection], OAuthHttp],
        *,
        clock: Callable[[], float] = time.monotonic,
        vault: TokenVault | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._connections = connections
        self._authorizers: dict[str, _Authorizer] = {
            name: (
                _Static(connection)
                if isinstance(connection, StaticToken)
                else Refreshed(
                    name, grant_of(name, connection), http(connection), vault=vault, clock=clock, now=now
                )
            )
            for name, connection in connections.items()
        }

    @property
    def names(self) -> frozenset[str]:
        """The connections that there are."""
        return frozenset(self._authorizers)

    def connection(self, name: str) -> Connection | None:
        """The configured connection of a name."""
        return self._connections.get(name)

    def client(self, name: str, hosts: Sequence[str]) -> HttpClient:
        """A client for the named connection that reaches ``hosts`` only.

        Implements :data:`~proxy.tools.contract.capabilities.ConnectedHttpSource`.  For a connection that does
        not exist, or is an MCP server's, it is one that reaches nothing and says so.
        """
        authorizer = self._authorizers.get(name)
        if authorizer is None or self._connections[name].server_url:
            return Unconnected(name)
        return self._pool.client(hosts, authorizer)

    async def prepare(self, connection: str) -> None:
        """As :class:`~proxy.tools.contract.capabilities.Credentials` says: one refresh for all who wait."""
        await self._authorizer(connection).authorization()

    async def authorize(
        self, connection: str, server_url: str, refused: str = "", *, wants_scope: bool = False
    ) -> str | None:
        """The value of ``Authorization`` for the MCP server at ``server_url``.

        ``refused`` is a value that the server did not take: ``None`` where no other is to be had.
        ``wants_scope`` says that its token lacks a scope, so that only a new login helps.
        Raises :class:`~proxy.errors.ToolFailure` where there is none, and for another server's connection.
        """
        authorizer = self._authorizer(connection)
        if self._connections[connection].server_url != server_url:
            raise unconnected(connection)
        if not refused:
            return await authorizer.authorization()
        return await (authorizer.newer(refused) if wants_scope else authorizer.renew(refused))

    def _authorizer(self, connection: str) -> _Authorizer:
        authorizer = self._authorizers.get(connection)
        if authorizer is None:
            raise unconnected(connection)
        return authorizer


class _Static:
    """The header of a static token."""

    def __init__(self, connection: StaticToken) -> None:
        self._connection = connection

    async def authorization(self) -> str:
        """The header's value."""
        return f"Bearer {self._connection.token}"

    async def renew(self, refused: str) -> str | None:
        """There is no other."""
        return None

    async def newer(self, refused: str) -> str | None:
        """There is no other."""
        return None
