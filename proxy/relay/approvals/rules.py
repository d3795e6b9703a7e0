"""The operator's settings for approvals, who may decide, and which agent asked."""

import re
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from proxy.base.errors import RequestError
from proxy.base.globs import fits
from proxy.records.approvals import Approval

MOST_WAITING: Final = 100
"""The most approvals of one caller that can wait at the same time."""

MOST_ASKED: Final = 8
"""The most calls of one turn that can wait for approval."""

_BY_AGENT: Final = re.compile(r"agent ([^\s:]+): ")


def rule_of_agent(agent: str, rule: str) -> str:
    """Return the rule of an approval that the agent of that name asked for; empty for no agent."""
    return f"agent {agent}: {rule}" if agent else rule


def agent_of(approval: Approval) -> str:
    """Return the name of the agent whose call waits; empty for a call of the client's own run."""
    found = _BY_AGENT.match(approval.rule)
    return found[1] if found else ""


def own_rule(approval: Approval) -> str:
    """Return the policy settings that require an approval, without the name of the agent that asked."""
    return _BY_AGENT.sub("", approval.rule, count=1)


class ApprovalRules(Struct, frozen=True):
    """The settings ``approvals``.

    ``expires_s`` is how long a call waits for a decision, and an approved call for its use, in seconds.
    ``by`` says who decides: the caller that asked, or only administrators and approvers. ``admin_only`` are
    patterns of tools about which only administrators and approvers decide in any case. ``url`` is the page
    where people decide. ``edit`` says whether they may change the arguments. ``max_grant_s`` is the
    longest duration of a grant, in seconds; 0 if nobody can give one.
    """

    enabled: bool = True
    expires_s: float = 3600.0
    by: Literal["caller", "admin"] = "caller"
    admin_only: Sequence[str] = ()
    edit: bool = False
    url: str = ""
    max_grant_s: float = 86400.0

    def by_caller(self, tool: str) -> bool:
        """Return whether the caller that asked may decide about calls of that tool."""
        return self.by == "caller" and not any(fits(tool, pattern) for pattern in self.admin_only)


class Decider(Struct, frozen=True):
    """A person or program that decides.

    ``name`` is stored in the record. ``caller`` is its identity as a caller of runs, empty for decisions by
    the admin API or the command line. ``key`` is its client key. ``tools`` are patterns of the tools that
    it is an approver of, ``("*",)`` for an administrator. ``player`` is its identity as a caller of runs in
    the playground of the web UI.
    """

    name: str
    caller: str = ""
    key: str = ""
    tools: Sequence[str] = ()
    player: str = ""

    def approves(self, tool: str) -> bool:
        """Return whether the decider is an approver of that tool."""
        return any(fits(tool, pattern) for pattern in self.tools)

    def sees(self, approval: Approval) -> bool:
        """Return whether the decider may see an approval."""
        return self.approves(approval.tool) or (bool(self.caller) and self.caller == approval.caller)

    def check(self, approval: Approval, rules: ApprovalRules) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` (403) if the decider may not decide about an
        approval."""
        if rules.by_caller(approval.tool):
            return
        if not self.approves(approval.tool):
            raise RequestError(
                403,
                f"Only an approver may decide about {approval.id}: callers may not approve their own "
                f"calls of {approval.tool}.",
                code="approval_not_allowed",
            )
        if (self.key and self.key == approval.key) or (self.player and self.player == approval.caller):
            raise RequestError(
                403,
                f"Another approver must decide about {approval.id}: you started the run that asked for it.",
                code="approval_not_allowed",
            )


def unknown_approval(approval_id: str) -> RequestError:
    """Return the error for an unknown id; it is the same for another caller's approval, which must stay
    secret."""
    return RequestError(
        404,
        f"There is no approval {approval_id[:40]!r}. To list those that wait, run `toolrelay approvals list` "
        "or send GET /admin/approvals.",
        code="approval_not_found",
    )
