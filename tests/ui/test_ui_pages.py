"""The data of the web UI's pages: runs, tools, servers, keys, usage and settings; and the playground."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_script import reply
from client_keys import bearer, declared
from listed_runs import fill, run
from raw_upstream import RawUpstream
from running_proxy import SERVER_KEY, make_config, running
from store_postgres import need_postgres, new_schema
from structlog.testing import capture_logs
from ui_rig import ADMIN, CLIENT, QUESTION, Browser, ui_proxy

from proxy.commands.runs.runs import export_runs
from proxy.records.rows import MessageRecord
from proxy.store.base import RunFilter
from proxy.ui.diagnoses import KeptFinding, encode_diagnosis

TIME = "core__get_current_time"


async def asked(browser: Browser) -> str:
    """Ask the question with the client's key, and return the run's id."""
    answer = await browser.proxy.ask(QUESTION, bearer(CLIENT))
    assert answer.status == 200
    return answer.header("x-toolrelay-run") or ""


async def test_the_list_is_that_of_admin_with_names_and_calls() -> None:
    """The list has the filters, pages and rows of ``/admin/runs``, with the caller's name and the calls."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        fill(browser.proxy.services.store)
        for query in ("", "?limit=2", "?status=failed", "?errors=true", f"?id={run(3).id}", "?model=other"):
            told = (await browser.get(f"runs{query}")).json
            admin = (
                await browser.proxy.ask(None, bearer(ADMIN), method="GET", path=f"/admin/runs{query}")
            ).json
            for row in told["data"]:
                assert row.pop("caller_name") == row["caller"]
                calls = row.pop("calls")
                assert len(calls) == row["tool_calls"]
                assert row.pop("calls_more") == 0
            assert told == admin
            assert told["data"]
        answer = await browser.get("runs?color=red")
        assert (answer.status, answer.error["param"]) == (400, "color")


async def test_a_run_is_shown_with_its_time_line_offer_and_budgets() -> None:
    """A run is shown with its offsets, its time to the first piece, each tool's rule, and its budgets."""
    async with ui_proxy(policy={"allow": ["core__get_current_time"]}, keys=keys()) as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        with capture_logs() as logs:
            shown = (await browser.get(f"runs/{run_id}")).json
        assert not any(line["event"] == "content_read" for line in logs)
        assert "messages" not in shown
        assert shown["run"]["caller_name"] == "webui"
        first, second = shown["turns"]
        assert 0 <= first["first_ms"] <= first["duration_s"] * 1000 + 1
        assert first["offset_ms"] <= shown["invocations"][0]["offset_ms"] <= second["offset_ms"]
        offer = {one["tool"]: one for one in shown["offer"]}
        assert offer["core__get_current_time"]["outcome"] == "offered"
        assert offer["core__get_current_time"]["rule"] == 'policy.allow has "core__get_current_time"'
        weather = offer["core__get_weather"]
        assert weather["outcome"] == "withheld"
        assert weather["change"]["setting"] == "policy.allow"
        assert weather["change"]["toml"] == (
            '[policy]\nallow = ["core__get_current_time", "core__get_weather"]'
        )
        budgets = {one["name"]: one for one in shown["budgets"]}
        assert (budgets["turns"]["used"], budgets["turns"]["max"]) == (2, 8)
        assert (budgets["calls"]["used"], budgets["calls"]["max"]) == (1, 32)
        assert "tokens" not in budgets
        for unknown in ("run_none", run_id[:-1], "%7B", "a/b/c"):
            assert (await browser.get(f"runs/{unknown}")).status == 404


