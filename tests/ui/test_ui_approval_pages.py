"""Approvals in the web UI: who sees them, who decides, and which events open pages get."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client_keys import bearer, declared
from running_proxy import Proxy
from store_records import approval
from structlog.testing import capture_logs
from ui_events import listening
from ui_rig import ADMIN, CLIENT, Browser, ui_proxy

from proxy.records.approvals import MOST_IN_TEXT
from proxy.ui import feed as feeding
from proxy.ui.sessions import login_code, signing_key

PAYER = "payer-payer-0123456789-abcdefghijk"
MAILER = "mailer-mailer-0123456789-abcdefghi"
FAST_S = 0.02
IDS = [f"appr_{number:032x}" for number in range(4)]


SHOP = '''
from proxy.tools import Redaction, tool


@tool(
    redaction=Redaction(private_arguments=("iban",)),
    describe="refund of {amount:.2f} for {order} to {iban}",
)
def refund(order: str, amount: float, iban: str) -> None:
    """Refund an order."""
'''


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval at which the feed polls the store."""
    monkeypatch.setattr(feeding, "POLL_S", FAST_S)


@asynccontextmanager
async def asked(
    tmp_path: Path, more: Mapping[str, Any] | None = None, **approvals: Any
) -> AsyncIterator[Browser]:
    """Run a server in whose store a payment and a mail wait for approval; ``more`` are further keys."""
    keys = {
        "boss": declared(ADMIN, admin=True),
        "anna": declared(PAYER, approves=["pay__*"]),
        "webui": declared(CLIENT),
        **(more or {}),
    }
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    async with ui_proxy(keys=keys, approvals=approvals, store=store) as (browser, _):
        await put(browser.proxy, 0, "pay__send", {"amount": 5, "pin": 1234}, {"amount": 5})
        await put(browser.proxy, 1, "mail__send", {"to": "a@b.c"})
        yield browser


async def put(proxy: Proxy, number: int, tool: str, arguments: Any, shown: Any = None) -> str:
    """Store a call of the key ``webui`` that waits for approval."""
    log: Any = proxy.services.store
    made = approval(
        IDS[number],
        tool=tool,
        caller="config:webui",
        key="config:webui",
        arguments=json.dumps(arguments),
        arguments_shown=arguments if shown is None else shown,
        created_at=time.time() + number / 100,
        expires_at=time.time() + 3600,
    )
    await log.put_approvals([made])
    return made.id


async def test_grants_are_given_listed_and_revoked_by_their_approvers(tmp_path: Path) -> None:
    """The approvers of a tool give, list and revoke its grants; the approver of another tool does not."""
    keys = {"mailer": declared(MAILER, approves=["mail__*"])}
    async with asked(tmp_path, keys) as browser:
        other = await Browser(browser.proxy).sign_in(MAILER)
        yes = {"approve": True, "grant": {"for": "1h"}}
        assert (await other.send("POST", f"approvals/{IDS[0]}", yes)).status == 404
        assert (await other.send("POST", f"approvals/{IDS[1]}", yes)).status == 200
        await browser.sign_in(PAYER)
        assert (await browser.send("POST", f"approvals/{IDS[0]}", yes)).status == 200
        (own,) = (await browser.get("approvals/grants")).json["data"]
        (mail,) = (await other.get("approvals/grants")).json["data"]
        assert (own["tool"], own["made_by"], mail["tool"]) == ("pay__send", "key config:anna", "mail__send")
        boss = await Browser(browser.proxy).sign_in()
        listed = (await boss.get("approvals/grants")).json["data"]
        assert {row["id"] for row in listed} == {own["id"], mail["id"]}
        for who, foreign in ((browser, mail), (other, own)):
            path = f"approvals/grants/{foreign['id']}"
            assert ((await who.get(path)).status, (await who.send("DELETE", path)).status) == (404, 404)
            assert (await boss.get(path)).json["status"] == "active"
        for who, grant, by in ((browser, own, "anna"), (boss, mail, "boss")):
            revoked = await who.send("DELETE", f"approvals/grants/{grant['id']}")
            assert (revoked.json["status"], revoked.json["revoked_by"]) == ("revoked", f"key config:{by}")
        assert (await boss.get("approvals/grants?active=true")).json["data"] == []


