"""The page of approvals in a real browser: what a person reads before a decision, with made-up data."""

from typing import Any

import pytest
from ui_browser import Tab
from ui_conversation import conversation
from ui_fake import FakeUi
from ui_tab import at
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RULES = {"edit": False, "max_grant_s": 0}


def waiting(fake: FakeUi, number: int, **changes: Any) -> dict[str, Any]:
    """Return a call that waits for a person; those of one digest are equal."""
    run = fake.runs[1]["id"]
    fake.answers[f"GET runs/{run}/conversation"] = conversation(run)
    row = {
        "id": f"appr_{number}",
        "run_id": run,
        "tool": "mcp__pay__send",
        "caller": "key_1f",
        "caller_name": "webui",
        "status": "pending",
        "created_at": fake.now,
        "expires_at": fake.now + 3600,
        "arguments": {"amount": 42.5},
        "arguments_digest": "7c41",
        "spec_digest": "51b0",
        **changes,
    }
    fake.answers[f"POST approvals/{row['id']}"] = {"id": row["id"], "status": "approved", "decided_by": "ops"}
    return row


async def test_the_question_stands_above_the_arguments(tab: Tab, fake: FakeUi) -> None:
    """Before the arguments stand the user's question and the last turns; buttons name what they do."""
    fake.answers["GET approvals"] = {"data": [waiting(fake, 1)], "rules": RULES}
    await at(tab, fake, "/approvals")
    await tab.until("document.querySelector('.ask .context blockquote')")
    shown = await tab.run("document.querySelector('.ask').innerText")
    question, arguments = shown.index("What is the weather in Berlin?"), shown.index("amount")
    assert shown.index("webui asked") < question < arguments
    assert "Before pay › send it called get_weather, files › read_text" in shown
    buttons = "[...document.querySelectorAll('.ask .buttons button')].map((e) => e.innerText.trim())"
    assert await tab.run(buttons) == ["Approve pay › send", "Deny pay › send…"]


async def test_equal_calls_are_decided_together_on_purpose_only(tab: Tab, fake: FakeUi) -> None:
    """Equal calls share a group; each is decided alone, unless the box is ticked, and then all alike."""
    rows = [waiting(fake, number) for number in range(3)] + [waiting(fake, 9, arguments_digest="other")]
    fake.answers["GET approvals"] = {"data": rows, "rules": RULES}
    await at(tab, fake, "/approvals")
    await tab.has("3 equal calls of pay › send")
    assert await tab.run("document.querySelectorAll('.equal').length") == 1
    await tab.click("Approve pay › send", within=".equal")
    await until(lambda: fake.posted == [("approvals/appr_0", {"approve": True})])
    await tab.click("Show the other 2")
    await tab.run("document.querySelector('.equal input[type=checkbox]').click()")
    await tab.click("Approve pay › send 2 times", within=".equal")
    await until(lambda: len(fake.posted) == 3)
    assert sorted(path for path, _ in fake.posted) == [
        "approvals/appr_0",
        "approvals/appr_1",
        "approvals/appr_2",
    ]
    await tab.until("document.querySelectorAll('.equal .ask.decided').length === 3")
    assert await tab.run("document.querySelectorAll('.ask:not(.decided)').length") == 1


async def test_a_waiting_call_leads_to_its_place_in_the_run(tab: Tab, fake: FakeUi) -> None:
    """The link opens the run with the call chosen, in the conversation and on the timeline."""
    row = waiting(fake, 1, invocation_id="inv_1", status="used")
    fake.answers["GET approvals"] = {"data": [row], "rules": RULES}
    await at(tab, fake, "/approvals?state=decided")
    await tab.click("Show it in its run")
    await tab.until("document.querySelector('tr[data-id=inv_1]').classList.contains('on')")
    await tab.until("document.querySelector('.call[data-id=inv_1]').classList.contains('on')")
