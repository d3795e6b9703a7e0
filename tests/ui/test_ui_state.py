"""What the web UI says about the state of upstreams, the use of keys, and the errors of runs."""

import time
from typing import Any

from client_keys import bearer, declared
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from store_records import run
from ui_rig import ADMIN, CLIENT, QUESTION, Browser, turns, ui_proxy

from proxy.records.rows import MessageRecord
from proxy.ui.pages.recent import error_kinds, sums


def test_latencies_are_by_nearest_rank_and_errors_those_of_upstreams() -> None:
    """Only failures of the upstream count as its errors; p50 and p95 are of completed runs."""
    runs = [
        run(f"r{n}", upstream="a", started_at=n, ended_at=n + n, status="completed") for n in range(1, 21)
    ]
    runs += [
        run("f1", upstream="a", started_at=30.0, ended_at=31.0, status="failed", error_code="http_500"),
        run("f2", upstream="a", started_at=31.0, ended_at=32.0, status="failed", error_code="internal_error"),
        run("g", upstream="b", started_at=5.0, ended_at=6.0, status="cancelled", error_code="client_gone"),
    ]
    known = sums(runs, lambda one: one.upstream)
    assert (known["a"]["p50_s"], known["a"]["p95_s"]) == (10.0, 19.0)
    assert (known["a"]["requests"], known["a"]["errors"]) == (22, 1)
    assert known["a"]["last_error"] == {"at": 30.0, "code": "http_500", "run_id": "f1"}
    assert known["a"]["last_success_at"] == 20.0
    assert (known["b"]["p50_s"], known["b"]["errors"], known["b"]["last_success_at"]) == (None, 0, None)
    kinds = error_kinds([*runs, run("f3", started_at=1.0, error_code="http_500")])
    assert [(one["code"], one["count"], one["run_id"]) for one in kinds] == [
        ("http_500", 2, "f1"),
        ("client_gone", 1, "g"),
        ("internal_error", 1, "f2"),
    ]


async def test_an_upstream_that_fails_is_said_to_fail_in_its_own_words() -> None:
    """The page has the last success and the last error with its message, of the runs of a day."""
    refusal = whole(
        b'{"error": {"message": "out of credit", "type": "x", "code": "y"}}', status="402 Payment Required"
    )
    async with (
        RawUpstream(*turns(), refusal) as upstream,
        running(
            make_config(
                upstream.url,
                keys={"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT, tools=["core__*"])},
                policy={"allow": ["core__*"]},
            )
        ) as proxy,
    ):
        browser = await Browser(proxy).sign_in()
        (row,) = (await browser.get("upstreams")).json["data"]
        assert row["recent"] is None
        assert (await proxy.ask(QUESTION, bearer(CLIENT))).status == 200
        assert (await proxy.ask(QUESTION, bearer(CLIENT))).status == 402
        (row,) = (await browser.get("upstreams")).json["data"]
        recent = row["recent"]
        assert (recent["requests"], recent["errors"], recent["error_rate"]) == (2, 1, 0.5)
        assert recent["last_error"]["code"] == "http_402"
        assert recent["last_error"]["message"] == "out of credit"
        assert recent["last_error"]["at"] > recent["last_success_at"]
        lately = (await browser.get("usage/recent?since=1h")).json
        assert [(one["code"], one["count"], one["message"]) for one in lately["errors"]] == [
            ("http_402", 1, "out of credit")
        ]
        assert [(one["name"], one["requests"]) for one in lately["data"]] == [("m", 2)]
        answer = await browser.get("usage/recent?by=color")
        assert (answer.status, answer.error["param"]) == (400, "by")


async def test_a_key_shows_its_last_use_its_spend_and_its_budgets() -> None:
    """Last use, the use of a month and the used part of each limit come from the record."""
    limits: dict[str, Any] = {"cost": ["5/day"], "tokens": ["1000/hour", "9000/day"]}
    keys = {"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT, limits=limits)}
    async with ui_proxy(keys=keys) as (browser, _):
        await browser.sign_in()
        store, now = browser.proxy.services.store, time.time()
        used = {"caller": "config:webui", "total_tokens": 400, "cost": 2_500_000_000, "status": "completed"}
        store.put_run(run("run_new", started_at=now - 60, ended_at=now - 59, **used))
        store.put_run(run("run_old", started_at=now - 7200, ended_at=now - 7199, **used))
        rows = {row["name"]: row for row in (await browser.get("keys")).json["data"]}
        assert rows["boss"]["last_used_at"] is None
        assert rows["boss"]["budgets"] == []
        mine = rows["webui"]
        assert abs(mine["last_used_at"] - (now - 60)) < 1
        assert mine["month"] == {"runs": 2, "total_tokens": 800, "cost": 5.0}
        assert mine["budgets"] == [
            {"kind": "cost", "used": 5.0, "most": 5.0, "seconds": 86400},
            {"kind": "tokens", "used": 400, "most": 1000, "seconds": 3600},
            {"kind": "tokens", "used": 800, "most": 9000, "seconds": 86400},
        ]


async def test_messages_that_are_too_long_are_not_read_for_a_list() -> None:
    """Messages are read for some runs, of some roles, and only up to a size."""
    async with ui_proxy() as (browser, _):
        store = browser.proxy.services.store
        store.put_run(run("run_a"))
        store.put_messages(
            [
                MessageRecord("run_a", 1, 0, "assistant", "short"),
                MessageRecord("run_a", 1, 1, "assistant", "x" * 5000),
                MessageRecord("run_a", 1, 2, "tool", "other role"),
            ]
        )
        read = [part async for part in store.read_messages(["run_a", "run_none"], ["assistant"], 2000)]
        assert [{one: [row.content for row in rows] for one, rows in part.items()} for part in read] == [
            {"run_a": ["short"]}
        ]
        assert [part async for part in store.read_messages([], ["assistant"], 2000)] == []
