"""The demo's web UI in a real browser, over the real server."""

import asyncio
import zipfile
from pathlib import Path

import pytest
from e2e_browser import chromium
from require import require
from ui_browser import opened
from ui_pictures import demo
from waiting import until

from proxy.commands.demo import NOTE, PROGRAM, QUESTIONS
from proxy.upstreams.recorded.fixtures import load_turns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGES = {
    "play": "Playground",
    "approvals": "Approvals",
    "tools": "Tools",
    "mcp": "MCP servers",
    "keys": "Keys",
    "usage": "Usage",
    "upstreams": "Upstreams",
    "settings": "Settings",
}
BROKEN = ("This page cannot be shown", "Not found")


async def test_the_first_tool_call_is_one_click_away() -> None:
    """The demo's link signs in, one button starts a run that appears live, and every page opens."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    async with demo() as link, opened(link) as tab:
        await tab.size(1280, 900)
        await tab.scheme("light")
        address = link.partition("/#")[0]
        await tab.has("The first tool call is one click away")
        assert "login" not in await tab.run("location.href")
        await tab.click("Ask the demo question")
        await tab.until("document.querySelector('.list .item').innerText.includes('Completed')")
        tools = await tab.run("document.querySelector('.list .item .c-tools').innerText")
        assert "get_current_time" in tools
        assert "get_weather" in tools
        await tab.run("document.querySelector('.list .item a').click()")
        await tab.until("document.querySelectorAll('.tl .call-row').length === 2")
        await tab.has("What time is it in Berlin, and what is the weather there?")
        await tab.has("The temperature in Berlin is 7.4 degrees Celsius")
        assert await tab.run("document.querySelectorAll('.thread .call .fields').length") == 4
        await tab.click("Why (not)?", within="main")
        await tab.has("policy.allow lacks")
        for page, title in PAGES.items():
            await tab.goto(f"{address}/{page}")
            await tab.until("document.querySelector('main h1') && !document.querySelector('.progress.on')")
            shown = await tab.run("document.querySelector('main h1').innerText")
            assert shown == title, (page, shown)
            text = await tab.run("main.innerText")
            assert not any(words in text for words in BROKEN), page
        assert tab.problems == []
        assert all(url.startswith((address, "about:", "data:", "blob:")) for url in tab.asked)


async def test_every_run_of_the_demo_has_its_bytes(tmp_path: Path) -> None:
    """The demo keeps each run's bytes, which a replay compares, the wire page shows and a fixture saves."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    async with demo() as link, opened(link) as tab:
        await tab.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        await tab.click("Ask the demo question")
        await tab.until("document.querySelector('.list .item').innerText.includes('Completed')")
        await tab.run("document.querySelector('.list .item a').click()")
        await tab.until("document.querySelectorAll('.tl .call-row').length === 2")
        run = await tab.run("location.pathname")
        await tab.click("Replay", within="main")
        await tab.has("The same as recorded")
        # There is no note: the tools are loaded and the bytes were compared.
        assert not await tab.run("document.querySelectorAll('dialog :is(details, .diff)').length")
        await tab.press("Escape")
        await tab.until("!document.querySelector('dialog')")
        await tab.click("More", within="main")
        await tab.click("Save as fixture")
        saved = tmp_path / f"{run.rpartition('/')[2]}.zip"
        await until(saved.exists)
        await tab.run(
            "[...document.querySelectorAll('a.btn')].find((e) => e.innerText.includes('Wire')).click()"
        )
        await tab.has("untouched, ")
        fates = (
            "[...new Set([...document.querySelectorAll('.wire-row .fate strong')].map((e) => e.innerText))]"
        )
        assert {"inserted", "withheld"} <= set(await tab.run(fates))
        assert not await tab.run("document.querySelector('main').innerText.includes('Capture the next runs')")
        assert tab.problems == []
    with zipfile.ZipFile(saved) as archive:
        await asyncio.to_thread(archive.extractall, tmp_path)
    first, second = load_turns([tmp_path])
    assert (first.status, second.status) == (200, 200)
    assert b"get_current_time" in (first.sse or b"")
    assert (tmp_path / saved.stem / "client" / "request.json").exists()


async def test_the_playground_offers_every_recorded_question() -> None:
    """Each question is one click away, that for a program with its dialect and declaration; tools are chosen
    from a list."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    async with demo() as link, opened(link) as tab:
        await tab.has("The first tool call is one click away")
        await tab.goto(f"{link.partition('/#')[0]}/play")
        await tab.until("document.querySelector('.suggest .btn')")
        offered = await tab.run(
            "[...document.querySelectorAll('.suggest .btn span')].map((e) => e.innerText)"
        )
        assert offered == [*(question for question, _ in QUESTIONS), NOTE[0], PROGRAM]
        await tab.click(PROGRAM)
        await tab.until("document.querySelector('.turn .after a')")
        said = await tab.run("document.querySelector('article.turn').innerText")
        assert "run_program" in said or "7.4" in said, said
        assert await tab.run("document.querySelector('.options select').value") == "messages"
        await tab.click("New conversation")
        pick = "document.querySelectorAll('.options select')[1]"
        await tab.run(f"({pick}.value = 'chosen', {pick}.dispatchEvent(new Event('change')))")
        await tab.until("document.querySelector('.pick-list label')")
        await tab.run("document.querySelector('.pick input[type=search]').focus()")
        await tab.type("weather")
        await tab.until("document.querySelectorAll('.pick-list label').length === 1")
        await tab.run("document.querySelector('.pick-list input').click()")
        await tab.has("1 of ")
        await tab.click("The request as curl, Python, Node")
        await tab.has("x-toolrelay-tools: core__get_weather")
        assert tab.problems == []


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "ollama"])
async def test_the_playground_asks_the_real_server(dialect: str) -> None:
    """In each dialect, the playground shows an answer with its calls, and goes on after an approval."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    async with demo() as link, opened(link) as tab:
        await tab.has("The first tool call is one click away")
        await tab.goto(f"{link.partition('/#')[0]}/play?dialect={dialect}")
        await tab.until("document.querySelector('.suggest .btn')")
        await tab.run("document.querySelector('.suggest .btn').click()")
        await tab.until("document.querySelector('.turn .after a')")
        assert await tab.run("document.querySelectorAll('.call svg.ok').length") == 2
        assert "7.4" in await tab.run("document.querySelector('article .says').innerText")
        await tab.click("New conversation")
        await tab.run("document.querySelector('.composer textarea').focus()")
        await tab.type(NOTE[0])
        await tab.press("Enter")
        await tab.click("Approve", within=".talk .ask")
        await tab.click("Continue", within=".talk")
        await tab.has("I left the note for Ada")
        assert tab.problems == []
