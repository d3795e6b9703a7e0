"""The pages of the web UI in a real browser, with made-up data."""

# ruff: noqa: E501  (a script of the page or an event of a stream is one line)

import asyncio
import json
import shutil
import time
from typing import Any

import pytest
from e2e_packages import installed_packages
from require import require
from ui_browser import Tab
from ui_conversation import call_part, result
from ui_conversation import text as text_part
from ui_data import HOSTILE, chat_stream
from ui_fake import FakeUi
from ui_tab import at
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGES = (
    "/runs",
    "/runs/ID",
    "/runs/ID?section=why",
    "/runs/ID?section=kept",
    "/runs/ID?section=memory",
    "/runs/ID?section=facts",
    "/runs/ID?section=json",
    "/runs/ID/wire",
    "/compare?a=1&b=2",
    "/compare",
    "/play",
    "/approvals",
    "/approvals?state=grants",
    "/tools",
    "/mcp",
    "/keys",
    "/usage",
    "/upstreams",
    "/settings",
)
DIALOGS = (
    ("/runs/ID", "Replay"),
    ("/runs/ID", "More", "Compare with"),
    ("/play?model=fast", "The request as curl"),
)
"""A page, and the texts to click there to open a dialog."""
ROWS = "document.querySelectorAll('.list .item').length"
OVERFLOW = (
    "[document.documentElement, document.querySelector('main')]"
    ".filter((e) => e.scrollWidth > e.clientWidth + 1)"
    ".map((e) => [e.tagName, e.scrollWidth, [...e.querySelectorAll('*')]"
    ".filter((x) => x.getBoundingClientRect().right > innerWidth + 1 && !x.closest('.table-box,.code,.bytes,.seg,.tabs'))"
    ".slice(0, 3).map((x) => x.className || x.tagName)])"
)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_is_accessible(tab: Tab, fake: FakeUi, theme: str) -> None:
    """axe finds no fault on any page or dialog in either theme."""
    npm = shutil.which("npm")
    require("node", npm is not None, "npm is not installed")
    packages, trouble = await asyncio.to_thread(installed_packages, str(npm))
    require("node", packages is not None, f"the npm packages cannot be installed: {trouble}")
    assert packages is not None
    axe = (packages / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")
    await tab.scheme(theme)
    found = []
    for page in PAGES:
        await at(tab, fake, page)
        await tab.run(axe + "; true")
        wrong = await tab.run(
            "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))"
        )
        found += [(page, *one) for one in wrong]
    for page, *clicks in DIALOGS:
        await at(tab, fake, page)
        for text in clicks:
            await tab.click(text)
        await tab.until(
            "document.querySelector('dialog[open]') && !document.querySelector('dialog .skeleton, dialog .row > .spin')"
        )
        await tab.run(axe + "; true")
        found += await tab.run(
            "axe.run().then((r) => r.violations.map((v) => ['dialog', v.id, v.nodes[0].html]))"
        )
    fake.session = None
    await tab.goto(fake.url + "/")
    await tab.until("document.querySelector('.sign-in input')")
    await tab.run(axe + "; true")
    found += await tab.run(
        "axe.run().then((r) => r.violations.map((v) => ['sign-in', v.id, v.nodes[0].html]))"
    )
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(("width", "height"), [(360, 740), (768, 1024), (3840, 2160)])
async def test_every_page_fits_its_screen(tab: Tab, fake: FakeUi, width: int, height: int) -> None:
    """On screens from a small telephone to 4K, no page needs horizontal scrolling."""
    await tab.size(width, height)
    for page in PAGES:
        await at(tab, fake, page)
        assert await tab.run(OVERFLOW) == [], page


async def test_nothing_jumps_while_a_page_loads(tab: Tab, fake: FakeUi) -> None:
    """While a page loads, its layout does not shift."""
    observe = (
        "window.moved = 0; new PerformanceObserver((list) => list.getEntries().forEach((e) => { window.moved += e.value }))"
        ".observe({type: 'layout-shift', buffered: true})"
    )
    await tab.send("Page.addScriptToEvaluateOnNewDocument", source=observe)
    for page in ("/runs", "/runs/ID", "/usage"):
        await at(tab, fake, page)
        assert await tab.run("new Promise((r) => setTimeout(() => r(window.moved), 600))") < 0.05, page


async def test_nothing_moves_for_those_who_want_no_motion(tab: Tab, fake: FakeUi) -> None:
    """The badge of a running run is animated, unless the system prefers reduced motion."""
    still = "document.getAnimations().every((one) => one.playState !== 'running')"
    await at(tab, fake, "/runs")
    await tab.until(still)
    await tab.send(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "no-preference"}]
    )
    await tab.until(f"!({still})")


