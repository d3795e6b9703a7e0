"""What each key was used for: when last, what it spent in a month, and how much of its budget is left."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.base.errors import ConfigError
from proxy.relay.routing.prices import NANOS, cost_number
from proxy.rights.limit_rules import parse_cost_limits, parse_limits
from proxy.store.base import RunFilter, Store, UsageFilter, UsageRow

_MONTH_S: Final = 30 * 86_400.0
_MOST_KEYS: Final = 100
"""Only of so many keys the last use is looked up."""


async def add_use(store: Store, rows: Sequence[dict[str, Any]]) -> None:
    """Add ``last_used_at``, ``month`` (runs, tokens, cost of 30 days) and ``budgets`` to rows of keys.

    A budget has ``kind`` (cost or tokens), ``used``, ``most`` and ``seconds``. It comes from the record, so
    it says what runs used; requests that were no runs count in the limit alone. Raises StoreError.
    """
    now = time.time()
    month = await _usage(store, now - _MONTH_S)
    for row in rows[:_MOST_KEYS]:
        last = await store.list_runs(RunFilter(limit=1, caller=row["id"], agents=False))
        row["last_used_at"] = last[0].started_at if last else None
    for row in rows:
        spent = month.get(row["id"])
        row["month"] = spent and {
            "runs": spent.runs,
            "total_tokens": spent.total_tokens,
            "cost": cost_number(spent.cost),
        }
        row["budgets"] = await _budgets(store, row, now)
        await asyncio.sleep(0)


async def _usage(store: Store, since: float) -> Mapping[str, UsageRow]:
    return {str(row.group[0]): row for row in await store.usage(UsageFilter(("key",), since))}


async def _budgets(store: Store, row: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    limits = row.get("limits") or {}
    for kind, parse in (("cost", parse_cost_limits), ("tokens", parse_limits)):
        try:
            parsed = parse(kind, _listed(limits.get(kind)))
        except ConfigError:  # A later version may write limits in another way.
            continue
        for limit in parsed:
            used = (await _usage(store, now - limit.get_expiry())).get(row["id"])
            most = limit.amount / NANOS if kind == "cost" else limit.amount
            amount = (
                0 if used is None else (cost_number(used.cost) or 0) if kind == "cost" else used.total_tokens
            )
            found.append({"kind": kind, "used": amount, "most": most, "seconds": limit.get_expiry()})
    return found


def _listed(value: Any) -> Sequence[str]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(map(str, value))
