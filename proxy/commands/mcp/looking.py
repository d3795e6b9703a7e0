"""The current tools of the configured servers, compared with their pins."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from proxy.app.compose.credentials import open_credentials
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.tools import open_egress
from proxy.app.open_record import opened_record
from proxy.base.errors import ConfigError, NoRecord, ToolFailure
from proxy.commands.credentials.vault import open_vault
from proxy.commands.mcp.documents import list_operations
from proxy.commands.mcp.host import mcp_host
from proxy.config.load import Config
from proxy.config.openapi import known_apis
from proxy.tools.mcp.authorization import ServerAuthorizer
from proxy.tools.mcp.definitions import Definition
from proxy.tools.mcp.host_client import Authorize, HostClient, ServerListing
from proxy.tools.mcp.pinned import Origin
from proxy.tools.mcp.pins import FiledPins, GivenPins, Pin, PinState, RecordedPins, compare
from proxy.tools.mcp.servers import Server
from proxy.tools.openapi.api import Api


class InspectedTool(Struct, frozen=True):
    """One tool: its pin, its current definition, and the result of their comparison."""

    id: str
    name: str
    state: PinState
    pin: Pin | None
    live: Definition | None


class InspectedServer(Struct, frozen=True):
    """One server or API: its state, and its tools sorted by id."""

    server: Origin
    listing: ServerListing
    tools: Sequence[InspectedTool]

    @property
    def is_ready(self) -> bool:
        """Whether the server is connected."""
        return self.listing.status.state == "ready"


def need_servers(config: Config, only: str = "") -> Mapping[str, Server]:
    """Return the configured servers, or the one named ``only``; raises ConfigError if there is none."""
    servers = config.mcp.known()
    if not servers:
        raise ConfigError(
            "mcp.servers",
            "no MCP server is configured",
            "Add a section [mcp.servers.NAME] with command or url",
        )
    if only and only not in servers:
        known = ", ".join(servers)
        raise ConfigError("mcp.servers", f"there is no server {only[:80]!r}", f"Choose one of: {known}")
    return {only: servers[only]} if only else servers


def not_ready(server: Origin) -> str:
    """Return the words for a server or API without a listing."""
    return "not connected" if isinstance(server, Server) else "its document cannot be used"


def need_origins(config: Config) -> Mapping[str, Origin]:
    """Return the configured servers and APIs; raises ConfigError if there is none."""
    origins: dict[str, Origin] = {**config.mcp.known(), **known_apis(config.openapi)}
    if not origins:
        raise ConfigError(
            "mcp.servers",
            "no MCP server and no API is configured",
            "Add a section [mcp.servers.NAME] with command or url, or [openapi.NAME] with file or url",
        )
    return origins


def need_apis(config: Config, only: str = "") -> Mapping[str, Api]:
    """Return the configured APIs, or the one named ``only``; raises ConfigError if there is none."""
    apis = known_apis(config.openapi)
    if not apis:
        raise ConfigError("openapi", "no API is configured", "Add a section [openapi.NAME] with file or url")
    if only and only not in apis:
        raise ConfigError("openapi", f"there is no API {only[:80]!r}", f"Choose one of: {', '.join(apis)}")
    return {only: apis[only]} if only else apis


async def inspect(
    config: Config, origins: Mapping[str, Origin], pins: Sequence[Pin]
) -> Sequence[InspectedServer]:
    """Connect to servers and read the documents of APIs. Raises ConfigError if the SDK of MCP is needed and
    not installed."""
    servers = {name: origin for name, origin in origins.items() if isinstance(origin, Server)}
    apis = {name: origin for name, origin in origins.items() if isinstance(origin, Api)}
    looks = [*await inspect_servers(config, servers, pins)] if servers else []
    listings = await list_operations(config, apis) if apis else ()
    for api, listing in zip(apis.values(), listings, strict=True):
        looks.append(InspectedServer(api, listing, _looks(api, listing, pins)))
    return looks


async def inspect_servers(
    config: Config, servers: Mapping[str, Server], pins: Sequence[Pin]
) -> Sequence[InspectedServer]:
    """Connect to servers and list their tools. Raises ConfigError if the SDK is not installed."""
    chosen = {name: config.mcp.servers[name] for name in servers}
    narrowed = config.model_copy(update={"mcp": config.mcp.model_copy(update={"servers": chosen})})
    within_s = config.mcp.connect_timeout_s + 5
    async with mcp_host(narrowed) as socket, _authorizing(config, servers) as authorize:
        host = HostClient(socket or Path(), authorize)
        host.start()
        try:
            listings = await asyncio.gather(*(host.listing(name, within_s) for name in servers))
        finally:
            await host.aclose()
    return [
        InspectedServer(server, listing, _looks(server, listing, pins))
        for server, listing in zip(servers.values(), listings, strict=True)
    ]


@asynccontextmanager
async def _authorizing(config: Config, servers: Mapping[str, Server]) -> AsyncIterator[Authorize | None]:
    """Yield the authorizer for requests to the servers; ``None`` if none of them needs it."""
    if not any(server.connection for server in servers.values()):
        yield None
        return
    async with open_vault(config) as vault:
        egress = open_egress(config)
        credentials = open_credentials(config, egress, vault)
        try:
            yield ServerAuthorizer(credentials.broker, servers)
        finally:
            await credentials.aclose()
            await egress.aclose()


async def wait_for_server(config: Config, socket: Path, server: str) -> None:
    """Wait until a server is connected or has failed once; some start more slowly than a call waits."""
    host = HostClient(socket)
    host.start()
    try:
        await host.listing(server, config.mcp.connect_timeout_s)
    except ToolFailure:
        return  # The call reports this itself.
    finally:
        await host.aclose()


def _looks(server: Origin, listing: ServerListing, pins: Sequence[Pin]) -> Sequence[InspectedTool]:
    pinned = {pin.id: pin for pin in pins if pin.is_of(server.provider, server.name)}
    live = {definition.id: definition for definition in listing.definitions}
    looks = []
    # The tools of an unreachable server are unknown, so they count as pinned.
    known = listing.status.digests is not None
    for name in sorted(pinned.keys() | live.keys()):
        pin, now = pinned.get(name), live.get(name)
        state: PinState = (
            compare(pin, now.digest if now is not None else None, server.identity) if known else "pinned"
        )
        own = now.name if now is not None else pinned[name].definition.name
        looks.append(InspectedTool(name, own, state, pin, now))
    return looks


async def pins_of_record(config: Config) -> Overrides:
    """Return the pins of the record, for services that are created without it."""
    if not config.pinned_patterns or config.mcp.pins:
        return Overrides()
    return Overrides(pins=GivenPins(await current_pins(config)))


async def current_pins(config: Config) -> Sequence[Pin]:
    """Return the pins in force: those of the file in ``mcp.pins``, else of the record, if there is one."""
    if config.mcp.pins:
        return await FiledPins(Path(config.mcp.pins)).pins()
    try:
        async with opened_record(config, must_exist=True) as store:
            return await RecordedPins(store).pins()
    except NoRecord:
        return ()
