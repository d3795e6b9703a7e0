"""Approvals from the question to the run: what is asked, who decides, and what comes of it.

A call that needs an approval becomes a row (:class:`~proxy.approval_records.Approval`), committed before
its client is told.  The turn is held with marks in place of results.  When its client goes on, each mark is
filled with what the row says: the call is made now, once, with the bytes of the row; or it was refused.
"""

import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import structlog

from proxy.approval_records import (
    MOST_REASON,
    Approval,
    ApprovalEvent,
    ApprovalLog,
    ApprovalStatus,
    Decided,
    DecidedVia,
)
from proxy.errors import RequestError, StoreError, ToolErrorCode, ToolFailure
from proxy.events import ToolCall, ToolResult
from proxy.records import Meter
from proxy.relay.approvals.notice import notice, verdict_of
from proxy.relay.approvals.rules import MOST_ASKED, MOST_WAITING, ApprovalRules, Decider, unknown_approval
from proxy.relay.ask import Identity
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.plan import ApprovedCall, PlannedCall, Refusal, digest_of
from proxy.tools.running.runner import Runner
from proxy.values import value_class

__all__ = ["Approvals", "Asked", "OnApproval", "Resuming", "Settled", "Verdict", "nobody_told"]

OnApproval = Callable[[str, Mapping[str, Any]], None]
"""Told of each approval that was asked for, decided or used: ``(kind, facts)``, everything redacted.

The kinds are ``approval_requested``, ``approval_decided`` and ``approval_used``."""

_LOG: Final[structlog.typing.FilteringBoundLogger] = structlog.get_logger("proxy.approvals")


def nobody_told(kind: str, facts: Mapping[str, Any]) -> None:
    """Nobody wants to know."""


@value_class
class Asked:
    """What becomes of the calls of a turn that need an approval, by their places in it (``ToolCall.index``).

    ``waiting`` are those that somebody is asked about; ``refused`` are results of calls that would not run in
    any case.  All others run into the refusal of the policy.
    """

    waiting: Mapping[int, Approval] = field(default_factory=dict)
    refused: Sequence[ToolResult] = ()


@value_class
class Verdict:
    """What somebody says about an approval: ``approve``, why, and arguments in place of the model's."""

    approve: bool
    reason: str = ""
    arguments: Any = None


