"""People log in to the web UI in a real browser, at a real OpenID provider."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from approvals_rig import ID
from chat_script import reply
from child_server import reserved_port
from e2e_browser import chromium
from openai import AsyncOpenAI
from proxy_process import ProxyProcess, serving
from raw_upstream import RawUpstream
from real_openid import OpenIdProvider, openid_process
from require import require
from ui_browser import Tab, opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

APP = "app-app-app-0123456789-abcdefghij"
ACCOUNTS = {
    "olga": ["platform"],
    "lea": ["leads"],
    "mail": ["mailers"],
    "dev": ["developers"],
    "guest": ["guests"],
}
ROLES = """\
[auth.jwt.roles.platform]
admin = true
[auth.jwt.roles.leads]
approves = ["core__*"]
[auth.jwt.roles.mailers]
approves = ["mail__*"]
[auth.jwt.roles.developers]
models = ["m"]
"""
CALL = ("call_1", "core__get_current_time", '{"timezone": "UTC"}')


@asynccontextmanager
async def company(
    scripts: Path, folder: Path, upstream: str = "http://127.0.0.1:9/v1"
) -> AsyncIterator[tuple[ProxyProcess, OpenIdProvider, str]]:
    """Run a provider with accounts, and a proxy that lets them log in; yield both and the proxy's address."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        async with openid_process(scripts, url=url, accounts=ACCOUNTS) as provider:
            (folder / "toolrelay.toml").write_text(
                f'[server]\nport = {port}\n[upstreams.demo]\nbase_url = "{upstream}"\napi_key = ""\n'
                '[policy]\nallow = ["core__*"]\napprove = ["core__get_current_time"]\n'
                f'[auth]\nmode = "keys"\n[auth.jwt]\nissuer = "{provider.issuer}"\n'
                f'networks = ["127.0.0.0/8"]\n{ROLES}[keys.app]\nsecret = "env:APP_KEY"\n'
                '[approvals]\nby = "admin"\n[store]\ncontent = "all"\n'
                f'[ui.login]\nclient_id = "toolrelay-ui"\nclient_secret = "env:UI_SECRET"\nurl = "{url}"\n'
            )
            secrets = {"APP_KEY": APP, "UI_SECRET": "secret-of-the-ui"}
            async with serving(folder, env=secrets) as running:
                yield running, provider, url
        said = "".join([*running.lines, *running.log])
        assert not any(secret in said for secret in secrets.values())


async def log_in(tab: Tab, provider: OpenIdProvider, name: str) -> None:
    """Choose the provider on the sign-in page, log in there, and agree."""
    await tab.click(f"Sign in with {provider.issuer.removeprefix('http://')}")
    await tab.until("document.querySelector('input[name=login]')")
    await tab.run(
        f"(() => {{ document.querySelector('input[name=login]').value = {json.dumps(name)};"
        " document.querySelector('input[name=password]').value = 'any';"
        " document.querySelector('form').submit(); })()"
    )
    await tab.until("[...document.querySelectorAll('button')].some((e) => e.innerText.includes('Continue'))")
    await tab.run("document.querySelector('form').submit()")


async def pages_of(tab: Tab) -> list[str]:
    """Return the pages that the navigation shows."""
    await tab.until("document.querySelector('nav.rail a.nav')")
    texts = await tab.run("[...document.querySelectorAll('nav.rail a.nav')].map((a) => a.innerText.trim())")
    return [text.split("\n")[0] for text in texts]


async def test_an_administrator_logs_in_and_out(scripts: Path, tmp_path: Path) -> None:
    """The login returns to the page that was open, and signing out ends the provider's session, too."""
    async with company(scripts, tmp_path) as (_, provider, url), opened(f"{url}/ui/usage?days=7") as tab:
        await tab.size(1280, 900)
        await log_in(tab, provider, "olga")
        await tab.until("document.querySelector('main h1')?.innerText === 'Usage'")
        assert await tab.run("location.pathname + location.search") == "/ui/usage?days=7"
        assert "Settings" in await pages_of(tab)
        assert await tab.run("document.cookie") == ""
        assert tab.problems == []
        await tab.click("Sign out")
        await tab.until(f"location.origin === {json.dumps(provider.issuer)}")
        await tab.click("Yes, sign me out")
        await tab.until(f"location.origin === {json.dumps(url)}")
        await tab.until("document.querySelector('.sign-in input')")
        await log_in(tab, provider, "dev")
        assert await pages_of(tab) == ["Runs"]


async def test_a_stranger_to_the_configuration_gets_a_page(scripts: Path, tmp_path: Path) -> None:
    """Who is in no configured group reads which claim decides, and is not signed in."""
    async with company(scripts, tmp_path) as (_, provider, url), opened(f"{url}/ui/") as tab:
        await log_in(tab, provider, "guest")
        await tab.has("the claim groups of the ID token names no group")
        assert await tab.run("location.pathname") == "/ui/login/done"
        await tab.click("sign in with a key")
        await tab.until("document.querySelector('.sign-in input')")
        assert tab.problems == []


@pytest.mark.parametrize(("name", "may"), [("lea", True), ("mail", False)])
async def test_an_approver_by_group_sees_what_they_decide(
    name: str, may: bool, scripts: Path, tmp_path: Path
) -> None:
    """A member of the group reads the user's question and decides; an approver of other tools does not."""
    async with (
        RawUpstream(reply("Let me look.", CALL), reply("It is noon.")) as upstream,
        company(scripts, tmp_path, upstream.url) as (running, provider, url),
        opened(f"{url}/ui/approvals") as tab,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=APP, max_retries=0) as client,
    ):
        await tab.size(1280, 900)
        await log_in(tab, provider, name)
        assert await pages_of(tab) == ["Runs", "Approvals"]
        conversation: list[Any] = [{"role": "user", "content": "What time is it in Lima?"}]
        answer = await client.chat.completions.create(model="m", messages=conversation)
        (approval_id,) = ID.findall(answer.choices[0].message.content or "")[:1]
        if not may:
            await tab.goto(f"{url}/ui/approvals")
            await tab.has("No call waits for you")
            asked = f"fetch('/ui/api/approvals/{approval_id}/context').then((r) => r.status)"
            assert await tab.run(asked) == 404
            return
        await tab.until(f"document.querySelector('[data-id={approval_id}]')")
        await tab.has("What time is it in Lima?")
        await tab.has("Let me look.")
        await tab.run("document.querySelector('[data-act=approve]').click()")
        await tab.until("document.querySelector('.ask').innerText.includes('Approved')")
        ((by, via),) = running.rows("SELECT decided_by, decided_via FROM approvals")
        assert (by, via) == ("user lea", "page")
        await tab.goto(f"{url}/ui/runs")
        await tab.until("document.querySelector('main h1')?.innerText === 'Runs'")
        # The run is another caller's.
        listed = "fetch('/ui/api/runs').then((r) => r.json()).then((page) => page.data.length)"
        assert await tab.run(listed) == 0
        assert running.rows("SELECT count(*) FROM runs") == [(1,)]
        assert tab.problems == []
