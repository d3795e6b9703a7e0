"""What an operator set about approvals, and who may decide."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from proxy.approval_records import Approval
from proxy.errors import RequestError
from proxy.globs import fits

__all__ = ["MOST_ASKED", "MOST_WAITING", "ApprovalRules", "Decider", "unknown_approval"]

MOST_WAITING: Final = 100
"""Approvals of one caller that can wait at the same time."""

MOST_ASKED: Final = 8
"""Calls of one turn that somebody is asked about."""


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """``expires_s`` is how long a question waits, and an approval for its use, in seconds.

    ``by`` says who decides: whoever asked, or only administrators and approvers.  ``admin_only`` are patterns
    of tools for which it is always these.  ``url`` is where people decide, ``edit`` whether they may change
    the arguments.
    """

    enabled: bool = True
    expires_s: float = 3600.0
    by: Literal["caller", "admin"] = "caller"
    admin_only: Sequence[str] = ()
    edit: bool = False
    url: str = ""

    def by_caller(self, tool: str) -> bool:
        """Whether whoever asked may decide about calls of that tool."""
        return self.by == "caller" and not any(fits(tool, pattern) for pattern in self.admin_only)


@dataclass(frozen=True, slots=True)
class Decider:
    """Somebody who decides.

    ``name`` is what the record says.  ``caller`` is who they are as a caller of runs, empty for somebody who
    decides elsewhere; ``key`` is their client key.  ``tools`` are patterns of the tools that they may decide
    about as an approver, and ``("*",)`` for an administrator.
    """

    name: str
    caller: str = ""
    key: str = ""
    tools: Sequence[str] = ()

    def approves(self, tool: str) -> bool:
        """Whether they are an approver of that tool."""
        return any(fits(tool, pattern) for pattern in self.tools)

    def sees(self, approval: Approval) -> bool:
        """Whether an approval is their business."""
        return self.approves(approval.tool) or (bool(self.caller) and self.caller == approval.caller)

    def check(self, approval: Approval, rules: ApprovalRules) -> None:
        """Raise :class:`~proxy.errors.RequestError` (403) where they may not decide about what they see."""
        if rules.by_caller(approval.tool):
            return
        if not self.approves(approval.tool):
            raise RequestError(
                403,
                f"Only an approver may decide about {approval.id}: approvals of {approval.tool} are not for "
                "the caller that asked.",
                code="approval_not_allowed",
            )
        if self.key and self.key == approval.key:
            raise RequestError(
                403,
                f"Another approver must decide about {approval.id}: this key asked for it itself.",
                code="approval_not_allowed",
            )


def unknown_approval(approval_id: str) -> RequestError:
    """The same for an id that there is not and for one that is somebody else's."""
    return RequestError(
        404,
        f"There is no approval {approval_id[:40]!r}. Approvals that wait are listed by: toolrelay approvals "
        "list, or GET /admin/approvals.",
        code="approval_not_found",
    )
