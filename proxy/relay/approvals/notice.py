"""What people and models are told of approvals, in words."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import orjson

from proxy.approval_records import Approval, ApprovalStatus
from proxy.tools.contract.redaction import brief

__all__ = ["notice", "verdict_of"]

_MOST_SHOWN: Final = 400


def notice(approvals: Sequence[Approval], *, url: str, by_caller: bool, again: bool = False) -> str:
    """What the client is told while calls wait: what waits, until when, and how it is decided.

    ``url`` is where people decide, empty for no page; ``by_caller`` says that whoever asked may decide.
    ``again`` says that the same was told before.
    """
    lines = [_line(approval) for approval in approvals]
    these = "it" if len(approvals) == 1 else "them"
    call = "This call is" if len(approvals) == 1 else "These calls are"
    still = "still " if again else ""
    ids = " ".join(approval.id for approval in approvals)
    ways = [f"run `toolrelay approvals approve {ids}` (or `deny`)"]
    if url:
        ways.insert(0, f"open {url}")
    if by_caller:
        header = ", ".join(approval.id for approval in approvals)
        ways.append(f"send the next message with the header `x-toolrelay-approve: {header}`")
    else:
        ways.append("ask somebody who may approve it")
    return (
        f"{call} {still}waiting for approval and did not run:\n\n"
        + "\n".join(lines)
        + f"\n\nTo decide about {these}, {', or '.join(ways)}. Then send another message to continue."
    )


def _line(approval: Approval) -> str:
    until = datetime.fromtimestamp(approval.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"- {approval.tool} with {_short(approval)} ({approval.id}, until {until})"


def _short(approval: Approval) -> str:
    """The arguments in one line of ASCII, in which nothing can be made to look like something else."""
    text = orjson.dumps(brief(approval.arguments_shown)).decode()
    text = text.encode("ascii", "backslashreplace").decode().replace("`", "'")
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def verdict_of(approval: Approval) -> str:
    """What the model reads of a call that somebody did not let run, or nobody decided about in time."""
    match approval.status:
        case ApprovalStatus.DENIED:
            why = f": {approval.words}" if approval.words else "."
            return f"A person refused this call, so it was not made{why}"
        case ApprovalStatus.EXPIRED:
            return "Nobody used the approval of this call before it expired, so the call was not made."
        case _:
            why = f": {approval.words}" if approval.words else "."
            return f"The approval of this call does not count any more, so it was not made{why}"
