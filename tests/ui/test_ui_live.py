"""The event stream of the web UI: it is prompt and bounded, and ends with its session."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from client_keys import bearer, declared, made
from listed_runs import run
from msgspec.structs import replace
from ui_events import listening
from ui_rig import ADMIN, CLIENT, QUESTION, Browser, ui_proxy
from waiting import PATIENCE_S, until

from proxy.records.rows import ToolEffect, ToolInvocationRecord
from proxy.store.factory import open_store
from proxy.store.options import StoreOptions
from proxy.ui import feed as feeding
from proxy.ui import live
from proxy.ui.feed import Feed
from proxy.ui.runs.run_rows import RunRows

FAST_S = 0.02


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval at which the feed polls the store."""
    monkeypatch.setattr(feeding, "POLL_S", FAST_S)


async def test_a_run_appears_while_it_happens() -> None:
    """Each open page is told of a run, of its calls and of its end."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        async with listening(browser) as one, listening(browser) as two:
            assert "cursor" in (await one.next("hello"))[0]
            await two.next("hello")
            assert (await browser.proxy.ask(QUESTION, bearer(CLIENT))).status == 200
            for events in (one, two):
                while (row := (await events.next("run"))[0])["status"] == "running":
                    pass
                assert row["status"] == "completed"
                assert row["caller_name"] == "webui"
                called = [(call["tool"], call["status"]) for call in row["calls"]]
                assert called == [("core__get_current_time", "success")]
        listed = (await browser.get("runs")).json["data"]
        assert [row] == listed


async def test_nobody_looks_while_nobody_listens() -> None:
    """Without an open page nothing polls the store, and the last page that leaves ends the polling."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        store, asked = browser.proxy.services.store, []
        listed = store.list_runs

        async def counted(wanted: Any) -> Any:
            asked.append(wanted)
            return await listed(wanted)

        store.list_runs = counted  # type: ignore[method-assign]
        async with listening(browser) as events:
            await events.next("hello")
            await until(lambda: len(asked) > 6)
            events.conversation.leave()
        await until(lambda: not any("ui-feed" in str(task.get_name()) for task in asyncio.all_tasks()))
        seen = len(asked)
        await browser.proxy.ask(QUESTION, bearer(CLIENT))
        assert len(asked) == seen


async def test_a_page_goes_on_where_it_was() -> None:
    """A page that reconnects gets the events since its last one, or a reset if that one is unknown."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        store = browser.proxy.services.store
        async with listening(browser) as stays:
            await stays.next("hello")
            async with listening(browser) as goes:
                await goes.next("hello")
                store.put_run(run(1))
                _, last = await goes.next("run")
            store.put_run(run(2))
            await stays.next("run")
            await stays.next("run")
            async with listening(browser, last) as back:
                row, _ = await back.next("run")
                assert row["id"] == run(2).id
            for unknown in ("", "x", "00000000-5", "é", last.split("-")[0] + "-999999"):
                async with listening(browser, unknown or "0-0") as back:
                    await back.next("reset")


async def test_too_many_pages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event streams of a session and of a process are limited; a page that leaves makes room."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        async with listening(browser) as one, listening(browser), listening(browser):
            async with listening(browser):
                answer = await browser.get("events")
                assert (answer.status, answer.error["code"]) == (429, "too_many_listeners")
                monkeypatch.setattr(live, "_MOST_LISTENERS", 4)
                other = await Browser(browser.proxy).sign_in()
                assert (await other.get("events")).status == 429
            one.conversation.leave()

            async def room() -> bool:
                headers = browser.headers(writes=False)
                async with browser.proxy.sent(None, headers, method="GET", path="/ui/api/events") as again:
                    return (await again.head()).status == 200

            await until(room)


async def test_approvers_leave_places_for_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    """An approver gets no more places by signing in again, and administrators always have some."""
    keys = {f"a{number}": declared(f"{number}-{CLIENT}", approves=["*"]) for number in (1, 2)}
    keys["boss"] = declared(ADMIN, admin=True)
    monkeypatch.setattr(live, "_MOST_OF_A_USER", 3)
    monkeypatch.setattr(live, "_MOST_OF_APPROVERS", 4)
    monkeypatch.setattr(live, "_MOST_LISTENERS", 5)
    async with ui_proxy(keys=keys) as (browser, _), AsyncExitStack() as stack:
        for secret, room in ((f"1-{CLIENT}", 3), (f"2-{CLIENT}", 1)):
            for _ in range(room):
                one = await Browser(browser.proxy).sign_in(secret)
                await (await stack.enter_async_context(listening(one))).next("hello")
            more = await Browser(browser.proxy).sign_in(secret)
            assert (await more.get("events")).status == 429
        boss = await browser.sign_in()
        async with listening(boss) as events:
            await events.next("hello")


async def test_the_stream_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the key of a session is revoked, its page is told so, and the stream ends."""
    monkeypatch.setattr(live.Live.__init__, "__kwdefaults__", {"comment_s": FAST_S})
    async with ui_proxy() as (browser, _):
        store = browser.proxy.services.store
        await browser.sign_in(await made(store, "temp", admin=True))
        async with listening(browser) as events:
            await events.next("hello")
            (key,) = (await store.read_keys()).keys
            await store.revoke_key(key.id)
            assert await events.next("end") == ({"code": "not_signed_in"}, "")
            assert await events.conversation.reader.readuntil(b"\r\n\r\n") == b"0\r\n\r\n"


