"""The process that talks to MCP servers, with scripted servers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from waiting import PATIENCE_S, until

from proxy.tools.mcp.definitions import Definition
from proxy.tools.mcp.host.authorization import NotAuthorized
from proxy.tools.mcp.host_client import Authorize, HostClient
from proxy.tools.mcp.pins import Pin
from proxy.tools.mcp.process import HostProcess
from proxy.tools.mcp.servers import HostSettings, Server


async def no_token(refused: str, scopes: Sequence[str] | None) -> str:
    """Refuse to give a token, for a server that needs none."""
    raise NotAuthorized("there is none")


@dataclass(frozen=True, slots=True)
class Hosted:
    """A process that talks to MCP servers, and a client of that process."""

    process: HostProcess
    client: HostClient
    servers: Sequence[Server]

    async def definitions(self, server: str) -> dict[str, Definition]:
        """Return the tool definitions of a server by their names there."""
        listing = await self.client.listing(server, PATIENCE_S)
        return {one.name: one for one in listing.definitions}

    async def pins(self, server: Server) -> Sequence[Pin]:
        """Return pins for all tools of a server, as if an operator had allowed them."""
        found = await self.definitions(server.name)
        return [Pin(one, server.identity, 1.0, "test") for one in found.values()]

    async def becomes(self, server: str, state: str) -> None:
        """Wait until the process reports this state of a server."""

        def has_become() -> bool:
            status = self.client.statuses.get(server)
            return status is not None and status.state == state

        await until(has_become)


@asynccontextmanager
async def hosted(
    *servers: Server, authorize: Authorize | None = None, **settings: object
) -> AsyncIterator[Hosted]:
    """Run a process that talks to these servers."""
    told = HostSettings(servers=servers, list_every_s=0, **settings)  # type: ignore[arg-type]
    process = HostProcess(orjson.dumps(told.written()), tells=True)
    process.start()
    client = HostClient(process.path, authorize)
    client.start()
    try:
        yield Hosted(process, client, servers)
    finally:
        await client.aclose()
        await process.aclose()