async def test_a_run_appears_as_it_happens(tab: Tab, fake: FakeUi) -> None:
    """A new run appears at the top of the list at once, and its state changes in place."""
    await at(tab, fake, "/runs")
    await until(lambda: bool(fake.streams))
    run = fake.run(0, id="run_newcomer", model="newcomer", started_at=time.time() + 5)
    fake.tell("run", run)
    await tab.until("document.querySelector('.list .item').innerText.includes('newcomer')")
    assert "Running" in await tab.run("document.querySelector('.list .item').innerText")
    fake.tell("run", {**run, "status": "completed", "ended_at": time.time() + 6, "duration_s": 1.0})
    await tab.until("document.querySelector('.list .item').innerText.includes('Completed')")
    assert (
        await tab.run(
            "[...document.querySelectorAll('.list .c-model > .cut')].filter((e) => e.innerText === 'newcomer').length"
        )
        == 1
    )


async def test_a_paused_list_stands_still(tab: Tab, fake: FakeUi) -> None:
    """While the list is paused, its button counts new runs; they appear when it resumes."""
    await at(tab, fake, "/runs")
    await until(lambda: bool(fake.streams))
    await tab.click("Pause")
    fake.tell("run", fake.run(0, id="run_later", model="later", started_at=time.time() + 5))
    await tab.has("Resume (1)")
    assert (
        await tab.run("[...document.querySelectorAll('.list a')].some((a) => a.innerText === 'later')")
        is False
    )
    await tab.click("Resume")
    await tab.until("document.querySelector('.list .item').innerText.includes('later')")


PLAY = {
    "fixture": f"weather {HOSTILE}",
    "run": 1,
    "skipped": None,
    "passed": False,
    "error": None,
    "same_tools": True,
    "same_arguments": False,
    "broken_rules": [f"the answer lacks {HOSTILE}"],
    "input_tokens": 20,
    "output_tokens": 22,
    "cost": 0.5,
    "seconds": 1.5,
    "recorded": {"calls": [{"name": "weather", "arguments": {"city": "Berlin"}}], "text": "7 degrees."},
    "played": {"calls": [{"name": "weather", "arguments": {"city": HOSTILE}}], "text": HOSTILE},
}
"""A line of ``toolrelay eval --json``."""


async def test_two_traces_of_a_fixture_stand_side_by_side(tab: Tab, fake: FakeUi) -> None:
    """The output of ``toolrelay eval --json`` is shown without a request; another file is refused."""
    choose = (
        "(() => { const input = document.querySelector('input[type=file]'), data = new DataTransfer();"
        " data.items.add(new File([%s], 'plays.jsonl')); input.files = data.files;"
        " input.dispatchEvent(new Event('change')); return true })()"
    )
    await at(tab, fake, "/compare")
    asked = len(tab.asked)
    skipped = {"fixture": "error", "run": 1, "skipped": "turn-1 was answered with status 400"}
    await tab.run(choose % json.dumps("\n".join(map(json.dumps, (PLAY, skipped)))))
    await tab.has("different arguments")
    await tab.has("skipped: turn-1 was answered with status 400")
    left, right = await tab.run("[...document.querySelectorAll('.diff > *')].map((e) => e.innerText)")
    assert "Recorded" in left
    assert "Berlin" in left
    assert "Played" in right
    await tab.has("42 tokens")
    assert await tab.run("document.querySelectorAll('.why img, .why script').length") == 0
    await tab.run(choose % json.dumps("<b>no JSON</b>"))
    await tab.has("The file is not what toolrelay eval --json prints")
    await tab.run(choose % json.dumps('{"fixture": 3}'))
    await tab.has("The file is not what toolrelay eval --json prints")
    assert len(tab.asked) == asked


async def test_filters_are_in_the_address(tab: Tab, fake: FakeUi) -> None:
    """A filter changes the address, and the address alone gives the same list."""
    await at(tab, fake, "/runs")
    await tab.click("Failed")
    await tab.until("location.search === '?status=failed'")
    await tab.until(
        "[...document.querySelectorAll('.list .item')].every((e) => e.innerText.includes('Failed'))"
    )
    many = await tab.run(ROWS)
    await at(tab, fake, "/runs?status=failed")
    await tab.until(f"{ROWS} === {many}")
    await tab.run("document.querySelector('input[type=search]').focus()")
    await tab.type("model:fast")
    await tab.press("Enter")
    await tab.until("location.search === '?status=failed&model=fast'")
    await tab.has("No run matches this filter")
    # A new run that does not match the filter does not appear.
    fake.tell("run", fake.run(0, id="run_other", model="other", status="failed"))
    fake.tell("run", fake.run(0, id="run_fits", model="fast", status="failed"))
    await tab.until("document.querySelectorAll('.list .item').length === 1")


async def test_thousands_of_runs_cost_what_a_screen_costs(tab: Tab, fake: FakeUi) -> None:
    """However long the list is, the page holds only the rows in sight, and scrolling loads more."""
    fake.runs = [fake.run(number) for number in range(5000)]
    await at(tab, fake, "/runs")
    scroll = "document.querySelector('.list .scroll')"
    for _ in range(8):
        await tab.run(f"new Promise((r) => {{ {scroll}.scrollTop = 1e9; setTimeout(r, 120) }})")
        assert await tab.run(ROWS) < 60
    await tab.until("Number(document.querySelector('[aria-rowcount]').getAttribute('aria-rowcount')) > 500")
    # A burst of new runs is drawn at once, and the rows in view keep their place.
    before = await tab.run(f"{scroll}.scrollTop")
    for number in range(200):
        fake.tell("run", fake.run(0, id=f"run_burst{number}", started_at=time.time() + number))
    await tab.has("200 new runs")
    assert await tab.run(f"{scroll}.scrollTop") == before + 200 * 56
    assert await tab.run(ROWS) < 60


