"""Provide credentials by connection name: static tokens, and OAuth access tokens kept fresh (rule T6).

A tool names a connection and gets an HTTP client that adds the ``Authorization`` header itself. A tool never
sees a token, not even its own. A connection for an MCP server serves that server only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proxy.records.rows import TokenVault
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.refreshing import TokenRefresher
from proxy.tools.contract.capabilities import HttpClient, Unconnected, unconnected
from proxy.tools.oauth.grants import ClientCredentials, LoggedIn, OAuthToken, grant_of
from proxy.tools.oauth.port import OAuthHttp


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token that never changes. ``server_url`` is the URL of its MCP server, if it is for one.

    ``header`` is the name of the header that carries the token alone; empty: ``Authorization``, as a bearer
    token.
    """

    token: str = field(repr=False)
    server_url: str = ""
    header: str = ""


Connection = StaticToken | OAuthToken | ClientCredentials | LoggedIn


class _Authorizer(Protocol):
    async def authorization(self) -> str: ...

    async def renew(self, refused: str) -> str | None: ...

    async def newer(self, refused: str) -> str | None: ...


class CredentialBroker:
    """All connections of the process. Belongs to one event loop.

    Args:
        connections: the credentials of each connection by its name.
        pool: the HTTP pool with which the tools' clients call services.
        http: returns the HTTP client with which a connection calls its authorization server.
        clock: returns monotonic seconds.
        vault: stores refreshed tokens, shared with other processes and kept after this one ends.
        now: returns seconds since the epoch, the same for all processes.
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
                else TokenRefresher(
                    name, grant_of(name, connection), http(connection), vault=vault, clock=clock, now=now
                )
            )
            for name, connection in connections.items()
        }

    @property
    def names(self) -> frozenset[str]:
        """The names of all connections."""
        return frozenset(self._authorizers)

    def connection(self, name: str) -> Connection | None:
        """Return the configured connection of this name, or ``None``."""
        return self._connections.get(name)

    def client(self, name: str, hosts: Sequence[str]) -> HttpClient:
        """Return a client for the named connection that reaches only ``hosts``.

        Implements :data:`~proxy.tools.contract.capabilities.ConnectedHttpSource`. If the connection does not
        exist or is for an MCP server, every request of the client fails with a message about it.
        """
        authorizer = self._authorizers.get(name)
        connection = self._connections.get(name)
        if authorizer is None or connection is None or connection.server_url:
            return Unconnected(name)
        header = connection.header if isinstance(connection, StaticToken) else ""
        return self._pool.client(hosts, authorizer, header=header or "Authorization")

    async def prepare(self, connection: str) -> None:
        """Load the credentials of a connection; calls that wait share one refresh.

        Implements :class:`~proxy.tools.contract.capabilities.Credentials`.
        """
        await self._authorizer(connection).authorization()

    async def authorize(
        self, connection: str, server_url: str, refused: str = "", *, wants_scope: bool = False
    ) -> str | None:
        """Return the value of ``Authorization`` for the MCP server at ``server_url``.

        ``refused`` is a value that the server refused; the result is then another one, or ``None``.
        ``wants_scope`` says that the refused token lacks a scope, so that only a new login helps. Raises
        :class:`~proxy.base.errors.ToolFailure` if there is no value or the connection is for another server.
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
        """Return the header's value."""
        token = self._connection.token
        return token if self._connection.header else f"Bearer {token}"

    async def renew(self, refused: str) -> str | None:
        """Return ``None``: there is no other value."""
        return None

    async def newer(self, refused: str) -> str | None:
        """Return ``None``: there is no other value."""
        return None