async def test_a_page_gives_a_grant_with_limits_and_only_a_delete_revokes_it(tmp_path: Path) -> None:
    """A grant has the limits that the page sends, is listed with its caller, and ends with a DELETE only."""
    async with asked(tmp_path) as browser:
        await browser.sign_in()
        assert (await browser.get("approvals")).json["rules"] == {"edit": False, "max_grant_s": 86400}
        yes = {"approve": True, "grant": {"for": "1h", "arguments": {"amount": {"max": 5}}}}
        assert (await browser.send("POST", f"approvals/{IDS[0]}", yes)).status == 200
        (row,) = (await browser.get("approvals/grants?active=true")).json["data"]
        assert (row["status"], row["caller_name"], row["arguments"]) == (
            "active",
            "webui",
            {"amount": {"max": 5}},
        )
        one = f"approvals/grants/{row['id']}"
        assert (await browser.get(one)).json["status"] == "active"
        assert (await browser.send("POST", one, {})).status == 405
        assert (await browser.send("DELETE", f"{one}?x=1", None)).status == 400
        revoked = await browser.send("DELETE", one, None)
        assert (revoked.status, revoked.json["status"], revoked.json["revoked_by"]) == (
            200,
            "revoked",
            "key config:boss",
        )
        assert (await browser.get("approvals/grants?active=true")).json["data"] == []
        assert (await browser.get("approvals/grants/grant_0")).status == 404


async def test_an_administrator_sees_and_decides_all(tmp_path: Path) -> None:
    """The list has redacted arguments; an administrator can read exact ones, and the log records that."""
    async with asked(tmp_path) as browser:
        assert (await browser.get("approvals")).status == 401
        await browser.sign_in()
        listed = (await browser.get("approvals")).json
        assert [one["id"] for one in listed["data"]] == [IDS[1], IDS[0]]
        assert listed["data"][1]["caller_name"] == "webui"
        assert listed["data"][1]["arguments"] == {"amount": 5}
        with capture_logs() as lines:
            shown = (await browser.get(f"approvals/{IDS[0]}?content=true")).json
        assert shown["arguments"] == {"amount": 5, "pin": 1234}
        assert [(one["event"], one["caller"]) for one in lines if one["event"] == "approval_read"] == [
            ("approval_read", "config:boss")
        ]
        answer = await browser.send("POST", f"approvals/{IDS[0]}", {"approve": True, "reason": "fine"})
        assert answer.status == 200
        assert answer.json["status"] == "approved"
        assert (answer.json["decided_by"], answer.json["decided_via"]) == ("key config:boss", "page")
        assert (await browser.send("POST", f"approvals/{IDS[0]}", {"approve": True})).status == 200
        decided = (await browser.get("approvals?state=decided")).json["data"]
        assert [(one["id"], one["reason"]) for one in decided] == [(IDS[0], "fine")]
        late = await browser.send("POST", f"approvals/{IDS[1]}", {"approve": False})
        assert late.json["status"] == "denied"
        late = await browser.send("POST", f"approvals/{IDS[1]}", {"approve": True})
        assert (late.status, late.error["code"]) == (409, "approval_decided")
        for wrong in ("approvals?state=x", "approvals?before=x", "approvals?limit=0", "approvals?x=1"):
            assert (await browser.get(wrong)).status == 400, wrong
        assert (await browser.get("approvals/appr_1")).status == 404


