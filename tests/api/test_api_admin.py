"""``/admin``: who may read it, what it shows, and that it changes nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from chat_script import DONE, call, content, finish, role
from edge_requests import edge_request
from listed_runs import T0, fill, run
from probe_tools import WATCH
from raw_upstream import RawUpstream, chunked
from running_proxy import Answer, Proxy, make_config, running
from structlog.testing import capture_logs
from waiting import PATIENCE_S

from proxy.api.admin.json_output import to_line
from proxy.app.app import Overrides, create_app
from proxy.base.errors import RequestError, StoreError
from proxy.commands.runs.runs import list_runs, show_run
from proxy.records.rows import ClientKey
from proxy.rights.callers import Caller
from proxy.server.auth.key_ring import Key
from proxy.store.base import RunFilter, Store

ADMIN = {"Authorization": "Bearer admin"}


class AdminDoor:
    """An authenticator that admits everybody, and those with the one key as administrators."""

    async def admit(self, request: Any, target: Any) -> Caller:
        return Caller("anybody", "anybody")

    async def admit_admin(self, request: Any, target: Any) -> Caller:
        given = request.headers.get("Authorization")
        if given != ADMIN["Authorization"]:
            status, code = (401, "invalid_api_key") if given is None else (403, "not_an_admin")
            raise RequestError(status, "Not an administrator.", type="authentication_error", code=code)
        return Caller("key_admin", "key_admin")

    async def admit_approver(self, request: Any, target: Any) -> Key:
        caller = await self.admit_admin(request, target)
        return Key(caller, "boss", b"", admin=True, verify_key=None, expires_at=None)

    async def admit_scraper(self, request: Any, target: Any) -> None:
        await self.admit_admin(request, target)


@asynccontextmanager
async def administered(*hold: asyncio.Event, **config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy with an administrators' key, before an upstream that calls a tool, waits and then answers."""
    turns = (
        chunked(
            role(), call("c1", "core__get_current_time", '{"timezone": "UTC"}'), finish("tool_calls"), DONE
        ),
        [*hold, *chunked(role(), content("It is noon."), finish(), DONE)],
    )
    config.setdefault("modules", ("probe_tools",))
    async with (
        RawUpstream(*turns) as upstream,
        running(make_config(upstream.url, **config), Overrides(authenticator=AdminDoor())) as proxy,
    ):
        yield proxy, upstream


async def look(proxy: Proxy, path: str, headers: Mapping[str, str] = ADMIN, method: str = "GET") -> Answer:
    """One request below ``/admin``."""
    return await proxy.ask(None, headers, method=method, path=f"/admin{path}")


def numbers(answer: Answer) -> list[int]:
    """The numbers of the runs on a page."""
    assert answer.status == 200, answer.body
    return [int(row["id"].removeprefix("run_"), 16) for row in answer.json["data"]]


