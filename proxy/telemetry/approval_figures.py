"""The metrics of approvals on ``/metrics``.

An approval is decided in this process, in another one or on the command line, or it expires by itself. So
this process reads the outcomes from the record at intervals. The process that asked for an approval counts
it, once.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import structlog

from proxy.base.caches import CacheSize, declare
from proxy.base.errors import StoreError
from proxy.net.keep_running import keep_running
from proxy.records.approvals import Approval, ApprovalLog, ApprovalStatus

MOST_FOLLOWED: Final = 2048
"""The most approvals whose outcome one process follows; later ones are counted only as requested."""

_EVERY_S: Final = 10.0
_AT_ONCE: Final = 100
_OPEN: Final = (ApprovalStatus.PENDING, ApprovalStatus.APPROVED)
_FOLLOWED_BYTES: Final = 2000


class ApprovalFigures:
    """The counters of approvals in one process."""

    def __init__(
        self,
        log: ApprovalLog,
        count: Callable[[str, str], None],
        waited: Callable[[float], None],
        *,
        every_s: float = _EVERY_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``count`` is called with the tool and the outcome, ``waited`` with the seconds until each
        decision."""
        self._log = log
        self._count = count
        self._waited = waited
        self._every_s = every_s
        self._now = now
        self._followed: dict[str, Approval] = {}
        self._pending = 0
        self._task: asyncio.Task[NoReturn] | None = None
        declare("followed_approvals", self._cache_size)

    def on_event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Take note of an event of an approval; see :data:`~proxy.relay.approvals.grants.OnApproval`."""
        approval = facts.get("approval")
        if kind == "approval_grant_used":
            self._count(facts["tool"], "granted")
        elif kind == "approval_requested" and isinstance(approval, Approval):
            self._count(approval.tool, "requested")
            if len(self._followed) < MOST_FOLLOWED:
                self._followed[approval.id] = approval

    def figures(self) -> Mapping[str, float]:
        """Return how many calls wait, over all processes on this record; see ``Sources`` of the metrics."""
        return {"toolrelay_approvals_pending": float(self._pending)}

    def start(self) -> None:
        """Start the task that reads the record at intervals."""
        self._task = asyncio.get_running_loop().create_task(
            keep_running("approval-figures", self._run), name="approval-figures"
        )

    async def aclose(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def update(self) -> None:
        """Count what has changed since the last update; raise :class:`StoreError` if the record
        fails."""
        self._pending = await self._log.count_waiting(None, self._now())
        ids = list(self._followed)
        for start in range(0, len(ids), _AT_ONCE):
            part, now = ids[start : start + _AT_ONCE], self._now()
            approvals = {approval.id: approval.at(now) for approval in await self._log.find_approvals(part)}
            for id_ in part:
                self._changed(self._followed[id_], approvals.get(id_))

    async def _run(self) -> None:
        await asyncio.sleep(self._every_s)
        try:
            await self.update()
        except StoreError as error:
            structlog.get_logger("proxy.approvals").warning("approvals_uncounted", reason=str(error))

    def _changed(self, before: Approval, after: Approval | None) -> None:
        """Count the new status of an approval; ``after`` is ``None`` if it is no longer on record."""
        if after is None:
            del self._followed[before.id]
            return
        if after.status is before.status:
            return
        was_decided = after.decided_at is not None and before.status is ApprovalStatus.PENDING
        if was_decided and after.decided_at is not None:
            self._waited(max(0.0, after.decided_at - after.created_at))
        if was_decided and after.status not in (ApprovalStatus.DENIED, ApprovalStatus.APPROVED):
            self._count(after.tool, "approved")
        self._count(after.tool, str(after.status))
        if after.status in _OPEN:
            self._followed[after.id] = after
        else:
            del self._followed[after.id]

    def _cache_size(self) -> CacheSize:
        return CacheSize(_FOLLOWED_BYTES * len(self._followed), _FOLLOWED_BYTES * MOST_FOLLOWED)