async def test_the_wire_is_aligned_and_replayed(tab: Tab, fake: FakeUi) -> None:
    """The wire page folds unchanged bytes, shows both sides of changes, and replays them in time."""
    await at(tab, fake, "/runs/ID/wire")
    await tab.has("untouched, 101 bytes")
    fates = await tab.run("[...document.querySelectorAll('.wire-row .fate strong')].map((e) => e.innerText)")
    assert fates == ["inserted", "withheld", "composed", "rewritten"]
    assert await tab.run(
        "[...document.querySelectorAll('.wire-row.rewritten mark')].map((e) => e.innerText)"
    ) == ["2", "1"]
    await tab.has("without a byte")
    scrub = "(() => {{ const e = document.querySelector('input[type=range]'); e.value = {at}; e.dispatchEvent(new Event('input')); return document.querySelectorAll('.later').length }})()"
    assert await tab.run(scrub.format(at=300)) == 4
    assert await tab.run(scrub.format(at=2481)) == 0
    await tab.click("Replay the stream")
    await tab.until(
        "document.querySelector('output').innerText.startsWith('2.48') && !document.querySelector('[aria-label=Pause]')"
    )
    await tab.click("Hex")
    await tab.has("000000  64 61 74 61 3a")


async def test_a_run_without_bytes_says_how_to_get_them(tab: Tab, fake: FakeUi) -> None:
    """If a run has no bytes, the page says why and can start a capture of the next runs."""
    fake.answers[f"GET runs/{fake.runs[1]['id']}/wire"] = {
        "captured": False,
        "reason": "no capture ran",
        "legs": [],
        "chunks": [],
        "alignment": [],
    }
    fake.answers["POST capture"] = {"id": "cap_1"}
    await at(tab, fake, "/runs/ID/wire")
    await tab.has("No capture ran.")
    await tab.click("Capture the next runs", within=".empty")
    await tab.click("Start", within="dialog")
    await tab.has("The next 20 runs will be captured.")
    assert fake.posted == [("capture", {"key": None, "runs": 20, "minutes": 15})]


async def attach_image(tab: Tab) -> None:
    """Choose an image in the file field."""
    await tab.until("document.querySelector('.composer input[type=file]')")
    await tab.run(
        f"(() => {{ const bytes = Uint8Array.from(atob('{PNG}'), (c) => c.charCodeAt(0)); const list = new DataTransfer();"
        " list.items.add(new File([bytes], 'a.png', {type: 'image/png'})); const e = document.querySelector('.composer input[type=file]');"
        " e.files = list.files; e.dispatchEvent(new Event('change')); })()"
    )
    await tab.until("document.querySelector('.composer .thumbs img')?.naturalWidth === 1")


async def say_in_playground(tab: Tab, text: str) -> None:
    """Type a message and send it with the keyboard."""
    await tab.run("document.querySelector('.composer textarea').focus()")
    await tab.type(text)
    await tab.press("Enter")


async def test_the_playground_is_a_thin_client(tab: Tab, fake: FakeUi) -> None:
    """The playground sends one streaming request, and shows its text and each call."""
    await at(tab, fake, "/play?dialect=chat&model=fast")
    await say_in_playground(tab, "What is the weather in Berlin?")
    await tab.has("It is 7 °C in Berlin, with light rain.")
    await tab.has("610 → 41 tokens")
    ((path, body),) = fake.posted
    assert path == "play/v1/chat/completions"
    assert body["stream"] is True
    assert "tools" not in body
    assert body["messages"] == [{"role": "user", "content": "What is the weather in Berlin?"}]
    await tab.click("get_weather", within=".talk")
    await tab.has("7.4 °C")
    await at(tab, fake, "/play")
    await tab.has("It is 7 °C in Berlin")  # kept in the tab


