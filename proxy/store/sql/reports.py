"""The statements for reports and purges, in SQL that every database here accepts.

Token counts come from upstreams, so they are summed as floating point numbers. Sums of integers could exceed
64 bits, and one absurd count would then break every report. Sums of cost are exact up to nine million units
of the currency.
"""

from collections.abc import Mapping
from typing import Any, Final

from proxy.store.base import PurgeFilter, UsageFilter, UsageKey, UsageRow
from proxy.store.rows import HAS_ERROR, Row, clean_text
from proxy.store.seal import HIDDEN, NATIVE_CALLS, RESPONSES, RESULTS, WIRE_BYTES
from proxy.store.sql.request_rows import USED as USED_BY_REQUESTS

MAX_GROUPS: Final = 10_000
"""The most rows of one report: clients choose model names, so there may be any number of them."""

PURGED_AT_ONCE: Final = 200
"""Runs deleted in one transaction; few enough that a server on the same database hardly waits."""

_DAY_S: Final = 86400

DELETE_RUN: Final = "DELETE FROM runs WHERE id = ? AND status <> 'running'"
"""The schema deletes all rows that belong to the run with it."""

DELETE_LOST: Final = (
    "DELETE FROM tool_invocations WHERE status <> 'started' AND started_at < ? "
    "AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = tool_invocations.run_id)",
    *(
        f"DELETE FROM {table.name} WHERE created_at < ? "
        f"AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = {table.name}.run_id)"
        for table in (HIDDEN, RESPONSES, RESULTS, NATIVE_CALLS, WIRE_BYTES)
    ),
)
"""Delete old calls and content whose run was never written or was lost."""

# ROUND rounds halves away from zero, so this is the integer part of a positive number.
_DAY: Final = f"ROUND(CAST(r.started_at / {_DAY_S} - 0.5 AS NUMERIC))"
_GROUP_BY: Final[dict[UsageKey, str]] = {
    "key": "r.caller_key",
    "caller": "r.caller",
    "model": "r.model",
    "tool": "i.tool",
    "day": _DAY,
}


_COUNTED: Final = ("turns", "input_tokens", "output_tokens", "total_tokens", "unreported")
_USED_BY_RUNS: Final = (
    "SELECT caller_key, caller, model, started_at, 1 AS runs, "
    "CASE WHEN parent_run = '' AND takes_over = '' THEN 1 ELSE 0 END AS requests, tool_calls, "
    f"CASE WHEN {HAS_ERROR} THEN 1 ELSE 0 END AS errors, {', '.join(_COUNTED)}, cost FROM runs"
)

_TOOK: Final = "CASE WHEN i.ended_at > i.started_at THEN i.ended_at - i.started_at ELSE 0 END"


def usage_query(wanted: UsageFilter) -> tuple[str, Row]:
    """Build the statement for :meth:`~proxy.store.base.Store.usage` and its parameters."""
    by_tool = "tool" in wanted.by
    groups = [_GROUP_BY[key] for key in wanted.by]
    clauses, values = _between(wanted)
    where = f" WHERE {' AND '.join(clauses)}" if clauses else ""
    if by_tool:
        source = "runs r JOIN tool_invocations i ON i.run_id = r.id"
        sums = [
            "COUNT(DISTINCT r.id)",
            "COUNT(*)",
            _sum("CASE WHEN i.status IN ('success', 'started') THEN 0 ELSE 1 END"),
            *["0"] * 5,
            _sum(_TOOK),
            "NULL",
            "COUNT(DISTINCT r.id)",
        ]
        source += where
    else:
        # Each half has its own condition: not every database moves one into a union.
        each = (
            f"{used}{where.replace('r.started_at', column)}"
            for used, column in ((_USED_BY_RUNS, "started_at"), (USED_BY_REQUESTS, "created_at"))
        )
        source, values = f"({' UNION ALL '.join(each)}) r", [*values, *values]
        sums = [
            *(_sum(f"r.{column}") for column in ("runs", "tool_calls", "errors", *_COUNTED)),
            "0",
            _sum("r.cost"),
            _sum("r.requests"),
        ]
    grouped = f" GROUP BY {', '.join(groups)} ORDER BY {', '.join(groups)}" if groups else ""
    return f"SELECT {', '.join([*groups, *sums])} FROM {source}{grouped} LIMIT {MAX_GROUPS}", tuple(values)


