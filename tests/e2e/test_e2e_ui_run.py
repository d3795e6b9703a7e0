"""The page of a run in a real browser, with made-up data."""

# ruff: noqa: E501  (a script of the page is one line)

import pytest
from ui_browser import Tab
from ui_conversation import call_part, conversation, text
from ui_fake import FakeUi
from ui_tab import at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_a_run_reads_as_a_conversation(tab: Tab, fake: FakeUi) -> None:
    """The question, the calls with their results, and the answer stand first; what came before is folded."""
    await at(tab, fake, "/runs/ID")
    shown = await tab.run("[...document.querySelectorAll('.thread > article')].map((e) => e.innerText)")
    assert [one.split("\n")[0] for one in shown] == ["User", "claude-sonnet-5", "claude-sonnet-5"]
    assert "What is the weather in Berlin?" in shown[0]
    assert "turn 1 · 412 ms · 698 tokens · $0.0011" in shown[1]
    fields = "[...document.querySelectorAll('.call .fields > dt')].map((e) => e.innerText)"
    assert (await tab.run(fields))[:5] == ["city", "unit", "temperature c", "conditions", "wind kmh"]
    folded = (
        "[...document.querySelectorAll('.thread > .folded summary')].map((e) => e.innerText.split('\\n')[0])"
    )
    assert await tab.run(folded) == ["Instructions", "2 earlier messages"]
    assert "Hello, how can I help?" not in await tab.run("document.querySelector('.thread').innerText")
    await tab.click("2 earlier messages")
    await tab.has("Hello, how can I help?")
    await tab.click("Reasoning")
    await tab.has("I need the weather.")


async def test_what_a_tool_keeps_private_is_shown_on_demand(tab: Tab, fake: FakeUi) -> None:
    """A card shows what its tool lets be shown; a button shows the rest, and a picture waits for a click."""
    await at(tab, fake, "/runs/ID")
    card = "document.querySelector('.call[data-id=inv_1]')"
    assert "10384" not in await tab.run(f"{card}.innerText")
    await tab.click("Show all of it", within=".call[data-id=inv_1]")
    assert "10384" in await tab.run(f"{card}.innerText")
    assert await tab.run("document.querySelectorAll('main img').length") == 0
    await tab.click("Show image (image/png, 68 B)")
    await tab.until("document.querySelector('main img')?.naturalWidth === 1")


async def test_a_failed_call_says_what_happened_and_what_to_do(tab: Tab, fake: FakeUi) -> None:
    """A failed call shows the tool's own message, what its code means, a remedy, and the page of the error."""
    await at(tab, fake, "/runs/ID")
    said = await tab.run("document.querySelector('.call[data-id=inv_2] .failure').innerText")
    for part in (
        "timed out",
        "no answer within 160 ms",
        "The call took longer",
        "What to do: Raise the tool's timeout_s",
    ):
        assert part in said
    assert await tab.run("document.querySelector('.failure a.page').getAttribute('href')") == "/docs/errors"


async def test_a_failed_run_says_what_the_upstream_answered(tab: Tab, fake: FakeUi) -> None:
    """A failed run ends with the upstream's message, a remedy, and the link to the page about it."""
    run = fake.run(1, status="failed", error_code="model_not_found")
    help_ = {
        "when": "No upstream serves `m`.",
        "remedy": "Ask for another.",
        "page": "/docs/errors/model_not_found",
    }
    fake.answers[f"GET runs/{run['id']}"] = {
        **fake.detail(run),
        "run": run,
        "errors": {"model_not_found": help_},
    }
    fake.answers[f"GET runs/{run['id']}/conversation"] = conversation(
        run["id"],
        messages=[{"role": "user", "turn": 0, "parts": [text("Hi")]}],
        failure="The model `x` does not exist",
    )
    await at(tab, fake, f"/runs/{run['id']}")
    said = await tab.run("document.querySelector('.thread > .failure').innerText")
    assert "The model `x` does not exist" in said
    assert "Ask for another." in said
    link = "document.querySelector('.thread > .failure a.page')"
    assert await tab.run(f"[{link}.getAttribute('href'), {link}.innerText]") == [
        "/docs/errors/model_not_found",
        "About model_not_found",
    ]


