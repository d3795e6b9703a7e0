"""The rows of client requests that have no run, and the statements about them."""

from collections.abc import Iterable
from typing import Any, Final

from proxy.records.requests import RequestRecord
from proxy.store import rows
from proxy.store.base import RequestFilter

REQUESTS: Final = "requests"

TABLE: Final = rows.Table(
    REQUESTS,
    RequestRecord,
    (
        "id", "request_id", "caller", "dialect", "operation", "endpoint", "model", "upstream", "status",
        "error_code", "created_at", "duration_s", "first_byte_s", "input_tokens", "output_tokens",
        "total_tokens", "cost",
    ),
    fields={"created_at": "started_at"},
    names=("caller", "model"),
    write={"request_id": rows.clean_name},
    short=True,
)  # fmt: skip
PUT: Final = rows.upsert(REQUESTS, (*TABLE.columns, "unreported"), ("id",))
_HAS_ERROR: Final = "(status >= 400 OR error_code IS NOT NULL)"
_AT_ONCE: Final = 10_000
"""Rows deleted in one transaction of a purge."""

OVER_LIMIT: Final = f"SELECT created_at FROM {REQUESTS} ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET ?"
"""Finds the time of the newest row beyond a number of rows."""

DROP_OLDEST: Final = (
    f"DELETE FROM {REQUESTS} WHERE id IN (SELECT id FROM {REQUESTS} WHERE created_at < ? "
    f"ORDER BY created_at LIMIT {_AT_ONCE})"
)
"""Deletes a batch of the oldest rows, before a time."""

USED: Final = (
    "SELECT caller_key, caller, model, created_at AS started_at, 0 AS runs, 1 AS requests, 0 AS tool_calls, "
    f"CASE WHEN {_HAS_ERROR} THEN 1 ELSE 0 END AS errors, 0 AS turns, "
    "coalesce(input_tokens, 0) AS input_tokens, coalesce(output_tokens, 0) AS output_tokens, "
    f"coalesce(total_tokens, 0) AS total_tokens, unreported, cost FROM {REQUESTS}"
)
"""What requests used, with the columns that runs have in a report of usage."""


def rows_of(records: Iterable[RequestRecord]) -> list[rows.Row]:
    return [(*TABLE.row(record), int(record.unreported)) for record in records]


def requests_query(wanted: RequestFilter) -> tuple[str, rows.Row]:
    """Build the statement for :meth:`~proxy.store.base.Store.list_requests` and its parameters."""
    clauses: list[str] = []
    values: list[Any] = []
    whose = "caller" if "/" in (wanted.caller or "") else "caller_key"
    for condition, value in (("model = ?", wanted.model), (f"{whose} = ?", wanted.caller)):
        if value is not None:
            clauses.append(condition)
            values.append(rows.clean_name(value))
    for condition, bound in (
        ("status = ?", wanted.status),
        ("created_at >= ?", wanted.since),
        ("created_at < ?", wanted.until),
    ):
        if bound is not None:
            clauses.append(condition)
            values.append(bound)
    if wanted.errors_only:
        clauses.append(_HAS_ERROR)
    if wanted.before is not None:
        clauses.append(f"(created_at, id) < (SELECT b.created_at, b.id FROM {REQUESTS} b WHERE b.id = ?)")
        values.append(rows.clean_text(wanted.before))
    where = f"WHERE {' AND '.join(clauses)} " if clauses else ""
    values.append(max(0, min(wanted.limit, rows.MAX_LISTED)))
    return (
        f"SELECT {', '.join(TABLE.columns)} FROM {REQUESTS} {where}ORDER BY created_at DESC, id DESC LIMIT ?",
        tuple(values),
    )
