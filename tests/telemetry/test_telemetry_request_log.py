"""Requests without a run get a row, and the record, the metrics and the UI agree about all of them."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from chat_script import call, content, finish, reply, role, stream, usage
from client_keys import ALICE, BOB, bearer, declared
from metrics_page import Samples, scrape
from raw_upstream import RawRequest, RawUpstream, Step, chunk, head, whole
from running_proxy import Proxy, make_config, running
from waiting import until

from proxy.records.requests import RequestRecord
from proxy.store.base import RequestFilter, RunFilter, UsageFilter
from proxy.telemetry import request_log
from proxy.telemetry.hooks import RequestFacts
from proxy.telemetry.request_log import RequestLog

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PRICES = {"m": {"input": 1.0, "output": 10.0}, "n": {"input": 2.0, "output": 0.5}}
KEYS = {"alice": declared(ALICE, admin=True), "bob": declared(BOB, tools=(), models=("m", "n"))}
UNLIMITED: dict[str, Any] = {"limits": {"requests": ["100000/minute"]}}
NOW = "core__get_current_time"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "EVERY_S", 0.01)


class Kept:
    """A record that keeps the rows, or loses them."""

    def __init__(self, *, loses: bool = False) -> None:
        self.rows: list[RequestRecord] = []
        self._loses = loses

    def now(self) -> float:
        return 1_000_000.0

    async def add_requests(
        self, records: Iterable[RequestRecord], settled: Callable[[bool], None] | None = None
    ) -> None:
        made = list(records)
        self.rows += [] if self._loses else made
        if settled is not None:
            settled(not self._loses)


def facts(caller: str = "alice", started: float = 5.0, **changes: Any) -> RequestFacts:
    return RequestFacts("req_1", "POST", "/v1/x", started, dialect="chat", caller=caller, **changes)


async def test_the_number_of_requests_that_wait_has_a_bound() -> None:
    """What does not fit, and what the record loses, is counted."""
    kept = Kept()
    log = RequestLog(kept, most=3)
    for _ in range(5):
        log.request_ended(facts())
    await log.aclose()
    assert (len(kept.rows), log.unrecorded) == (3, 2)
    assert len({row.id for row in kept.rows}) == 3
    lossy = RequestLog(Kept(loses=True))
    lossy.request_ended(facts())
    await lossy.aclose()
    assert lossy.unrecorded == 1


async def test_requests_of_nobody_cannot_fill_the_record() -> None:
    """Of requests without a key only sixty in a row get rows, then one a second; keys lose nothing by it."""
    kept = Kept()
    log = RequestLog(kept)
    for number in range(1000):
        log.request_ended(facts(caller="", started=5.0 + number / 100))
    log.request_ended(facts())
    await log.aclose()
    assert 60 <= len(kept.rows) - 1 <= 71
    assert log.unrecorded == 1001 - len(kept.rows)


async def test_only_requests_without_a_run_get_rows() -> None:
    """A request that began a run is that run, and the proxy's own paths have no dialect."""
    kept = Kept()
    log = RequestLog(kept)
    log.request_ended(facts(has_run=True))
    log.request_ended(RequestFacts("req_2", "GET", "/metrics", 5.0))
    await log.aclose()
    assert kept.rows == []


