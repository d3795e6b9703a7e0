"""The provider of the tools of all MCP servers: it offers them as pinned and calls them at their servers."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from proxy.base.errors import ToolFailure
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.mcp.definitions import (
    PROVIDER,
    Definition,
    pattern_of_server,
)
from proxy.tools.mcp.differences import difference
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.overview import ServerOverview, ToolOverview, build_overview, with_pinned
from proxy.tools.mcp.pinned import MOST_NAMED, PinnedProvider
from proxy.tools.mcp.pins import Pin, PinSource
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server

_MOST_CHANGED: Final = 20
"""The most changed tools of a server whose definitions are shown."""

_MOST_SHOWN: Final = 2 << 20
"""The most bytes of allowed definitions, as JSON, that an overview has."""

_MOST_LINES: Final = 200
_LOOK_S: Final = 2.0


class McpProvider(PinnedProvider):
    """The :class:`~proxy.tools.contract.provider.ToolProvider` of the configured servers.

    It lists its tools at the start and whenever pins or servers have changed. A server that is not reachable
    changes nothing.
    """

    def __init__(
        self,
        servers: Mapping[str, Server],
        pins: PinSource,
        host: HostClient | None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """``host`` is ``None`` if tools are only listed; calls then fail.

        ``timeout_s`` is the default time limit of a call at the server in seconds.
        """
        super().__init__(PROVIDER, servers, pins)
        self._servers = servers
        self._host = host
        self._timeout_s = timeout_s
        self._new: dict[str, frozenset[str]] = {}
        if host is not None:
            host.watch(self._look.set)

    def follow(self, refresh: Callable[[], Awaitable[object]]) -> None:
        """Connect to the host process, and call ``refresh`` whenever the tools have changed: a pin was added
        or removed, or a server's definition has changed."""
        if self._host is not None:
            self._host.start()
            super().follow(refresh)

    async def _has_changed(self) -> bool:
        """Return whether the tools to list differ; log those that nobody has allowed yet."""
        changed = await super()._has_changed()
        self._tell_new()
        return changed

    def _tell_new(self) -> None:
        """Log the tools of each server that no operator has allowed yet, each tool once."""
        for server in self._overview(self._known):
            new = frozenset(
                tool.id for tool in server.tools if tool.state == "new" and server.server.may_have(tool.name)
            )
            name = server.server.name
            if more := new - self._new.get(name, frozenset()):
                named = sorted(more)[:MOST_NAMED]
                self._log.info(
                    "tool_new",
                    server=name,
                    tools=len(more),
                    named=named,
                    hint=f"to allow them: toolrelay tools allow '{pattern_of_server(name)}'",
                )
            self._new[name] = new

    async def overview(self) -> Sequence[ServerOverview]:
        """Return the status of each server and the pin states of its tools, with the pinned definitions; for
        changed tools also the current ones. Raises :class:`~proxy.base.errors.StoreError`."""
        pins = await self._source.pins()
        pinned = {pin.id: pin.definition for pin in pins}
        shown = await asyncio.to_thread(_within, pinned, _MOST_SHOWN)
        servers = [with_pinned(server, shown) for server in self._overview(pins)]
        return await asyncio.gather(*(self._with_changes(server, pinned) for server in servers))

    async def _with_changes(self, server: ServerOverview, pinned: Mapping[str, Definition]) -> ServerOverview:
        """Return the overview with the definitions of the first changed tools.

        The host process has the current definitions; if it does not send them in time, they are left out.
        """
        changed = [tool for tool in server.tools if tool.state == "changed"][:_MOST_CHANGED]
        if not changed or self._host is None:
            return server
        try:
            async with asyncio.timeout(_LOOK_S):
                listing = await self._host.listing(server.server.name, _LOOK_S, [t.name for t in changed])
        except (ToolFailure, TimeoutError):
            return server
        live = {definition.id: definition for definition in listing.definitions}
        # Run in a thread: untrusted definitions may be long and have many equal lines, so that it is slow.
        shown = await asyncio.to_thread(_compared, changed, pinned, live)
        return replace(server, tools=[shown.get(tool.id, tool) for tool in server.tools])

    @property
    def latest_overview(self) -> Sequence[ServerOverview]:
        """The overview without definitions, by the pins that were read last; it does not wait."""
        return self._overview(self._known)

    def _overview(self, pins: Sequence[Pin]) -> Sequence[ServerOverview]:
        host = self._host
        if host is None:
            return build_overview(self._servers, pins, {}, {})
        return build_overview(self._servers, pins, host.statuses, host.reconnects)

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        origin = spec.origin
        if origin is None or self._host is None:
            raise RuntimeError("nothing was started that talks to MCP servers")
        self._pin_of(spec, origin.digest)
        within_s = self._servers[origin.server].timeout_s or self._timeout_s
        result = await self._host.call(
            origin.server, origin.name, origin.digest, arguments, within_s, context.on_progress
        )
        return read_result(result)

    async def aclose(self) -> None:
        """Stop following changes and disconnect from the host process."""
        await super().aclose()
        if self._host is not None:
            await self._host.aclose()

    def _drift(self, pins: Mapping[str, Pin]) -> Sequence[str]:
        """Return the ids of pinned tools whose current definitions differ from their pins."""
        statuses = self._host.statuses if self._host is not None else {}
        drifted = []
        for pin in pins.values():
            status = statuses.get(pin.definition.server)
            if status is None or status.digests is None:
                continue
            live = status.digests.get(pin.definition.name)
            if live != pin.digest:
                drifted.append(pin.id)
        return drifted


def _within(definitions: Mapping[str, Definition], most: int) -> Mapping[str, Definition]:
    """Return the first definitions by id that together have at most ``most`` bytes as JSON."""
    chosen: dict[str, Definition] = {}
    for name in sorted(definitions):
        most -= len(json.dumps(definitions[name].written()))
        if most < 0:
            break
        chosen[name] = definitions[name]
    return chosen


def _compared(
    tools: Sequence[ToolOverview], pinned: Mapping[str, Definition], live: Mapping[str, Definition]
) -> Mapping[str, ToolOverview]:
    """Return tools with their pinned and current definitions and the difference, by id."""
    return {
        tool.id: replace(tool, pinned=before, current=now, difference=difference(before, now, _MOST_LINES))
        for tool in tools
        if (before := pinned.get(tool.id)) is not None and (now := live.get(tool.id)) is not None
    }
