"""Cached results on record: other processes and later ones get them, each caller its own."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from local_service import Answer, Service, local_service
from msgspec.structs import replace

from proxy.base.errors import StoreError
from proxy.base.events import ResultImage, ToolCall
from proxy.records.rows import KeptResult
from proxy.store.options import StoreOptions
from proxy.store.seal import Seal
from proxy.store.sqlite.store import SqliteStore
from proxy.toolbox.calendar import calendar_provider
from proxy.toolbox.clock import FixedClock
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.results.results import Output
from proxy.tools.running.cache import ResultCache
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import Runner

CLOCK = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))
DAY = {"time_min": "2026-11-21T00:00:00Z", "time_max": "2026-11-22T00:00:00Z"}
EVENT = {
    "id": "event1",
    "summary": "A private meeting",
    "start": {"dateTime": "2026-11-21T10:00:00Z"},
    "end": {"dateTime": "2026-11-21T11:00:00Z"},
}
ADA = RunContext("run_1", 1, "ada", keeps=True)


@asynccontextmanager
async def process(path: Path, service: Service) -> AsyncIterator[Runner]:
    """A runner of the calendar's tool with a record of its own in a file that others use, too."""
    store = SqliteStore(path, StoreOptions(seal=Seal(bytes(32))))
    await store.start()
    provider = calendar_provider(service.capabilities(CLOCK), base_url=service.url)
    registry = await Registry.load([provider])
    try:
        yield Runner(registry, Policy(allow=("*",)), store, None, CLOCK, cached_results=store)
    finally:
        await store.aclose()


async def listed(runner: Runner, context: RunContext = ADA) -> str:
    """Call the tool in a run of its own, and return what the model reads."""
    call = ToolCall("call_1", "calendar__list_events", json.dumps(DAY), 0)
    result = await runner.run(call, replace(context, ledger=RunLedger()))
    assert result.ok, result.content
    return result.content


async def test_events_survive_a_restart_for_their_caller(tmp_path: Path) -> None:
    """After a restart and in another process, the same caller gets the sealed result, and nobody else."""
    async with local_service(Answer({"items": [EVENT]})) as service:
        async with process(tmp_path / "r.db", service) as runner:
            first = await listed(runner)
            await listed(runner, replace(ADA, caller="private", keeps=False))
        async with process(tmp_path / "r.db", service) as again, process(tmp_path / "r.db", service) as other:
            assert await listed(again) == await listed(other) == first
            assert len(service.asked) == 2
            await listed(again, replace(ADA, caller="bob"))
            assert len(service.asked) == 3, "another caller"
            await listed(again, replace(ADA, caller="private"))
            assert len(service.asked) == 4, "a client that wanted nothing to be stored"
    with closing(sqlite3.connect(tmp_path / "r.db")) as record:
        rows = record.execute("SELECT caller, content, sealed_by FROM kept_results").fetchall()
    assert sorted(row[0] for row in rows) == ["ada", "bob", "private"]
    assert all(row[2] for row in rows)
    assert "private meeting" not in str(rows)


class Record:
    """A record of kept results in memory; it can fail."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], KeptResult] = {}
        self.fails = False

    def put_result(self, record: KeptResult) -> None:
        """Keep a result."""
        self.kept[record.handle, record.caller] = record

    async def find_result(self, handle: str, caller: str) -> KeptResult | None:
        """Return the caller's result."""
        if self.fails:
            raise StoreError("no record")
        return self.kept.get((handle, caller))


def caches(now: list[float]) -> tuple[Record, ResultCache, ResultCache]:
    """A record and the caches of two processes that use it; ``now`` has the time."""
    record = Record()
    first, second = (
        ResultCache(monotonic=lambda: now[0], wall=lambda: now[0], record=record) for _ in range(2)
    )
    return record, first, second


OUTPUT = Output(
    "text", None, 4, truncated=True, redacted={"a": [1]}, untrusted="calendar__x", notes=("n",), note_bytes=1
)


async def test_what_comes_back_is_what_was_kept() -> None:
    """An output from the record has all of its fields, and is then in memory until its end."""
    now = [1000.0]
    record, first, second = caches(now)
    first.share("k", OUTPUT, 300.0, None, caller="ada", run_id="run_1")
    assert await second.find("k", "ada") == OUTPUT
    assert await second.find("k", "bob") is None
    record.kept.clear()
    assert second.get("k") == OUTPUT
    now[0] = 1300.0
    assert second.get("k") is None


async def test_a_result_ends_when_it_says() -> None:
    """A result from the record does not outlive its time, nor the moment at which its tool lets it end."""
    now = [1000.0]
    _, first, second = caches(now)
    first.share("k", OUTPUT, 300.0, 1100.0, caller="ada", run_id="run_1")
    now[0] = 1100.0
    assert await second.find("k", "ada") is None


@pytest.mark.parametrize(
    ("output", "ttl_s"),
    [
        (OUTPUT, 59.0),
        (replace(OUTPUT, text="x" * (1 << 18)), 300.0),
        (replace(OUTPUT, text="\ud800"), 300.0),
        (replace(OUTPUT, images=(ResultImage("data:", "image/png", 1),)), 300.0),
    ],
    ids=["short-lived", "large", "no text", "an image"],
)
def test_not_every_result_is_shared(output: Any, ttl_s: float) -> None:
    """Results that are short-lived, large or no text stay in memory."""
    record, first, _ = caches([1000.0])
    first.share("k", output, ttl_s, None, caller="ada", run_id="run_1")
    assert record.kept == {}


async def test_without_the_record_the_tool_answers() -> None:
    """A record that cannot be read, or none at all, is no failure of the tool."""
    record, first, _ = caches([1000.0])
    record.fails = True
    assert await first.find("k", "ada") is None
    assert await ResultCache(monotonic=lambda: 0.0, wall=lambda: 0.0).find("k", "ada") is None
