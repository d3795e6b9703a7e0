"""The texts about approvals that people and models read."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from proxy.base.chance import replayable
from proxy.base.plain_text import ascii_json
from proxy.records.approvals import Approval, ApprovalStatus
from proxy.records.rows import InvocationStatus
from proxy.relay.approvals.rules import agent_of
from proxy.tools.contract.redaction import MASK, mask_arguments
from proxy.tools.contract.spec import Redaction

_RAN: Final[Mapping[InvocationStatus | Literal[""], str]] = {
    "started": "has begun to run; its end is not on record",
    "interrupted": "was interrupted while it ran: nobody knows whether it took effect",
    "cancelled": "was cancelled while it ran",
    "error": "ended with an error",
}
"""What became of an approved call, where it is not simply that it has run."""


def notice(approvals: Sequence[Approval], *, url: str, by_caller: bool, again: bool = False) -> str:
    """Return the text for the client while calls wait: which calls, until when, and how to decide about
    them.

    ``url`` is the page where people decide; empty if there is none. ``by_caller`` says whether the caller
    may decide, and ``again`` whether the client has had this notice before.
    """
    lines = [f"- {_line(approval, url)}" for approval in approvals]
    call, these = ("This call is", "it") if len(approvals) == 1 else ("These calls are", "them")
    still = "still " if again else ""
    ids = " ".join(approval.id for approval in approvals)
    ways = [f"run `toolrelay approvals approve {ids}` (or `deny`)"]
    if url:
        ways.insert(0, f"open {url}")
    if by_caller:
        # A text approves only what it shows.
        if header := ", ".join(approval.id for approval in approvals if approval.fits_text):
            ways.append(f"send the next message with the header `x-toolrelay-approve: {header}`")
    else:
        ways.append(f"ask somebody who may approve {these}")
    return (
        f"{call} {still}waiting for approval and did not run:\n\n"
        + "\n".join(lines)
        + f"\n\nTo decide about {these}, {', or '.join(ways)}. Then send another message to continue."
    )


def question(approval: Approval) -> dict[str, Any]:
    """Return the arguments of the call that asks a client about an approval; the proxy wrote all of them."""
    return {
        "approval_id": approval.id,
        "tool": approval.tool,
        "arguments": approval.arguments_shown,
        "summary": _line(approval, beside=True),
        "effect": approval.effect,
        "why": approval.rule,
        "expires_at": _expires_at(approval),
    }


def arguments_text(approval: Approval) -> str:
    """Return all of the model's arguments as JSON on one line of ASCII, private fields masked.

    No character in it can hide others, or close a code span of Markdown that holds the text.
    """
    return ascii_json(approval.arguments_shown, compact=True).replace("`", "\\u0060")


def _line(approval: Approval, url: str = "", *, beside: bool = False) -> str:
    """Return one line about a waiting call: its tool, all its arguments or where to read them, and its id.

    ``beside`` says that all arguments are also in the field ``arguments`` beside the line.
    """
    show = f"`toolrelay approvals show {approval.id}`"
    if approval.fits_text:
        # A code span: a client that renders Markdown would hide some text, such as a comment of HTML.
        said, more = f"`{arguments_text(approval)}`", ""
        if approval.arguments_shown != mask_arguments(json.loads(approval.arguments), Redaction()):
            more = f'. "{MASK}" stands for a value that the tool keeps private; {show} shows it'
    elif beside:
        said, more = f"arguments of {len(approval.arguments):,} characters, all of them in `arguments`", ""
    else:
        said = f"arguments of {len(approval.arguments):,} characters, too long to be shown or approved here"
        more = f". Read all of them, and decide, with {show}" + (f" or at {url}" if url else "")
    until, agent = _moment(_expires_at(approval)), agent_of(approval)
    whose = f" for the agent {agent}" if agent else ""
    return f"{approval.tool} with {said}{whose} ({approval.id}, until {until}){more}"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _expires_at(approval: Approval) -> float:
    """Return the end of an approval as people are shown it; a replay shows the recorded one."""
    return replayable(f"expires {approval.id}", lambda: approval.expires_at)


def verdict_of(approval: Approval) -> str:
    """Return what the model reads about a call that was denied, expired or superseded."""
    why = f": {approval.reason}" if approval.reason else "."
    match approval.status:
        case ApprovalStatus.DENIED:
            return f"A person refused this call, so it did not run{why}"
        case ApprovalStatus.EXPIRED:
            return "The approval of this call expired before anybody used it, so the call did not run."
        case _:
            return f"The approval of this call is no longer valid, so the call did not run{why}"


def meaning_of(approval: Approval) -> str:
    """Describe the state of an approval in a sentence for people: whether its call runs, and what it waits
    for."""
    by = approval.decided_by or "somebody"
    who = by[0].upper() + by[1:]
    approved = f"{who} approved this call" + (" with other arguments" if approval.edited else "")
    end = _moment(approval.expires_at)
    match approval.status:
        case ApprovalStatus.PENDING:
            return f"This call has not run; it waits for a decision until {end}."
        case ApprovalStatus.APPROVED:
            return f"{approved}; it runs once, when its client sends the next request before {end}."
        case ApprovalStatus.USED:
            return f"{approved}, and it {_RAN.get(approval.outcome, 'has run')}."
        case ApprovalStatus.DENIED:
            return f"{who} denied this call, so it does not run."
        case ApprovalStatus.EXPIRED if approval.decided_at is None:
            return f"Nobody decided about this call before {end}, so it does not run."
        case ApprovalStatus.EXPIRED:
            return f"{approved}, but its client sent no request before {end}, so it does not run."
        case ApprovalStatus.SUPERSEDED:
            return f"{approved}, but it could no longer run."
