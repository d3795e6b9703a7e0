"""``/metrics``: what is counted, under which labels, and how those of several processes are merged."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_script import call, content, finish, reply, role, stream, usage
from client_keys import ALICE, BOB, bearer, declared, keyed
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_page import parse, scrape, value
from raw_upstream import HANG, RESET, RawUpstream, Step, chunk, head, whole
from running_proxy import make_config, running

from proxy.records.rows import ToolEffect, ToolInvocationRecord
from proxy.server.messages.target import Targets
from proxy.telemetry.hooks import Operation, RequestFacts
from proxy.telemetry.metric_families import FAMILIES
from proxy.telemetry.metrics import Metrics, render
from proxy.telemetry.snapshots import merge
from proxy.wires.registry.table import SERVED

ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
TIME = "core__get_current_time"


# ---------------------------------------------------------------- what is counted


async def test_a_run_with_a_tool_is_counted_whole() -> None:
    """One run counts in requests, turns, tool calls, tokens, times and open requests."""
    first = stream(role(), call("c1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"), usage(10, 5))
    second = stream(role(), content("noon"), finish(), usage(20, 7))
    async with (
        RawUpstream(first, second) as upstream,
        running(make_config({"base_url": upstream.url, "models": ("m", "gpt-*")})) as proxy,
    ):
        assert (await proxy.ask(ASK)).status == 200
        seen = await scrape(proxy)
    chat = {"method": "POST", "endpoint": "/v1/chat/completions", "status": "200"}
    assert value(seen, "toolrelay_requests_total", **chat) == 1
    assert value(seen, "toolrelay_runs_total", status="completed") == 1
    assert value(seen, "toolrelay_turns_total", upstream="default", finish_reason="tool_calls") == 1
    assert value(seen, "toolrelay_turns_total", upstream="default", finish_reason="stop") == 1
    assert value(seen, "toolrelay_tool_calls_total", tool=TIME, outcome="success") == 1
    assert value(seen, "gen_ai_execute_tool_duration_seconds_count", gen_ai_tool_name=TIME) == 1
    assert value(seen, "toolrelay_upstream_requests_total", upstream="default", status="200") == 2
    asked = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "default",
        "gen_ai_request_model": "m",
    }
    assert value(seen, "gen_ai_client_token_usage_sum", **asked, gen_ai_token_type="input") == 30
    assert value(seen, "gen_ai_client_token_usage_sum", **asked, gen_ai_token_type="output") == 12
    assert value(seen, "gen_ai_client_operation_duration_seconds_count", **asked, error_type="") == 2
    assert value(seen, "gen_ai_client_operation_time_to_first_chunk_seconds_count", **asked) == 2
    served = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m"}
    assert value(seen, "gen_ai_server_request_duration_seconds_count", **served) == 1
    assert value(seen, "gen_ai_server_time_to_first_token_seconds_count", **served) == 1
    assert value(seen, "toolrelay_open_requests") == 1  # This one asks for the metrics.
    assert value(seen, "toolrelay_open_streams") == 0
    assert value(seen, "process_resident_memory_bytes") > 0


async def test_what_passes_through_is_counted_too() -> None:
    """A request without tools counts with its times, its upstream and the tokens that it reports."""
    answers = [reply("hi", used=(3, 4)), whole(b'{"data":[]}'), whole(b"{}", status="429 Too Many Requests")]
    async with (
        RawUpstream(*answers) as upstream,
        running(make_config(upstream.url, allow=())) as proxy,
    ):
        assert (await proxy.ask({**ASK, "stream": False})).status == 200
        assert (await proxy.get("/v1/models")).status == 200
        assert (await proxy.ask(ASK)).status == 429
        seen = await scrape(proxy)
    asked = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "default",
        "gen_ai_request_model": "other",
    }
    duration = "gen_ai_client_operation_duration_seconds_count"
    assert value(seen, duration, **asked, error_type="") == 1
    assert value(seen, duration, **asked, error_type="429") == 1
    assert value(seen, "toolrelay_upstream_errors_total", upstream="default", kind="429") == 1
    assert value(seen, "toolrelay_upstream_requests_total", upstream="default", status="200") == 2
    tokens = "gen_ai_client_token_usage_sum"
    assert value(seen, tokens, **asked, gen_ai_token_type="input") == 3
    assert value(seen, tokens, **asked, gen_ai_token_type="output") == 4
    first = "gen_ai_server_time_to_first_token_seconds_count"
    assert value(seen, first, gen_ai_operation_name="chat", gen_ai_request_model="other") == 1


@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_upstream_errors_are_told_apart(allow: tuple[str, ...]) -> None:
    """Each way in which an upstream fails has its own label, before its first byte and in its stream."""
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    broken: list[Step] = [opening, chunk(role()), RESET]
    late = [HANG]
    async with RawUpstream(broken, [RESET], late) as upstream:
        served = {"base_url": upstream.url, "first_byte_timeout_s": 1.0}
        async with running(make_config(served, allow=allow)) as proxy:
            for _ in range(3):
                await proxy.ask(ASK)
            seen = await scrape(proxy)
    kinds = {"upstream_broken": 1, "upstream_unreachable": 1, "upstream_timeout": 1}
    counted = {
        kind: value(seen, "toolrelay_upstream_errors_total", upstream="default", kind=kind) for kind in kinds
    }
    assert counted == kinds


@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_a_client_that_leaves_is_counted_as_499(allow: tuple[str, ...]) -> None:
    """A client that leaves counts as a 499 and as a cancelled upstream request, and leaves nothing open."""
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    async with (
        RawUpstream([opening, chunk(role()), HANG]) as upstream,
        running(make_config(upstream.url, allow=allow)) as proxy,
    ):
        async with proxy.sent(ASK) as conversation:
            await conversation.head()
            conversation.leave()
        await upstream.all_closed()
        seen = await scrape(proxy)
    left = {"method": "POST", "endpoint": "/v1/chat/completions", "status": "499"}
    assert value(seen, "toolrelay_requests_total", **left) == 1
    assert value(seen, "toolrelay_upstream_errors_total", upstream="default", kind="cancelled") == 1
    assert value(seen, "toolrelay_open_requests") == 1


async def test_refusals_by_limits_are_counted() -> None:
    """A refusal by a limit counts under the label of that limit."""
    async with (
        RawUpstream(reply("hi")) as upstream,
        running(make_config(upstream.url, limits={"requests": ("1/hour",)})) as proxy,
    ):
        await proxy.ask({**ASK, "stream": False})
        assert (await proxy.ask({**ASK, "stream": False})).status == 429
        assert value(await scrape(proxy), "toolrelay_rate_limit_hits_total", limit="requests") == 1


async def test_a_key_s_full_places_are_counted_as_such() -> None:
    """A refusal because of a key's open requests counts as ``concurrent_streams``."""
    go = asyncio.Event()
    keys = {
        "alice": declared(ALICE, limits={"concurrent_streams": 1}),
        "root": declared(BOB, admin=True),
    }
    async with keyed([go, *reply("hi")], keys=keys) as (proxy, upstream):
        async with proxy.sent({**ASK, "stream": False}, bearer(ALICE)) as first:
            await upstream.asked(1)
            assert (await proxy.ask({**ASK, "stream": False}, bearer(ALICE))).status == 429
            go.set()
            assert (await first.answer()).status == 200
        answer = await proxy.get("/metrics", bearer(BOB))
        seen = parse(answer.body)
    assert value(seen, "toolrelay_rate_limit_hits_total", limit="concurrent_streams") == 1


