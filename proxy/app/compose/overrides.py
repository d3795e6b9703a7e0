"""Replacements that a caller of the composition gives for the default parts."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from proxy.app.plugins import with_dialects
from proxy.base.chance import Value
from proxy.base.errors import Guard
from proxy.config.load import Config
from proxy.relay.run.approver import Approver, NobodyApproves
from proxy.server.auth.authenticate import Authenticator
from proxy.server.messages.tee import Listen
from proxy.tools.contract.capabilities import Clock, HttpSource
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.mcp.pins import PinSource
from proxy.tools.running.runner import OnCrash
from proxy.upstreams.base import Upstream
from proxy.wires.registry.table import SERVED, EndpointTable
from proxy.wires.wire import Wire


class Overrides(Struct, frozen=True):
    """Replacements for the default parts, such as the clock, the tools' HTTP or the authenticator.
    ``wrap_upstream`` and ``wrap_provider`` wrap every upstream and every source of tools. ``on_run_event``
    gets the events of runs, and ``listen`` the answers to clients.

    If ``http`` is given, tools with a connection use it too, without credentials. ``fetch_credentials`` says
    whether credentials are fetched before a tool runs; tools that replay recorded results need none.
    ``mcp_socket`` is the socket of the process that talks to MCP servers, and ``pins`` replace the record's
    pins of their tools. ``approver`` decides calls that need an approval. ``endpoints`` are the served
    endpoints. ``wires`` are dialects besides the built-in ones, by name. ``providers`` are all sources of
    tools, in place of the configured ones. ``demo`` has the suggested questions for the pages of the web UI.
    ``replayed_values`` are the ids and times that replayed runs take from the recorded run.
    """

    clock: Clock | None = None
    http: HttpSource | None = None
    on_run_event: Callable[[str, Mapping[str, Any]], None] | None = None
    wrap_upstream: Callable[[Upstream], Upstream] | None = None
    on_tool_crash: OnCrash | None = None
    wrap_provider: Callable[[ToolProvider], ToolProvider] | None = None
    authenticator: Authenticator | None = None
    listen: Listen | None = None
    fetch_credentials: bool = True
    mcp_socket: Path | None = None
    pins: PinSource | None = None
    approver: Approver = field(default_factory=NobodyApproves)
    endpoints: EndpointTable = SERVED
    wires: Mapping[str, Wire] = field(default_factory=dict)
    providers: Sequence[ToolProvider] | None = None
    demo: Mapping[str, Any] | None = None
    replayed_values: Mapping[str, Sequence[Value]] | None = None

    def with_plugins(self, config: Config, guard: Guard = nullcontext) -> "Overrides":
        """Return the same with the dialects of plugins."""
        if not config.plugins.dialects:
            return self
        endpoints, wires = with_dialects(config, self.endpoints, self.wires, guard)
        return replace(self, endpoints=endpoints, wires=wires)
