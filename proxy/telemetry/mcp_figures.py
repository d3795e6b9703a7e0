"""Provide the metrics of MCP servers."""

from collections.abc import Callable, Mapping, Sequence

from proxy.telemetry.metrics import Sources
from proxy.tools.mcp.overview import ServerOverview


def mcp_metrics(overviews: Callable[[], Sequence[ServerOverview]]) -> Sources:
    """Return a source of the servers' metrics, which reads their state at each request of ``/metrics``."""

    def read() -> Mapping[str, Mapping[tuple[str, ...], float]]:
        servers = overviews()
        return {
            "toolrelay_mcp_up": {(each.server.name,): float(each.is_ready) for each in servers},
            "toolrelay_mcp_reconnects_total": {
                (each.server.name,): float(each.reconnects) for each in servers
            },
            "toolrelay_mcp_drifted": {(each.server.name,): float(each.drifted) for each in servers},
        }

    return read
