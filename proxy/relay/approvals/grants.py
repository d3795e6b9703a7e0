"""Grants: each lets later calls of a tool run without asking a person.

A person who may decide about an approval can give a grant with it. A grant covers calls of the same caller
and the same definition of the tool, with arguments within its limits, for reasons that the person read. It
ends when it expires or somebody revokes it. A grant for a conversation covers only requests that continue
the turn that asked. The restored hidden turns show what a request continues. An id that only the caller
got finds the turn that asked, and digests of the earlier messages find all later turns.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.base.events import ToolCall
from proxy.records.approvals import Approval
from proxy.records.grants import MOST_GRANTS, Grant, GrantFilter, GrantLog
from proxy.relay.approvals.rules import ApprovalRules, Decider, own_rule
from proxy.relay.ask import Identity
from proxy.tools.access.policy import reasons_of
from proxy.tools.running.granted import ArgumentLimits, GrantedCall
from proxy.tools.running.plan import PlannedCall

OnApproval = Callable[[str, Mapping[str, Any]], None]
"""Called as ``(kind, facts)`` for each approval that is requested, decided or used, and for each grant that
is given, used or revoked; ``facts`` are redacted.

The kinds are ``approval_requested``, ``approval_decided``, ``approval_used``, ``approval_grant_given``,
``approval_grant_used`` and ``approval_grant_revoked``. Each has the ``tool``.
"""

_LOG: Final[structlog.typing.FilteringBoundLogger] = structlog.get_logger("proxy.approvals")


def ignore_event(kind: str, facts: Mapping[str, Any]) -> None:
    """Ignore the event: the default when nothing listens."""


class GrantTerms(Struct, frozen=True):
    """The terms of a grant that an approver wants to give with an approval.

    ``seconds`` is its duration; ``None`` for the longest that the operator allows. ``in_conversation``
    limits the grant to requests that continue the turn that asked. ``limits`` are the permitted values of
    arguments.
    """

    seconds: float | None = None
    in_conversation: bool = False
    limits: ArgumentLimits = field(default_factory=ArgumentLimits)


class Grants:
    """Gives, finds, lists and revokes grants."""

    def __init__(
        self,
        log: GrantLog | None,
        rules: ApprovalRules,
        *,
        told: OnApproval = ignore_event,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``log`` is ``None`` if the record keeps no grants; then none is given, and none covers a call."""
        self._log = log
        self._rules = rules
        self._told = told
        self._now = now

    # Giving.

    def make(self, approval: Approval, arguments: str, terms: GrantTerms, by: str, via: str) -> Grant:
        """Return the grant that these terms make of an approval, without storing it.

        ``arguments`` is the JSON that the approved call runs with. It must be within the limits, and have
        every argument that they name. Raise :class:`~proxy.base.errors.RequestError` (400).
        """
        longest = self._rules.max_grant_s
        if self._log is None or longest <= 0:
            raise _refused("Nobody can give grants on this server (approvals.max_grant_s is 0).")
        seconds = longest if terms.seconds is None else terms.seconds
        if not 0 < seconds <= longest:
            raise _refused(
                f"A grant lasts at most {longest:g} seconds on this server (approvals.max_grant_s).",
                "grant.for",
            )
        _check_limits(approval, json.loads(arguments), terms.limits)
        now = self._now()
        return Grant(
            id=f"grant_{uuid.uuid4().hex}",
            approval_id=approval.id,
            run_id=approval.run_id,
            caller=approval.caller,
            tool=approval.tool,
            spec_digest=approval.spec_digest,
            rule=own_rule(approval),
            bounds=terms.limits.to_json(),
            scope="conversation" if terms.in_conversation else "caller",
            created_at=now,
            expires_at=now + seconds,
            made_by=by,
            made_via=via,
        )

    async def check_given(self, wanted: Grant) -> None:
        """Check that an approval has this grant, after its decision was recorded.

        Raise :class:`RequestError` (409) if it was decided without a grant, or with another
        one.
        """
        found = await self._log.grants_of_approval(wanted.approval_id) if self._log is not None else ()
        if found and found[0].id == wanted.id:
            self._tell("approval_grant_given", wanted, by=wanted.made_by, via=wanted.made_via)
        elif not found or _terms(found[0]) != _terms(wanted):
            raise RequestError(
                409,
                f"{wanted.approval_id} was already approved without this grant, so no grant was given. "
                "Give one when you approve the tool's next call.",
                code="approval_decided",
            )

    # Using.

    async def active(self, caller: str) -> Sequence[Grant]:
        """Return the active grants of a caller, newest first; raise :class:`StoreError`."""
        if self._log is None or self._rules.max_grant_s <= 0:
            return ()
        wanted = GrantFilter(limit=MOST_GRANTS, active=True, now=self._now(), caller=caller)
        return await self._log.list_grants(wanted)

    def covering(
        self,
        grants: Sequence[Grant],
        planned: Sequence[tuple[ToolCall, PlannedCall]],
        identity: Identity,
        asked_in: Sequence[str],
    ) -> dict[int, GrantedCall]:
        """Return the grants that cover these calls, by ``ToolCall.index``; each call is planned as if
        approved.

        ``asked_in`` are the earlier runs of this conversation that asked for approvals.
        """
        found: dict[int, GrantedCall] = {}
        for call, checked in planned:
            rule = checked.decision.partition(": ")[2]
            for grant in grants:
                if grant.tool != checked.spec.name or not _is_in_scope(grant, identity, asked_in):
                    continue
                granted = self._granted(grant, identity)
                if (
                    granted is not None
                    and granted.covers(rule)
                    and not granted.mismatch(checked.spec, checked.arguments)
                ):
                    found[call.index] = granted
                    break
        return found

    def _granted(self, grant: Grant, identity: Identity) -> GrantedCall | None:
        """Convert a grant for the runner; return ``None`` if its limits cannot be read."""
        try:
            limits = ArgumentLimits.from_json(grant.bounds)
        except ValueError:  # Another version of the program wrote the limits.
            _LOG.error("approval_grant_unreadable", grant_id=grant.id, tool=grant.tool)
            return None
        use = partial(self._use, grant, identity.run_id)
        return GrantedCall(grant.id, grant.made_by, grant.spec_digest, reasons_of(grant.rule), limits, use)

    async def _use(self, grant: Grant, run_id: str) -> bool:
        if self._log is None or not await self._log.use_grant(grant.id, self._now()):
            return False
        self._tell("approval_grant_used", grant, by=grant.made_by, correlation_id=run_id)
        return True

    # Showing and revoking.

    async def list(self, wanted: GrantFilter) -> Sequence[Grant]:
        """Return grants, newest first; raise :class:`~proxy.base.errors.StoreError`."""
        return () if self._log is None else await self._log.list_grants(replace(wanted, now=self._now()))

    async def find(self, grant_id: str, decider: Decider) -> Grant:
        """Return the grant with an id, if ``decider`` is an approver of its tool.

        Raise :class:`~proxy.base.errors.RequestError` (404) and :class:`~proxy.base.errors.StoreError`.
        """
        found = await self._log.find_grants([grant_id]) if self._log is not None else ()
        if not found or not decider.approves(found[0].tool):
            raise _unknown(grant_id)
        return found[0]

    async def revoke(self, grant_id: str, decider: Decider) -> Grant:
        """Revoke a grant; no call uses it once this returns. To revoke it again changes nothing.

        Raise :class:`~proxy.base.errors.RequestError` (404) and :class:`~proxy.base.errors.StoreError`.
        """
        before = await self.find(grant_id, decider)
        now = self._now()
        revoked = await self._log.revoke_grant(grant_id, decider.name, now) if self._log is not None else None
        if revoked is None:
            raise _unknown(grant_id)
        if before.revoked_at is None:
            self._tell("approval_grant_revoked", revoked, by=decider.name)
        return revoked

    def state(self, grant: Grant) -> str:
        """Return the present state of a grant."""
        return grant.state(self._now())

    def _tell(self, kind: str, grant: Grant, **more: str) -> None:
        """Log and report an event, without the limits, because people and models wrote them."""
        facts = {"grant_id": grant.id, "approval_id": grant.approval_id, "tool": grant.tool, **more}
        _LOG.info(kind, **facts)
        self._told(kind, facts)


