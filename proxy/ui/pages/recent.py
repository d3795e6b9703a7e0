"""Sums up the newest runs: how upstreams answered lately, and which errors there were."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from proxy.base.error_codes import ERRORS
from proxy.records.rows import RunRecord
from proxy.store.base import RunFilter, Store

MOST_RUNS: Final = 1000
"""Only so many of the newest runs are looked at."""
_LONGEST_MESSAGE: Final = 300
_MOST_BYTES: Final = 64 * 1024
_UPSTREAM: Final = "upstream_error"
_STATUS: Final = "http_"


async def recent_runs(store: Store, since: float | None) -> Sequence[RunRecord]:
    """Return the newest runs that asked an upstream, newest first; raises StoreError."""
    runs = await store.list_runs(RunFilter(limit=MOST_RUNS, since=since))
    return [run for run in runs if run.upstream and run.status != "running"]


def by_upstream_at_fault(run: RunRecord) -> bool:
    """Return whether a run failed because of its upstream, not of its client or the proxy."""
    code = run.error_code or ""
    known = ERRORS.get(code)
    return run.status == "failed" and (
        code.startswith((_STATUS, "upstream")) or (known is not None and known.type == _UPSTREAM)
    )


def sums(runs: Iterable[RunRecord], key: Callable[[RunRecord], str]) -> dict[str, dict[str, Any]]:
    """Return for each key how many runs there were and failed, how long they took, and the last of each kind.

    ``p50_s`` and ``p95_s`` are of completed runs, by nearest rank; ``None`` if there are none.
    """
    groups: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return {name: _sum(group) for name, group in groups.items()}


def _sum(runs: Sequence[RunRecord]) -> dict[str, Any]:
    failed = [run for run in runs if by_upstream_at_fault(run)]
    good = [run for run in runs if run.status in ("completed", "suspended")]
    took = sorted(run.ended_at - run.started_at for run in good if run.ended_at is not None)
    return {
        "requests": len(runs),
        "errors": len(failed),
        "error_rate": len(failed) / len(runs),
        "last_success_at": max((run.started_at for run in good), default=None),
        "last_error": _last(failed),
        "p50_s": _rank(took, 50),
        "p95_s": _rank(took, 95),
    }


def _last(failed: Sequence[RunRecord]) -> dict[str, Any] | None:
    last = max(failed, key=lambda run: run.started_at, default=None)
    return None if last is None else {"at": last.started_at, "code": last.error_code, "run_id": last.id}


def _rank(took: Sequence[float], percent: int) -> float | None:
    return took[-(-len(took) * percent // 100) - 1] if took else None


def error_kinds(runs: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """Return each error code of runs with its number and its newest run, the most frequent first."""
    kinds: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        if run.error_code:
            kinds[run.error_code].append(run)
    rows = [
        {"code": code, "count": len(group), "at": group[0].started_at, "run_id": group[0].id}
        for code, group in kinds.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["code"]))


async def add_messages(store: Store, errors: Sequence[dict[str, Any]]) -> None:
    """Add the recorded message to each error; ``None`` if it was not kept. Raises StoreError."""
    texts: dict[str, str] = {}
    async for portion in store.read_messages([one["run_id"] for one in errors], ("error",), _MOST_BYTES):
        for row in (row for rows in portion.values() for row in rows):
            if row.content:
                texts.setdefault(row.run_id, row.content[:_LONGEST_MESSAGE])
    for one in errors:
        one["message"] = texts.get(one["run_id"])
