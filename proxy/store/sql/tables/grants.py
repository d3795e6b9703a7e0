"""Grants in SQL: inserted with the decision that makes them; used and revoked by conditional updates."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from proxy.base.globs import fits
from proxy.records.grants import MOST_GRANTS, Grant, GrantFilter
from proxy.store import rows
from proxy.store.seal import GRANTS
from proxy.store.sql.base import SqlBase
from proxy.store.sql.writing.writer import RowRefused
from proxy.store.sql.writing.writes import Batch

_PUT: Final = rows.insert("approval_grants", (*GRANTS.columns, "sealed_by"))
_ACTIVE: Final = "revoked_at IS NULL AND expires_at > ?"
_COUNT: Final = (
    "UPDATE approval_grants SET uses = CASE WHEN (SELECT count(*) FROM approval_grants WHERE caller = ? AND "
    f"{_ACTIVE}) <= {MOST_GRANTS} THEN uses END WHERE id = ?"
)
"""Refuses the transaction that inserted the last row if it makes too many grants active."""
_USE: Final = (
    f"UPDATE approval_grants SET uses = CASE WHEN {_ACTIVE} THEN uses + 1 END, used_at = ? WHERE id = ?"
)
_REVOKE: Final = (
    "UPDATE approval_grants SET revoked_at = coalesce(revoked_at, ?), "
    "revoked_by = CASE WHEN revoked_at IS NULL THEN ? ELSE revoked_by END WHERE id = ?"
)
_MOST_TOOLS: Final = 500


class SqlGrants(SqlBase):
    """The :class:`~proxy.records.grants.GrantLog` part of a SQL store."""

    _counting_turn: ClassVar[Sequence[Batch]] = ()
    """The batch that lets one transaction at a time count; empty if the database has only one writer."""

    async def find_grants(self, ids: Sequence[str]) -> Sequence[Grant]:
        return await self._find_ids(GRANTS, ids)

    async def grants_of_approval(self, approval_id: str) -> Sequence[Grant]:
        of_approval = (rows.clean_text(approval_id), self._oldest_kept())
        return await self._find(GRANTS, "approval_id = ? AND created_at >= ?", *of_approval)

    async def list_grants(self, wanted: GrantFilter) -> Sequence[Grant]:
        clauses: list[str] = ["created_at >= ?"]
        values: list[Any] = [self._oldest_kept()]
        if wanted.active:
            clauses.append(_ACTIVE)
            values.append(wanted.now)
        if wanted.caller is not None:
            clauses.append("caller = ?")
            values.append(rows.clean_name(wanted.caller))
        if wanted.tools is not None and "*" not in wanted.tools:
            names = await self._look_up("SELECT DISTINCT tool FROM approval_grants", ())
            # The databases cannot match these patterns.
            tools = [tool for (tool,) in names if any(fits(tool, pattern) for pattern in wanted.tools)][
                :_MOST_TOOLS
            ]
            if not tools:
                return ()
            clauses.append(f"tool IN ({', '.join('?' * len(tools))})")
            values += tools
        if wanted.before is not None:
            clauses.append("(created_at, id) < (SELECT created_at, id FROM approval_grants WHERE id = ?)")
            values.append(rows.clean_text(wanted.before))
        where = f"{' AND '.join(clauses)} ORDER BY created_at DESC, id DESC LIMIT ?"
        return await self._find(GRANTS, where, *values, wanted.limit)

    async def use_grant(self, grant_id: str, now: float) -> bool:
        try:
            await self._writer.commit(_USE, [(now, now, rows.clean_text(grant_id))])
        except RowRefused:
            return False
        # An update of a deleted row changes nothing, and is not refused.
        return bool(await self.find_grants([grant_id]))

    async def revoke_grant(self, grant_id: str, by: str, now: float) -> Grant | None:
        await self._writer.commit(_REVOKE, [(now, rows.clean_name(by), rows.clean_text(grant_id))])
        grants = await self.find_grants([grant_id])
        return grants[0] if grants else None

    def _put_grant(self, grant: Grant | None) -> list[Batch]:
        """Return the batches that insert a grant unless its caller has too many; empty for ``None``."""
        if grant is None:
            return []
        count = (_COUNT, [(rows.clean_name(grant.caller), grant.created_at, grant.id)])
        return [*self._counting_turn, (_PUT, [self._ring.close(GRANTS, GRANTS.row(grant))]), count]