@value_class
class Resuming:
    """For whom and within what calls run that were approved: as those of the request that goes on."""

    identity: Identity
    policy: Policy
    catalog: Catalog
    meter: Meter | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What approvals came to: ``results`` are texts for the model, by id, ``waiting`` are not decided yet.

    ``untrusted`` names a tool whose result is a stranger's text, if one is among them.
    """

    results: Mapping[str, str] = field(default_factory=dict)
    waiting: Sequence[Approval] = ()
    untrusted: str = ""


class Approvals:
    """Asks, decides and runs.  One for the process."""

    def __init__(
        self,
        log: ApprovalLog | None,
        runner: Runner,
        rules: ApprovalRules,
        *,
        told: OnApproval = nobody_told,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``log`` is ``None`` where the record has no approvals: then nobody is asked."""
        self._log = log
        self._runner = runner
        self.rules = rules
        self._told = told
        self._now = now

    @property
    def enabled(self) -> bool:
        """Whether anybody can be asked."""
        return self._log is not None and self.rules.enabled

    # Asking.

    async def ask(
        self, calls: Sequence[ToolCall], context: RunContext, policy: Policy, identity: Identity
    ) -> Asked:
        """Ask about the calls of a turn that need an approval, as far as they would run with one.

        The rows are committed on return.  Nobody is asked where they cannot be.
        """
        if self._log is None or not self.rules.enabled:
            return Asked()
        refused: list[ToolResult] = []
        planned: list[tuple[ToolCall, PlannedCall]] = []
        for call in calls:
            checked = await self._runner.checks.check(call, context, policy=policy)
            if isinstance(checked, Refusal):
                refused.append(_failed(call, checked.failure))
            else:
                planned.append((call, checked))
        now = self._now()
        made: dict[str, Approval] = {}
        waiting: dict[int, Approval] = {}
        try:
            room = MOST_WAITING - await self._log.count_waiting(identity.caller, now) if planned else 0
            for call, checked in planned:
                approval = made.get(checked.equality)
                if approval is None and len(made) < min(room, MOST_ASKED):
                    approval = made[checked.equality] = self._approval(call, checked, context, identity, now)
                if approval is not None:
                    waiting[call.index] = approval
            await self._log.put_approvals(list(made.values()))
        except StoreError as error:
            _LOG.error("approval_unrecorded", reason=str(error), correlation_id=context.run_id)
            return Asked(refused=refused)
        for approval in made.values():
            self._tell("approval_requested", approval)
        return Asked(waiting, refused)

    def _approval(
        self, call: ToolCall, planned: PlannedCall, context: RunContext, identity: Identity, now: float
    ) -> Approval:
        return Approval(
            id=f"appr_{uuid.uuid4().hex}",
            run_id=context.run_id,
            turn=context.turn,
            seq=call.index,
            call_id=call.call_id,
            caller=identity.caller,
            key=identity.key,
            tool=planned.spec.name,
            effect=planned.spec.effect,
            spec_digest=planned.spec.digest,
            arguments_digest=digest_of(planned.arguments),
            arguments=planned.arguments.decode("ascii"),
            arguments_shown=planned.arguments_redacted,
            rule=planned.decision.partition(": ")[2],
            created_at=now,
            expires_at=now + self.rules.expires_s,
        )

    def notice(self, approvals: Sequence[Approval], *, again: bool = False) -> str:
        """What a client is told while these wait."""
        by_caller = all(self.rules.by_caller(approval.tool) for approval in approvals)
        return notice(approvals, url=self.rules.url, by_caller=by_caller, again=again)

    # Deciding.

    async def find(self, approval_id: str, decider: Decider) -> Approval:
        """An approval that somebody may see.

        Raises :class:`~proxy.errors.RequestError` (404) for one that there is not or that is none of their
        business, :class:`~proxy.errors.StoreError` where nobody can say.
        """
        found = await self._log.find_approvals([approval_id]) if self._log is not None else ()
        if not found or not decider.sees(found[0]):
            raise unknown_approval(approval_id)
        return found[0].at(self._now())

    async def decide(self, approval_id: str, verdict: Verdict, decider: Decider, via: DecidedVia) -> Approval:
        """Take a decision; the same decision again changes nothing.

        Raises :class:`~proxy.errors.RequestError`: 404 for an approval that there is not, 403 for one that
        others must decide about, 400 for arguments that would not run, 409 for one that was decided
        otherwise or has expired.
        """
        approval = await self.find(approval_id, decider)
        decider.check(approval, self.rules)
        event = ApprovalEvent.APPROVE if verdict.approve else ApprovalEvent.DENY
        edited = self._edited(approval, verdict) if verdict.approve else ""
        now = self._now()
        if self._log is None:
            raise unknown_approval(approval_id)
        said = Decided(
            event, decider.name, via, verdict.reason[:MOST_REASON], edited, now + self.rules.expires_s
        )
        if approval.status is ApprovalStatus.PENDING or (
            not verdict.approve and approval.status is ApprovalStatus.APPROVED
        ):
            decided = (await self._log.decide_approval(approval, said, now)).at(now)
            if decided.decided_at == now and decided.decided_by == decider.name:
                self._tell("approval_decided", decided)
            approval = decided
        wanted = (
            (ApprovalStatus.APPROVED, ApprovalStatus.USED) if verdict.approve else (ApprovalStatus.DENIED,)
        )
        if approval.status not in wanted or (edited and approval.edited != edited):
            raise RequestError(
                409,
                f"{approval.id} is {approval.status} already, so it cannot be "
                f"{'approved' if verdict.approve else 'denied'} any more.",
                code="approval_decided",
            )
        return approval

    def _edited(self, approval: Approval, verdict: Verdict) -> str:
        """The canonical arguments that somebody wants to run in place of the model's; empty for none."""
        if verdict.arguments is None:
            return ""
        if not self.rules.edit:
            raise RequestError(
                400, "Arguments cannot be changed here: approvals.edit is false.", param="arguments"
            )
        checked = self._runner.checks.check_arguments(approval.tool, orjson.dumps(verdict.arguments).decode())
        if isinstance(checked, Refusal):
            raise RequestError(400, f"arguments would not run: {checked.failure.message}.", param="arguments")
        if checked.spec.digest != approval.spec_digest:
            raise RequestError(
                409, f"The definition of {approval.tool} has changed since.", code="approval_decided"
            )
        edited = checked.arguments.decode("ascii")
        return "" if edited == approval.arguments else edited

    # Going on.

    async def settle(self, ids: Sequence[str], resuming: Resuming) -> Settled:
        """What approvals came to, for the caller who goes on; what was approved runs now, once.

        Raises :class:`~proxy.errors.StoreError` where nobody can say.
        """
        if self._log is None:
            return Settled()
        now = self._now()
        found = {one.id: one.at(now) for one in await self._log.find_approvals(ids)}
        results: dict[str, str] = {}
        waiting: list[Approval] = []
        ledger = RunLedger()
        for approval_id in ids:
            approval = found.get(approval_id)
            if approval is None or approval.caller != resuming.identity.caller:
                words = "The approval of this call is no longer on record, so the call was not made."
                results[approval_id] = _failure_text("approval_denied", words)
            elif approval.status is ApprovalStatus.PENDING:
                waiting.append(approval)
            elif approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.USED):
                results[approval_id] = await self._run(approval, resuming, ledger)
            else:
                results[approval_id] = _failure_text("approval_denied", verdict_of(approval))
        return Settled(results, waiting, ledger.untrusted_before(sys.maxsize))

    async def _run(self, approval: Approval, resuming: Resuming, ledger: RunLedger) -> str:
        """Make an approved call in its place of the run that asked, or give what came of it before."""
        identity = resuming.identity
        context = RunContext(
            approval.run_id,
            approval.turn,
            approval.caller,
            identity.request_id,
            ledger,
            resuming.meter,
            identity.key,
            resuming.catalog,
        )
        arguments = approval.runs
        approved = ApprovedCall(
            approval.id,
            approval.decided_by,
            approval.spec_digest,
            digest_of(arguments.encode("ascii")) if approval.edited else approval.arguments_digest,
        )
        call = ToolCall(approval.call_id, approval.tool, arguments, approval.seq)
        result = await self._runner.run(call, context, policy=resuming.policy, approved=approved)
        if approval.status is ApprovalStatus.APPROVED:
            await self._used(approval, result)
        content = result.to_keep().content
        if approval.edited:
            said = f"A person changed the arguments before this ran. It ran with: {approval.edited}"
            content = f"{said}\n{content}"
        return content

    async def _used(self, approval: Approval, result: ToolResult) -> None:
        """Tell that an approved call was made.  One that was not must not run later, unexpectedly."""
        if self._log is None:
            return
        found = await self._log.find_approvals([approval.id])
        if found and found[0].status is ApprovalStatus.APPROVED:
            gone = Decided(
                ApprovalEvent.SUPERSEDE,
                approval.decided_by,
                approval.decided_via,
                result.safe_message[:MOST_REASON],
            )
            found = [await self._log.decide_approval(found[0], gone, self._now())]
        if found:
            self._tell("approval_used", found[0])

    def _tell(self, kind: str, approval: Approval) -> None:
        """Log and tell of a step; no arguments, and no words of people."""
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


def _failure_text(code: ToolErrorCode, message: str) -> str:
    """A result that says why a call was not made (rule T3)."""
    return orjson.dumps({"ok": False, "error_code": code, "message": message}).decode()


def _failed(call: ToolCall, failure: ToolFailure) -> ToolResult:
    code: ToolErrorCode = failure.code
    return ToolResult(call.call_id, False, _failure_text(code, failure.message), code, failure.message)