async def test_the_record_s_queue_and_losses_are_shown(tmp_path: Path) -> None:
    """The metrics have the waiting and the lost writes of the store."""
    config = make_config("http://127.0.0.1:9/v1", store={"url": f"sqlite:///{tmp_path}/r.db"})
    async with running(config) as proxy:
        seen = await scrape(proxy)
        assert ("toolrelay_store_waiting_writes", frozenset()) in seen
        assert value(seen, "toolrelay_store_lost_writes_total") == 0


async def test_metrics_can_be_switched_off() -> None:
    """With ``telemetry.metrics`` false the proxy counts nothing and serves no metrics."""
    async with running(make_config("http://127.0.0.1:9/v1", telemetry={"metrics": False})) as proxy:
        assert (await proxy.get("/metrics")).status == 404
        assert proxy.services.instruments.metrics is None


@pytest.mark.parametrize("mode", ["open", "keys", "forward", "auto"])
async def test_with_client_keys_figures_are_an_administrator_s(mode: str) -> None:
    """``/metrics`` needs an administrator's key, also on loopback, unless the mode is open."""
    keys = {"alice": declared(ALICE, admin=True), "bob": declared(BOB)}
    async with keyed(keys=keys, auth={"mode": mode}) as (proxy, _):
        asked = [await proxy.get("/metrics", bearer(one) if one else {}) for one in (None, BOB, ALICE)]
    assert [answer.status for answer in asked] == ([200] * 3 if mode == "open" else [401, 401, 200])
    assert not any(name in asked[2].body for name in (b"alice", b"bob", ALICE.encode(), BOB.encode()))


