"""Runs as plain JSON values, in one shape for the command line and for ``/admin``.

What the record holds was redacted before it was stored. Content (messages) is shown only on request.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any, Final

from msgspec.structs import asdict

from proxy.api.admin.run_meaning import meaning_of_run, memory_to_json, withheld
from proxy.base.plain_text import ascii_json
from proxy.records.rows import RunRecord, ToolInvocationRecord, TurnRecord
from proxy.relay.routing.prices import cost_number, cost_text
from proxy.store.base import RunDetail, UsageKey, UsageRow

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
    return counts.unreported == 0 or counts.unreported < counts.turns or counts.total_tokens > 0


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
        "invocations": [_call_to_json(row) for row in detail.invocations],
        "memory": memory_to_json(detail),
        "taken_over_by": detail.taken_over_by or None,
        "agent_runs": [run_to_json(run) for run in detail.children],
        "inner_calls": [_call_to_json(row) for row in detail.inner_calls],
        "kept_from_client": [{"what": what, "why": why} for what, why in withheld(detail)],
        "message_count": len(detail.messages),
    }
    if content:
        answer["messages"] = [asdict(message) for message in detail.messages]
        answer["native_calls"] = [asdict(call) for call in detail.native_calls]
    return answer


def _call_to_json(row: ToolInvocationRecord) -> dict[str, Any]:
    more = {"effect": row.effect.value, "operation_id": row.operation_id, "cost": cost_number(row.cost)}
    return asdict(row) | more | _duration(row)


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
