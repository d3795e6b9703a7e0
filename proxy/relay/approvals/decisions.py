"""Decide about calls that wait for approval: check who may decide, and record one decision per call."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.http.own_headers import APPROVE
from proxy.records.approvals import (
    MOST_IN_TEXT,
    MOST_REASON,
    Approval,
    ApprovalEvent,
    ApprovalFilter,
    ApprovalLog,
    ApprovalStatus,
    Decided,
    DecidedVia,
)
from proxy.records.grants import MOST_GRANTS, Grant
from proxy.relay.approvals.grants import Grants, GrantTerms, OnApproval, ignore_event
from proxy.relay.approvals.notice import meaning_of
from proxy.relay.approvals.rules import ApprovalRules, Decider, unknown_approval

_APPROVED: Final = (ApprovalStatus.APPROVED, ApprovalStatus.USED, ApprovalStatus.SUPERSEDED)
"""The states after an approval. A superseded call was approved, and could then not run."""

_LOG: Final[structlog.typing.FilteringBoundLogger] = structlog.get_logger("proxy.approvals")


class Verdict(Struct, frozen=True):
    """A decision that a decider wants to make.

    ``arguments`` replace the model's, and ``grant`` lets later calls run, unless they are ``None``.
    """

    approve: bool
    reason: str = ""
    arguments: Any = None
    grant: GrantTerms | None = None


class Decisions:
    """Finds approvals and decides about them."""

    def __init__(
        self,
        log: ApprovalLog | None,
        rules: ApprovalRules,
        *,
        told: OnApproval = ignore_event,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``log`` is ``None`` if the record keeps no approvals."""
        self._log = log
        self.rules = rules
        self.grants = Grants(log, rules, told=told, now=now)
        self._told = told
        self._now = now

    @property
    def enabled(self) -> bool:
        """Whether calls can wait for approval."""
        return self._log is not None and self.rules.enabled

    async def list(self, wanted: ApprovalFilter) -> Sequence[Approval]:
        """Return approvals as they are now, newest first; raise :class:`~proxy.base.errors.StoreError`."""
        if self._log is None:
            return ()
        now = self._now()
        return [one.at(now) for one in await self._log.list_approvals(replace(wanted, now=now))]

    async def read(self, ids: Sequence[str]) -> Sequence[Approval]:
        """Return the approvals with these ids as they are now; raise :class:`StoreError`."""
        if self._log is None or not ids:
            return ()
        now = self._now()
        return [one.at(now) for one in await self._log.find_approvals(ids)]

    async def find(self, approval_id: str, decider: Decider) -> Approval:
        """Return the approval with an id, if ``decider`` may see it.

        Raise :class:`RequestError` (404) if it does not exist or the decider may not see it.
        Raise :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """
        found = await self._log.find_approvals([approval_id]) if self._log is not None else ()
        if not found or not decider.sees(found[0]):
            raise unknown_approval(approval_id)
        return found[0].at(self._now())

    async def decide(self, approval_id: str, verdict: Verdict, decider: Decider, via: DecidedVia) -> Approval:
        """Record a decision; the same decision again changes nothing.

        Raise :class:`RequestError`: 404 if there is no such approval; 403 if ``decider`` may
        not decide about it, or not ``via`` a text that did not show its arguments; 400 if the new arguments
        cannot run or the grant cannot be given; 409 if another decision was recorded before, the approval has
        expired, or its caller has too many grants.
        """
        approval = await self.find(approval_id, decider)
        decider.check(approval, self.rules)
        if verdict.approve and via == "header" and not approval.fits_text:
            raise _not_shown(approval)
        event = ApprovalEvent.APPROVE if verdict.approve else ApprovalEvent.DENY
        edited = self._edited(approval, verdict) if verdict.approve else ""
        now = self._now()
        if self._log is None:
            raise unknown_approval(approval_id)
        said = Decided(
            event, decider.name, via, verdict.reason[:MOST_REASON], edited, now + self.rules.expires_s
        )
        grant: Grant | None = None
        if verdict.approve and verdict.grant is not None:
            arguments = edited or approval.arguments
            grant = self.grants.make(approval, arguments, verdict.grant, decider.name, via)
        if approval.status is ApprovalStatus.PENDING or (
            not verdict.approve and approval.status is ApprovalStatus.APPROVED
        ):
            decided = (await self._log.decide_approval(approval, said, now, grant)).at(now)
            if decided.status is ApprovalStatus.PENDING:
                raise _too_many_grants(approval)
            if decided.decided_at == now and decided.decided_by == decider.name:
                self._tell("approval_decided", decided)
            approval = decided
        wanted = _APPROVED if verdict.approve else (ApprovalStatus.DENIED,)
        if approval.status not in wanted or (edited and approval.edited != edited):
            wish = "denied"
            if verdict.approve:
                wish = "approved with other arguments" if approval.status in wanted else "approved"
            raise RequestError(
                409,
                f"{approval.id} can no longer be {wish}. {meaning_of(approval)}",
                code="approval_decided",
            )
        if grant is not None:
            await self.grants.check_given(grant)
        return approval

    def _edited(self, approval: Approval, verdict: Verdict) -> str:
        """Return the verdict's arguments as canonical JSON; empty to keep the model's."""
        if verdict.arguments is not None:
            raise RequestError(
                400,
                "Nobody can change arguments on this server (approvals.edit is false). Leave arguments out.",
                param="arguments",
            )
        return ""

    def _tell(self, kind: str, approval: Approval) -> None:
        """Log and report an event, without arguments and reasons, because people and models wrote them."""
        now = self._now()
        facts: dict[str, Any] = {
            "approval_id": approval.id,
            "tool": approval.tool,
            "status": str(approval.status),
            "correlation_id": approval.run_id,
        }
        if kind != "approval_requested":
            waited = (approval.decided_at or now) - approval.created_at
            facts |= {"by": approval.decided_by, "via": approval.decided_via}
            facts["waited_ms"] = round(waited * 1000)
        _LOG.info(kind, **facts)
        self._told(kind, facts | {"approval": approval})


def _not_shown(approval: Approval) -> RequestError:
    return RequestError(
        403,
        f"{approval.id} cannot be approved by the header {APPROVE}: its arguments have "
        f"{len(approval.arguments):,} characters, and the text about it shows at most {MOST_IN_TEXT:,}. Read "
        f"all of them, and decide, with `toolrelay approvals show {approval.id}`, with GET and POST "
        f"/admin/approvals/{approval.id}, or on the page Approvals of the web UI.",
        code="approval_not_allowed",
    )


def _too_many_grants(approval: Approval) -> RequestError:
    return RequestError(
        409,
        f"{approval.caller} has {MOST_GRANTS} active grants, the most that a caller can have, so nothing was "
        f"decided. Revoke one (`toolrelay approvals grants` lists them), or approve {approval.id} without.",
        code="too_many_grants",
    )
