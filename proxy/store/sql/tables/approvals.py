"""Approvals in SQL: rows that only change by conditional updates.

If its condition does not hold, an update sets a NOT NULL column to NULL, as with claims of effects. The
database then refuses the whole write: of two processes that decide at the same moment, one is refused.
"""

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from proxy.base.errors import StoreError
from proxy.base.globs import fits
from proxy.records.approvals import (
    TRANSITIONS,
    Approval,
    ApprovalEvent,
    ApprovalFilter,
    ApprovalStatus,
    Decided,
    sources_of,
)
from proxy.records.grants import Grant
from proxy.records.rows import InvocationStatus
from proxy.store import rows
from proxy.store.seal import APPROVALS
from proxy.store.sql.tables.grants import SqlGrants
from proxy.store.sql.writing.writer import RowRefused
from proxy.store.sql.writing.writes import Batch

_PUT: Final = rows.insert("approvals", (*APPROVALS.columns, "sealed_by"), " ON CONFLICT (id) DO NOTHING")
_MOST_IDS: Final = 100
_MOST_TOOLS: Final = 500


def _in(states: Sequence[ApprovalStatus]) -> str:
    return f"status IN ({', '.join(repr(str(state)) for state in states)})"


_DECIDED_COLUMNS: Final = ("decided_by", "decided_via", "decided_at", "expires_at")
_DECIDE: Final = {
    event: (
        f"UPDATE approvals SET status = CASE WHEN ({_in(sources_of(event))} AND expires_at > ?) "
        f"OR decision_id = ? THEN '{TRANSITIONS[sources_of(event)[0], event]}' END, decision_id = ?, "
        f"{', '.join(f'{column} = ?' for column in (*_DECIDED_COLUMNS, *APPROVALS.sealed))}, sealed_by = ? "
        "WHERE id = ?"
    )
    for event in (ApprovalEvent.APPROVE, ApprovalEvent.DENY, ApprovalEvent.SUPERSEDE)
}
_USE: Final = (
    f"UPDATE approvals SET status = CASE WHEN ({_in(sources_of(ApprovalEvent.USE))} AND expires_at > ?) "
    f"OR invocation_id = ? THEN '{ApprovalStatus.USED}' END, invocation_id = ? WHERE id = ?"
)
_WAITING: Final = f"{_in([ApprovalStatus.PENDING])} AND expires_at > ?"
_COUNT: Final = (
    "UPDATE approvals SET status = CASE WHEN (SELECT count(*) FROM approvals WHERE caller = ? AND "
    f"{_WAITING}) <= ? THEN status END WHERE id = ?"
)
"""Refuses the transaction that inserted the last row if it makes too many approvals wait."""


