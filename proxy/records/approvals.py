"""Records of approvals. An approval is one planned call that a person must approve before it runs.

Times are seconds since the epoch (UTC). This module does not depend on a database.
"""

import re
from collections.abc import Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, runtime_checkable

from msgspec import Struct

from proxy.base.values import value_class
from proxy.records import MOST_REASON
from proxy.records.grants import Grant, GrantLog
from proxy.records.rows import InvocationStatus
from proxy.records.transitions import Transitions

__all__ = [
    "APPROVAL_ID",
    "MOST_IN_TEXT",
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
    "is_mention",
    "mention",
    "sources_of",
]

APPROVAL_ID: Final = r"appr_[0-9a-f]{32}"
"""The format of an approval id, as a regular expression."""

MOST_IN_TEXT: Final = 24 * 1024
"""The longest arguments, as :attr:`Approval.arguments`, that a text shows: all of the default size.

Nobody can approve from a text what it does not show, so longer ones are approved elsewhere.
"""

DecidedVia = Literal["header", "tool message", "item", "api", "page", "command"]
"""How a decision was made.

A header, a tool message or an item of the caller's next request can decide. So can the admin API, the page
of the web UI, or the command line.
"""

_NAMED: Final = re.compile(rf"(?<![0-9A-Za-z_])({APPROVAL_ID})(?![0-9A-Za-z])")
_MOST_NAMED: Final = 16
_MENTION: Final = "[A tool call waits for approval: {}]"
_MENTIONS: Final = re.compile(re.escape(_MENTION).replace(r"\{\}", APPROVAL_ID))


def approval_ids_in(text: str) -> tuple[str, ...]:
    """Return the first sixteen approval ids in a text, without duplicates."""
    return tuple(dict.fromkeys(_NAMED.findall(text)))[:_MOST_NAMED] if "appr_" in text else ()


def mention(approval_id: str) -> str:
    """Return the text that replaces, in a conversation, a question that the client was asked.

    The model reads this text only if the held turn is lost.
    """
    return _MENTION.format(approval_id)


def is_mention(text: str) -> bool:
    """Return whether a text is a mention and nothing else."""
    return _MENTIONS.fullmatch(text) is not None


class ApprovalStatus(StrEnum):
    """The state of an approval."""

    PENDING = "pending"
    APPROVED = "approved"
    USED = "used"
    DENIED = "denied"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


class ApprovalEvent(StrEnum):
    """The events of an approval."""

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
        # An approved call that has not run yet can still be denied, and can expire.
        (ApprovalStatus.APPROVED, ApprovalEvent.DENY): ApprovalStatus.DENIED,
        (ApprovalStatus.APPROVED, ApprovalEvent.USE): ApprovalStatus.USED,
        (ApprovalStatus.APPROVED, ApprovalEvent.EXPIRE): ApprovalStatus.EXPIRED,
        (ApprovalStatus.APPROVED, ApprovalEvent.SUPERSEDE): ApprovalStatus.SUPERSEDED,
    }
)
"""``used``, ``denied``, ``expired`` and ``superseded`` are final. Only ``approved`` leads to ``used``, so a
call runs once, and never after a refusal."""


def sources_of(event: ApprovalEvent) -> tuple[ApprovalStatus, ...]:
    """Return the states in which an event can happen."""
    return tuple(state for state, possible in TRANSITIONS if possible is event)


@value_class
class Approval:
    """An exact snapshot of one planned call, and the decision about it.

    ``run_id``, ``turn``, ``seq`` and ``call_id`` locate the call in the run that asked. ``caller`` is the
    caller of that run and ``key`` the client key. ``arguments`` are the model's arguments as canonical JSON
    in ASCII. ``arguments_shown`` are the same values, all of them, with the tool's private fields masked.
    ``arguments_digest`` is the SHA-256 of ``arguments``. ``rule`` is the policy setting that requires the
    approval. ``decided_by`` names a key or a user of the machine. ``reason`` is the reason for the
    decision. ``edited`` is canonical JSON that replaces ``arguments``; it is empty if nobody changed them.
    ``invocation_id`` is the id of the execution, empty until the call runs, and ``outcome`` is its status.
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
    reason: str = field(default="", repr=False)
    edited: str = field(default="", repr=False)
    invocation_id: str = ""
    outcome: InvocationStatus | Literal[""] = ""

    def at(self, now: float) -> "Approval":
        """Return the approval as it is at the time ``now``.

        The status is ``expired`` if nobody decided or used the approval before ``expires_at``.
        """
        if now >= self.expires_at and (self.status, ApprovalEvent.EXPIRE) in TRANSITIONS:
            return replace(self, status=ApprovalStatus.EXPIRED)
        return self

    @property
    def fits_text(self) -> bool:
        """Whether a text or a list shows all arguments of the call."""
        return len(self.arguments) <= MOST_IN_TEXT

    @property
    def effective_arguments(self) -> str:
        """The arguments that the call runs with, as JSON text: the edited ones if there are any, else the
        model's."""
        return self.edited or self.arguments


class Decided(Struct, frozen=True):
    """A decision.

    ``by`` names who decided, ``via`` how (:data:`DecidedVia`), and ``reason`` is the reason. ``arguments``
    is checked canonical JSON that replaces the model's arguments; empty to keep them. ``until`` is when an
    approved call expires if nobody uses it.
    """

    event: ApprovalEvent
    by: str
    via: str
    reason: str = ""
    arguments: str = ""
    until: float = 0.0


class ApprovalFilter(Struct, frozen=True):
    """Which approvals to list, newest first: at most ``limit``, and only those older than the id ``before``.

    ``waiting`` limits the list to those that can still be decided at ``now``, ``decided`` to all others,
    ``caller`` to one caller's, and ``run_id`` to one run's. ``tools`` limits it to tools that match one of
    these patterns.
    """

    limit: int = 50
    before: str | None = None
    waiting: bool = False
    decided: bool = False
    now: float = 0.0
    caller: str | None = None
    run_id: str | None = None
    tools: Sequence[str] | None = None


@runtime_checkable
class ApprovalLog(GrantLog, Protocol):
    """Approvals and their grants, shared by all processes that have the record open."""

    async def put_approvals(self, approvals: Sequence[Approval], most: int | None = None) -> bool:
        """Store new approvals of one caller, all or none; they are committed on return.

        Return ``False``, and store nothing, if the caller would then have more than ``most`` undecided
        approvals. Raise :class:`StoreUnavailable` if the approvals could not be committed.
        """

    async def find_approvals(self, ids: Sequence[str]) -> Sequence[Approval]:
        """Return the approvals with these ids, in any order, without unknown ids.

        Raise :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """

    async def list_approvals(self, wanted: ApprovalFilter) -> Sequence[Approval]:
        """Return approvals, newest first; raise :class:`StoreError` if the record cannot be
        read."""

    async def count_waiting(self, caller: str | None, now: float) -> int:
        """Count the approvals of a caller, or of all callers for ``None``, that can still be decided.

        Raise :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """

    async def decide_approval(
        self, approval: Approval, decided: Decided, now: float, grant: Grant | None = None
    ) -> Approval:
        """Record a decision, unless another one was recorded first; it is committed on return.

        ``approval`` is the approval as it was read. ``grant`` is stored together with the decision.
        Neither is stored if the approval already has a grant, or if its caller has
        :data:`~proxy.records.grants.MOST_GRANTS` active ones. Return the approval as it is on record
        afterwards: with this decision, with the earlier one, or undecided. Raise
        :class:`~proxy.base.errors.StoreError` if it cannot be read.
        """
