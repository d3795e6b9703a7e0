"""Which allowed tools are withheld from models after they have read untrusted text."""

from collections.abc import Sequence

from proxy.config.load import Config
from proxy.records.rows import join_sources
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec


def trusted_lines(config: Config) -> list[str]:
    """Return a line for each MCP server and API whose results the operator trusts."""
    origins = {f"mcp.servers.{name}": server.results for name, server in config.mcp.servers.items()}
    origins |= {f"openapi.{name}": api.results for name, api in config.openapi.items()}
    return [
        f'{where}.results = "trusted": no call needs an approval because a model read them'
        for where, results in origins.items()
        if results == "trusted"
    ]


def untrusted_lines(config: Config, catalog: Catalog, policy: Policy) -> list[str]:
    """Return which tools are withheld after untrusted text was read; nothing if no tool returns such text."""
    allowed = [spec for spec in catalog.tools() if policy.decide(spec).allowed]
    sources = list(dict.fromkeys(spec.source for spec in allowed if spec.untrusted_output))
    if not sources or not config.tools.enabled:
        return []
    withheld = _withheld_after(join_sources(sources[0], "another source"), allowed, policy)
    if not withheld:
        return []
    lines = [
        f"after a run has read a result of {' or '.join(sources)}: {how_withheld(config)}: "
        f"{', '.join(withheld)} (policy.after_untrusted)"
    ]
    for source in sources:
        after = _withheld_after(source, allowed, policy)
        if still := [name for name in withheld if name not in after]:
            lines.append(f"after results of {source} alone, without an approval: {', '.join(still)}")
    return lines


def _withheld_after(read: str, allowed: Sequence[ToolSpec], policy: Policy) -> list[str]:
    return [spec.name for spec in allowed if not policy.decide(spec, untrusted=read).allowed]


def how_withheld(config: Config) -> str:
    """Return what happens to tools that need approval."""
    asks = config.approvals.enabled and config.store.content != "none"
    return "asks first" if asks else "not offered"