def printed(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """The lines of JSON that a command printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


PATHS = ["", "/", "/runs", "/runs/run_1", "/runs?limit=x", "/tools", "/approvals", "/nowhere", "/runs/a/b"]


# ---------------------------------------------------------------- who may read


@pytest.mark.parametrize("path", PATHS)
async def test_only_administrators_come_in(path: str) -> None:
    """Without an administrator's key every path of /admin gives the same error, whether it exists or not."""
    async with administered() as (proxy, _):
        for method in ("GET", "POST", "DELETE"):
            assert (await look(proxy, path, {}, method)).status == 401
        nobody = await look(proxy, path, {"Authorization": "Bearer other"})
        assert (nobody.status, nobody.error["code"]) == (403, "not_an_admin")


@pytest.mark.parametrize("path", PATHS)
async def test_without_keys_there_are_no_administrators(path: str) -> None:
    """On an open server nobody is an administrator, not even on loopback; the 401 says how to get a key."""
    async with RawUpstream(chunked(DONE)) as upstream, running(make_config(upstream.url)) as proxy:
        for headers in ({}, ADMIN):
            answer = await look(proxy, path, headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert "toolrelay keys create" in answer.error["message"]


async def test_nothing_can_be_done() -> None:
    """Rule T1: /admin refuses all but GET and HEAD for runs and tools, and runs no tool."""
    WATCH.reset()
    async with administered() as (proxy, upstream):
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            for path in ("/runs", "/tools", "/tools/probe_tools__echo", "/tools/probe_tools__echo/call"):
                answer = await proxy.ask({"text": "x"}, ADMIN, method=method, path=f"/admin{path}")
                assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")
        assert (await look(proxy, "/tools/probe_tools__echo")).status == 404
        assert WATCH.started == []
        assert list(await proxy.runs()) == []
        assert upstream.requests == []


async def test_what_is_near_is_not_below() -> None:
    """A path that only resembles /admin is an ordinary 404 and needs no key."""
    async with administered() as (proxy, _):
        for path in ("/administrator", "/adminx/runs", "/Admin/runs"):
            answer = await proxy.ask(None, {}, method="GET", path=path)
            assert (answer.status, answer.error["code"]) == (404, "not_found")
        assert (await proxy.ask(None, ADMIN, method="GET", path="/v1/../admin/runs")).status == 400


# ---------------------------------------------------------------- runs


async def test_runs_come_in_pages() -> None:
    """A page has at most ``limit`` runs and says whether more follow; the next one continues there."""
    async with administered() as (proxy, _):
        fill(proxy.services.store)
        first = await look(proxy, "/runs?limit=3")
        assert numbers(first) == [7, 6, 5]
        assert first.header("content-type") == "application/json"
        assert first.header("cache-control") == "no-store"
        assert first.json["has_more"] is True
        assert first.json["object"] == "list"
        second = await look(proxy, f"/runs?limit=3&before={first.json['last_id']}")
        assert numbers(second) == [4, 3, 2]
        last = await look(proxy, f"/runs?limit=3&before={second.json['last_id']}")
        assert (numbers(last), last.json["has_more"]) == ([1], False)
        end = await look(proxy, f"/runs?before={last.json['last_id']}")
        assert end.json == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        assert len(numbers(await look(proxy, "/runs"))) == 7


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=failed", [2]),
        ("model=other", [3]),
        ("key=key_b", [4]),
        ("tool=core__a", [6]),
        ("errors=true", [2]),
        ("errors=false&status=cancelled", [5]),
        ("since=2025-10-09T08:53:25&until=2025-10-09T08:53:27", [6, 5]),
        ("since=1h", []),
        ("key=by-name", [4]),
        ("key=nobody", []),
        ("model=%F0%9F%92%A9", []),
    ],
)
async def test_runs_are_found_as_on_the_command_line(query: str, found: list[int]) -> None:
    """The query takes the same filters as the command ``runs list``."""
    async with administered() as (proxy, _):
        fill(proxy.services.store)
        await proxy.services.store.put_key(ClientKey("key_b", "by-name", bytes(32), "pepper", {}, T0))
        assert numbers(await look(proxy, f"/runs?{query}")) == found


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=%D9%A3", "limit"),
        ("limit=" + "9" * 200, "limit"),
        ("before=x%2Fy", "before"),
        ("before=", "before"),
        ("before=run_unknown", "before"),
        ("status=odd", "status"),
        ("since=yesterday", "since"),
        ("until=x", "until"),
        ("errors=1", "errors"),
        ("colour=red", "colour"),
        ("limit=1&limit=2", "limit"),
        ("model=" + "m" * 257, "model"),
        ("model=%ff", "query"),
        ("&".join(f"p{n}=1" for n in range(30)), "query"),
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(query: str, param: str) -> None:
    """Rule E1: an unknown, repeated, malformed or out-of-range parameter is a 400 that names it."""
    async with administered() as (proxy, _):
        fill(proxy.services.store)
        answer = await look(proxy, f"/runs?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_run_is_shown_as_on_the_command_line() -> None:
    """Rule R3: a run is shown with its turns and redacted calls; its messages are only counted."""
    async with administered() as (proxy, _):
        fill(proxy.services.store)
        with capture_logs() as logs:
            answer = await look(proxy, f"/runs/{run(6).id}")
        assert answer.status == 200
        shown = answer.json
        assert set(shown) == {
            *("run", "turns", "invocations", "inner_calls", "agent_runs", "kept_from_client"),
            *("message_count", "memory", "taken_over_by", "meaning"),
        }
        kept = {part["what"]: part["why"] for part in shown["kept_from_client"]}
        assert "the proxy ran these tools" in kept["1 tool call, arguments and results"]
        assert shown["run"]["withheld"] == {"core__b": "policy.allow lacks it"}
        assert shown["run"]["duration_s"] == 0.5
        assert shown["message_count"] == 1
        assert shown["invocations"][0]["arguments_redacted"]["huge"] == 1 << 80
        assert b"only the model" not in answer.body
        assert answer.body.decode("ascii") == to_line(shown)
        assert not [line for line in logs if line["event"] == "content_read"]


async def test_who_reads_content_is_in_the_log() -> None:
    """Rule R3: an administrator who asks for content gets it, and the log says who read which run."""
    async with administered() as (proxy, _):
        fill(proxy.services.store)
        run_id = run(6).id
        with capture_logs() as logs:
            answer = await look(proxy, f"/runs/{run_id}?content=true", {**ADMIN, "x-request-id": "mine"})
        assert [message["content"] for message in answer.json["messages"]] == ["what only the model heard"]
        (line,) = [line for line in logs if line["event"] == "content_read"]
        assert line["log_level"] == "warning"
        assert {key: line[key] for key in ("caller", "request_id", "run_id", "messages")} == {
            "caller": "key_admin",
            "request_id": "mine",
            "run_id": run_id,
            "messages": 1,
        }
        assert "only the model" not in str(logs)
        with capture_logs() as logs:
            for query in ("content=false", "", "content=yes", "content=true&content=true"):
                answer = await look(proxy, f"/runs/{run_id}?{query}")
                assert b"only the model" not in answer.body
            assert (await look(proxy, "/runs/run_unknown?content=true")).status == 404
        assert not [line for line in logs if line["event"] == "content_read"]


async def test_what_is_not_there_is_not_told_apart() -> None:
    """Unknown ids, impossible ids, the beginning of an id and wrong paths all get the same 404."""
    async with administered() as (proxy, _):
        fill(proxy.services.store)
        proxy.services.store.put_run(run(0xF << 124))
        said = set()
        for path in (
            "/runs/run_f",
            "/runs/run_00000000000000000000000000000063",
            "/runs/run_0000000000000000000000000000000",
            "/runs/run_",
            "/runs/",
            "/runs/a/b",
            "/runs/" + "a" * 300,
            "/runs/a%20b",
            "/runs/'--",
            "/runs/%F0%9F%92%A9",
            "/nowhere",
            "/tools/x",
            "/approvals/x",
            "",
            "/",
        ):
            answer = await look(proxy, path)
            error = answer.error
            said.add((answer.status, error["type"], error["code"], error["param"]))
            assert error["message"] == f"There is no endpoint at {f'/admin{path}'[:100]}."
        assert said == {(404, "invalid_request_error", "not_found", None)}


async def test_a_real_run_is_on_the_pages_once_it_has_ended() -> None:
    """A run is listed as completed, with its turns and calls, once it has ended; other requests are not."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "?"}]}
    hold = asyncio.Event()
    async with administered(hold) as (proxy, upstream):
        asking = asyncio.create_task(proxy.ask(body))
        await upstream.asked(2)
        for status, count in (("running", 1), ("completed", 0)):
            assert len((await look(proxy, f"/runs?status={status}")).json["data"]) == count
        hold.set()
        run_id = (await asking).header("x-toolrelay-run")
        await proxy.run_reaches("completed")
        for answer in (
            await proxy.ask(body, {"x-toolrelay-tools": "none"}),
            await proxy.ask({"model": "m", "input": "?"}, path="/v1/embeddings"),
        ):
            assert (answer.status, answer.header("x-toolrelay-run")) == (200, None)
        for query in ("", "?status=completed", "?tool=core__get_current_time"):
            listed = await look(proxy, f"/runs{query}")
            assert [row["id"] for row in listed.json["data"]] == [run_id]
        shown = (await look(proxy, f"/runs/{run_id}")).json
        assert [turn["number"] for turn in shown["turns"]] == [1, 2]
        assert [(row["tool"], row["status"]) for row in shown["invocations"]] == [
            ("core__get_current_time", "success")
        ]


async def test_the_command_line_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line prints the same JSON about runs as /admin."""
    store = {"url": f"sqlite:///{tmp_path}/record.db"}
    async with administered(store=store) as (proxy, _):
        fill(proxy.services.store)
        listed = (await look(proxy, "/runs")).json["data"]
        shown = (await look(proxy, f"/runs/{run(6).id}?content=true")).json
        config = make_config(store=store)
        await list_runs(config, RunFilter(), 50, as_json=True)
        assert printed(capsys) == listed
        await show_run(config, run(6).id, as_json=True, content=True)
        assert printed(capsys) == [shown]


class Unreadable:
    """A store whose database cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_runs(self, wanted: RunFilter) -> Any:
        raise StoreError("the database is at /secret/place")

    async def get_run(self, run_id: str) -> Any:
        raise StoreError("the database is at /secret/place")


async def test_a_record_that_cannot_be_read_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store cannot be read, the administrator gets a 503 that does not say where the database is."""
    monkeypatch.setattr("proxy.app.open_record.open_store", _opening(Unreadable))
    async with administered() as (proxy, _):
        for path in ("/runs", "/runs/run_1"):
            answer = await look(proxy, path)
            assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
            assert b"secret" not in answer.body
        # The proxy does not look up an id that no run can have.
        for run_id in ("a%20b", "'--", "a" * 65, "%F0%9F%92%A9"):
            assert (await look(proxy, f"/runs/{run_id}")).status == 404


def _opening(wrapper: Any) -> Any:
    from proxy.store.factory import open_store

    return lambda *args, **kwargs: wrapper(open_store(*args, **kwargs))


async def test_while_draining_nobody_is_served() -> None:
    """A server that is draining refuses requests with a 503, also an administrator's."""
    async with RawUpstream(chunked(DONE)) as upstream:
        app = await create_app(make_config(upstream.url), overrides=Overrides(authenticator=AdminDoor()))
        app.draining.refuse()
        response = await app.handle(edge_request("GET", "/admin/tools", {**ADMIN, "Host": "localhost"}))
        assert isinstance(response, web.Response)
        assert response.status == 503
        assert isinstance(response.body, bytes)
        assert json.loads(response.body)["error"]["code"] == "draining"
        await app.aclose()


# ---------------------------------------------------------------- tools and approvals


async def test_tools_are_listed_with_what_policy_says() -> None:
    """The list has each tool's effect, the policy's decision with its rule, and why the tool is withheld."""
    async with administered(allow=("core__get_current_time", "flights__*")) as (proxy, _):
        answer = await look(proxy, "/tools")
        tools = {row["id"]: row for row in answer.json["data"]}
        assert list(tools) == sorted(tools)
        assert answer.json["has_more"] is False
        clock = tools["core__get_current_time"]
        assert (clock["effect"], clock["decision"], clock["withheld"]) == ("read_only", "allowed", None)
        assert clock["rule"] == 'policy.allow has "core__get_current_time"'
        weather = tools["core__get_weather"]
        assert weather["decision"] == "denied"
        assert weather["withheld"] == weather["rule"] == 'policy.allow lacks "core__get_weather"'
        assert tools["flights__search_flights"]["withheld"] == "credentials.duffel is missing"
        assert clock["parameters"]["type"] == "object"
        assert (await look(proxy, "/tools?x=1")).error["param"] == "x"
    async with administered(tools={"enabled": False}) as (proxy, _):
        rows = (await look(proxy, "/tools")).json["data"]
        assert {row["withheld"] for row in rows} == {"tools.enabled is false"}


async def test_the_list_of_approvals_is_empty_while_nothing_waits() -> None:
    """If no approval waits, the list is an empty page; the proxy names a wrong parameter."""
    async with administered() as (proxy, _):
        answer = await look(proxy, "/approvals")
        assert (answer.status, answer.json["data"], answer.json["has_more"]) == (200, [], False)
        assert (await look(proxy, "/approvals?waiting=perhaps")).error["param"] == "waiting"


async def test_head_has_no_body() -> None:
    """HEAD gives a status and a length without a body, and the connection serves the next request."""
    async with administered() as (proxy, _), asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(proxy.request(None, ADMIN, method="HEAD", path="/admin/tools"))
        head = await conversation.head()
        assert (head.status, int(head.header("content-length") or "0") > 0) == (200, True)
        conversation.writer.write(proxy.request(None, ADMIN, method="GET", path="/admin/approvals"))
        assert (await conversation.answer()).json["data"] == []