def keys() -> dict[str, Any]:
    """Return an administrator's key and a client's, which may use all tools that policy allows."""
    return {"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT)}


async def test_who_reads_content_is_in_the_log() -> None:
    """The log names the key that reads messages, a copy of a request, or an export with content."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        for path in (
            f"runs/{run_id}?content=true",
            f"runs/{run_id}/copy",
            f"runs/{run_id}/export?content=true",
        ):
            with capture_logs() as logs:
                assert (await browser.get(path)).status == 200
            (line,) = [line for line in logs if line["event"] == "content_read"]
            assert (line["caller"], line["run_id"]) == ("config:boss", run_id)


async def test_a_request_is_copied_for_a_shell_and_for_python() -> None:
    """A stored request is copied as it was sent, but without its key, and with hostile text in quotes."""
    hostile = "'; rm -rf / #\n\"$(id)`id`\\"
    body = {"model": "m", "messages": [{"role": "user", "content": hostile}]}
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        store = browser.proxy.services.store
        store.put_run(run(1))
        store.put_run(run(2))
        store.put_messages([MessageRecord(run(2).id, 0, 0, "request", content_json=json.dumps(body))])
        short = (await browser.get(f"runs/{run(1).id}/copy")).json
        assert not short["complete"]
        assert "was not kept" in short["note"]
        curl = (await browser.get(f"runs/{run(2).id}/copy?as=curl")).json
        assert curl["complete"]
        import shlex

        words = shlex.split(curl["text"].replace("\\\n", ""))
        assert json.loads(words[words.index("-d") + 1]) == body
        assert f"http://127.0.0.1:{browser.proxy.port}/v1/chat/completions" in words
        assert "Authorization: Bearer $TOOLRELAY_API_KEY" in words
        python = (await browser.get(f"runs/{run(2).id}/copy?as=python")).json["text"]
        line = next(line for line in python.splitlines() if line.startswith("body = "))
        assert eval(line.removeprefix("body = "), {"json": json}) == body  # noqa: S307
        assert (await browser.get(f"runs/{run(2).id}/copy?as=perl")).status == 400


async def test_two_runs_are_compared() -> None:
    """Two runs are compared by fields, turns and calls; what one of them lacks is null."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        fill(browser.proxy.services.store)
        said = (await browser.get(f"compare?a={run(6).id}&b={run(3).id}")).json
        assert {"name": "model", "a": "m", "b": "other"} in said["fields"]
        assert [(pair["number"], pair["b"]) for pair in said["turns"]] == [(1, None)]
        assert said["calls"][0]["same_arguments"] is None
        same = (await browser.get(f"compare?a={run(6).id}&b={run(6).id}")).json
        assert same["fields"] == []
        assert same["calls"][0]["same_arguments"]
        assert (await browser.get(f"compare?a={run(6).id}")).error["param"] == "b"


@pytest.mark.parametrize("content", [False, True])
async def test_an_export_is_a_line_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bool
) -> None:
    """The file that the page exports has the very line of ``runs export``; messages only on request."""
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    async with ui_proxy(store=store) as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        await browser.proxy.run_reaches("completed")
        answer = await browser.get(f"runs/{run_id}/export{'?content=true' if content else ''}")
        capsys.readouterr()
        await export_runs(make_config(store=store), RunFilter(), None, None, content=content)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert answer.header("content-disposition") == f'attachment; filename="{run_id}.jsonl"'
    assert answer.body.decode() == f"{line}\n"
    assert answer.json["run"]["id"] == run_id
    assert ("messages" in answer.json) == content


async def test_a_run_is_replayed_offline() -> None:
    """A replay gives the same run; it asks no upstream, and the store gets no further run."""
    async with ui_proxy(store={"content": "all"}) as (browser, upstream):
        await browser.sign_in()
        run_id = await asked(browser)
        with capture_logs() as logs:
            answer = await browser.send("POST", f"runs/{run_id}/replay", {})
        assert answer.json == {
            "object": "ui.replay",
            "run_id": run_id,
            "same": True,
            "notes": [],
            "differences": [],
        }
        assert [line["run_id"] for line in logs if line["event"] == "content_read"] == [run_id]
        assert len(upstream.requests) == 2
        assert [row["id"] for row in (await browser.get("runs")).json["data"]] == [run_id]
        assert (await browser.get(f"runs/{run_id}/replay")).status == 405


async def test_a_replay_shows_what_the_present_tools_change() -> None:
    """A replay names a tool that is no longer loaded, and shows how the run differs without it."""
    async with ui_proxy(store={"content": "all"}) as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        registry = browser.proxy.services.registry
        now = registry.current
        kept = [spec for spec in now.tools() if spec.name != "core__get_current_time"]
        registry.replace([(spec, now.provider(spec.name)) for spec in kept])
        said = (await browser.send("POST", f"runs/{run_id}/replay", {})).json
        assert said["same"] is False
        assert "core__get_current_time" in said["notes"][0]
        assert "tools_offered" in [one["where"] for one in said["differences"]]


