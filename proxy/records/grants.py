"""Records of grants: each lets later calls of one tool run without asking a person again.

A grant is created by a decision about an approval (:mod:`proxy.records.approvals`). Times are seconds since
the epoch (UTC). This module does not depend on a database.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Final, Literal, Protocol, runtime_checkable

from msgspec import Struct

from proxy.base.values import value_class

GRANT_ID: Final = r"grant_[0-9a-f]{32}"
"""The format of a grant id, as a regular expression."""

MOST_GRANTS: Final = 50
"""The greatest number of active grants of one caller."""

GrantScope = Literal["caller", "conversation"]
"""Which requests a grant covers: all of its caller's, or those that continue the turn that asked."""

GrantState = Literal["active", "expired", "revoked"]


@value_class
class Grant:
    """Permission for later calls that are like the call of an approval.

    ``approval_id`` is the approval that it was made with, and ``run_id`` the run that asked. ``caller`` is
    the caller of that run. ``spec_digest`` is the definition of the tool at that time. ``rule`` holds the
    reasons for asking that the person saw (see :func:`proxy.tools.access.policy.reasons_of`). ``bounds`` is
    JSON that maps the path of an argument to its permitted values; ``{}`` for no limits. ``made_by`` and
    ``made_via`` are the approval's ``decided_by`` and ``decided_via``. ``uses`` counts the calls that it
    permitted.
    """

    id: str
    approval_id: str
    run_id: str
    caller: str
    tool: str
    spec_digest: str
    rule: str
    bounds: str = field(repr=False)
    scope: GrantScope
    created_at: float
    expires_at: float
    made_by: str
    made_via: str
    revoked_at: float | None = None
    revoked_by: str = ""
    uses: int = 0
    used_at: float | None = None

    def state(self, now: float) -> GrantState:
        """Return the state of the grant at the time ``now``; only an active grant lets calls run."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if now >= self.expires_at else "active"


class GrantFilter(Struct, frozen=True):
    """Which grants to list, newest first: at most ``limit``, and only those older than the id ``before``.

    ``active`` limits the list to those that let calls run at ``now``, ``caller`` to one caller's, and
    ``tools`` to tools that match one of these patterns.
    """

    limit: int = 50
    before: str | None = None
    active: bool = False
    now: float = 0.0
    caller: str | None = None
    tools: Sequence[str] | None = None


@runtime_checkable
class GrantLog(Protocol):
    """Grants, shared by all processes that have the record open.

    A grant is stored with the decision that makes it; see
    :meth:`proxy.records.approvals.ApprovalLog.decide_approval`.
    """

    async def find_grants(self, ids: Sequence[str]) -> Sequence[Grant]:
        """Return the grants with these ids, in any order, without unknown ids.

        Raise :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """

    async def grants_of_approval(self, approval_id: str) -> Sequence[Grant]:
        """Return the grant that was made with an approval, if any; raise
        :class:`~proxy.base.errors.StoreError`."""

    async def list_grants(self, wanted: GrantFilter) -> Sequence[Grant]:
        """Return grants, newest first; raise :class:`~proxy.base.errors.StoreError` if the record cannot be
        read."""

    async def use_grant(self, grant_id: str, now: float) -> bool:
        """Count a call that is about to run, unless the grant is no longer active; committed on return.

        Return ``False``, and count nothing, if the grant has expired, was revoked or is gone. Raise
        :class:`~proxy.base.errors.StoreUnavailable` if the outcome is unknown.
        """

    async def revoke_grant(self, grant_id: str, by: str, now: float) -> Grant | None:
        """Revoke a grant, unless it was revoked before; committed on return.

        Return the grant as it is on record afterwards, ``None`` if there is none. Raise
        :class:`~proxy.base.errors.StoreError` if the record fails.
        """