def _is_in_scope(grant: Grant, identity: Identity, asked_in: Sequence[str]) -> bool:
    if grant.scope == "conversation":
        return grant.run_id in asked_in
    # Another person may use a shared key. A conversation scope needs no such check, because looking up a
    # conversation already depends on who asks.
    return identity.is_person


def _check_limits(approval: Approval, arguments: Mapping[str, Any], limits: ArgumentLimits) -> None:
    """Check limits against the call that they are given with; raise ``RequestError`` (400).

    The call is all there is to check against: the command line does not know the definition of the tool.
    """
    if path := limits.unused(arguments):
        raise _refused(
            f"grant.arguments limits {path[:80]!r}, which the call of {approval.tool} does not have. "
            f"Its arguments are: {', '.join(arguments) or 'none'}.",
            "grant.arguments",
        )
    if words := limits.violation(arguments):
        raise _refused(
            f"The call that you approve is not within grant.arguments: {words}.", "grant.arguments"
        )


def _terms(grant: Grant) -> tuple[str, str, str, int]:
    """Return the values that are equal in two grants that were meant to be one."""
    return grant.made_by, grant.scope, grant.bounds, round(grant.expires_at - grant.created_at)


def _refused(message: str, param: str = "grant") -> RequestError:
    return RequestError(400, message, param=param)


def _unknown(grant_id: str) -> RequestError:
    """Return the error for an unknown id; it is the same for a grant of a tool that this decider does not
    approve."""
    return RequestError(
        404,
        f"There is no grant {grant_id[:40]!r}. To list grants, run `toolrelay approvals grants` or send "
        "GET /admin/approvals/grants.",
        code="grant_not_found",
    )