async def test_a_server_that_ends_waits_for_no_page() -> None:
    """An event stream ends when the process begins to drain."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        async with listening(browser) as events:
            await events.next("hello")
            assert browser.proxy.draining.open == 0
            browser.proxy.draining.refuse()
            async with asyncio.timeout(PATIENCE_S):
                assert await events.conversation.reader.readuntil(b"0\r\n\r\n")


async def test_what_strangers_write_cannot_end_an_event() -> None:
    """Newlines, control characters and hidden ones in a model's name are data in one event of ASCII."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        hostile = "x\n\nevent: end\ndata: {}\n\n\r\u2028<img src=x onerror=alert(1)>\x1b[2J\u202e"
        async with listening(browser) as events:
            await events.next("hello")
            browser.proxy.services.store.put_run(run(1, model=hostile))
            row, _ = await events.next("run")
            assert row["model"] == hostile
            assert events.raw.isascii()


async def test_a_slow_page_costs_no_memory() -> None:
    """For a slow page only a run's newest event waits; beyond a limit the page is told to load all anew."""
    store = open_store("memory:", StoreOptions())
    await store.start()
    feed = Feed(store, RunRows(store), "e", None)
    listener = await feed.join(None)
    for turn in range(1, 60):
        store.put_run(run(1, status="running", turns=turn, ended_at=None))
        await asyncio.sleep(FAST_S / 4)
    await until(lambda: any(event.key.startswith("run:") for event in listener.pending.values()))
    assert sum(event.key.startswith("run:") for event in listener.pending.values()) == 1
    for number in range(1000):
        feed.tell("capture", f"capture:{number}", {"id": number})
    events, missed = listener.take()
    assert missed
    assert len(events) <= 300
    huge = {"id": "run_1", "offered": ["x" * 100] * 1000, "calls": []}
    feed.tell("run", "run:run_1", huge)
    (event,) = listener.take()[0]
    assert json.loads(event.data) == {"id": "run_1", "offered": [], "calls": [], "cut": True}
    feed.leave(listener)


async def test_an_old_run_that_ends_is_seen() -> None:
    """A run that began before a hundred others is reported when a call of it begins, and when it ends."""
    store = open_store("memory:", StoreOptions())
    await store.start()
    old = run(0, status="running", ended_at=None)
    store.put_run(old)
    for number in range(1, 150):
        store.put_run(run(number))
    feed = Feed(store, RunRows(store), "e", None)
    listener = await feed.join(None)
    call = ToolInvocationRecord(
        *(
            "inv_1",
            old.id,
            1,
            0,
            "c1",
            "core__a",
            "core",
            "d",
            ToolEffect.READ_ONLY,
            "allowed",
            "started",
            1.0,
        )
    )
    store.close_invocation(call)

    async def told() -> list[Any]:
        await asyncio.wait_for(listener.woken.wait(), PATIENCE_S)
        return [json.loads(event.data) for event in listener.take()[0] if event.name == "run"]

    rows: list[Any] = []
    while not rows:
        rows = await told()
    assert [(row["id"], row["calls"][0]["status"]) for row in rows] == [(old.id, "started")]
    store.put_run(replace(old, status="completed", ended_at=2.0))
    rows = []
    while not rows:
        rows = await told()
    assert [(row["id"], row["status"]) for row in rows] == [(old.id, "completed")]
    feed.leave(listener)
