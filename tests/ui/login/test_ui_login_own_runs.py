"""What people see who log in without being administrators: the runs of their own tokens, and no others."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openid_provider import CLIENT_ID, CLIENT_SECRET, URL, LoginBrowser, OpenIdProvider, openid_provider
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running
from ui_events import listening
from ui_rig import QUESTION, Browser, turns
from waiting import until

from proxy.config.secret import Secret
from proxy.ui import feed as feeding

API = "api"
FAST_S = 0.02


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval at which the feed polls the store."""
    monkeypatch.setattr(feeding, "POLL_S", FAST_S)


@asynccontextmanager
async def company(
    role: str = "developers", script: Sequence[Any] = turns() * 4, **config: Any
) -> AsyncIterator[tuple[LoginBrowser, OpenIdProvider, list[str]]]:
    """Run a proxy that Anna and Bert have each asked once; yield Anna's browser, and the ids of both runs."""
    async with (
        openid_provider(claims={"groups": [role]}) as provider,
        RawUpstream(*script) as upstream,
        running(
            make_config(
                upstream.url,
                keys={},
                auth={
                    "mode": "jwt",
                    "jwt": {
                        "issuer": provider.url,
                        "audience": [API],
                        "networks": ["127.0.0.0/8"],
                        "roles": {
                            "platform": {"admin": True},
                            "leads": {"approves": ["core__*"]},
                            "developers": {},
                        },
                    },
                },
                ui={
                    "login": {
                        "client_id": CLIENT_ID,
                        "client_secret": Secret("env:LOGIN_SECRET", CLIENT_SECRET),
                        "url": URL,
                    }
                },
                store={"content": "all"},
                **config,
            )
        ) as proxy,
    ):
        for user in ("anna", "bert"):
            await ask(proxy, provider, user)
        browser = LoginBrowser(proxy)
        await browser.log_in()
        await until(lambda: _ended(proxy))
        runs = sorted(await proxy.runs(), key=lambda run: run.started_at)
        assert len({run.caller for run in runs}) == 2
        yield browser, provider, [run.id for run in runs]


async def _ended(proxy: Proxy) -> bool:
    runs = await proxy.runs()
    return len(runs) == 2 and all(run.ended_at is not None for run in runs)


async def ask(proxy: Proxy, provider: OpenIdProvider, user: str) -> None:
    """Ask as the owner of an access token."""
    usual, provider.claims = provider.claims, {**provider.claims, "aud": API, "sub": user}
    token = provider.id_token("none")
    provider.claims = usual
    answer = await proxy.ask(QUESTION, {"Authorization": f"Bearer {token}"})
    assert answer.status == 200, answer.body


async def test_a_person_sees_the_runs_of_their_own_tokens() -> None:
    """The list, a search, the texts and the page of a run show what the person asked, and nothing else."""
    async with company() as (browser, _, (own, other)):
        paths = [
            "runs",
            "runs?limit=100",
            "runs?q=time",
            "runs?id=run_",
            "runs?agents=true",
            "runs?key=open",
            f"runs?before={other}",
        ]
        for path in paths:
            page = (await browser.data(path)).json
            assert [row["id"] for row in page["data"]] in ([own], []), path
        assert [row["id"] for row in (await browser.data("runs")).json["data"]] == [own]
        assert [row["id"] for row in (await browser.data("runs?q=time")).json["data"]] == [own]
        texts = (await browser.data("runs/texts", "POST", {"runs": {own: "chat", other: "chat"}})).json[
            "data"
        ]
        assert [(row["id"], row["question"]) for row in texts] == [(own, "What time is it?")]
        for part in ("", "/conversation", "/copy?as=curl", "/export"):
            assert (await browser.data(f"runs/{own}{part}")).status == 200, part
            assert (await browser.data(f"runs/{other}{part}")).status == 404, part
        detail = (await browser.data(f"runs/{own}")).json
        assert (detail["offer"], detail["wire"]) == ([], None)


async def test_a_person_sees_nothing_of_how_the_server_is_run() -> None:
    """What only administrators may do is refused for one's own runs, too."""
    async with company("leads") as (browser, _, (own, other)):
        for run_id in (own, other):
            for part in ("/wire", "/fixture"):
                assert (await browser.data(f"runs/{run_id}{part}")).status == 403, part
            assert (await browser.data(f"runs/{run_id}/replay", "POST", {})).status == 403
        assert (await browser.data(f"compare?a={own}&b={own}")).status == 403
        assert (await browser.data("play/v1/models")).status == 403
        assert (await browser.data("capture")).status == 403
        assert (await browser.data("approvals")).status == 200


async def test_open_pages_get_the_events_of_ones_own_runs() -> None:
    """Another user's run causes no event on a person's page."""
    async with company() as (browser, provider, (_, other)):
        page = Browser(browser.proxy, f"toolrelay_ui={browser.cookies['toolrelay_ui']}")
        async with listening(page) as events:
            await events.next("hello")
            for user in ("bert", "anna"):
                await ask(browser.proxy, provider, user)
            data, _ = await events.next("run")
            (newest, *_) = (await browser.data("runs")).json["data"]
            assert data["id"] == newest["id"]
            (berts, *_) = [run for run in await browser.proxy.runs() if run.caller != data["caller"]]
            assert berts.id != other
            assert berts.id.encode() not in events.raw


async def test_an_administrator_sees_all_runs() -> None:
    """The role decides, not the way of the login."""
    async with company("platform") as (browser, _, (own, other)):
        assert {row["id"] for row in (await browser.data("runs")).json["data"]} == {own, other}
        assert (await browser.data(f"runs/{other}/wire")).status == 200


async def test_who_asked_does_not_decide() -> None:
    """Where others must decide, a person does not decide about what their own token asked for; another
    member of the group does."""
    rules = {"policy": {"approve": ["core__*"]}, "approvals": {"by": "admin"}}
    async with company("leads", turns()[:1] * 2, **rules) as (anna, provider, _):
        rows = (await anna.data("approvals")).json["data"]
        assert len(rows) == 2
        provider.claims["sub"] = "bert"
        bert = LoginBrowser(anna.proxy)
        await bert.log_in()
        (me,) = {row["caller"] for row in (await anna.data("runs")).json["data"]}
        for row in rows:
            own, other = (anna, bert) if row["caller"] == me else (bert, anna)
            refused = await own.data(f"approvals/{row['id']}", "POST", {"approve": True})
            assert (refused.status, refused.error["code"]) == (403, "approval_not_allowed")
            decided = await other.data(f"approvals/{row['id']}", "POST", {"approve": True})
            assert (decided.status, decided.json["decided_by"]) == (200, "user Anna")
