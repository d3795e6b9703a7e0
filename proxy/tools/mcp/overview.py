"""The status of the configured servers and the pin states of their tools, for people."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from proxy.tools.mcp.definitions import Definition, pinned_tool_id
from proxy.tools.mcp.host_client import ServerStatus
from proxy.tools.mcp.pins import Pin, PinState, compare
from proxy.tools.mcp.servers import Server


class ToolOverview(Struct, frozen=True):
    """One tool: its id, the server's own name for it, and its pin state.

    If requested, ``pinned`` is the allowed definition. For a changed tool ``current`` is the server's
    current one, and ``difference`` has the changed lines, with invisible characters made visible.
    """

    id: str
    name: str
    state: PinState
    pinned: Definition | None = None
    current: Definition | None = None
    difference: Sequence[str] = ()


class ServerOverview(Struct, frozen=True):
    """One server, and its tools sorted by id; ``reconnects`` is how often it was connected again."""

    server: Server
    status: ServerStatus
    tools: Sequence[ToolOverview]
    reconnects: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether the server is connected."""
        return self.status.state == "ready"

    @property
    def drifted(self) -> int:
        """The number of allowed tools that are withheld because they have changed or are missing."""
        return sum(tool.state not in ("pinned", "new") for tool in self.tools)


def build_overview(
    servers: Mapping[str, Server],
    pins: Sequence[Pin],
    statuses: Mapping[str, ServerStatus],
    reconnects: Mapping[str, int],
) -> Sequence[ServerOverview]:
    """Return every server in the order of the configuration; ``statuses`` are the latest known ones."""
    return [
        ServerOverview(
            server,
            status := statuses.get(name, ServerStatus()),
            _tools(server, [pin for pin in pins if pin.is_of(server.provider, name)], status),
            reconnects.get(name, 0),
        )
        for name, server in servers.items()
    ]


def with_pinned(server: ServerOverview, pinned: Mapping[str, Definition]) -> ServerOverview:
    """Return the overview with the allowed definitions, by the ids of their tools."""
    return replace(server, tools=[replace(tool, pinned=pinned.get(tool.id)) for tool in server.tools])


def _tools(server: Server, pins: Sequence[Pin], status: ServerStatus) -> Sequence[ToolOverview]:
    pinned = {pin.definition.name: pin for pin in pins}
    live = status.digests or {}
    tools = []
    for name in pinned.keys() | live.keys():
        pin, digest = pinned.get(name), live.get(name)
        # Nothing is known about a server that has never listed its tools, so they count as pinned.
        known = status.digests is not None or (pin is not None and pin.transport != server.identity)
        state: PinState = compare(pin, digest, server.identity) if known else "pinned"
        tools.append(ToolOverview(pinned_tool_id(server.name, name), name, state))
    return sorted(tools, key=lambda tool: tool.id)
