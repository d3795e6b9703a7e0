"""Runs, tools and MCP servers as plain JSON values, in one shape for the command line and for ``/admin``.

What the record holds was redacted before it was stored. Content (messages) is shown only on request.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

from msgspec.structs import asdict

from proxy.api.admin.memory_output import memory_to_json
from proxy.api.admin.run_meaning import meaning_of_run
from proxy.api.admin.withheld import withheld
from proxy.base.plain_text import ascii_json
from proxy.records.rows import RunRecord, ToolInvocationRecord, TurnRecord
from proxy.relay.routing.prices import cost_number, cost_text
from proxy.store.base import RunDetail, UsageKey, UsageRow
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Decision, Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.mcp.masking import masked_url
from proxy.tools.mcp.overview import ServerOverview, ToolOverview
from proxy.tools.mcp.servers import Server

__all__ = [
    "costs_text",
    "detail_to_json",
    "reported",
    "reported_cost",
    "run_to_json",
    "server_to_json",
    "to_line",
    "tokens_text",
    "tool_to_json",
    "usage_group",
    "usage_to_json",
]

_WITHHELD: Final[Mapping[str, str]] = {
    "new": "nobody has allowed it",
    "changed": "its definition has changed since it was allowed",
    "moved": "its server is reached in another way than when it was allowed",
    "gone": "its server does not list it any more",
}

_EPOCH: Final = date(1970, 1, 1)
_TOKENS = ("input_tokens", "output_tokens", "total_tokens")


def run_to_json(run: RunRecord) -> dict[str, Any]:
    """Return a run as plain JSON values; times are seconds since the epoch (UTC), cost is in units of the
    currency."""
    known: dict[str, Any] = {} if reported(run) else dict.fromkeys(_TOKENS)
    return (
        asdict(run)
        | known
        | {
            "cost": cost_number(reported_cost(run)),
            "offered": list(run.offered),
            "withheld": dict(run.withheld),
            "left_out": list(run.left_out),
            "continues": run.continues or None,
            "takes_over": run.takes_over or None,
            "duration_s": None if run.ended_at is None else max(0.0, run.ended_at - run.started_at),
        }
    )


def reported(counts: RunRecord | UsageRow) -> bool:
    """Return whether the upstream reported the usage of any turn; also true if there are no turns."""
    return counts.unreported == 0 or counts.unreported < counts.turns


def tokens_text(count: int, counts: RunRecord | UsageRow) -> str:
    """Return a sum of tokens for people: ``-`` if nothing was reported, ``N+`` if only some was."""
    if not reported(counts):
        return "-"
    return f"{count}+" if counts.unreported else str(count)


def reported_cost(counts: RunRecord | UsageRow) -> int | None:
    """Return the cost of the reported usage; ``None`` if no model had a price or the usage is unknown."""
    return counts.cost if reported(counts) else None


def costs_text(counts: RunRecord | UsageRow) -> str:
    """Return a sum of costs for people, marked as in :func:`tokens_text`."""
    cost = reported_cost(counts)
    return cost_text(cost) + ("+" if cost is not None and counts.unreported else "")


def detail_to_json(detail: RunDetail, *, content: bool = False) -> dict[str, Any]:
    """Return a run with its turns and invocations; ``content`` adds messages, and calls as the upstream sent
    them."""
    answer: dict[str, Any] = {
        "run": run_to_json(detail.run),
        "meaning": meaning_of_run(detail),
        "turns": [
            asdict(turn) | _duration(turn) | {"cost": cost_number(turn.cost), "withheld": dict(turn.withheld)}
            for turn in detail.turns
        ],
        "invocations": [
            asdict(row) | {"effect": row.effect.value, "operation_id": row.operation_id} | _duration(row)
            for row in detail.invocations
        ],
        "memory": memory_to_json(detail),
        "taken_over_by": detail.taken_over_by or None,
        "agent_runs": [run_to_json(run) for run in detail.children],
        "kept_from_client": [{"what": what, "why": why} for what, why in withheld(detail)],
        "message_count": len(detail.messages),
    }
    if content:
        answer["messages"] = [asdict(message) for message in detail.messages]
        answer["native_calls"] = [asdict(call) for call in detail.native_calls]
    return answer


def usage_to_json(by: Sequence[UsageKey], row: UsageRow) -> dict[str, Any]:
    """Return a group of a report. A day is a date (UTC), and ``id`` is unique within the report."""
    group = usage_group(by, row)
    values = asdict(row) | ({} if reported(row) else dict.fromkeys(_TOKENS))
    return {
        "id": "/".join(str(value) for value in group.values()) or "all",
        **values,
        "group": group,
        "cost": cost_number(reported_cost(row)),
    }


def usage_group(by: Sequence[UsageKey], row: UsageRow) -> dict[str, str]:
    """Return what the runs of a report's row have in common, by the keys of the report; a day is a date."""
    return {
        key: _day(value) if isinstance(value, int) else value
        for key, value in zip(by, row.group, strict=True)
    }


def _day(number: int) -> str:
    try:
        return (_EPOCH + timedelta(days=number)).isoformat()
    except OverflowError:  # A clock was far out.
        return f"day {number}"


def tool_to_json(spec: ToolSpec, decision: Decision) -> dict[str, Any]:
    """Return a tool as a model would see it, with the policy's decision and its rule."""
    return {
        "id": spec.name,
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "effect": spec.effect,
        "decision": decision.outcome,
        "rule": decision.rule,
        "digest": spec.digest,
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
        return f"mcp.servers.{server.name}.tools does not name it"
    return "its pinned definition cannot be used, or more tools are allowed than there may be"


def _reached_by(server: Server) -> str:
    """Return the program, or the address without the parts that may be secret."""
    if server.command:
        return server.command
    return masked_url(server.url.partition("?")[0])


def to_line(value: Any) -> str:
    """Return JSON on one line and in ASCII, so that a terminal shows control characters and does not obey
    them.

    It accepts what a record may hold and other encoders refuse: large numbers, lone surrogates and mappings
    of any kind. All other objects become their ``str``.
    """
    return ascii_json(value, default=_plain)


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else str(value)


def _duration(record: TurnRecord | ToolInvocationRecord) -> dict[str, float | None]:
    """Return how many seconds something took; ``None`` if it never ended."""
    ended_at = record.ended_at
    return {"duration_s": None if ended_at is None else max(0.0, ended_at - record.started_at)}
