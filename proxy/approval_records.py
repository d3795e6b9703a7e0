"""Approvals on record: one planned call that a person must decide about before it runs.

Times are seconds since the epoch (UTC).  Nothing here knows a database.
"""

import re
from collections.abc import Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, runtime_checkable

from proxy.transitions import Transitions
from proxy.values import value_class

__all__ = [
    "APPROVAL_ID",
    "MOST_REASON",
    "TRANSITIONS",
    "Approval",
    "ApprovalEvent",
    "ApprovalFilter",
    "ApprovalLog",
    "ApprovalStatus",
    "Decided",
    "DecidedVia",
    "approval_ids_in",
    "sources_of",
]

APPROVAL_ID: Final = r"appr_[0-9a-f]{32}"
"""How ids of approvals look, as a regular expression."""

MOST_REASON: Final = 500
"""Characters of the reason that somebody may give for a decision."""

DecidedVia = Literal["header", "tool message", "item", "api", "command"]
"""How a decision came: a header, a tool message or an item of the caller's next request, ``/admin``, or the
command line."""


_NAMED: Final = re.compile(rf"(?<![0-9A-Za-z_])({APPROVAL_ID})(?![0-9A-Za-z])")
_MOST_NAMED: Final = 16


def approval_ids_in(text: str) -> tuple[str, ...]:
    """The ids of approvals that a text names, each once, sixteen at most."""
    return tuple(dict.fromkeys(_NAMED.findall(text)))[:_MOST_NAMED] if "appr_" in text else ()


class ApprovalStatus(StrEnum):
    """How far an approval is."""

    PENDING = "pending"
    APPROVED = "approved"
    USED = "used"
    DENIED = "denied"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


class ApprovalEvent(StrEnum):
    """What can happen to an approval."""

    APPROVE = "approve"
    DENY = "deny"
    USE = "use"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"


TRANSITIONS: Final[Transitions[ApprovalStatus, ApprovalEvent]] = Transitions(
    {
        (ApprovalStatus.PENDING, ApprovalEvent.APPROVE): ApprovalStatus.APPROVED,
        (ApprovalStatus.PENDING, ApprovalEvent.DENY): ApprovalStatus.DENIED,
        (ApprovalStatus.PENDING, ApprovalEvent.EXPIRE): ApprovalStatus.EXPIRED,
        (ApprovalStatus.PENDING, ApprovalEvent.SUPERSEDE): ApprovalStatus.SUPERSEDED,
        # What was approved and has not run yet can be taken back, and dies like a question.
        (ApprovalStatus.APPROVED, ApprovalEvent.DENY): ApprovalStatus.DENIED,
        (ApprovalStatus.APPROVED, ApprovalEvent.USE): ApprovalStatus.USED,
        (ApprovalStatus.APPROVED, ApprovalEvent.EXPIRE): ApprovalStatus.EXPIRED,
        (ApprovalStatus.APPROVED, ApprovalEvent.SUPERSEDE): ApprovalStatus.SUPERSEDED,
    }
)
"""Nothing leads out of ``used``, ``denied``, ``expired`` and ``superseded``, and only ``approved`` leads to
``used``: a call runs once, and never after a refusal."""


def sources_of(event: ApprovalEvent) -> tuple[ApprovalStatus, ...]:
    """The states in which an event can happen."""
    return tuple(state for state, possible in TRANSITIONS if possible is event)


@value_class
class Approval:
    """An exact snapshot of one planned call, and what was decided about it.

    ``run_id``, ``turn``, ``seq`` and ``call_id`` are the call's place in the run that asked.  ``caller`` is
    who asked and ``key`` the client key.  ``arguments`` are the canonical bytes that run, as ASCII text;
    ``arguments_shown`` are the same as the model wrote them, less the tool's private fields.
    ``arguments_digest`` is the SHA-256 of ``arguments``.  ``rule`` is the line of policy that asked.
    ``decided_by`` is a key's name, or a user of the machine.  ``words`` is the reason that was given.
    ``edited`` are canonical arguments that somebody put in place of the model's; empty for none.
    ``invocation_id`` is the execution, once there is one.
    """

    id: str
    run_id: str
    turn: int
    seq: int
    call_id: str
    caller: str
    key: str
    tool: str
    effect: str
    spec_digest: str
    arguments_digest: str
    arguments: str = field(repr=False)
    arguments_shown: Any = field(repr=False)
    rule: str
    created_at: float
    expires_at: float
    status: ApprovalStatus = ApprovalStatus.PENDING
    decided_by: str = ""
    decided_via: str = ""
    decided_at: float | None = None
    words: str = field(default="", repr=False)
    edited: str = field(default="", repr=False)
    invocation_id: str = ""

    def at(self, now: float) -> "Approval":
        """The same as it is at a time: what nobody decided or used until then has expired."""
        if now >= self.expires_at and (self.status, ApprovalEvent.EXPIRE) in TRANSITIONS:
            return replace(self, status=ApprovalStatus.EXPIRED)
        return self

    @property
    def runs(self) -> str:
        """The arguments that run, as JSON text: the model's, or what somebody put in their place."""
        return self.edited or self.arguments


@value_class
class Decided:
    """A decision: by whom, in which way, why, and with which arguments in place of the model's, if any.

    ``arguments`` are canonical JSON, already planned; empty for the model's own.  ``until`` is when an
    approval that is not used expires.
    """

    event: ApprovalEvent
    by: str
    via: str
    words: str = ""
    arguments: str = ""
    until: float = 0.0


@value_class
class ApprovalFilter:
    """Which approvals to list, newest first: ``limit`` at most, older than ``before`` (an id) if given.

    ``waiting`` are those that can still be decided at ``now``; ``caller`` is one caller's.
    """

    limit: int = 50
    before: str | None = None
    waiting: bool = False
    now: float = 0.0
    caller: str | None = None
    run_id: str | None = None


@runtime_checkable
class ApprovalLog(Protocol):
    """Approvals, shared by all processes that have the record open."""

    async def put_approvals(self, approvals: Sequence[Approval]) -> None:
        """Keep new approvals, all or none, committed on return.

        Raises :class:`~proxy.errors.StoreUnavailable` where they are not.
        """
        ...

    async def find_approvals(self, ids: Sequence[str]) -> Sequence[Approval]:
        """Those of these ids, in no order; unknown ones are left out.

        Raises :class:`~proxy.errors.StoreError`.
        """
        ...

    async def list_approvals(self, wanted: ApprovalFilter) -> Sequence[Approval]:
        """Approvals, newest first; raises :class:`~proxy.errors.StoreError`."""
        ...

    async def count_waiting(self, caller: str, now: float) -> int:
        """How many of a caller's can still be decided; raises :class:`~proxy.errors.StoreError`."""
        ...

    async def decide_approval(self, approval: Approval, decided: Decided, now: float) -> Approval:
        """Take a decision, if nobody was faster; committed on return.

        ``approval`` is the row as it was read.  What is returned is the row as it is then: with this
        decision, or with what was decided before.  Raises :class:`~proxy.errors.StoreError` where neither
        is known.
        """
        ...
