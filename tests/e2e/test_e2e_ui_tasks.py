"""What people come to the web UI for takes a few clicks from the list of runs."""

import pytest
from ui_browser import Tab
from ui_conversation import call_part, conversation
from ui_data import wire_of
from ui_fake import FakeUi
from ui_tab import at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MOST_CLICKS = 2
"""A stranger needs some seconds to find and click each thing; two of them fit into ten."""


class Clicks:
    """Clicks as a person does: only on what is visible, each counted."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.count = 0

    async def on(self, text: str, *, within: str = "main") -> None:
        """Click on something that shows a text."""
        await self.tab.click(text, within=within)
        self.count += 1

    async def sees(self, *texts: str) -> None:
        """Wait until the page shows the texts without scrolling sideways or further clicks."""
        for text in texts:
            await self.tab.has(text)
        assert self.count <= MOST_CLICKS


async def test_what_did_this_user_ask_yesterday(tab: Tab, fake: FakeUi) -> None:
    """The list itself shows questions, answers, callers and dates; typing a word finds a question."""
    run = fake.run(7, started_at=fake.now - 86_400, caller_name="ada")
    fake.runs.append(run)
    fake.texts[run["id"]] = {"question": "How do I return shoes?", "answer": "Within 30 days."}
    await at(tab, fake, "/runs")
    clicks = Clicks(tab)
    await tab.press("/")
    await tab.type("shoes")
    await clicks.sees("How do I return shoes?", "Within 30 days.", "ada · ")
    form = "new Intl.DateTimeFormat(undefined, {month: 'short', day: 'numeric'})"
    day = f"{form}.format({run['started_at'] * 1000})"
    assert await tab.run(f"document.querySelector('.item .status').innerText.includes({day})")
    assert clicks.count == 0


async def test_why_did_this_answer_cost_so_much(tab: Tab, fake: FakeUi) -> None:
    """A run's cost is beside its turns: each says its tokens, its time and its cost."""
    await at(tab, fake, "/runs")
    clicks = Clicks(tab)
    await clicks.on(fake.runs[1]["model"])
    await clicks.sees(
        "turn 1 · 412 ms · 698 tokens · $0.0011",
        "turn 2 · 610 ms · 698 tokens · $0.0011",
        "610 in, 88 out"[:3],
    )
    assert clicks.count == 1


async def test_which_tool_failed_and_why(tab: Tab, fake: FakeUi) -> None:
    """The failed call is open, with the tool's own message, its meaning and a remedy."""
    await at(tab, fake, "/runs")
    clicks = Clicks(tab)
    await clicks.on(fake.runs[1]["model"])
    await clicks.sees("files › read_text", "no answer within 160 ms", "The call took longer", "What to do:")
    assert clicks.count == 1


async def test_approve_this(tab: Tab, fake: FakeUi) -> None:
    """A run that waits is decided on its own page."""
    run = fake.runs[1] | {"status": "suspended", "tool_calls": 1}
    waits = {
        "id": "appr_1",
        "tool": "mcp__pay__send",
        "status": "pending",
        "turn": 1,
        "call_id": "call_9",
        "arguments": {"amount": 12.5},
        "created_at": run["started_at"] + 0.1,
        "expires_at": fake.now + 3600,
        "run_id": run["id"],
    }
    fake.answers[f"GET runs/{run['id']}"] = fake.detail(run) | {
        "run": run,
        "invocations": [],
        "approvals": [waits],
    }
    part = call_part("call_9", "mcp__pay__send", '{"amount":12.5}')
    fake.answers[f"GET runs/{run['id']}/conversation"] = conversation(
        run["id"], messages=[{"role": "assistant", "turn": 1, "parts": [part]}]
    )
    await at(tab, fake, "/runs")
    clicks = Clicks(tab)
    await clicks.on(run["model"])
    await clicks.on("Approve", within=".ask")
    await tab.until("document.querySelector('.ask.decided')")
    assert fake.posted == [("approvals/appr_1", {"approve": True})]
    assert clicks.count == 2


async def test_what_did_the_model_really_see(tab: Tab, fake: FakeUi) -> None:
    """The request as it went to the upstream is two clicks away."""
    fake.answers[f"GET runs/{fake.runs[1]['id']}/wire"] = wire_of(fake.runs[1]["id"])
    await at(tab, fake, "/runs")
    clicks = Clicks(tab)
    await clicks.on(fake.runs[1]["model"])
    await clicks.on("What the model saw")
    await clicks.sees("Request of turn 1", '"core__get_weather"', '"What is the weather in Berlin?"')
    assert clicks.count == 2