def _scripts(request: RawRequest) -> Sequence[Step]:
    """Answer as the request's user asks: a stream with usage or without, a reply, an error, a tool call."""
    if request.target.endswith("/embeddings"):
        return whole(json.dumps({"data": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}}).encode())
    if request.target.endswith("/models"):
        return whole(b'{"object":"list","data":[{"id":"m","object":"model"}]}')
    body = json.loads(request.body)
    match body["user"]:
        case "counted":
            return stream(role(), content("Hi"), finish(), usage(20, 3))
        case "silent":
            return stream(role(), content("Hi"), finish())
        case "torn":
            return [head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"), chunk(role())]
        case "refused":
            return whole(b'{"error":{"message":"slow down"}}', status="429 Too Many Requests")
        case "tool" if body["messages"][-1]["role"] == "user":
            asked = call("call_1", NOW, '{"timezone":"UTC"}')
            return stream(role(), asked, finish("tool_calls"), usage(30, 5))
        case "tool":
            return stream(role(), content("Noon"), finish(), usage(60, 7))
    return reply("Hi", used=(11, 2))


async def _mixed(proxy: Proxy, number: int) -> None:
    """Send the request of a number: one of thirteen kinds, by two keys, for two models."""
    alice = bearer(BOB if number % 5 == 0 else ALICE)
    model = "n" if number % 3 == 0 else "m"

    async def ask(user: str, key: Any = alice, **more: Any) -> None:
        await proxy.ask({**ASK, "model": model, "user": user, **more}, headers=key)

    streams = {"stream": True, "stream_options": {"include_usage": True}}
    match number % 13:
        case 0 | 1 | 2:
            await ask("counted", **streams)
        case 3:
            await ask("silent", stream=True)
        case 4:
            await ask("torn", **streams)
        case 5:
            await ask("refused")
        case 6:
            await ask("tool", bearer(ALICE), **streams)
        case 7:
            await ask("whole")
        case 8:
            await ask("whole", bearer("wrong-" * 6))
        case 9:
            await proxy.ask(b"{not json", headers=alice)
        case 10:
            await proxy.ask({"model": model, "input": "hi"}, path="/v1/embeddings", headers=alice)
        case 11:
            await proxy.get("/v1/models", alice)
        case 12:
            await proxy.ask({**ASK, "model": "withheld"}, headers=bearer(BOB))


def _sum(samples: Samples, name: str, **labels: str) -> float:
    return sum(
        number for (each, found), number in samples.items() if each == name and labels.items() <= set(found)
    )


async def test_a_thousand_mixed_requests_add_up_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 1,000 mixed requests ``usage``, the record's rows and ``/metrics`` agree on every sum."""
    monkeypatch.setattr(request_log, "_MOST_UNKNOWN", 1000)
    async with RawUpstream(_scripts) as upstream:
        config = make_config(upstream.url, allow=("core__*",), keys=KEYS, prices=PRICES, **UNLIMITED)
        async with running(config) as proxy:
            for number in range(1000):
                await _mixed(proxy, number)
            store = proxy.services.store

            async def written() -> bool:
                (whole_usage,) = await store.usage(UsageFilter())
                return whole_usage.requests == 1000

            await until(written)
            (total,) = await store.usage(UsageFilter())
            groups = [
                await store.usage(UsageFilter(by=by)) for by in (("key",), ("model",), ("day", "caller"))
            ]
            rows = [
                row
                for key in ("config:alice", "config:bob", "")
                for row in await store.list_requests(RequestFilter(caller=key, limit=1000))
            ]
            runs = await store.list_runs(RunFilter(limit=1000))
            samples = await scrape(proxy, bearer(ALICE))
    for group in groups:
        for name in ("requests", "runs", "errors", "input_tokens", "output_tokens", "total_tokens"):
            assert sum(getattr(row, name) for row in group) == getattr(total, name)
        assert sum(row.cost or 0 for row in group) == total.cost
    assert len(rows) + total.runs == 1000
    api = [f"/v1/{path}" for path in ("chat/completions", "embeddings", "models")]
    assert sum(_sum(samples, "toolrelay_requests_total", endpoint=path) for path in api) == 1000
    assert _sum(samples, "toolrelay_unrecorded_requests_total") == 0
    assert _sum(samples, "toolrelay_runs_total") == total.runs == len(runs)
    failed = [row for row in rows if row.status >= 400 or row.error_code]
    assert total.errors == len(failed) + sum(run.error_code is not None for run in runs)
    refused = {row.status for row in rows} - {200, 429}  # Runs end with these two, too.
    assert {400, 401} < refused
    for status in refused:
        counted = _sum(samples, "toolrelay_requests_total", status=str(status))
        assert counted == sum(row.status == status for row in rows), status
    tokens = "gen_ai_client_token_usage_sum"
    assert _sum(samples, tokens, gen_ai_token_type="input") == total.input_tokens > 0
    assert _sum(samples, tokens, gen_ai_token_type="output") == total.output_tokens > 0
    assert total.cost is not None
    assert round(_sum(samples, "toolrelay_cost_total") * 1e9) == total.cost > 0
    assert total.turns == _sum(samples, "toolrelay_turns_total")
    assert sum(row.error_code == "upstream_broken" for row in rows) > 0
    assert total.unreported == sum(row.unreported for row in rows) + sum(run.unreported for run in runs)


async def test_rows_have_no_content_and_name_the_end_user() -> None:
    """A row says who asked which model and what came of it, and nothing of what was said."""
    async with (
        RawUpstream(reply("a secret answer", used=(11, 2))) as upstream,
        running(make_config(upstream.url, allow=(), keys=KEYS, prices=PRICES)) as proxy,
    ):
        asked = {**ASK, "messages": [{"role": "user", "content": "a secret question"}]}
        await proxy.ask(asked, headers=bearer(ALICE))
        store = proxy.services.store

        async def written() -> bool:
            return bool(await store.list_requests(RequestFilter()))

        await until(written)
        (row,) = await store.list_requests(RequestFilter())
    assert (row.dialect, row.operation, row.endpoint) == ("chat", "chat", "/v1/chat/completions")
    assert (row.caller, row.model, row.upstream, row.status) == ("config:alice", "m", "default", 200)
    assert (row.input_tokens, row.output_tokens, row.total_tokens, row.cost) == (11, 2, 13, 31_000)
    assert row.first_byte_s is not None
    assert 0 < row.first_byte_s <= row.duration_s
    assert "secret" not in repr(row)


async def test_a_setting_turns_the_rows_off() -> None:
    """With ``store.requests = false`` there are no rows, and nothing of what passes through is read."""
    config_of: dict[str, Any] = {"allow": (), "store": {"requests": False}, "prices": PRICES}
    async with (
        RawUpstream(reply("Hi", used=(11, 2))) as upstream,
        running(make_config(upstream.url, **config_of)) as proxy,
    ):
        await proxy.ask(ASK)
        await proxy.services.instruments.close_requests()
        assert await proxy.services.store.list_requests(RequestFilter()) == []
        samples = await scrape(proxy)
    assert not any(name.startswith("gen_ai_client_token_usage") for name, _ in samples)


async def test_rows_that_wait_are_written_when_the_server_ends(tmp_path: Any) -> None:
    """A request that ended just before the server did is on record."""
    store = {"url": f"sqlite:///{tmp_path}/r.db"}
    async with RawUpstream(reply("Hi", used=(11, 2))) as upstream:
        async with running(make_config(upstream.url, allow=(), store=store)) as proxy:
            assert proxy.services.instruments.request_log is not None
            proxy.services.instruments.request_log.request_ended(facts(caller="open"))
        async with running(make_config(upstream.url, allow=(), store=store)) as proxy:
            assert len(await proxy.services.store.list_requests(RequestFilter())) == 1
