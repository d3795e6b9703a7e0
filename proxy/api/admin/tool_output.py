"""Tools and MCP servers as plain JSON values, in one shape for the command line and for ``/admin``."""

from collections.abc import Mapping
from typing import Any, Final

from proxy.relay.routing.prices import cost_number
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Decision, Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.mcp.masking import masked_url
from proxy.tools.mcp.overview import ServerOverview, ToolOverview
from proxy.tools.mcp.servers import Server

_WITHHELD: Final[Mapping[str, str]] = {
    "new": "nobody has allowed it",
    "changed": "its definition has changed since it was allowed",
    "moved": "its server is reached in another way than when it was allowed",
    "gone": "its server does not list it any more",
}


def tool_to_json(spec: ToolSpec, decision: Decision, price: int | None) -> dict[str, Any]:
    """Return a tool as a model would see it, with the policy's decision, its rule, and the price of a call.

    ``price`` is in billionths of the currency; ``None`` if there is none.
    """
    return {
        "id": spec.name,
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "effect": spec.effect,
        "decision": decision.outcome,
        "rule": decision.rule,
        "digest": spec.digest,
        "price": cost_number(price),
    }


def server_to_json(server: ServerOverview, catalog: Catalog, policy: Policy) -> dict[str, Any]:
    """Return an MCP server with its tools; ``withheld`` says why models are not offered one, or is ``null``.

    It leaves out the arguments of a command and the query of an address: either may hold a secret. An
    allowed tool has ``pinned``, the definition that models are offered, unless all together are too large. A
    changed tool has ``current`` and ``difference`` (lines that begin with ``-`` or ``+``) if its server's
    present definition is known. All of this text comes from the MCP server and is not trusted.
    """
    status = server.status
    name, version = status.server_info
    return {
        "id": server.server.name,
        "reached_by": _reached_by(server.server),
        "state": status.state,
        "reason": status.reason or None,
        "last_error": status.last_error or None,
        "reconnects": server.reconnects,
        "protocol": status.version or None,
        "server_name": name or None,
        "server_version": version or None,
        "list_ms": status.list_ms if server.is_ready else None,
        "tools": [
            {
                "id": tool.id,
                "name": tool.name,
                "state": tool.state,
                "withheld": _withheld(tool, server.server, catalog, policy),
                **_changes(tool),
            }
            for tool in server.tools
        ],
        "left_out": [{"name": left.name, "reason": left.reason} for left in status.left_out],
    }


def _changes(tool: ToolOverview) -> dict[str, Any]:
    """Return the pinned definition of a tool, and the present one if it has changed."""
    if tool.pinned is None:
        return {}
    allowed = {"pinned": tool.pinned.written()}
    if tool.current is None:
        return allowed
    return {**allowed, "current": tool.current.written(), "difference": list(tool.difference)}


def _withheld(tool: ToolOverview, server: Server, catalog: Catalog, policy: Policy) -> str | None:
    spec = catalog.get(tool.id)
    if spec is not None:
        decision = policy.decide(spec)
        return None if decision.allowed else decision.rule
    if tool.state in _WITHHELD:
        return _WITHHELD[tool.state]
    if not server.may_have(tool.name):
        return f"{server.tools_setting} does not name it"
    return "its pinned definition cannot be used, or more tools are allowed than there may be"


def _reached_by(server: Server) -> str:
    """Return the program, or the address without the parts that may be secret."""
    if server.command:
        return server.command
    return masked_url(server.url.partition("?")[0])
