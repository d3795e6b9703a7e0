"""``/metrics`` of a running proxy: each metric shows what is going on."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from chat_script import call, content, finish, reply, role, stream, usage
from client_keys import ALICE, BOB, bearer, declared, keyed
from metrics_page import parse, scrape, value
from raw_upstream import LAST_CHUNK, RESET, RawUpstream, Step, chunk, head, whole
from running_proxy import Proxy, make_config, running
from waiting import until

ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
TIME = "core__get_current_time"
OPENING = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
DELAY_S = 0.3
"""How long the upstream waits; on a slow machine it only takes longer."""


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_streams_show_while_they_are_open(allow: tuple[str, ...]) -> None:
    """The gauges count each open stream and each open request until it ends."""
    go = asyncio.Event()
    script = [OPENING, chunk(role()), go, *stream(content("x"), finish())[1:]]
    async with RawUpstream(script) as upstream, running(make_config(upstream.url, allow=allow)) as proxy:
        async with proxy.sent(ASK) as one, proxy.sent(ASK) as two:
            answers = [(each, await each.head()) for each in (one, two)]
            seen = await scrape(proxy)
            assert value(seen, "toolrelay_open_streams") == 2
            assert value(seen, "toolrelay_open_requests") == 3  # The third one asks for the metrics.
            go.set()
            for each, answer in answers:
                assert b"[DONE]" in b"".join([piece async for piece in each.pieces(answer)])

        async def ended() -> bool:
            found = await scrape(proxy)
            return (
                value(found, "toolrelay_open_streams") == 0 and value(found, "toolrelay_open_requests") == 1
            )

        await until(ended)


@asynccontextmanager
async def _recording(path: Path) -> AsyncIterator[Proxy]:
    """Run a proxy with its store in a file, in front of an upstream that answers with one word."""
    async with (
        RawUpstream(stream(role(), content("x"), finish())) as upstream,
        running(make_config(upstream.url, store={"url": f"sqlite:///{path}"})) as proxy,
    ):
        yield proxy


async def test_what_waits_for_the_record_shows(tmp_path: Path) -> None:
    """While the store is locked, the metrics count the waiting writes; afterwards all are written."""
    path = tmp_path / "r.db"
    async with _recording(path) as proxy:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert (await proxy.ask(ASK)).status == 200
            assert value(await scrape(proxy), "toolrelay_store_waiting_writes") > 0

        async def written() -> bool:
            return value(await scrape(proxy), "toolrelay_store_waiting_writes") == 0

        await until(written)
        assert value(await scrape(proxy), "toolrelay_store_lost_writes_total") == 0


async def test_what_the_record_lost_shows(tmp_path: Path) -> None:
    """Each row that the store refuses counts as one lost write."""
    path = tmp_path / "r.db"
    async with _recording(path) as proxy:
        with closing(sqlite3.connect(path, isolation_level=None)) as record:
            record.execute(
                "CREATE TRIGGER no_turns BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'none'); END"
            )

        async def lost(rows: int) -> bool:
            return value(await scrape(proxy), "toolrelay_store_lost_writes_total") == rows

        for count in (1, 2):
            assert (await proxy.ask(ASK)).status == 200
            await until(lambda: lost(count))  # noqa: B023


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_times_are_those_that_passed(allow: tuple[str, ...]) -> None:
    """The times to the head, to the first byte and to the end include the upstream's delays, in seconds."""
    script: list[Step] = [DELAY_S, OPENING, DELAY_S, chunk(role()), DELAY_S, chunk(finish()), LAST_CHUNK]
    chat = {"endpoint": "/v1/chat/completions"}
    asked = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "other"}
    client = {**asked, "gen_ai_provider_name": "default"}
    times: list[tuple[str, dict[str, str], int]] = [
        ("toolrelay_upstream_time_to_head_seconds", {"upstream": "default"}, 1),
        ("toolrelay_time_to_first_byte_seconds", chat, 2),
        ("gen_ai_client_operation_time_to_first_chunk_seconds", client, 2),
        ("gen_ai_server_time_to_first_token_seconds", asked, 2),
        ("toolrelay_request_duration_seconds", chat, 3),
        ("gen_ai_client_operation_duration_seconds", {**client, "error_type": ""}, 3),
        ("gen_ai_server_request_duration_seconds", asked, 3),
    ]
    async with RawUpstream(script) as upstream, running(make_config(upstream.url, allow=allow)) as proxy:
        assert (await proxy.ask(ASK)).status == 200
        seen = await scrape(proxy)
    for name, labels, delays in times:
        assert value(seen, f"{name}_count", **labels) == 1, name
        assert value(seen, f"{name}_sum", **labels) >= 0.99 * delays * DELAY_S, name
        buckets = {
            float(dict(found)["le"]): count
            for (sample, found), count in seen.items()
            if sample == f"{name}_bucket" and dict(labels).items() <= dict(found).items()
        }
        assert buckets[float("inf")] == 1, name
        assert not any(count for bound, count in buckets.items() if bound < 0.99 * delays * DELAY_S), name


