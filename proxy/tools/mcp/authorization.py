"""Provide the ``Authorization`` headers of MCP servers to the host process, one header at a time."""

import shlex
from collections.abc import Mapping

import structlog

from proxy.base.errors import ToolFailure
from proxy.tools.access.credentials import ConnectionFailure, CredentialBroker
from proxy.tools.mcp.host_client import Authorization
from proxy.tools.mcp.servers import Server
from proxy.tools.oauth.grants import ClientCredentials, LoggedIn, login_command


class ServerAuthorizer:
    """An :data:`~proxy.tools.mcp.host_client.Authorize` that uses the credentials of this process."""

    def __init__(self, broker: CredentialBroker, servers: Mapping[str, Server]) -> None:
        self._broker = broker
        self._servers = servers
        self._reported: dict[str, str] = {}
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    async def __call__(self, server: str, refused: str, scopes: tuple[str, ...] | None) -> Authorization:
        known = self._servers.get(server)
        if known is None or not known.connection:
            return Authorization(reason="the server has no connection")
        name = known.connection
        try:
            value = await self._broker.authorize(name, known.url, refused, wants_scope=scopes is not None)
        except ConnectionFailure as failure:
            return Authorization(reason=failure.reason, needs_login=failure.needs_login)
        except ToolFailure as failure:
            return Authorization(reason=str(failure))
        if value is not None:
            return Authorization(value)
        if scopes is not None:
            return self._lacking(server, name, scopes)
        return Authorization(reason=f"the server refuses the token of credentials.{name} (401)")

    def _lacking(self, server: str, name: str, scopes: tuple[str, ...]) -> Authorization:
        """Return which scopes the token lacks and what the operator must do; log it once."""
        scope = f"the scope {' '.join(scopes)}" if scopes else "a scope that it does not name"
        named = f"the server asks for {scope}"
        match self._broker.connection(name):
            case LoggedIn():
                options = "".join(f" --scope {shlex.quote(scope)}" for scope in scopes)
                reason = f"{named}; run: {login_command(name)}{options}"
            case ClientCredentials():
                reason = f"{named}; add it to credentials.{name}.scopes"
            case _:
                reason = f"{named}, which the token of credentials.{name} lacks"
        if self._reported.get(server) != reason:
            self._reported[server] = reason
            self._log.warning("mcp_scope_missing", server=server, connection=name, reason=reason)
        return Authorization(reason=reason, needs_login=True)
