"""Background responses in SQL: rows that only change by conditional updates, as approvals do.

If its condition does not hold, an update sets a NOT NULL column to NULL. The database then refuses the whole
write: of two processes that claim a response at the same moment, one is refused.

The statement that depends on it checks itself whether an effect has started. First it locks the row of the
response, and so does a claim of an effect. So either the statement sees the effect, or the effect is refused
because its attempt is over.
"""

from collections.abc import Sequence
from typing import Any, Final

from proxy.records.background import BackgroundRecord, BackgroundState, Lease, StartedEffect
from proxy.records.effects import REPEATS_WITHIN_S
from proxy.store import rows
from proxy.store.seal import BACKGROUND
from proxy.store.sql.base import SqlBase
from proxy.store.sql.writing.writer import RowRefused
from proxy.store.sql.writing.writes import Batch

_MOST: Final = 100
_CLAIMS_GO_S: Final = REPEATS_WITHIN_S - 60.0
"""Seconds for which claims of effects certainly exist; for an older call only its row remains."""

_COLUMNS: Final = ("owner_id", *BACKGROUND.columns, "sealed_by")
_PUT: Final = rows.insert("background_runs", _COLUMNS, " ON CONFLICT (id) DO NOTHING")
_READ: Final = (
    "b.id", "b.caller", "b.run_id", "b.asked_at", "b.attempt", "b.deaths", "b.state", "b.cancelled",
    "b.created_at", "CASE WHEN o.id IS NULL THEN b.created_at ELSE o.ended_at END",
)  # fmt: skip
_SELECT: Final = (
    f"SELECT {', '.join(_READ)} FROM background_runs b LEFT JOIN owners o ON o.id = b.owner_id WHERE "
)
_ORPHANS: Final = (
    f"{_SELECT} b.state <> 'ended' AND (b.state = 'released' OR o.id IS NULL OR o.ended_at IS NOT NULL) "
    f"ORDER BY b.asked_at LIMIT {_MOST}"
)
_STARTED: Final = (
    "i.effect <> 'read_only' AND (i.status IN ('started', 'interrupted', 'success') OR i.started_at < ? "
    "OR EXISTS (SELECT 1 FROM effect_claims c WHERE c.invocation_id = i.id))"
)
"""SQL condition: the call has started. A refused call has a row, but no claim."""


def _of_run(run: str) -> str:
    """Return the SQL condition that a call belongs to a run or to the runs of its agents."""
    return (
        f"(i.run_id = {run} OR i.run_id IN "
        f"(SELECT r.id FROM runs r WHERE r.parent_run = {run} AND r.parent_run <> ''))"
    )


_EFFECTS_KNOWN: Final = (
    f"? = (SELECT COUNT(*) FROM tool_invocations i WHERE {_of_run('background_runs.run_id')} AND {_STARTED})"
)
_DEAD: Final = (
    "NOT EXISTS (SELECT 1 FROM owners o WHERE o.id = background_runs.owner_id AND o.ended_at IS NULL)"
)
_EFFECTS: Final = (
    "SELECT i.tool, i.status, i.id, i.run_id, i.turn FROM tool_invocations i "
    f"WHERE {_of_run('?')} AND {_STARTED} ORDER BY i.started_at, i.id LIMIT {_MOST}"
)
_LOCK: Final = "UPDATE background_runs SET attempt = attempt WHERE id = ?"
# A statement may be executed twice. If the row has the new run's id, the first execution succeeded.
_CLAIM: Final = (
    "UPDATE background_runs SET attempt = CASE WHEN run_id = ? THEN attempt "
    f"WHEN attempt = ? AND cancelled = 0 AND (state = 'released' OR (state = 'running' AND {_DEAD})) "
    f"AND {_EFFECTS_KNOWN} THEN attempt + 1 END, "
    "deaths = CASE WHEN run_id <> ? AND state = 'running' THEN deaths + 1 ELSE deaths END, "
    "state = 'running', owner_id = ?, run_id = ?, created_at = ? WHERE id = ?"
)
_RELEASE: Final = (
    "UPDATE background_runs SET state = CASE WHEN attempt = ? AND (state = 'released' OR "
    f"(state = 'running' AND {_EFFECTS_KNOWN})) THEN 'released' END, "
    "created_at = ? WHERE id = ? AND owner_id = ?"
)
_END: Final = (
    "UPDATE background_runs SET state = CASE WHEN attempt = ? AND (owner_id = ? OR state = 'released' OR "
    f"(state = 'running' AND {_DEAD})) THEN 'ended' END, "
    "owner_id = ?, request = NULL, sealed_by = NULL, created_at = ? WHERE id = ?"
)
_CANCEL: Final = "UPDATE background_runs SET cancelled = 1 WHERE id = ? AND caller = ? AND state <> 'ended'"
_HOLD: Final = (
    "UPDATE background_runs SET attempt = CASE WHEN attempt = ? AND state = 'running' THEN attempt END "
    "WHERE id = ?"
)


