"""The fixtures of tests that look at the pages of the web UI with made-up data."""

from collections.abc import AsyncIterator

import pytest
from e2e_browser import chromium
from require import require
from ui_browser import Tab, opened
from ui_data import filled
from ui_fake import FakeUi, faking


@pytest.fixture
async def fake() -> AsyncIterator[FakeUi]:
    """Serve made-up data with the real files and their security policy."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    async with faking(filled(FakeUi())) as served:
        yield served


@pytest.fixture
async def tab(fake: FakeUi) -> AsyncIterator[Tab]:
    """A browser without motion; at the end, it must have met no problem and asked no other host."""
    async with opened("about:blank") as one:
        await one.size(1280, 900)
        await one.scheme("light")
        yield one
        assert one.problems == []
        assert one.dialogs == 0
        foreign = [url for url in one.asked if not url.startswith((fake.url, "about:", "data:", "blob:"))]
        assert foreign == []


async def at(tab: Tab, fake: FakeUi, page: str) -> None:
    """Show a page and wait until it is loaded."""
    await tab.goto(fake.url + page.replace("ID", fake.runs[min(1, len(fake.runs) - 1)]["id"]))
    await tab.until("document.querySelector('main h1') && !document.querySelector('.progress.on')")
    assert await tab.run("document.querySelector('main h1').innerText") not in (
        "Not found",
        "This page cannot be shown",
    )
