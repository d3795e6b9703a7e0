"""Rows of requests that have no run, in every kind of store."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from store_records import T0, run
from waiting import until

from proxy.records.requests import RequestRecord
from proxy.store.base import PurgeFilter, RequestFilter, Store, UsageFilter
from proxy.store.sql.store import SqlStore

Make = Callable[..., SqlStore]

PLAIN = RequestRecord(
    "rq_1", "req_1", "key_a", "chat", "chat", "/v1/chat/completions", "m", "default", 200, T0, 0.5, None, 0.1,
    20, 3, 23, 1_000,
)  # fmt: skip


def request(id: str, **changes: Any) -> RequestRecord:
    return replace(PLAIN, id=id, **changes)


async def test_a_row_is_read_as_it_was_written(store: Store) -> None:
    """Every field of a request is kept, text of clients is cleaned, and a second write changes nothing."""
    bare = RequestRecord(
        "rq_2", "req_2", "", "chat", "", "/v1/*", "", "", 401, T0 + 1, 0.0, "invalid_api_key"
    )
    await store.add_requests([PLAIN, bare])
    await store.add_requests([PLAIN])
    assert await store.list_requests(RequestFilter()) == [bare, PLAIN]
    odd = request("rq_3", model="a\ud800\0" + "x" * 500, request_id="y" * 900, started_at=T0 + 2)
    await store.add_requests([odd])
    (found, *_) = await store.list_requests(RequestFilter())
    assert len(found.model) == len(found.request_id) == 200


async def test_requests_are_filtered_and_paged(store: Store) -> None:
    """Key with its end users, status, model, errors and time are filters; ``before`` continues a page."""
    await store.add_requests(
        [
            request("rq_1"),
            request("rq_2", caller="key_a/alice", started_at=T0 + 1),
            request("rq_3", caller="key_b", model="n", status=429, started_at=T0 + 2),
            request("rq_4", caller="", status=401, started_at=T0 + 3),
            request("rq_5", error_code="upstream_broken", started_at=T0 + 4),
        ]
    )

    async def ids(**wanted: Any) -> list[str]:
        return [row.id for row in await store.list_requests(RequestFilter(**wanted))]

    assert await ids(limit=2) == ["rq_5", "rq_4"]
    assert await ids(before="rq_4") == ["rq_3", "rq_2", "rq_1"]
    assert await ids(caller="key_a") == ["rq_5", "rq_2", "rq_1"]
    assert await ids(caller="key_a/alice") == ["rq_2"]
    assert await ids(caller="") == ["rq_4"]
    assert await ids(status=429) == await ids(model="n") == ["rq_3"]
    assert await ids(errors_only=True) == ["rq_5", "rq_4", "rq_3"]
    assert await ids(since=T0 + 1, until=T0 + 3) == ["rq_3", "rq_2"]
    assert await ids(before="rq_unknown") == []


async def test_usage_adds_runs_and_requests(store: Store) -> None:
    """A report counts requests with and without a run; an agent's run is no request of a client."""
    store.put_run(run("run_1", caller="key_a", cost=5, input_tokens=1, output_tokens=1, total_tokens=2))
    store.put_run(run("run_2", caller="key_a", agent="helper", parent_run="run_1"))
    silent = request("rq_2", input_tokens=None, output_tokens=None, total_tokens=None, cost=None)
    await store.add_requests([PLAIN, silent, request("rq_3", caller="key_b", status=500)])
    first, second = await store.usage(UsageFilter(by=("key",)))
    assert (first.group, first.requests, first.runs, first.errors) == (("key_a",), 3, 2, 0)
    assert (first.input_tokens, first.output_tokens, first.total_tokens) == (21, 4, 25)
    assert (first.cost, first.unreported) == (1_005, 1)
    assert (second.group, second.requests, second.runs, second.errors) == (("key_b",), 1, 0, 1)
    (row,) = await store.usage(UsageFilter(since=T0 + 1))
    assert row.requests == 0


async def test_a_purge_takes_requests_of_its_time(store: Store) -> None:
    """A purge by age takes requests that began before; a purge of one run takes none."""
    store.put_run(run("run_1", status="completed", ended_at=T0 + 1))
    await store.add_requests([request("rq_1"), request("rq_2", started_at=T0 + 10)])
    await store.purge(PurgeFilter(run_id="run_1"))
    await store.purge(PurgeFilter(run_id="run_1"))
    assert len(await store.list_requests(RequestFilter())) == 2
    assert await store.purge(PurgeFilter(before=T0 + 5)) == 0
    assert [row.id for row in await store.list_requests(RequestFilter())] == ["rq_2"]


@pytest.mark.parametrize(("options", "left"), [({"keep_days": 0.5}, 1), ({"max_requests": 2}, 2)])
async def test_old_and_too_many_requests_are_deleted(make: Make, options: Any, left: int) -> None:
    """The server deletes requests after ``keep_days``, and the oldest beyond ``max_requests``."""
    store = make(reap=True, tidy_every_s=0.01, **options)
    await store.start()
    day = 86400.0
    rows = [request(f"rq_{age}", started_at=T0 - age * day) for age in range(5)]
    await store.add_requests(rows)

    async def kept() -> bool:
        return len(await store.list_requests(RequestFilter())) == left

    await until(kept)
    assert [row.id for row in await store.list_requests(RequestFilter())] == ["rq_0", "rq_1"][:left]


async def test_an_answer_without_an_upstream_lacks_no_tokens(store: Store) -> None:
    """Only a request for which an upstream was asked can lack the tokens that it did not report."""
    silent = {"input_tokens": None, "output_tokens": None, "total_tokens": None}
    await store.add_requests([request("rq_1", **silent), request("rq_2", upstream="", **silent)])
    (row,) = await store.usage(UsageFilter())
    assert (row.requests, row.unreported) == (2, 1)