# ---------------------------------------------------------------- labels


async def test_nothing_a_client_or_an_upstream_says_becomes_a_label() -> None:
    """Labels have classes in place of models, paths, methods, tools, statuses and reasons from outside."""
    odd = stream(role(), call("c1", "canary-tool", "{}"), finish("tool_calls"))
    end = stream(role(), content("x"), finish("canary-reason"))
    async with (
        RawUpstream(odd, end, whole(b"{}", status="799 Canary"), whole(b"{}")) as upstream,
        running(make_config(upstream.url)) as proxy,
    ):
        await proxy.ask(
            {**ASK, "model": "canary-model"}, {"x-request-id": "canary-id", "user": "canary-user"}
        )
        await proxy.get("/v1/files/canary-file")
        await proxy.get("/v1/canary-room/x")
        await proxy.get("/canary-path")
        await proxy.ask(method="PROPFIND", path="/v1/models")
        text = (await proxy.get("/metrics")).body
    assert b"canary" not in text.lower()
    assert b'"799"' not in text
    seen = parse(text)
    assert value(seen, "toolrelay_tool_calls_total", tool="other", outcome="unknown_tool") == 1
    assert value(seen, "toolrelay_turns_total", upstream="default", finish_reason="other") == 1
    assert value(seen, "toolrelay_requests_total", method="other", endpoint="other", status="405") == 1


def test_labels_have_a_bound() -> None:
    """However many different requests there are, the number of series stays bounded."""
    metrics = Metrics(models=["m"], tools=["t"])
    for i in range(3000):
        facts = RequestFacts("r", f"M{i}", f"/v1/{i}", 0.0)
        facts.endpoint = Targets(SERVED).read("GET", f"/v1/{i}/{i}").label
        facts.model, facts.status = f"model-{i}", i
        metrics.request_began(facts, {})
        metrics.request_ended(facts)
        operation = Operation("chat", "u", "/chat/completions", f"model-{i}", True, 0, 0.0)
        operation.error_type, operation.status, operation.turn = f"{i}", i, 1
        operation.finish_reason = f"reason-{i}"
        metrics.operation_ended(operation)
        metrics.invocation_ended(invocation(f"tool-{i}"), 0.1, None)
        metrics.invocation_ended(invocation("t", f"code-{i}"), 0.1, None)
        metrics.limited(f"limit-{i}")
        metrics.run_ended(f"status-{i}")
    counts = {name: len(cells) for name, cells in json.loads(metrics.snapshot()).items()}
    assert max(counts.values()) < 100, counts


