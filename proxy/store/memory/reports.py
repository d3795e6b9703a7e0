"""Reports over runs that are in memory, counted as the statements for a database count them."""

from collections.abc import Iterable, Sequence

from proxy.records import RunRecord, ToolInvocationRecord
from proxy.store.base import PurgeFilter, UsageFilter, UsageKey, UsageRow
from proxy.store.sql.reports import MAX_GROUPS, day_of

__all__ = ["count_usage", "key_of", "may_purge"]

RunWithCalls = tuple[RunRecord, Sequence[ToolInvocationRecord]]


def key_of(caller: str) -> str:
    """The key that a caller came with, as the column ``runs.caller_key`` has it."""
    return caller.partition("/")[0]


def count_usage(wanted: UsageFilter, found: Iterable[RunWithCalls]) -> list[UsageRow]:
    """What :meth:`~proxy.store.base.Store.usage` answers for these runs."""
    groups: dict[tuple[str | int, ...], list[RunWithCalls]] = {} if wanted.by else {(): []}
    for run, calls in found:
        if (wanted.since is not None and run.started_at < wanted.since) or (
            wanted.until is not None and run.started_at >= wanted.until
        ):
            continue
        if "tool" not in wanted.by:
            groups.setdefault(_group(wanted.by, run, ""), []).append((run, calls))
            continue
        for tool in dict.fromkeys(call.tool for call in calls):
            theirs = [call for call in calls if call.tool == tool]
            groups.setdefault(_group(wanted.by, run, tool), []).append((run, theirs))
    count = _count_tools if "tool" in wanted.by else _count_runs
    return [count(group, groups[group]) for group in sorted(groups)][:MAX_GROUPS]


def may_purge(wanted: PurgeFilter, run: RunRecord, calls: Iterable[ToolInvocationRecord]) -> bool:
    """Whether :meth:`~proxy.store.base.Store.purge` deletes this run."""
    return (
        run.status != "running"
        and all(call.status != "started" for call in calls)
        and (wanted.run_id is None or wanted.run_id in (run.id, run.parent_run))
        and (wanted.before is None or run.started_at < wanted.before)
    )


def _group(by: Sequence[UsageKey], run: RunRecord, tool: str) -> tuple[str | int, ...]:
    values: dict[UsageKey, str | int] = {
        "key": key_of(run.caller),
        "caller": run.caller,
        "model": run.model,
        "tool": tool,
        "day": day_of(run.started_at),
    }
    return tuple(values[key] for key in by)


def _count_runs(group: tuple[str | int, ...], found: Sequence[RunWithCalls]) -> UsageRow:
    runs = [run for run, _ in found]
    costs = [run.cost for run in runs if run.cost is not None]
    return UsageRow(
        group,
        runs=len(runs),
        tool_calls=sum(run.tool_calls for run in runs),
        errors=sum(run.error_code is not None or run.status in ("failed", "interrupted") for run in runs),
        turns=sum(run.turns for run in runs),
        input_tokens=sum(run.input_tokens for run in runs),
        output_tokens=sum(run.output_tokens for run in runs),
        total_tokens=sum(run.total_tokens for run in runs),
        cost=sum(costs) if costs else None,
        unreported=sum(run.unreported for run in runs),
    )


def _count_tools(group: tuple[str | int, ...], found: Sequence[RunWithCalls]) -> UsageRow:
    calls = [call for _, theirs in found for call in theirs]
    took = sorted(_took(call) for call in calls if call.status == "success")
    return UsageRow(
        group,
        runs=len({run.id for run, _ in found}),
        tool_calls=len(calls),
        errors=sum(call.status not in ("success", "started") for call in calls),
        tool_seconds=sum(map(_took, calls)),
        tool_p50_s=took[(len(took) + 1) // 2 - 1] if took else None,
        tool_p95_s=took[(len(took) * 95 + 99) // 100 - 1] if took else None,
    )


def _took(call: ToolInvocationRecord) -> float:
    return max(0.0, (call.ended_at or 0.0) - call.started_at)