class SqlApprovals(SqlGrants):
    """The :class:`~proxy.records.approvals.ApprovalLog` part of a SQL store."""

    async def put_approvals(self, approvals: Sequence[Approval], most: int | None = None) -> bool:
        if not approvals:
            return True
        made = [self._ring.close(APPROVALS, APPROVALS.row(approval)) for approval in approvals]
        if most is None:
            await self._writer.commit(_PUT, made)
            return True
        caller, now = approvals[0].caller, approvals[0].created_at
        count = (_COUNT, [(rows.clean_name(caller), now, most, approvals[0].id)])
        try:
            await self._writer.commit(_PUT, made, also=[*self._counting_turn, count])
        except RowRefused:
            if await self.count_waiting(caller, now) + len(approvals) <= most:
                raise
            return False
        return True

    async def find_approvals(self, ids: Sequence[str]) -> Sequence[Approval]:
        wanted = [each for each in ids if rows.is_text(each) and "\0" not in each][:_MOST_IDS]
        if not wanted:
            return ()
        fit = f"id IN ({', '.join('?' * len(wanted))}) AND created_at >= ?"
        return await self._approvals(fit, *wanted, self._oldest_kept())

    async def list_approvals(self, wanted: ApprovalFilter) -> Sequence[Approval]:
        clauses: list[str] = ["created_at >= ?"]
        values: list[Any] = [self._oldest_kept()]
        if wanted.waiting:
            clauses.append(_WAITING)
            values.append(wanted.now)
        if wanted.decided:
            clauses.append(f"NOT ({_WAITING})")
            values.append(wanted.now)
        if wanted.tools is not None and "*" not in wanted.tools:
            tools = await self._tools_that_fit(wanted.tools)
            if not tools:
                return ()
            clauses.append(f"tool IN ({', '.join('?' * len(tools))})")
            values += tools
        for column, value in (("caller", wanted.caller), ("run_id", wanted.run_id)):
            if value is not None:
                clauses.append(f"{column} = ?")
                values.append(rows.clean_name(value))
        if wanted.before is not None:
            clauses.append("(created_at, id) < (SELECT created_at, id FROM approvals WHERE id = ?)")
            values.append(rows.clean_text(wanted.before))
        where = f"{' AND '.join(clauses)} ORDER BY created_at DESC, id DESC LIMIT ?"
        return await self._approvals(where, *values, wanted.limit)

    async def _tools_that_fit(self, patterns: Sequence[str]) -> list[str]:
        """Return the recorded tools that match a pattern. The databases cannot match these patterns."""
        names = await self._look_up("SELECT DISTINCT tool FROM approvals", ())
        return [tool for (tool,) in names if any(fits(tool, pattern) for pattern in patterns)][:_MOST_TOOLS]

    async def count_waiting(self, caller: str | None, now: float) -> int:
        whose, values = ("", ()) if caller is None else ("caller = ? AND ", (rows.clean_name(caller),))
        sql = f"SELECT count(*) FROM approvals WHERE {whose}{_WAITING}"
        ((number,),) = await self._look_up(sql, (*values, now))
        return int(number)

    async def decide_approval(
        self, approval: Approval, decided: Decided, now: float, grant: Grant | None = None
    ) -> Approval:
        changed = replace(approval, reason=decided.reason, edited=decided.arguments)
        *closed, sealed_by = self._ring.close(APPROVALS, APPROVALS.row(changed))
        values = dict(zip(APPROVALS.columns, closed, strict=True))
        mark = secrets.token_hex(16)
        until = decided.until if decided.event is ApprovalEvent.APPROVE else approval.expires_at
        decision = (rows.clean_name(decided.by), decided.via, now, until)
        sealed = (values[column] for column in APPROVALS.sealed)
        row = (now, mark, mark, *decision, *sealed, sealed_by, approval.id)
        # Refused if another decision came first, the approval has expired, or its caller has too many grants.
        with contextlib.suppress(RowRefused):
            await self._writer.commit(_DECIDE[decided.event], [row], also=self._put_grant(grant))
        approvals = await self.find_approvals([approval.id])
        if not approvals:
            raise StoreError("the approval is no longer on record")
        return approvals[0]

    def _use_of(self, approval_id: str, invocation_id: str) -> list[Batch]:
        """Return the update that marks an approval as used, to be committed with the row of its execution.

        Without an ``approval_id`` the result is empty.
        """
        if not approval_id:
            return []
        used = rows.clean_text(invocation_id)
        return [(_USE, [(self._clock(), used, used, approval_id)])]

    async def _used_by(self, approval_id: str) -> tuple[str, InvocationStatus, Any] | None:
        """Return id, status and error code of an approved call's execution; ``None`` if it has not run."""
        calls = list(
            await self._look_up(
                "SELECT a.invocation_id, i.status, i.error_code FROM approvals a "
                "LEFT JOIN tool_invocations i ON i.id = a.invocation_id "
                "WHERE a.id = ? AND a.invocation_id <> ''",
                (approval_id,),
            )
        )
        return (calls[0][0], calls[0][1] or "interrupted", calls[0][2]) if calls else None

    async def _approvals(self, where: str, *values: Any) -> list[Approval]:
        approvals = await self._find(APPROVALS, where, *values)
        used = [approval.invocation_id for approval in approvals if approval.invocation_id]
        if not used:
            return approvals
        outcomes: dict[str, InvocationStatus] = {}
        for start in range(0, len(used), _MOST_IDS):
            part = used[start : start + _MOST_IDS]
            placeholders = ", ".join("?" * len(part))
            sql = f"SELECT id, status FROM tool_invocations WHERE id IN ({placeholders})"
            outcomes.update([(row[0], row[1]) for row in await self._look_up(sql, tuple(part))])
        return [
            replace(approval, outcome=outcomes.get(approval.invocation_id, "interrupted"))
            if approval.invocation_id
            else approval
            for approval in approvals
        ]