@settings(deadline=None)
@given(
    ended=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.005, 0.01, 0.0100001, 1.0, 300.0, 301.0]) | st.floats(0, 1000),
            st.none() | st.floats(0, 100),
            st.sampled_from([200, 404]),
        ),
        max_size=200,
    ),
    asked_after=st.integers(0, 200),
)
def test_times_are_counted_as_if_one_by_one(
    ended: list[tuple[float, float | None, int]], asked_after: int
) -> None:
    """However many requests ended since the last scrape, each counts in the bucket of its time."""
    metrics = Metrics(models=["m"])
    for number, (seconds, first, status) in enumerate(ended):
        facts = RequestFacts("req_1", "POST", "/v1/chat/completions", 0.0)
        facts.endpoint, facts.operation_asked, facts.model = facts.path, "chat", "m"
        facts.status, facts.seconds, facts.first_byte_s = status, seconds, first
        metrics.request_began(facts, {})
        metrics.request_ended(facts)
        if number == asked_after:
            metrics.snapshot()
    samples = parse(render(metrics.snapshot())[0])
    firsts = [first for _, first, _ in ended if first is not None]
    tokens = [first for _, first, status in ended if first is not None and status < 400]
    wholes = [seconds for seconds, _, _ in ended]
    ours = {"endpoint": "/v1/chat/completions"}
    asked = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m"}
    for family, labels, times in [
        ("toolrelay_request_duration_seconds", ours, wholes),
        ("gen_ai_server_request_duration_seconds", asked, wholes),
        ("toolrelay_time_to_first_byte_seconds", ours, firsts),
        ("gen_ai_server_time_to_first_token_seconds", asked, tokens),
    ]:
        assert value(samples, f"{family}_count", **labels) == len(times)
        assert value(samples, f"{family}_sum", **labels) == pytest.approx(sum(times))
        for bound in next(each.buckets for each in FAMILIES if each.name == family):
            within = value(samples, f"{family}_bucket", **labels, le=repr(bound))
            assert within == sum(seconds <= bound for seconds in times)
    for status in (200, 404):
        labels = {"method": "POST", "status": str(status)}
        number = sum(status == each for _, _, each in ended)
        assert value(samples, "toolrelay_requests_total", **ours, **labels) == number


