"""What the state of an approval means, in a sentence for people."""

import re
from typing import Any

import pytest
from store_records import T0, approval

from proxy.records.approvals import ApprovalStatus
from proxy.relay.approvals.notice import meaning_of

BOSS: dict[str, Any] = {"decided_by": "key boss", "decided_at": T0 + 1}


@pytest.mark.parametrize(
    ("status", "changes", "said"),
    [
        ("pending", {}, "This call has not run; it waits for a decision until TIME."),
        (
            "approved",
            BOSS,
            "Key boss approved this call; it runs once, when its client sends the next request before TIME.",
        ),
        (
            "used",
            {**BOSS, "edited": '{"what":"milk"}'},
            "Key boss approved this call with other arguments, and it has run.",
        ),
        ("used", {**BOSS, "outcome": "success"}, "Key boss approved this call, and it has run."),
        ("used", {**BOSS, "outcome": "error"}, "Key boss approved this call, and it ended with an error."),
        (
            "used",
            {**BOSS, "outcome": "started"},
            "Key boss approved this call, and it has begun to run; its end is not on record.",
        ),
        (
            "used",
            {**BOSS, "outcome": "interrupted"},
            "Key boss approved this call, and it was interrupted while it ran: nobody knows whether it took "
            "effect.",
        ),
        ("denied", BOSS, "Key boss denied this call, so it does not run."),
        ("expired", {}, "Nobody decided about this call before TIME, so it does not run."),
        (
            "expired",
            BOSS,
            "Key boss approved this call, but its client sent no request before TIME, so it does not run.",
        ),
        ("superseded", BOSS, "Key boss approved this call, but it could no longer run."),
    ],
)
def test_each_state_is_one_sentence(status: str, changes: dict[str, Any], said: str) -> None:
    """The sentence says who decided, whether the call has run or will run, and until when it waits."""
    shown = meaning_of(approval(status=ApprovalStatus(status), **changes))
    assert re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "TIME", shown) == said
