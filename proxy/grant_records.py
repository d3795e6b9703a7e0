"""Records of grants: each lets later calls of one tool run without asking a person again.

A grant comes of a decision about an approval (:mod:`proxy.approval_records`).  Times are seconds since the
epoch (UTC).  This module does not depend on a database.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Final, Literal, Protocol, runtime_checkable

from proxy.values import value_class

__all__ = ["GRANT_ID", "MOST_GRANTS", "Grant", "GrantFilter", "GrantLog", "GrantScope", "GrantState"]

GRANT_ID: Final = r"grant_[0-9a-f]{32}"
"""The format of a grant's id, as a regular expression."""

MOST_GRANTS: Final = 50
"""The most active grants of one caller."""

GrantScope = Literal["caller", "conversation"]
"""Which requests a grant covers: all of its caller's, or those that continue the turn which asked."""

GrantState = Literal["active", "expired", "revoked"]


@value_class
class Grant:
    """Permission for later calls like the one of an approval.

    ``approval_id`` is the approval that it was made with, and ``run_id`` the run that asked.  ``caller`` is
    the caller of that run.  ``spec_digest`` is the definition of the tool as it was then.  ``rule`` has the
    reasons for asking that the person was told (see :func:`proxy.tools.access.policy.reasons_of`).
    ``bounds`` is JSON: by the path of an argument, what it may be; ``{}`` for no limits.  ``made_by`` and
    ``made_via`` are the approval's ``decided_by`` and ``decided_via``.  ``uses`` counts the calls
    that it let through.
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
        """What the grant is at the time ``now``; only an active one lets calls run."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if now >= self.expires_at else "active"


@value_class
class GrantFilter:
    """Which grants to list, newest first: at most ``limit``, and only those older than the id ``before``.

    ``active`` limits the list to those that let calls run at ``now``, ``caller`` to one caller's, and
    ``tools`` to tools that fit one of these patterns.
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

    They are put on record with the decision that makes them; see
    :meth:`proxy.approval_records.ApprovalLog.decide_approval`.
    """

    async def find_grants(self, ids: Sequence[str]) -> Sequence[Grant]:
        """The grants with these ids, in any order; unknown ids are left out.

        Raises :class:`~proxy.errors.StoreError`.
        """
        ...

    async def grants_of_approval(self, approval_id: str) -> Sequence[Grant]:
        """The grant that was made with an approval, or none; raises :class:`~proxy.errors.StoreError`."""
        ...

    async def list_grants(self, wanted: GrantFilter) -> Sequence[Grant]:
        """Grants, newest first; raises :class:`~proxy.errors.StoreError`."""
        ...

    async def use_grant(self, grant_id: str, now: float) -> bool:
        """Count a call that is about to run, unless the grant is no longer active; committed on return.

        ``False``: it has expired, was revoked or is gone, and nothing was counted.  Raises
        :class:`~proxy.errors.StoreUnavailable` if nobody can say.
        """
        ...

    async def revoke_grant(self, grant_id: str, by: str, now: float) -> Grant | None:
        """Revoke a grant, unless it was revoked before; committed on return.

        Returns the grant as it is on record afterwards, ``None`` if there is none.  Raises
        :class:`~proxy.errors.StoreError`.
        """
        ...
