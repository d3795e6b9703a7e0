"""Runs and tools as plain JSON values: one shape for the command line and for ``/admin``.

What is on record is redacted before it gets there.  Content (messages) is another thing: it is in a
view only where it is asked for.
"""

import json
from dataclasses import fields
from typing import Any

from proxy.records import MessageRecord, NativeCall, RunRecord, ToolInvocationRecord, TurnRecord
from proxy.relay.routing.prices import cost_number, cost_text
from proxy.server.api.withheld import withheld
from proxy.store.base import RunDetail, UsageRow
from proxy.tools.access.policy import Decision
from proxy.tools.contract.spec import ToolSpec

__all__ = [
    "costs_text",
    "detail_to_json",
    "reported",
    "reported_cost",
    "run_to_json",
    "to_line",
    "tokens_text",
    "tool_to_json",
]

_TOKENS = ("input_tokens", "output_tokens", "total_tokens")


def run_to_json(run: RunRecord) -> dict[str, Any]:
    """The run as plain JSON values; times are seconds since the epoch (UTC), cost is in units of the
    currency."""
    known: dict[str, Any] = {} if reported(run) else dict.fromkeys(_TOKENS)
    return (
        _fields(run)
        | known
        | {
            "cost": cost_number(reported_cost(run)),
            "offered": list(run.offered),
            "withheld": dict(run.withheld),
            "duration_s": None if run.ended_at is None else max(0.0, run.ended_at - run.started_at),
        }
    )


def reported(counts: RunRecord | UsageRow) -> bool:
    """Whether the upstream said of any turn what it used; without turns there is nothing to say."""
    return counts.unreported == 0 or counts.unreported < counts.turns


def tokens_text(count: int, counts: RunRecord | UsageRow) -> str:
    """A sum of tokens for people: ``-`` where nothing was reported, ``N+`` where only some was."""
    if not reported(counts):
        return "-"
    return f"{count}+" if counts.unreported else str(count)


def reported_cost(counts: RunRecord | UsageRow) -> int | None:
    """What was used came to; ``None`` where no model had a price, and where nobody knows what was used."""
    return counts.cost if reported(counts) else None


def costs_text(counts: RunRecord | UsageRow) -> str:
    """A sum of costs for people, as :func:`tokens_text` has tokens."""
    cost = reported_cost(counts)
    return cost_text(cost) + ("+" if cost is not None and counts.unreported else "")


def detail_to_json(detail: RunDetail, *, content: bool = False) -> dict[str, Any]:
    """The run with its turns and invocations; with ``content`` its messages, and its calls as they came."""
    answer: dict[str, Any] = {
        "run": run_to_json(detail.run),
        "turns": [
            _fields(turn)
            | _duration(turn)
            | {"cost": cost_number(turn.cost), "withheld": dict(turn.withheld)}
            for turn in detail.turns
        ],
        "invocations": [
            _fields(row) | {"effect": row.effect.value, "operation_id": row.operation_id} | _duration(row)
            for row in detail.invocations
        ],
        "kept_from_client": [{"what": what, "why": why} for what, why in withheld(detail)],
        "message_count": len(detail.messages),
    }
    if content:
        answer["messages"] = [_fields(message) for message in detail.messages]
        answer["native_calls"] = [_fields(call) for call in detail.native_calls]
    return answer


def tool_to_json(spec: ToolSpec, decision: Decision) -> dict[str, Any]:
    """A tool as a model would see it, and what policy says of it by which rule."""
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


def to_line(value: Any) -> str:
    """JSON on one line and in ASCII, so that a terminal shows it and obeys none of it.

    It takes what a record may hold and other encoders refuse: large numbers, lone surrogates,
    mappings of any kind; and names the rest by its ``str``.
    """
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else str(value)


def _duration(record: TurnRecord | ToolInvocationRecord) -> dict[str, float | None]:
    """How many seconds something took; nothing for what never came to an end."""
    ended_at = record.ended_at
    return {"duration_s": None if ended_at is None else max(0.0, ended_at - record.started_at)}


def _fields(
    record: RunRecord | TurnRecord | MessageRecord | ToolInvocationRecord | NativeCall,
) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