async def test_every_limit_counts_what_it_refuses() -> None:
    """The limits of requests, tool calls, tokens and cost each count refusals under their own label."""
    limits: dict[str, dict[str, Any]] = {
        "requests": {"requests": ["1/hour"]},
        "tool_calls": {"tool_calls": ["1/hour"]},
        "tokens": {"tokens": ["1/hour"]},
        "cost": {"cost": ["0.000001/hour"]},
    }
    turn = stream(role(), call("c1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"), usage(10, 5))
    end = stream(role(), content("x"), finish(), usage(10, 5))
    refused = {"requests": 429, "tool_calls": 200, "tokens": 429, "cost": 429}
    for kind, chosen in limits.items():
        async with (
            RawUpstream(turn, end, turn, end) as upstream,
            running(make_config(upstream.url, limits=chosen, prices={"m": {"input": 1.0}})) as proxy,
        ):
            assert [(await proxy.ask(ASK)).status for _ in range(2)] == [200, refused[kind]]
            seen = await scrape(proxy)
        hits = {
            dict(labels)["limit"]: n
            for (name, labels), n in seen.items()
            if name.endswith("limit_hits_total")
        }
        assert {limit: n for limit, n in hits.items() if n} == {kind: 1}


async def test_full_places_count_as_streams() -> None:
    """A refusal by ``limits.concurrent_streams`` counts as ``streams``, apart from a key's own limit."""
    go = asyncio.Event()
    keys = {"alice": declared(ALICE), "root": declared(BOB, admin=True)}
    async with keyed([go, *reply("hi")], keys=keys, limits={"concurrent_streams": 1}) as (proxy, upstream):
        async with proxy.sent({**ASK, "stream": False}, bearer(ALICE)) as first:
            await upstream.asked(1)
            assert (await proxy.ask(ASK, bearer(ALICE))).status == 429
            go.set()
            assert (await first.answer()).status == 200
        seen = parse((await proxy.get("/metrics", bearer(BOB))).body)
    assert value(seen, "toolrelay_rate_limit_hits_total", limit="streams") == 1


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
async def test_upstreams_errors_count_for_the_one_that_failed(allow: tuple[str, ...]) -> None:
    """An error status and a broken stream count for the upstream that failed, not for the fallback."""
    refusal = whole(b'{"error":{"message":"no"}}', status="503 Service Unavailable")
    answer = stream(role(), content("x"), finish())
    async with RawUpstream(refusal, [OPENING, chunk(role()), RESET]) as one, RawUpstream(answer) as two:
        table = {"base_url": one.url, "retries": 0}
        config = make_config(table, {"base_url": two.url, "name": "spare"}, allow=allow)
        async with running(config) as proxy:
            assert (await proxy.ask(ASK)).status == 200
            assert (await proxy.ask(ASK)).status == 200
            seen = await scrape(proxy)
    name = "toolrelay_upstream_errors_total"
    errors = {tuple(sorted(dict(labels).values())): n for (found, labels), n in seen.items() if found == name}
    assert {which: n for which, n in errors.items() if n} == {
        ("503", "default"): 1,
        ("default", "upstream_broken"): 1,
    }
    asked = "toolrelay_upstream_requests_total"
    assert value(seen, asked, upstream="default", status="503") == 1
    assert value(seen, asked, upstream="spare", status="200") == 1