async def test_an_answer_is_rendered_as_markdown_without_html(tab: Tab, fake: FakeUi) -> None:
    """Lists, tables, quotes and code are shown as such; links leave only by http, and name their host."""
    await at(tab, fake, "/runs/ID")
    answer = ".thread > article:last-of-type .md"
    count = {
        tag: await tab.run(f"document.querySelectorAll('{answer} {tag}').length")
        for tag in ("strong", "em", "ul", "ol", "table", "blockquote", "pre", "img", "b")
    }
    assert count == {
        "strong": 1,
        "em": 1,
        "ul": 1,
        "ol": 1,
        "table": 1,
        "blockquote": 1,
        "pre": 1,
        "img": 0,
        "b": 0,
    }
    assert await tab.run(f"document.querySelector('{answer} pre').innerText") == 'print("<b>hello</b>")'
    links = (
        f"[...document.querySelectorAll('{answer} a')].map((a) => [a.getAttribute('href'), a.target, a.rel])"
    )
    kind = ["_blank", "noopener noreferrer nofollow"]
    assert await tab.run(links) == [
        ["https://en.example.org/wiki/Spree_(river)", *kind],
        ["https://bare.example/x", *kind],
        ["https://img.example/p.png", *kind],
    ]
    assert await tab.run(f"document.querySelector('{answer} .host').innerText") == "en.example.org"
    assert "javascript:alert(1)" in await tab.run(f"document.querySelector('{answer}').innerText")
    sources = "[...document.querySelectorAll('.sources a')].map((a) => a.innerText)"
    assert await tab.run(sources) == ["the river", "https://bare.example/x"]


async def test_markdown_takes_linear_time(tab: Tab, fake: FakeUi) -> None:
    """Texts that make naive readers slow are read in a bounded number of steps."""
    await at(tab, fake, "/runs/ID")
    script = """(async () => {
      const base = performance.getEntriesByType("resource").map((one) => one.name).find((name) => name.endsWith("/conversation/markdown.js"));
      const { markdown } = await import(base);
      const took = (text) => { const began = performance.now(); markdown(text); return performance.now() - began; };
      const hostile = ["[", "![", "](", "**a ", "_a ", "*", "`", "`` ` ", "a](b", "[a](", "<https://", "> ", "- ", "|", "\\\\", "https://a ", "![](data:"];
      const slow = hostile.map((one) => [one, took(one.repeat(9000)), took(one.repeat(18000))]);
      return slow.filter(([, ...times]) => Math.max(...times) > 3000);
    })()"""
    assert await tab.run(script) == []


async def test_the_conversation_and_the_timeline_point_at_each_other(tab: Tab, fake: FakeUi) -> None:
    """Hovering, choosing and focusing a call or a row marks the other, by pointer and by keyboard."""
    await at(tab, fake, "/runs/ID")
    row, card = (
        "document.querySelector('tr[data-id=inv_1]')",
        "document.querySelector('.call[data-id=inv_1]')",
    )
    await tab.run(f"{card}.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))")
    await tab.until(f"{row}.classList.contains('lit')")
    await tab.run(f"{row}.dispatchEvent(new PointerEvent('pointerenter'))")
    await tab.until(f"{card}.classList.contains('lit')")
    await tab.run(f"{card}.open = false; {row}.querySelector('button').click()")
    await tab.until(f"{card}.classList.contains('on') && {card}.open")
    await tab.run("document.querySelector('article[data-linked=turn-2] p').click()")
    await tab.until("document.querySelector('tr[data-id=turn-2]').classList.contains('on')")
    await tab.run("document.activeElement.blur()")
    for place in ("turn-1", "inv_1", "inv_2"):
        await tab.press("j")
        await tab.until(f"document.activeElement.closest('[data-linked]')?.dataset.linked === '{place}'")
        await tab.until(f"document.querySelector('tr[data-id={place}]').classList.contains('lit')")


async def test_a_waiting_call_is_approved_in_its_place(tab: Tab, fake: FakeUi) -> None:
    """A call that waits has its buttons in the conversation, and a bar on the timeline."""
    run = fake.run(1, status="suspended", error_code=None)
    waits = {
        "id": "appr_1",
        "tool": "mcp__pay__send",
        "status": "pending",
        "turn": 1,
        "call_id": "call_9",
        "why": "policy.approve",
        "arguments": {"amount": 12.5},
        "created_at": run["started_at"] + 0.1,
        "expires_at": run["started_at"] + 3600,
        "run_id": run["id"],
    }
    detail = fake.detail(run) | {"run": run, "invocations": [], "approvals": [waits]}
    fake.answers[f"GET runs/{run['id']}"] = detail
    part = call_part("call_9", "mcp__pay__send", '{"amount":12.5}')
    fake.answers[f"GET runs/{run['id']}/conversation"] = conversation(
        run["id"], messages=[{"role": "assistant", "turn": 1, "parts": [part]}]
    )
    await at(tab, fake, f"/runs/{run['id']}")
    assert await tab.run("document.querySelector('tr[data-id=appr_1] .bar.held') !== null")
    await tab.run("document.querySelector('.call .ask [data-act=approve]').click()")
    await tab.until("document.querySelector('.call .ask.decided')")
    assert fake.posted == [("approvals/appr_1", {"approve": True})]