async def test_no_other_site_decides(tmp_path: Path) -> None:
    """A decision without the page's header or a session, from another origin or as a form is refused."""
    async with asked(tmp_path) as browser:
        await browser.sign_in()
        path, yes = f"approvals/{IDS[0]}", {"approve": True}
        foreign: list[dict[str, str | None]] = [
            {"x-toolrelay-ui": None},
            {"Origin": "https://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "text/plain"},
            {"Cookie": None},
        ]
        for headers in foreign:
            answer = await browser.send("POST", path, yes, headers)
            assert answer.status in (401, 403, 415), headers
        assert (await browser.send("PUT", path, yes)).status == 405
        wrongs: list[Any] = [{"approve": "true"}, {"approve": 1}, {}, []]
        for wrong in wrongs:
            assert (await browser.send("POST", path, wrong)).status == 400
        # The admin API ignores the cookie.
        answer = await browser.proxy.ask(yes, browser.headers(writes=True), path=f"/admin/{path}")
        assert answer.status in (401, 403)
        assert (await browser.get(path)).json["status"] == "pending"


async def test_an_approver_sees_and_decides_its_tools_only(tmp_path: Path) -> None:
    """An approver sees and decides only its tools' approvals, on the page and in the admin API."""
    async with asked(tmp_path) as browser:
        await browser.sign_in(PAYER)
        assert (await browser.get("session")).json["role"] == "approver"
        for state in ("pending", "all"):
            listed = (await browser.get(f"approvals?state={state}")).json["data"]
            assert [one["id"] for one in listed] == [IDS[0]]
        assert (await browser.get(f"approvals/{IDS[1]}")).status == 404
        assert (await browser.send("POST", f"approvals/{IDS[1]}", {"approve": True})).status == 404
        for path in ("runs", "tools", "mcp", "keys", "usage", "settings", "upstreams", "health", "capture"):
            assert (await browser.get(path)).status == 403, path
        assert (await browser.send("POST", "play", {})).status == 403

        ask, me = browser.proxy.ask, bearer(PAYER)
        listed = (await ask(None, me, method="GET", path="/admin/approvals")).json["data"]
        assert [one["id"] for one in listed] == [IDS[0]]
        for path in ("runs", "tools", "mcp", "", "runs/run_1"):
            assert (await ask(None, me, method="GET", path=f"/admin/{path}")).status == 401, path
        assert (await ask(None, me, method="GET", path="/metrics")).status in (401, 403)
        other = f"/admin/approvals/{IDS[1]}"
        assert (await ask(None, me, method="GET", path=other)).status == 404
        assert (await ask({"approve": True}, me, path=other)).status == 404
        assert (await ask({"approve": True}, bearer(CLIENT), path=other)).status == 401
        answer = await ask({"approve": False}, me, path=f"/admin/approvals/{IDS[0]}")
        assert (answer.status, answer.json["decided_by"]) == (200, "key config:anna")


async def test_the_key_that_asked_does_not_decide_where_another_must(tmp_path: Path) -> None:
    """With ``approvals.by`` set to admin, an approver's own call needs another approver, on every path."""
    async with asked(tmp_path, by="admin") as browser:
        log: Any = browser.proxy.services.store
        made = approval(IDS[2], tool="pay__send", caller="config:anna", key="config:anna", **_now())
        await log.put_approvals([made])
        await browser.sign_in(PAYER)
        own = await browser.send("POST", f"approvals/{IDS[2]}", {"approve": True})
        assert (own.status, own.error["code"]) == (403, "approval_not_allowed")
        path = f"/admin/approvals/{IDS[2]}"
        assert (await browser.proxy.ask({"approve": True}, bearer(PAYER), path=path)).status == 403
        assert (await browser.send("POST", f"approvals/{IDS[0]}", {"approve": True})).status == 200
        assert (await browser.proxy.ask({"approve": True}, bearer(ADMIN), path=path)).status == 200


@pytest.mark.parametrize("by_link", [False, True], ids=["key", "link"])
async def test_who_started_a_run_in_the_playground_does_not_decide(by_link: bool, tmp_path: Path) -> None:
    """Where another must decide, who asked in the playground may not: by no session, and not by the key."""
    tool = "core__get_current_time"
    keys = {"boss": declared(ADMIN, admin=True), "anna": declared(PAYER, admin=True)}
    async with ui_proxy(
        keys=keys,
        policy={"allow": ["core__*"], "approve": [tool]},
        approvals={"by": "admin"},
        store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
    ) as (browser, _):
        other = Browser(browser.proxy)
        for one in (browser, other):
            if by_link:
                _, hash_key = await browser.proxy.services.store.hash_key()
                code = login_code(signing_key(hash_key), now=time.time())
                await one.send("POST", "session", {"code": code})
            else:
                await one.sign_in(PAYER)
        body = {"model": "m", "messages": [{"role": "user", "content": "What time is it?"}], "stream": True}
        asked = await browser.send("POST", "play/v1/chat/completions", body)
        assert b"waiting for approval" in asked.body
        (row,) = (await browser.get("approvals")).json["data"]
        path = f"approvals/{row['id']}"
        for one in (browser, other):
            own = await one.send("POST", path, {"approve": True})
            assert (own.status, own.error["code"]) == (403, "approval_not_allowed")
        if not by_link:
            answer = await browser.proxy.ask({"approve": True}, bearer(PAYER), path=f"/admin/{path}")
            assert answer.status == 403
        header = {"x-toolrelay-approve": row["id"]}
        assert (await browser.send("POST", "play/v1/chat/completions", body, header)).status == 403
        boss = await Browser(browser.proxy).sign_in()
        assert (await boss.send("POST", path, {"approve": True})).status == 200


async def test_a_list_has_long_arguments_cut_and_an_approval_has_all(tmp_path: Path) -> None:
    """A row of a list says that its arguments were cut; the approval itself and a decision have all."""
    async with asked(tmp_path) as browser:
        await browser.sign_in()
        arguments = {"text": "x" * MOST_IN_TEXT, "amount": 9000}
        await put(browser.proxy, 2, "mail__send", arguments)
        row = (await browser.get("approvals")).json["data"][0]
        assert (row["id"], row["arguments_cut"]) == (IDS[2], True)
        assert len(json.dumps(row["arguments"])) < 2000
        one = (await browser.get(f"approvals/{IDS[2]}")).json
        assert (one["arguments"], one["arguments_cut"]) == (arguments, False)
        answer = await browser.send("POST", f"approvals/{IDS[2]}", {"approve": True})
        assert answer.json["arguments"] == arguments


async def test_an_approval_has_the_words_of_its_tool(tmp_path: Path) -> None:
    """The page and the admin API say what the call does, as far as the tool is as the call was planned."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    keys = {"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT)}
    tools, policy = {"modules": [str(tmp_path / "shop.py")]}, {"allow": ["shop__refund"]}
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    async with ui_proxy(keys=keys, store=store, tools=tools, policy=policy) as (browser, _):
        spec = browser.proxy.services.registry.current.get("shop__refund")
        assert spec is not None
        log: Any = browser.proxy.services.store
        shown = {"order": "A-17", "amount": 42.5, "iban": "[private]"}
        made = {"tool": "shop__refund", "arguments_shown": shown, "expires_at": time.time() + 3600}
        await log.put_approvals(
            [
                approval(IDS[0], spec_digest=spec.digest, created_at=time.time(), **made),
                approval(IDS[1], spec_digest="0" * 64, seq=1, created_at=time.time(), **made),
            ]
        )
        await browser.sign_in()
        for path in ("approvals", f"approvals/{IDS[0]}"):
            answer = (await browser.get(path)).json
            (row,) = [one for one in answer.get("data", [answer]) if one["id"] == IDS[0]]
            assert row["description"] == "refund of 42.50 for A-17 to [private]"
        assert (await browser.get(f"approvals/{IDS[1]}")).json["description"] is None


async def test_a_link_decides_as_the_operator(tmp_path: Path) -> None:
    """A session by a link of ``toolrelay ui`` has no key, so its decisions are recorded as the operator's."""
    async with asked(tmp_path, by="admin") as browser:
        _, hash_key = await browser.proxy.services.store.hash_key()
        await browser.send("POST", "session", {"code": login_code(signing_key(hash_key), now=time.time())})
        answer = await browser.send("POST", f"approvals/{IDS[0]}", {"approve": True})
        assert (answer.status, answer.json["decided_by"]) == (200, "operator")


async def test_open_pages_are_told_of_their_approvals(tmp_path: Path) -> None:
    """Open pages get new calls, decisions and the number that waits; an approver gets those of its tools."""
    async with asked(tmp_path) as browser:
        await browser.sign_in()
        anna = await Browser(browser.proxy).sign_in(PAYER)
        async with listening(browser) as boss, listening(anna) as payer:
            assert (await boss.next("stats"))[0]["approvals_pending"] == 2
            assert (await payer.next("stats"))[0] == {"approvals_pending": 1}
            await put(browser.proxy, 2, "mail__send", {"to": "x@y.z"})
            assert (await boss.next("approval"))[0]["id"] == IDS[2]
            await put(browser.proxy, 3, "pay__send", {"amount": 7})
            row = (await payer.next("approval"))[0]
            assert (row["id"], row["status"], row["caller_name"]) == (IDS[3], "pending", "webui")
            assert b"mail__send" not in payer.raw
            assert b"x@y.z" not in payer.raw
            await browser.send("POST", f"approvals/{IDS[0]}", {"approve": False, "reason": "no"})
            while (row := (await payer.next("approval"))[0])["id"] != IDS[0]:
                pass
            assert (row["status"], row["reason"]) == ("denied", "no")
            while (await payer.next("stats"))[0] != {"approvals_pending": 1}:
                pass
            # A page that opens later gets the number at once.
            async with listening(browser) as later:
                assert (await later.next("stats"))[0]["approvals_pending"] == 3


async def test_an_approval_too_long_for_an_event_is_announced(tmp_path: Path) -> None:
    """The event of a long approval has its id, tool and status, and a mark that it was cut."""
    async with asked(tmp_path) as browser:
        await browser.sign_in()
        async with listening(browser) as events:
            await events.next("stats")
            await put(browser.proxy, 2, "mail__send", {"text": "x" * 20_000})
            row = (await events.next("approval"))[0]
            assert row == {"id": IDS[2], "status": "pending", "tool": "mail__send", "cut": True}
        assert len((await browser.get(f"approvals/{IDS[2]}")).json["arguments"]["text"]) == 20_000


def _now() -> dict[str, float]:
    return {"created_at": time.time(), "expires_at": time.time() + 3600}