def invocation(tool: str, error_code: Any = None) -> ToolInvocationRecord:
    return ToolInvocationRecord(
        id="inv",
        run_id="run",
        turn=1,
        seq=0,
        call_id="c",
        tool=tool,
        provider="",
        spec_digest="",
        effect=ToolEffect.READ_ONLY,
        decision="",
        status="error" if error_code else "success",
        error_code=error_code,
        started_at=0.0,
        arguments_redacted=None,
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/metrics", "/metrics"),
        ("/admin/runs", "/admin/*"),
        ("/favicon.ico", "other"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/responses/resp_1/cancel", "/v1/responses/*"),
        ("/v1/audio/speech", "/v1/audio/*"),
        ("/v1/files", "/v1/files"),
        ("/v1/anything", "/v1/*"),
    ],
)
def test_paths_are_classed(path: str, expected: str) -> None:
    """The label of a path is the class of paths that it belongs to."""
    assert Targets(SERVED).read("POST", path).label == expected


def test_every_name_is_one_that_prometheus_takes() -> None:
    """Names and labels are valid, only counters end in ``_total``, and no family occurs twice."""
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in family.labels)
        assert list(family.buckets) == sorted(set(family.buckets))
        assert bool(family.buckets) == (family.kind == "histogram")


# ---------------------------------------------------------------- several processes


def counted(requests: int, *, start: float = 100.0) -> bytes:
    metrics = Metrics(models=["m"], version="1", sources=[lambda: {"process_start_time_seconds": start}])
    for _ in range(requests):
        facts = RequestFacts("r", "POST", "/v1/chat/completions", 0.0)
        facts.endpoint, facts.operation_asked = "/v1/chat/completions", "chat"
        facts.model, facts.status = "m", 200
        facts.seconds = 0.3
        metrics.request_began(facts, {})
        metrics.request_ended(facts)
    facts = RequestFacts("r", "GET", "/", 0.0)
    metrics.request_began(facts, {})  # One is still open.
    return metrics.snapshot()


def test_snapshots_are_summed() -> None:
    """Merging adds counters, cells of histograms and gauges, but not start times or build information."""
    text, _ = render(merge([counted(2, start=300.0), counted(3, start=200.0), counted(0)]))
    seen = parse(text)
    labels = {"method": "POST", "endpoint": "/v1/chat/completions", "status": "200"}
    assert value(seen, "toolrelay_requests_total", **labels) == 5
    name, at = "toolrelay_request_duration_seconds", "/v1/chat/completions"
    assert value(seen, f"{name}_bucket", endpoint=at, le="0.25") == 0
    assert value(seen, f"{name}_bucket", endpoint=at, le="0.5") == 5
    assert value(seen, f"{name}_bucket", endpoint=at, le="+Inf") == 5
    assert value(seen, f"{name}_count", endpoint=at) == 5
    assert value(seen, f"{name}_sum", endpoint=at) == pytest.approx(1.5)
    assert value(seen, "toolrelay_open_requests") == 3
    assert value(seen, "process_start_time_seconds") == 100.0
    assert value(seen, "toolrelay_build_info", version="1") == 1


def test_a_process_that_has_ended_keeps_its_counts() -> None:
    """The counters of an ended process stay in the sum, so that no sum falls; its gauges do not."""
    dead = counted(4)
    seen = parse(render(merge([counted(1)], [dead, dead]))[0])
    labels = {"method": "POST", "endpoint": "/v1/chat/completions", "status": "200"}
    assert value(seen, "toolrelay_requests_total", **labels) == 9
    assert value(seen, "toolrelay_open_requests") == 1
    once = merge([counted(1)], [dead, dead])
    stepwise = merge([counted(1)], [merge([dead, dead])])
    assert parse(render(once)[0])[("toolrelay_requests_total", frozenset(labels.items()))] == 9
    assert json.loads(stepwise)["toolrelay_requests_total"] == json.loads(once)["toolrelay_requests_total"]


def test_a_sum_of_one_is_the_same_figures() -> None:
    """Merging a single snapshot changes nothing."""
    alone = counted(3)
    assert parse(render(alone)[0]) == parse(render(merge([alone]))[0])


@pytest.mark.parametrize("broken", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_snapshot_is_refused(broken: bytes) -> None:
    """Merging bytes that are not a snapshot is an error."""
    with pytest.raises(ValueError, match="not a snapshot"):
        merge([broken])


def test_open_metrics_is_spoken_where_asked_for() -> None:
    """A scraper that asks for OpenMetrics gets it; all others get the text format."""
    text, kind = render(counted(1), "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    assert render(counted(1), "text/html")[1].startswith("text/plain")


def test_cost_has_its_place() -> None:
    """The cost of a request is added under its model's label, in the unit of the prices."""
    metrics = Metrics(models=["m"])
    for model, cost in (("m", 250_000_000), ("m", 500_000_000), ("unknown", 1_000_000_000), ("m", 0)):
        operation = Operation("chat", "u", "/chat/completions", model, False, 0, 0.0)
        operation.cost = cost
        metrics.operation_ended(operation)
    seen = parse(render(metrics.snapshot())[0])
    assert value(seen, "toolrelay_cost_total", model="m") == 0.75
    assert value(seen, "toolrelay_cost_total", model="other") == 1.0


async def test_tokens_of_what_passes_through_are_counted_where_they_are_limited() -> None:
    """With a limit of tokens the proxy reads a response's usage, so the metrics have it, with its cost."""
    config: dict[str, Any] = {
        "limits": {"tokens": ("1000000/minute",)},
        "prices": {"m": {"input": 1.0, "output": 2.0}},
    }
    async with (
        RawUpstream(reply("hi", used=(3000, 1000))) as upstream,
        running(make_config(upstream.url, allow=(), **config)) as proxy,
    ):
        assert (await proxy.ask({**ASK, "stream": False})).status == 200
        seen = await scrape(proxy)
    asked = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "default",
        "gen_ai_request_model": "m",
    }
    assert value(seen, "gen_ai_client_token_usage_sum", **asked, gen_ai_token_type="input") == 3000
    assert value(seen, "gen_ai_client_token_usage_sum", **asked, gen_ai_token_type="output") == 1000
    assert value(seen, "toolrelay_cost_total", model="m") == pytest.approx(0.005)