def latency_query(wanted: UsageFilter) -> tuple[str, Row]:
    """Build the statement for latency percentiles of the groups of :func:`usage_query`, by nearest rank."""
    clauses, values = _between(wanted)
    where = " AND ".join([*clauses, "i.status = 'success'"])
    names = ", ".join(f"g{place}" for place in range(len(wanted.by)))
    groups = ", ".join(f"{_GROUP_BY[key]} AS g{place}" for place, key in enumerate(wanted.by))
    return (
        f"WITH took AS (SELECT {groups}, {_TOOK} AS seconds "
        f"FROM runs r JOIN tool_invocations i ON i.run_id = r.id WHERE {where}), "
        f"ranked AS (SELECT {names}, seconds, "
        f"row_number() OVER (PARTITION BY {names} ORDER BY seconds) AS n, "
        f"count(*) OVER (PARTITION BY {names}) AS many FROM took) "
        f"SELECT {names}, MAX(CASE WHEN n = (many + 1) / 2 THEN seconds END), "
        "MAX(CASE WHEN n = (many * 95 + 99) / 100 THEN seconds END) "
        f"FROM ranked GROUP BY {names} ORDER BY {names} LIMIT {MAX_GROUPS}",
        tuple(values),
    )


def _between(wanted: UsageFilter) -> tuple[list[str], list[Any]]:
    bounds = [
        (sign, bound) for sign, bound in ((">=", wanted.since), ("<", wanted.until)) if bound is not None
    ]
    return [f"r.started_at {sign} ?" for sign, _ in bounds], [bound for _, bound in bounds]


def read_usage(wanted: UsageFilter, row: Row, took: Mapping[Row, Row]) -> UsageRow:
    """Read a row of :func:`usage_query`; ``took`` maps groups to rows of :func:`latency_query`."""
    groups, (*counts, seconds, cost, requests) = row[: len(wanted.by)], row[len(wanted.by) :]
    group = tuple(int(value) if key == "day" else value for key, value in zip(wanted.by, groups, strict=True))
    half, most = took.get(tuple(groups), (None, None))
    runs, tool_calls, errors, turns, received, sent, total, silent = (int(count or 0) for count in counts)
    return UsageRow(
        group,
        runs,
        tool_calls,
        errors,
        turns,
        received,
        sent,
        total,
        float(seconds or 0),
        None if cost is None else int(cost),
        None if half is None else float(half),
        None if most is None else float(most),
        silent,
        int(requests or 0),
    )


def purge_query(wanted: PurgeFilter) -> tuple[str, Row]:
    """Build the statement that finds the next runs to delete, the oldest first, and its parameters."""
    clauses = [
        "status <> 'running'",
        "NOT EXISTS (SELECT 1 FROM tool_invocations i WHERE i.run_id = runs.id AND i.status = 'started')",
    ]
    values: list[Any] = []
    if wanted.run_id is not None:
        clauses.append("(id = ? OR parent_run = ?)")
        values += [clean_text(wanted.run_id)] * 2
    if wanted.before is not None:
        clauses.append("started_at < ?")
        values.append(wanted.before)
    where = " AND ".join(clauses)
    return f"SELECT id FROM runs WHERE {where} ORDER BY started_at, id LIMIT {PURGED_AT_ONCE}", tuple(values)


def _sum(expression: str) -> str:
    return f"SUM(CAST({expression} AS DOUBLE PRECISION))"