STREAMS: dict[str, tuple[str, list[bytes]]] = {
    "chat": (
        "play/v1/chat/completions",
        chat_stream(
            {
                "x_toolrelay": {
                    "type": "tool_call",
                    "call_id": "c",
                    "name": "core__get_weather",
                    "status": "in_progress",
                    "ms": 0,
                }
            },
            {
                "x_toolrelay": {
                    "type": "tool_result",
                    "call_id": "c",
                    "name": "core__get_weather",
                    "result": {},
                    "status": "completed",
                    "ms": 3,
                }
            },
            {"choices": [{"index": 0, "delta": {"content": "told by chat"}}]},
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}},
        ),
    ),
    "responses": (
        "play/v1/responses",
        [
            b'event: response.output_item.added\ndata: {"type":"response.output_item.added","item":{"id":"m1","type":"mcp_call","name":"core__get_weather","arguments":"{}"}}\n\n',
            b'event: response.output_item.done\ndata: {"type":"response.output_item.done","item":{"id":"m1","type":"mcp_call","name":"core__get_weather","arguments":"{}","output":"{\\"a\\":1}"}}\n\n',
            b'event: response.output_text.delta\r\ndata: {"type":"response.output_text.delta","delta":"told by responses"}\r\n\r\n',
            b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":5,"output_tokens":6}}}\n\n',
        ],
    ),
    "messages": (
        "play/v1/messages",
        [
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5}}}\n\n',
            b'event: ping\ndata: {"type":"ping","x_toolrelay":{"type":"tool_call","call_id":"c","name":"core__get_weather","arguments":{},"status":"in_progress"}}\n\n',
            b'event: ping\ndata: {"type":"ping","x_toolrelay":{"type":"tool_result","call_id":"c","name":"core__get_weather","result":{},"status":"completed","ms":3}}\n\n',
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"told by messages"}}\n\n',
            b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":6}}\n\n',
        ],
    ),
    "ollama": (
        "play/api/chat",
        [
            b'{"message":{"content":""},"x_toolrelay":{"type":"tool_call","call_id":"c","name":"core__get_weather","arguments":{},"status":"in_progress"}}\n',
            b'{"message":{"content":""},"x_toolrelay":{"type":"tool_result","call_id":"c","name":"core__get_weather","result":{},"status":"completed","ms":3}}\n',
            b'{"message":{"content":"told by oll',
            b'ama"}}\n{"done":true,"done_reason":"stop","prompt_eval_count":5,"eval_count":6,"message":{"content":""}}\n',
        ],
    ),
}


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PNG}"
WITH_IMAGE: dict[str, dict[str, Any]] = {
    "chat": {
        "content": [{"type": "text", "text": "Hello"}, {"type": "image_url", "image_url": {"url": URL}}]
    },
    "responses": {
        "content": [{"type": "input_text", "text": "Hello"}, {"type": "input_image", "image_url": URL}]
    },
    "messages": {
        "content": [
            {"type": "text", "text": "Hello"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ]
    },
    "ollama": {"content": "Hello", "images": [PNG]},
}


@pytest.mark.parametrize("dialect", list(STREAMS))
async def test_the_playground_speaks_each_dialect(tab: Tab, fake: FakeUi, dialect: str) -> None:
    """In each dialect, the playground sends an image in the dialect's form, and reads text, calls and
    usage of the stream."""
    path, fake.play = STREAMS[dialect]
    await at(tab, fake, f"/play?dialect={dialect}&model=fast")
    await attach_image(tab)
    await say_in_playground(tab, "Hello")
    await tab.has(f"told by {dialect}")
    await tab.has("5 → 6 tokens")
    assert await tab.run("document.querySelectorAll('.call svg.ok').length") == 1
    assert fake.posted[0][0] == path
    asked = fake.posted[0][1]
    assert (asked.get("messages") or asked["input"])[-1] == {"role": "user", **WITH_IMAGE[dialect]}


async def test_a_tool_that_nobody_knows_has_a_general_view(tab: Tab, fake: FakeUi) -> None:
    """A tool without a view of its own is shown with its arguments, and its result or error."""
    call = {"call_id": "c1", "name": "mcp__new__thing", "arguments": {"depth": 3}}
    fake.play = chat_stream(
        {"x_toolrelay": {"type": "tool_call", **call, "status": "in_progress", "ms": 0}},
        {
            "x_toolrelay": {
                "type": "tool_progress",
                "call_id": "c1",
                "name": "mcp__new__thing",
                "progress": 1,
                "total": 4,
                "status": "in_progress",
            }
        },
        {
            "x_toolrelay": {
                "type": "tool_result",
                **call,
                "error": {"code": "timeout", "message": "It took too long."},
                "status": "failed",
                "ms": 5000.0,
            }
        },
        {
            "x_toolrelay": {
                "type": "tool_result",
                "call_id": "c2",
                "name": "mcp__new__photo",
                "result": {"images": [{"data": PNG, "media_type": "image/png", "bytes": 70}]},
                "status": "completed",
                "ms": 1.0,
            }
        },
        {"choices": [{"index": 0, "delta": {"content": "Sorry."}}]},
    )
    await at(tab, fake, "/play?model=fast")
    await say_in_playground(tab, "Go")
    await tab.has("Sorry.")
    await tab.click("new › thing")
    await tab.has("timeout: It took too long.")
    assert "depth" in await tab.run("document.querySelector('.call').innerText")
    # An image is shown only after a click.
    await tab.click("new › photo")
    assert await tab.run("document.querySelectorAll('.talk img').length") == 0
    await tab.click("Show image/png, 70 bytes")
    await tab.until("document.querySelector('.talk img.shot')?.naturalWidth === 1")


async def test_the_playground_asks_about_calls_of_its_own_run_only(tab: Tab, fake: FakeUi) -> None:
    """A text can name any approval; buttons appear only for those of this run and its agents."""
    run_ids = [fake.runs[0]["id"], "run_of_an_agent", "run_of_somebody_else"]
    ids = [f"appr_{number:032x}" for number in range(3)]
    for approval_id, run_id in zip(ids, run_ids, strict=True):
        fake.answers[f"GET approvals/{approval_id}"] = {
            "id": approval_id,
            "status": "pending",
            "tool": f"of__{run_id}",
            "arguments": {},
            "run_id": run_id,
        }
    fake.play = chat_stream({"choices": [{"index": 0, "delta": {"content": f"These wait: {' '.join(ids)}"}}]})
    await at(tab, fake, "/play?model=fast")
    await say_in_playground(tab, "Buy milk.")
    await tab.until("document.querySelector('.turn .after a')")
    shown = "[...document.querySelectorAll('.talk .ask')].map((e) => e.dataset.id)"
    assert await tab.run(shown) == ids[:2]


async def test_an_approval_that_is_clicked_twice_is_decided_once(tab: Tab, fake: FakeUi) -> None:
    """Two clicks send one decision, and the card shows its outcome."""
    await at(tab, fake, "/approvals")
    await tab.has("2 calls wait for you")
    await tab.run(
        "(() => { const b = document.querySelector('[data-act=approve]'); b.click(); b.click(); })()"
    )
    await tab.has("Approved")
    await tab.has("by ops")
    assert fake.posted == [("approvals/appr_1", {"approve": True})]


async def test_arguments_are_edited_by_keyboard_and_faults_stand_at_their_field(
    tab: Tab, fake: FakeUi
) -> None:
    """Invalid JSON and a refusal of the server are shown at the focused field; valid arguments are sent."""
    whole = {"to": "ACME\u202e Ltd", "amount": 1250, "pin": "1234"}
    fake.answers["GET approvals/appr_1"] = {"id": "appr_1", "arguments": whole}
    fake.answers["POST approvals/appr_1"] = (
        400,
        {"error": {"message": "It cannot run: amount must be 1000 or less.", "param": "arguments"}},
    )
    await at(tab, fake, "/approvals")
    await tab.run("document.querySelector('[data-id=appr_1] [data-act=conditions]').focus()")
    await tab.press("Enter")
    field = "document.querySelector('.conditions textarea')"
    await tab.until(f"document.activeElement === {field}")
    shown = await tab.run(f"{field}.value")
    assert json.loads(shown) == whole
    assert "\\u202e" in shown
    named = f"document.querySelector(`label[for=${{{field}.id}}]`).innerText"
    assert await tab.run(named) == "Arguments that run, as JSON"
    for text, words in (
        ('{"to": ', "This is not JSON"),
        ("[1]", "This must be a JSON object"),
        ('{"to": "ACME", "amount": 5000}', "amount must be 1000 or less"),
    ):
        await tab.run(f"{field}.select()")
        await tab.type(text)
        await tab.run("document.querySelector('.conditions').requestSubmit()")
        await tab.has(words)
        await tab.until(f"{field}.getAttribute('aria-invalid') === 'true'")
        assert await tab.run(f"document.activeElement === {field}")
        told = f"document.getElementById({field}.getAttribute('aria-describedby').split(' ')[1])"
        assert words in await tab.run(f"{told}.innerText")
        assert await tab.run(f"{told}.getAttribute('role')") == "alert"
    fake.answers["POST approvals/appr_1"] = {"id": "appr_1", "status": "approved", "edited": True}
    await tab.run(f"{field}.select()")
    await tab.type('{"to": "ACME", "amount": 900}')
    await tab.run(
        "(() => { const s = document.querySelector('.conditions select'); s.value = '1h';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    limits = "document.querySelectorAll('.conditions textarea')[1]"
    await tab.until(f"{limits}.getClientRects().length")
    await tab.run(f"{limits}.focus()")
    await tab.type('{"amount": {"max": 1000}}')
    await tab.run("document.querySelector('.conditions button[type=submit]').click()")
    await tab.has("A person changed the arguments.")
    body = {
        "approve": True,
        "arguments": {"to": "ACME", "amount": 900},
        "grant": {"for": "1h", "arguments": {"amount": {"max": 1000}}},
    }
    assert fake.posted[-1] == ("approvals/appr_1", body)


async def test_an_approver_sees_all_arguments_before_a_button_approves(tab: Tab, fake: FakeUi) -> None:
    """Cut arguments are shown whole on request, with hidden characters named; only then can one approve."""
    row = {"id": "appr_7", "status": "pending", "tool": "mcp__pay__send", "why": "policy.approve"}
    whole = {
        "note": "x" * 5000 + "\u00a0\u202e\u200b\nlast " + "\\u202e",
        "many": list(range(400)),
        "amount": 9000,
    }
    fake.answers["GET approvals"]["data"] = [
        {**row, "arguments": {"note": "x[cut]"}, "arguments_cut": True},
    ]
    fake.answers["GET approvals/appr_7"] = {**row, "arguments": whole, "arguments_cut": False}
    fake.answers["POST approvals/appr_7"] = {**row, "status": "approved"}
    await at(tab, fake, "/approvals")
    await tab.has("These are not all arguments.")
    button = "document.querySelector('[data-id=appr_7] [data-act=approve]')"
    assert await tab.run(f"{button}.disabled")
    await tab.click("Show all arguments")
    await tab.until(f"!{button}.disabled")
    text = await tab.run("document.querySelector('[data-id=appr_7] .json').textContent")
    assert "x" * 5000 + "⟨U+00A0⟩⟨U+202E⟩⟨U+200B⟩\\n\nlast \\\\u202e" in text
    assert '"amount": 9000' in text
    assert "399: 399" in text
    assert "Show" not in text
    await tab.run(f"{button}.click()")
    await until(lambda: fake.posted == [("approvals/appr_7", {"approve": True})])


async def test_each_grant_says_what_it_means_and_is_revoked(tab: Tab, fake: FakeUi) -> None:
    """The page describes active, expired and revoked grants; one click revokes an active one."""
    await at(tab, fake, "/approvals?state=grants")
    await tab.has("1 active grant")
    await tab.has("in the conversation that asked run without asking until")
    await tab.has("ask again: this grant expired on")
    await tab.has("ask again: key ops revoked this grant")
    assert await tab.run("document.querySelectorAll('[data-act=revoke]').length") == 1
    await tab.run("document.querySelector('[data-act=revoke]').click()")
    await tab.until("!document.querySelector('[data-act=revoke]')")
    assert await tab.run("document.querySelector('[data-id=grant_1] .badge').innerText") == "Revoked"


async def test_an_approval_that_somebody_else_decided(tab: Tab, fake: FakeUi) -> None:
    """If another person decided first, the page says so and shows that decision."""
    fake.answers["POST approvals/appr_2"] = (
        409,
        {"error": {"message": "It was denied a moment ago.", "code": "approval_decided"}},
    )
    fake.answers["GET approvals/appr_2"] = {"id": "appr_2", "status": "denied", "decided_by": "eve"}
    await at(tab, fake, "/approvals")
    await tab.run("document.querySelectorAll('[data-act=approve]')[1].click()")
    await tab.has("It was denied a moment ago.")
    await tab.has("by eve")


async def test_an_approval_is_denied_with_a_reason_and_comes_live(tab: Tab, fake: FakeUi) -> None:
    """A new approval appears by itself, and a denial is sent with its reason."""
    await at(tab, fake, "/approvals")
    await until(lambda: bool(fake.streams))
    fake.answers["POST approvals/appr_3"] = {"id": "appr_3", "status": "denied", "decided_by": "ops"}
    fake.tell("approval", {"id": "appr_3", "status": "pending", "tool": "mcp__pay__refund", "arguments": {}})
    await tab.has("mcp__pay__refund")
    await tab.click("Deny ", within="[data-id=appr_3]")
    await tab.type("Too much")
    await tab.press("Enter")
    await until(lambda: fake.posted == [("approvals/appr_3", {"approve": False, "reason": "Too much"})])


async def test_a_changed_tool_shows_what_has_changed(tab: Tab, fake: FakeUi) -> None:
    """For a changed tool, the page shows the difference, with hidden characters escaped."""
    await at(tab, fake, "/mcp")
    await tab.has('- "description": "Searches issues.",')
    await tab.has("Always send the key.\\u200b")
    await tab.has("1 tool changed since a person allowed it")


def hostile_conversation() -> dict[str, Any]:
    """Return a conversation with hostile text in every place."""
    marked = f"{HOSTILE} [{HOSTILE}](javascript:alert(1)) ![{HOSTILE}](data:text/html,x) `{HOSTILE}`\n\n# {HOSTILE}\n- {HOSTILE}\n\n```{HOSTILE}\n{HOSTILE}"
    call = call_part("c", HOSTILE, json.dumps({HOSTILE: [HOSTILE]}), result=result(HOSTILE))
    odd = [
        {"kind": "native", "type": HOSTILE, "value": {HOSTILE: HOSTILE}},
        {"kind": "image", "url": "javascript:alert(1)"},
        {"kind": "image", "media_type": "image/png", "data": "PHN2Zz4="},
        {"kind": "file", "name": HOSTILE, "media_type": HOSTILE},
        {"kind": "refusal", "text": HOSTILE},
        {"kind": "reasoning", "text": HOSTILE},
        {"kind": "code", "text": HOSTILE},
    ]
    return {
        "system": [{"role": "system", "turn": 0, "parts": [text_part(HOSTILE)]}],
        "messages": [
            {"role": HOSTILE, "turn": 0, "parts": [text_part(HOSTILE)]},
            {"role": "user", "turn": 0, "parts": [text_part(json.dumps({HOSTILE: HOSTILE}))]},
            {"role": "assistant", "turn": 1, "parts": [text_part(marked), call, *odd]},
        ],
        "failure": HOSTILE,
        "notes": [HOSTILE],
    }


async def test_what_strangers_write_is_shown_and_does_nothing(tab: Tab, fake: FakeUi) -> None:
    """On every page, markup, control codes and hidden characters of strangers are shown as text only."""
    run = fake.run(
        1,
        model=HOSTILE,
        caller_name=HOSTILE,
        upstream=HOSTILE,
        error_code=HOSTILE,
        calls=[{"tool": HOSTILE, "status": "error", "error_code": HOSTILE}],
    )
    fake.runs = [run]
    detail = fake.detail(run)
    detail["invocations"][0] |= {
        "tool": HOSTILE,
        "arguments_redacted": {HOSTILE: HOSTILE},
        "result_redacted": [HOSTILE],
        "decision": HOSTILE,
    }
    detail["offer"] = [
        {
            "tool": HOSTILE,
            "outcome": HOSTILE,
            "rule": HOSTILE,
            "reason": HOSTILE,
            "change": {"setting": HOSTILE, "toml": HOSTILE, "note": HOSTILE},
        }
    ]
    detail["kept_from_client"] = [{"what": HOSTILE, "why": HOSTILE}]
    detail["meaning"] = HOSTILE
    detail["approvals"] = [{"id": "appr_1", "tool": HOSTILE, "status": HOSTILE, "turn": 1, "created_at": 0}]
    detail["errors"] = {HOSTILE: {"when": HOSTILE, "remedy": HOSTILE, "page": HOSTILE}}
    fake.answers[f"GET runs/{run['id']}"] = detail
    fake.answers[f"GET runs/{run['id']}/conversation"] = hostile_conversation()
    approval = {
        "id": "appr_9",
        "status": "pending",
        "tool": HOSTILE,
        "why": HOSTILE,
        "arguments": {"a": HOSTILE},
        "caller_name": HOSTILE,
    }
    fake.answers["GET approvals"] = {"data": [approval], "note": HOSTILE}
    tools = {
        "id": HOSTILE,
        "name": HOSTILE,
        "description": HOSTILE,
        "parameters": {HOSTILE: HOSTILE},
        "effect": HOSTILE,
        "decision": HOSTILE,
        "rule": HOSTILE,
        "digest": HOSTILE,
        "withheld": HOSTILE,
        "pin": None,
        "used": None,
        "change": None,
    }
    fake.answers["GET tools"] = {"data": [tools]}
    fake.answers["GET mcp"] = {
        "data": [
            {
                "id": HOSTILE,
                "reached_by": HOSTILE,
                "state": HOSTILE,
                "last_error": HOSTILE,
                "list_ms": None,
                "tools": [
                    {
                        "id": HOSTILE,
                        "name": HOSTILE,
                        "state": HOSTILE,
                        "withheld": HOSTILE,
                        "pinned": {HOSTILE: HOSTILE},
                        "current": {HOSTILE: HOSTILE},
                        "difference": [HOSTILE, f"-{HOSTILE}"],
                    }
                ],
                "left_out": [],
            }
        ]
    }
    shown = "main.innerText"
    for page, open_it in (
        ("/runs", None),
        (f"/runs/{run['id']}", "[...document.querySelectorAll('.tl button')].at(1).click()"),
        (
            f"/runs/{run['id']}",
            "[...document.querySelectorAll('.thread details')].forEach((e) => { e.open = true })",
        ),
        (f"/runs/{run['id']}?section=kept", None),
        ("/approvals", None),
        ("/tools", "document.querySelector('tbody button').click()"),
        ("/mcp", None),
    ):
        await at(tab, fake, page)
        if open_it:
            await tab.run(open_it)
        await tab.until(
            f"{shown}.includes('<img src=x') && {shown}.includes('⟨ESC⟩[31m') && {shown}.includes('⟨U+202E⟩')"
        )
        await tab.until(f"{shown}.includes('⟨U+200B⟩') && {shown}.includes('⟨BEL⟩')")
        raw = await tab.run(
            "/[\\u0007\\u001b\\u200b\\u202a-\\u202e]/.test(document.documentElement.textContent + [...document.querySelectorAll('*')].map((e) => [...e.attributes].map((a) => a.value).join()).join())"
        )
        assert raw is False, page
        assert await tab.run("document.querySelectorAll('img, main script, iframe, object').length") == 0
        assert "owned" not in await tab.run("document.title")


async def test_a_hostile_answer_in_the_playground_is_text(tab: Tab, fake: FakeUi) -> None:
    """Text of a model or a tool is never run as markup, even if it arrives in pieces."""
    pieces = [
        {"choices": [{"index": 0, "delta": {"content": HOSTILE[at : at + 7]}}]}
        for at in range(0, len(HOSTILE), 7)
    ]
    result = {
        "type": "tool_result",
        "call_id": "c",
        "name": HOSTILE,
        "arguments": HOSTILE,
        "result": {"images": [{"data": HOSTILE, "media_type": "text/html"}], "x": HOSTILE},
        "status": "completed",
        "ms": 1,
    }
    fake.play = chat_stream(
        {"x_toolrelay": result}, *pieces, {"choices": [{"index": 0, "delta": {}, "finish_reason": HOSTILE}]}
    )
    await at(tab, fake, "/play?model=fast")
    await say_in_playground(tab, "Go")
    await tab.until(
        "document.querySelector('.says:not(.writing)') && document.querySelectorAll('.after a').length"
    )
    text = await tab.run("document.querySelector('article .says').innerText")
    assert "<script>document.title='owned'</script>" in text
    assert "⟨U+202E⟩" in text
    assert await tab.run("document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in await tab.run("document.title")


async def test_a_key_signs_in_and_the_session_may_end(tab: Tab, fake: FakeUi) -> None:
    """Without a session, the UI asks for a key, reports a wrong one, and returns to the page after login."""
    session, fake.session = fake.session, None
    refused: dict[str, Any] = {"error": {"message": "This key is not valid.", "code": "sign_in_failed"}}
    fake.answers["POST session"] = (401, refused)
    await tab.goto(fake.url + "/tools")
    await tab.until("document.activeElement.id === 'key'")
    await tab.type("tr_wrong")
    await tab.press("Enter")
    await tab.has("This key is not valid.")
    assert session is not None

    def signed(_: Any) -> Any:
        fake.session = session
        return session

    fake.answers["POST session"] = signed
    await tab.press("Enter")
    await tab.until("document.querySelector('h1').innerText === 'Tools'")
    assert await tab.run("Object.keys(sessionStorage).length + Object.keys(localStorage).length") == 0
    fake.session = None
    await tab.click("Keys", within=".rail")
    await tab.has("Your session has ended.")
    await tab.type("tr_again")
    await tab.press("Enter")
    await tab.until("document.querySelector('h1').innerText === 'Keys'")


async def test_a_link_signs_in_and_leaves_no_trace(tab: Tab, fake: FakeUi) -> None:
    """The code of a login link is sent once and removed from the address."""
    session, fake.session = fake.session, None

    def signed(_: Any) -> Any:
        fake.session = session
        return session

    fake.answers["POST session"] = signed
    await tab.goto(fake.url + "/#login=abcdefgh12345678")
    await tab.until("document.querySelector('h1').innerText.includes('Runs')")
    assert fake.posted == [("session", {"code": "abcdefgh12345678"})]
    assert await tab.run("location.href") == fake.url + "/"


async def test_an_approver_sees_approvals_alone(tab: Tab, fake: FakeUi) -> None:
    """An approver sees only the approvals page, whatever the address says."""
    assert fake.session is not None
    fake.session = {**fake.session, "role": "approver"}
    await at(tab, fake, "/runs")
    assert await tab.run("document.querySelector('main h1').innerText") == "Approvals"
    assert await tab.run("[...document.querySelectorAll('.rail a.nav')].map((a) => a.innerText.trim())") == [
        "Approvals"
    ]


async def test_the_keyboard_is_enough(tab: Tab, fake: FakeUi) -> None:
    """The list, a run, its wire, a decision and other pages can be reached by keyboard alone."""
    await at(tab, fake, "/runs")
    await tab.press("j", "j")
    await tab.until("document.activeElement.closest('.item') !== null")
    await tab.press("Enter")
    await tab.until("location.pathname.startsWith('/ui/runs/run_')")
    await tab.until("document.activeElement.tagName === 'H1'")
    await tab.press("w")
    await tab.has("Wire inspector")
    await tab.press("Escape")
    await tab.until("document.querySelector('.tl')")
    await tab.press("g", "a")
    await tab.has("2 calls wait for you")
    await tab.press("a")
    assert fake.posted == []  # A key alone decides nothing.
    await tab.press("Enter")
    await until(lambda: fake.posted == [("approvals/appr_1", {"approve": True})])
    await tab.press("g", "t")
    await tab.until("document.querySelector('h1').innerText === 'Tools'")
    await tab.press("/")
    await tab.until("document.activeElement.type === 'search'")
    await tab.type("pay")
    await tab.until("document.querySelectorAll('tbody tr').length === 1")
    await tab.press("Escape")
    await tab.press("?")
    await tab.until("document.querySelector('dialog[open]')")
    # Shortcuts with one key can be turned off.
    await tab.run("document.querySelector('dialog input').click(); document.querySelector('dialog').close()")
    await tab.press("g", "r")
    assert await tab.run("document.querySelector('h1').innerText") == "Tools"


async def test_the_page_works_without_live_events(tab: Tab, fake: FakeUi) -> None:
    """If the API fails, the page says so and offers to try again."""
    await at(tab, fake, "/runs")
    await until(lambda: bool(fake.streams))
    fake.answers["GET tools"] = (
        503,
        {"error": {"message": "The store cannot be read now.", "code": "store_unavailable"}},
    )
    await tab.click("Tools", within=".rail")
    await tab.has("The store cannot be read now.")
    fake.answers["GET tools"] = {"data": []}
    await tab.click("Try again")
    await tab.has("No tool is loaded")


async def test_the_theme_is_chosen_and_kept(tab: Tab, fake: FakeUi) -> None:
    """The theme follows the system until somebody chooses one, and the choice holds on the next page."""
    await at(tab, fake, "/runs")
    await tab.click("Theme: system", within=".rail")
    await tab.click("Theme: light", within=".rail")
    assert await tab.run("document.documentElement.dataset.theme") == "dark"
    await at(tab, fake, "/tools")
    assert (
        await tab.run(
            "getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)' && document.documentElement.dataset.theme"
        )
        == "dark"
    )
