"""People decide on approvals in a real browser, over the real server."""

from pathlib import Path
from typing import Any

import pytest
from approvals_rig import ID, config_of, say, turns_of
from client_keys import bearer, declared
from e2e_browser import chromium
from openai import AsyncOpenAI
from probe_tools import WATCH
from raw_upstream import RawUpstream
from require import require
from running_proxy import Proxy, running
from ui_browser import Tab, opened

from proxy.records.approvals import ApprovalFilter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BOSS = "boss-boss-0123456789-abcdefghijkl"
ANNA = "anna-anna-0123456789-abcdefghijkl"
APP = "app-app-app-0123456789-abcdefghij"
KEYS = {
    "boss": declared(BOSS, admin=True),
    "anna": declared(ANNA, approves=["probe_tools__b*"]),
    "app": declared(APP),
}


def client_of(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key=APP, max_retries=0)


async def sign_in(tab: Tab, key: str) -> None:
    """Type a key into the form."""
    await tab.until("document.querySelector('.sign-in input')")
    await tab.run("document.querySelector('.sign-in input').focus()")
    await tab.type(key)
    await tab.press("Enter")
    await tab.has("No call waits for you")


@pytest.mark.parametrize("key", [BOSS, ANNA], ids=["administrator", "approver"])
async def test_an_approval_is_decided_once_in_the_browser(key: str, tmp_path: Path) -> None:
    """The call appears live with its badge; a double click approves it once, and the call runs once."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    WATCH.reset()
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(config_of(upstream.url, tmp_path, keys=KEYS, approvals={"by": "admin"})) as proxy,
        opened(f"http://127.0.0.1:{proxy.port}/ui/approvals") as tab,
        client_of(proxy) as client,
    ):
        await tab.size(1280, 900)
        await sign_in(tab, key)
        conversation: list[Any] = [{"role": "user", "content": "Buy milk."}]
        (approval_id,) = ID.findall(await say(client, "chat", conversation, stream=False))[:1]
        await tab.until(f"document.querySelector('[data-id={approval_id}]')")
        await tab.until(
            "[...document.querySelectorAll('.count')].some((e) => !e.hidden && e.innerText === '1')"
        )
        assert "milk" in await tab.run("document.querySelector('.ask .json').innerText")
        button = "document.querySelector('[data-act=approve]')"
        posted = len([url for url in tab.asked if url.endswith(f"/ui/api/approvals/{approval_id}")])
        await tab.run(f"(() => {{ const b = {button}; b.click(); b.click(); }})()")
        await tab.until("document.querySelector('.ask').innerText.includes('Approved')")
        await tab.has("approved this call; it runs once, when its client sends the next request before ")
        await tab.until("[...document.querySelectorAll('.count')].every((e) => e.hidden)")
        sent = [url for url in tab.asked if url.endswith(f"/ui/api/approvals/{approval_id}")]
        assert len(sent) - posted == 1
        conversation.append({"role": "user", "content": "Go on."})
        assert await say(client, "chat", conversation, stream=False) == "Bought."
        assert WATCH.finished == ["buy"]
        await tab.until("document.querySelector('.ask').innerText.includes('Approved and run')")
        log: Any = proxy.services.store
        (row,) = await log.list_approvals(ApprovalFilter())
        name = "config:boss" if key == BOSS else "config:anna"
        assert (row.decided_by, row.decided_via) == (f"key {name}", "page")
        if key == ANNA:
            links = "[...document.querySelectorAll('nav.rail a.nav')].map((a) => a.innerText.trim())"
            assert [text.split("\n")[0] for text in await tab.run(links)] == ["Approvals"]
            await tab.goto(f"http://127.0.0.1:{proxy.port}/ui/runs")
            await tab.until("document.querySelector('main h1')?.innerText === 'Approvals'")
        assert tab.problems == []


async def test_other_arguments_run_and_later_calls_by_a_grant(tmp_path: Path) -> None:
    """A person edits arguments and grants an hour: later calls run unasked until the grant is revoked."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    WATCH.reset()
    turns = turns_of("chat", stream=False)
    async with (
        RawUpstream(*turns, *turns, turns[0]) as upstream,
        running(config_of(upstream.url, tmp_path, keys=KEYS, approvals={"edit": True})) as proxy,
        opened(f"http://127.0.0.1:{proxy.port}/ui/approvals") as tab,
        client_of(proxy) as client,
    ):
        await tab.size(1280, 900)
        await sign_in(tab, ANNA)
        conversation: list[Any] = [{"role": "user", "content": "Buy milk."}]
        await say(client, "chat", conversation, stream=False)
        await tab.click("Edit and approve…")
        field = "document.querySelector('.conditions textarea')"
        await tab.until(f"document.activeElement === {field}")
        await tab.run(f"{field}.select()")
        await tab.type('{"what": 5}')
        await tab.run("document.querySelector('.conditions').requestSubmit()")
        await tab.has("cannot run with these arguments")
        await tab.has("what")
        await tab.run(f"{field}.select()")
        await tab.type('{"what": "tea"}')
        await tab.run(
            "(() => { const s = document.querySelector('.conditions select'); s.value = '1h';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        await tab.run("document.querySelector('.conditions').requestSubmit()")
        await tab.has("A person changed the arguments.")
        conversation.append({"role": "user", "content": "Go on."})
        assert await say(client, "chat", conversation, stream=False) == "Bought."
        assert "tea" in upstream.requests[-1].body.decode()
        again: list[Any] = [{"role": "user", "content": "Buy milk again."}]
        assert await say(client, "chat", again, stream=False) == "Bought."
        assert WATCH.finished == ["buy", "buy"]
        await tab.click("Grants")
        await tab.has("1 call let through")
        await tab.click("Revoke")
        await tab.has("revoked this grant")
        again = [{"role": "user", "content": "Buy milk once more."}]
        assert "waiting for approval" in await say(client, "chat", again, stream=False)
        assert tab.problems == []


async def test_another_persons_decision_appears(tmp_path: Path) -> None:
    """If the admin API denies a call meanwhile, the page shows the denial and removes the buttons."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(config_of(upstream.url, tmp_path, keys=KEYS)) as proxy,
        opened(f"http://127.0.0.1:{proxy.port}/ui/approvals") as tab,
        client_of(proxy) as client,
    ):
        await sign_in(tab, BOSS)
        told = await say(client, "chat", [{"role": "user", "content": "Buy milk."}], stream=False)
        (approval_id,) = ID.findall(told)[:1]
        await tab.until("document.querySelector('[data-act=deny]')")
        no = {"approve": False, "reason": "Not today"}
        answer = await proxy.ask(no, bearer(ANNA), path=f"/admin/approvals/{approval_id}")
        assert answer.status == 200
        await tab.has("Not today")
        await tab.until("!document.querySelector('[data-act=approve]')")
        await tab.has("No call waits for you")
        await tab.click("Decided")
        await tab.has("1 decision")
        assert tab.problems == []
