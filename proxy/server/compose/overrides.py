"""What a caller of the composition puts in place of the machine's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.chance import Value
from proxy.relay.run.approver import Approver, NobodyApproves
from proxy.server.auth.authenticate import (
    Authenticator,
)
from proxy.server.serving.tee import Listen
from proxy.tools.contract.capabilities import Clock, HttpSource
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.mcp.pins import PinSource
from proxy.tools.running.runner import OnCrash
from proxy.upstreams.base import Upstream
from proxy.wires.dialect import EndpointTable
from proxy.wires.dialects.table import SERVED
from proxy.wires.wire import Wire

__all__ = ["Overrides"]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a caller puts in place of the machine's own: the clock, the tools' HTTP, onlookers, what
    stands before every upstream and every source of tools, who lets callers in, and who listens to what
    they are answered.

    With ``http`` given, tools with a connection use it too, without credentials.  ``connect`` says
    whether credentials are fetched before a tool runs: not for tools that only repeat what they gave.
    ``mcp_socket`` is where the process is reached that talks to MCP servers, and ``pins`` are those of their
    tools in place of the record's.
    ``approver`` decides about calls that need an approval.
    ``endpoints`` are what is served, ``wires`` dialects beside those that are built in, by their names.
    ``providers`` are all sources of tools, in place of those of the configuration.  ``demo`` is what the
    pages of the web UI offer to ask.  ``drawn`` are the ids and times that runs take again from one that is
    repeated.
    """

    clock: Clock | None = None
    http: HttpSource | None = None
    on_run_event: Callable[[str, Mapping[str, Any]], None] | None = None
    wrap_upstream: Callable[[Upstream], Upstream] | None = None
    on_tool_crash: OnCrash | None = None
    wrap_provider: Callable[[ToolProvider], ToolProvider] | None = None
    authenticator: Authenticator | None = None
    listen: Listen | None = None
    connect: bool = True
    mcp_socket: Path | None = None
    pins: PinSource | None = None
    approver: Approver = field(default_factory=NobodyApproves)
    endpoints: EndpointTable = SERVED
    wires: Mapping[str, Wire] = field(default_factory=dict)
    providers: Sequence[ToolProvider] | None = None
    demo: Mapping[str, str] | None = None
    drawn: Mapping[str, Sequence[Value]] | None = None