async def test_a_replay_that_cannot_be_made_says_what_the_record_lacks() -> None:
    """A run without stored content cannot be replayed, and the error names the setting."""
    async with ui_proxy(store={"content": "none"}) as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        answer = await browser.send("POST", f"runs/{run_id}/replay", {})
        assert (answer.status, answer.error["code"]) == (409, "cannot_replay")
        assert "store.content" in answer.error["message"]


async def test_a_run_that_asked_no_model_has_nothing_to_replay() -> None:
    """A direct call of a tool, or an answer about a waiting call, cannot be replayed; the error says why."""
    asks: dict[str, Any] = {"allow": ["core__*"], "policy": {"approve": [TIME]}, "approvals": {}}
    asks |= {
        "store": {"content": "all"},
        "mcp": {"serve": True},
        "keys": {"boss": declared(ADMIN, admin=True)},
    }
    key, question = bearer(ADMIN), {"role": "user", "content": "What time is it?"}
    async with (
        RawUpstream(reply(None, ("c1", TIME, '{"timezone": "UTC"}'))) as upstream,
        running(make_config(upstream.url, **asks)) as proxy,
    ):
        browser = await Browser(proxy).sign_in()
        told = await proxy.ask({"model": "m", "messages": [question]}, key)
        said = [question, told.json["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        again = await proxy.ask({"model": "m", "messages": said}, key)
        assert "still waiting" in again.json["choices"][0]["message"]["content"]
        called = {"name": "core__calculate", "arguments": {"expression": "6 * 7"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called}
        headers = {
            **key,
            "Accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2025-11-25",
        }
        assert "42" in str((await proxy.ask(message, headers, path="/mcp")).json["result"])
        runs = {row["id"]: row for row in (await browser.get("runs")).json["data"]}
        (direct,) = [row["id"] for row in runs.values() if row["wire"] == "mcp"]
        for run_id, why in ((direct, "a direct call"), (again.header("x-toolrelay-run"), "still waits")):
            answer = await browser.send("POST", f"runs/{run_id}/replay", {})
            assert (answer.status, answer.error["code"]) == (409, "cannot_replay")
            assert why in answer.error["message"]
            assert answer.error["message"].endswith("nothing to replay.")


async def test_every_page_reads_a_record_in_postgresql() -> None:
    """The data of all pages, and replays, work with a store in PostgreSQL, too."""
    need_postgres()
    async with new_schema() as url, ui_proxy(store={"url": url, "content": "all"}) as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        (row,) = (await browser.get("runs")).json["data"]
        assert (row["id"], row["calls"][0]["tool"]) == (run_id, "core__get_current_time")
        assert row["caller_name"] == "webui"
        shown = (await browser.get(f"runs/{run_id}?content=true")).json
        assert (len(shown["turns"]), shown["messages"][0]["role"]) == (2, "request")
        assert (await browser.get(f"compare?a={run_id}&b={run_id}")).json["fields"] == []
        (used,) = (await browser.get("usage?by=key")).json["data"]
        assert (used["key_name"], used["runs"]) == ("webui", 1)
        calls = {tool["id"]: tool["used"] for tool in (await browser.get("tools")).json["data"]}
        assert calls["core__get_current_time"]["calls"] == 1
        assert (await browser.get("health")).json["record"]["kind"] == "postgresql"
        assert (await browser.get(f"runs/{run_id}/wire")).json["captured"] is False
        assert (await browser.send("POST", f"runs/{run_id}/replay", {})).json["same"] is True
        for path in ("keys", "mcp", "upstreams", "settings", "capture"):
            assert (await browser.get(path)).status == 200


async def test_upstreams_have_what_doctor_found_last() -> None:
    """An upstream has the doctor's last findings for its present address; unreadable ones are left out."""
    findings = [KeptFinding("end mark", "no", "the stream has no end mark"), KeptFinding("usage", "ok")]
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        (one,) = (await browser.get("upstreams")).json["data"]
        assert one["doctor"] is None
        store = browser.proxy.services.store
        for text in (
            encode_diagnosis("http://other.example/v1", "m", 1.5, findings),
            "{",
            '{"address": "x"}',
        ):
            await store.put_diagnosis(one["id"], text)
            assert (await browser.get("upstreams")).json["data"][0]["doctor"] is None
        await store.put_diagnosis(one["id"], encode_diagnosis(one["base_url"], "m", 1.5, findings))
        assert (await browser.get("upstreams")).json["data"][0]["doctor"] == {
            "at": 1.5,
            "model": "m",
            "findings": [
                {"check": "end mark", "outcome": "no", "note": "the stream has no end mark"},
                {"check": "usage", "outcome": "ok", "note": None},
            ],
        }


async def test_what_is_copied_has_the_address_of_the_page() -> None:
    """A copied request has the page's address, which is https if the cookie is one of a page over https."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser)
        plain = (await browser.get(f"runs/{run_id}/copy")).json["text"]
        assert f"curl -N http://127.0.0.1:{browser.proxy.port}/v1/chat/completions" in plain
        browser.cookie = f"__Secure-{browser.cookie}"
        secure = (await browser.get(f"runs/{run_id}/copy")).json["text"]
        assert f"curl -N https://127.0.0.1:{browser.proxy.port}/v1/chat/completions" in secure


async def test_tools_say_why_they_are_offered_and_how_they_did() -> None:
    """Each tool has the reason why it is withheld, the setting that would change that, and its use."""
    async with ui_proxy(policy={"allow": ["core__get_current_time"]}, keys=keys()) as (browser, _):
        await browser.sign_in()
        await asked(browser)
        rows = {row["id"]: row for row in (await browser.get("tools")).json["data"]}
        clock = rows["core__get_current_time"]
        assert (clock["withheld"], clock["change"], clock["used"]["calls"]) == (None, None, 1)
        assert clock["provider"] == "core"
        weather = rows["core__get_weather"]
        assert weather["change"]["setting"] == "policy.allow"
        assert weather["used"] is None
        assert (await browser.get("mcp")).json["data"] == []


async def test_a_decision_is_explained_step_by_step() -> None:
    """An explanation has the step that refused a tool, and the setting that would allow it."""
    tables = {
        "boss": declared(ADMIN, admin=True),
        "webui": declared(CLIENT, tools=["core__get_current_time"]),
    }
    async with ui_proxy(keys=tables) as (browser, _):
        await browser.sign_in()
        said = (await browser.get("explain?tool=core__get_weather")).json
        assert said["outcome"] == "offered"
        said = (await browser.get("explain?tool=core__get_weather&key=webui")).json
        assert said["outcome"] == "withheld"
        failed = next(step for step in said["steps"] if step["outcome"] != "allowed")
        assert failed["what"] == "key webui"
        assert said["change"]["toml"] == (
            '[keys.webui]\ntools = ["core__get_current_time", "core__get_weather"]'
        )
        assert (await browser.get("explain?tool=none")).json["outcome"] == "unknown"
        for query in ("", "?tool=x&key=none", "?tool=x&upstream=none"):
            assert (await browser.get(f"explain{query}")).status == 400


async def test_keys_are_shown_without_their_secrets() -> None:
    """The list of keys has their rights and their validity, but not their secrets."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        answer = await browser.get("keys")
        rows = {row["name"]: row for row in answer.json["data"]}
        assert rows["webui"]["tools"] == ["core__*"]
        assert rows["boss"]["admin"]
        assert rows["boss"]["valid"]
        for secret in (ADMIN, CLIENT, SERVER_KEY):
            assert secret not in answer.body.decode()


async def test_usage_is_that_of_the_command() -> None:
    """Usage is grouped by the given fields; an invalid field is refused."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        fill(browser.proxy.services.store)
        rows = (await browser.get("usage?by=model,day")).json["data"]
        assert {row["group"]["model"] for row in rows} == {"m", "other"}
        assert sum(row["runs"] for row in rows) == 7
        assert rows[0]["group"]["day"] == "2025-10-09"
        assert (await browser.get("usage")).json["data"][0]["runs"] == 7
        for query in ("by=color", "by=day,day", "by=day,model,key,tool", "since=x"):
            assert (await browser.get(f"usage?{query}")).status == 400


async def test_settings_upstreams_and_health_show_no_secret() -> None:
    """Settings show where a secret comes from, and no page shows a secret."""
    store = {"content": "all"}
    async with ui_proxy(store=store) as (browser, _):
        await browser.sign_in()
        answers = [await browser.get(path) for path in ("settings", "upstreams", "health", "tools")]
        rows = {row["name"]: row for row in answers[0].json["data"]}
        key = rows["upstreams.default.api_key"]
        assert (key["value"], key["secret"]) == ("env:SERVER_KEY", True)
        assert rows["keys.boss.secret"]["value"] == "env:CLIENT"
        assert (rows["store.content"]["value"], rows["store.content"]["changed"]) == ("all", True)
        (upstream,) = answers[1].json["data"]
        assert upstream["breaker"] == {"state": "closed", "failures": 0, "open_for_s": 0.0}
        assert answers[2].json["status"] == "ok"
        for answer in answers:
            for secret in (ADMIN, CLIENT, SERVER_KEY):
                assert secret not in answer.body.decode()


@pytest.mark.parametrize(
    "path", ["tools/x", "mcp?x=1", "keys/x", "upstreams?a", "settings/x", "health/x", "none"]
)
async def test_there_is_nothing_else(path: str) -> None:
    """Another path or parameter gets an error in JSON."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        answer = await browser.get(path)
        assert answer.status in (400, 404)
        assert answer.error["message"]


async def test_the_playground_asks_as_a_caller_with_few_rights() -> None:
    """The playground streams like the API, for a caller with its own models, tools and limit."""
    ui = {
        "playground_models": ["m"],
        "playground_tools": ["core__get_current_time"],
        "playground_requests": ["3/minute"],
    }
    async with ui_proxy(ui=ui, keys=keys()) as (browser, upstream):
        await browser.sign_in()
        trace = {"x-toolrelay-trace": "events"}
        answer = await browser.send("POST", "play/v1/chat/completions", QUESTION, trace)
        assert (answer.status, answer.header("content-type")) == (200, "text/event-stream")
        assert answer.header("x-toolrelay-trace") == "events"
        assert b"core__get_current_time" in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")
        detail = await browser.proxy.only_run()
        assert detail.run.caller.startswith("ui/")
        assert detail.run.id == answer.header("x-toolrelay-run")
        assert detail.run.offered == ("core__get_current_time",)
        request = upstream.requests[0]
        assert "cookie" not in request.names()
        assert "x-toolrelay-ui" not in request.names()
        assert ADMIN not in str(request.headers)
        models = await browser.get("play/v1/models")
        assert models.status in (200, 502)
        other = await browser.send("POST", "play/v1/chat/completions", {**QUESTION, "model": "other"})
        assert other.status == 404
        limited = await browser.send("POST", "play/v1/chat/completions", QUESTION)
        assert limited.status == 429


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "play/v1/files"),
        ("POST", "play/v1/toolrelay/tokens"),
        ("POST", "play/admin/runs"),
        ("GET", "play/v1/files"),
        ("POST", "play/v1/embeddings"),
        ("DELETE", "play/v1/models/m"),
        ("POST", "play/v1/chat/completions?x=1"),
        ("POST", "play/"),
    ],
)
async def test_the_playground_reaches_nothing_else(method: str, path: str) -> None:
    """The playground only generates and lists models; other paths get a 404 and reach no upstream."""
    async with ui_proxy() as (browser, upstream):
        await browser.sign_in()
        answer = await browser.send(method, path, {} if method == "POST" else None)
        assert answer.status == 404
        assert not upstream.requests


async def test_the_playground_can_be_turned_off() -> None:
    """Without playground models there is no playground, and the page is told so."""
    async with ui_proxy(ui={"playground_models": []}) as (browser, _):
        await browser.sign_in()
        assert (await browser.send("POST", "play/v1/chat/completions", QUESTION)).status == 404
        assert not (await browser.get("session")).json["playground"]["allowed"]


async def test_the_playground_needs_the_session_and_the_pages_header() -> None:
    """The playground refuses a request without a session or the page's header, also with a client's key."""
    async with ui_proxy() as (browser, upstream):
        assert (await browser.send("POST", "play/v1/chat/completions", QUESTION)).status == 401
        answer = await browser.proxy.ask(QUESTION, bearer(CLIENT), path="/ui/api/play/v1/chat/completions")
        assert answer.status == 403
        await browser.sign_in()
        hidden = {"x-toolrelay-ui": None}
        assert (await browser.send("POST", "play/v1/chat/completions", QUESTION, hidden)).status == 403
        assert not upstream.requests