def lease_guard(lease: Lease | None) -> list[Batch]:
    """Return the update that refuses a transaction whose attempt is over; empty without a lease."""
    return [] if lease is None else [(_HOLD, [(lease.attempt, lease.response_id)])]


class SqlBackground(SqlBase):
    """The :class:`~proxy.records.background.BackgroundLog` part of a SQL store."""

    async def put_background(self, record: BackgroundRecord, request: bytes) -> None:
        row = rows.fitting(
            record.id,
            rows.clean_name(record.caller),
            record.run_id,
            record.asked_at,
            record.attempt,
            record.deaths,
            str(record.state),
            int(record.cancelled),
            request,
            self._clock(),
        )
        await self._writer.commit(_PUT, [(self._owner_id, *self._ring.close(BACKGROUND, row))], in_order=True)

    async def find_background(self, response_id: str, caller: str) -> BackgroundRecord | None:
        if not self._is_storable(response_id):
            return None
        fit = f"{_SELECT} b.id = ? AND b.caller = ?"
        matches = list(await self._look_up(fit, (response_id, rows.clean_name(caller))))
        return _read(matches[0]) if matches else None

    async def orphaned_background(self) -> Sequence[BackgroundRecord]:
        return [_read(row) for row in await self._look_up(_ORPHANS, ())]

    async def background_request(self, response_id: str) -> bytes | None:
        matches = await self._find_rows(BACKGROUND, "id = ?", response_id)
        request = dict(zip(BACKGROUND.columns, matches[0], strict=True))["request"] if matches else None
        return None if request is None else bytes(request)

    async def started_effects(self, run_id: str) -> Sequence[StartedEffect]:
        calls = await self._look_up(_EFFECTS, (run_id, run_id, self._clock() - _CLAIMS_GO_S))
        return [StartedEffect(tool, status in ("success", "error"), *place) for tool, status, *place in calls]

    async def claim_background(self, lease: Lease, run_id: str, effects: int = 0) -> bool:
        now = self._clock()
        row = (
            run_id,
            lease.attempt,
            effects,
            now - _CLAIMS_GO_S,
            run_id,
            self._owner_id,
            run_id,
            now,
            lease.response_id,
        )
        if not await self._changes(lease, _CLAIM, row):
            return False
        claimed = await self._look_up("SELECT run_id FROM background_runs WHERE id = ?", (lease.response_id,))
        return [each[0] for each in claimed] == [run_id]

    async def release_background(self, lease: Lease, effects: int = 0) -> bool:
        now = self._clock()
        row = (lease.attempt, effects, now - _CLAIMS_GO_S, now, lease.response_id, self._owner_id)
        if not await self._changes(lease, _RELEASE, row):
            return False
        return await self._state_of(lease) == BackgroundState.RELEASED

    async def end_background(self, lease: Lease) -> bool:
        row = (lease.attempt, self._owner_id, self._owner_id, self._clock(), lease.response_id)
        return await self._changes(lease, _END, row)

    async def cancel_background(self, response_id: str, caller: str) -> None:
        await self._writer.commit(_CANCEL, [(response_id, rows.clean_name(caller))], in_order=True)

    async def _changes(self, lease: Lease, statement: str, row: rows.Row) -> bool:
        """Lock the row, then commit a conditional update; return whether its condition held."""
        try:
            await self._writer.commit(_LOCK, [(lease.response_id,)], also=[(statement, [row])], in_order=True)
        except RowRefused:
            return False
        return True

    async def _state_of(self, lease: Lease) -> str:
        states = await self._look_up(
            "SELECT state FROM background_runs WHERE id = ? AND owner_id = ?",
            (lease.response_id, self._owner_id),
        )
        return next((str(row[0]) for row in states), "")


def _read(row: Any) -> BackgroundRecord:
    """Read a response from the values of :data:`_READ`."""
    response_id, caller, run_id, asked_at, attempt, deaths, state, cancelled, changed_at, orphaned_at = row
    return BackgroundRecord(
        response_id,
        caller,
        run_id,
        asked_at,
        attempt,
        deaths,
        BackgroundState(state),
        bool(cancelled),
        changed_at,
        orphaned_at,
    )