async def test_what_the_model_saw_is_one_click_away(tab: Tab, fake: FakeUi) -> None:
    """The requests to the upstream are shown as JSON, with the tools that the proxy put in."""
    await at(tab, fake, "/runs/ID")
    await tab.click("What the model saw")
    await tab.has("Request of turn 1")
    shown = await tab.run("document.querySelector('#talk').innerText")
    assert "core__get_weather" in shown
    assert "What is the weather in Berlin?" in shown


async def test_the_timeline_pins_numbers(tab: Tab, fake: FakeUi) -> None:
    """In the timeline, parallel calls overlap, waiting is a bar of its own, and a click pins the numbers."""
    await at(tab, fake, "/runs/ID")
    bars = "[...document.querySelectorAll('.call-row .bar')].map((e) => e.getBoundingClientRect())"
    assert await tab.run(f"(([a, b]) => a.left < b.right && b.left < a.right)({bars})")
    assert await tab.run("document.querySelectorAll('.tl .bar.wait').length") == 2
    await tab.click("get_weather", within=".tl")
    await tab.until("!document.querySelector('.pin').hidden")
    pinned = await tab.run("document.querySelector('.pin').innerText")
    assert "core__get_weather" in pinned
    assert "84 ms" in pinned
    assert "allowed by policy.allow" in pinned
    await tab.run(
        "document.querySelectorAll('.tl tbody tr')[1].dispatchEvent(new PointerEvent('pointerenter', {pointerType: 'mouse', clientX: 500, clientY: 400}))"
    )
    await tab.until("document.querySelector('.tip').innerText.includes('84 ms')")
    assert await tab.run("document.querySelectorAll('.budgets .meter').length") == 3


async def test_a_run_says_why_a_tool_was_not_offered(tab: Tab, fake: FakeUi) -> None:
    """A run names each tool's rule, and for a withheld tool the setting that would change it."""
    await at(tab, fake, "/runs/ID")
    await tab.click("Why (not)?")
    await tab.has("policy.approve")
    await tab.click("What would change this?")
    await tab.has('allow = ["core__*", "mcp__pay__send"]')


async def test_a_run_links_to_the_runs_of_its_agents(tab: Tab, fake: FakeUi) -> None:
    """A run that no shown call started has its conversation folded at the end, and a link."""
    inner = {**fake.runs[1], "id": "run_of_an_agent"}
    fake.runs.append(inner)
    await at(tab, fake, "/runs/ID")
    await tab.has("Runs that this one started")
    await tab.click("What researcher did")
    await tab.until("document.querySelector('.nested .thread .call')")
    assert await tab.run("Boolean(document.querySelector('a[href=\"/ui/runs/run_of_an_agent\"]'))")


async def test_a_run_shows_its_memory(tab: Tab, fake: FakeUi) -> None:
    """A run shows why no more was put back from memory, with links to the runs before and after."""
    await at(tab, fake, "/runs/ID?section=memory")
    await tab.has("The store has nothing for this answer.")
    await tab.has("Continued by")
    links = "[...document.querySelectorAll('.memory a')].map(a => a.getAttribute('href')).join(' ')"
    assert await tab.run(links) == "/ui/runs/run_before /ui/runs/run_after /ui/runs/run_before"


async def test_a_runs_actions(tab: Tab, fake: FakeUi) -> None:
    """The actions copy, replay, compare and save work, and say if they fail."""
    await tab.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    await at(tab, fake, "/runs/ID")
    await tab.click("More", within="main")
    await tab.click("Copy as curl")
    await tab.has("curl command copied.")
    assert await tab.run("navigator.clipboard.readText()") == "curl …"
    await tab.click("Replay")
    await tab.has("1 difference")
    await tab.run("document.querySelector('dialog').close()")
    await tab.click("More", within="main")
    await tab.click("Save as fixture")
    await tab.has("There is nothing here.")
    await tab.click("More", within="main")
    await tab.click("Compare with")
    await tab.click("same prompt", within="dialog")
    await tab.has("Compare two runs")
    assert [path for path, _ in fake.posted] == [f"runs/{fake.runs[1]['id']}/replay"]
