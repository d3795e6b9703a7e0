"""A database that another process has locked, seen from a client of the whole proxy."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from chat_script import payloads_of, text_of
from looping import ANSWER, ASK, ECHO, called, looping, messages_of
from probe_tools import Watch
from prometheus_client.parser import text_string_to_metric_families
from running_proxy import Proxy
from waiting import LATE_S, until

from proxy.store.sqlite.store import SqliteStore

READ = called(("call_r", ECHO, '{"text":"hello"}'))
BUY = called(("call_b", "probe_tools__buy", '{"what":"milk"}'))
NO_TOOLS = [("x-toolrelay-tools", "none")]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the whole database from another connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


async def lost_writes(proxy: Proxy) -> float:
    """Return the number of lost writes in ``/metrics``."""
    answer = await proxy.get("/metrics")
    families = text_string_to_metric_families(answer.body.decode())
    (count,) = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "toolrelay_store_lost_writes_total"
    ]
    return count


async def ready(proxy: Proxy) -> bool:
    """Return whether the proxy, which is ready itself, says that its record answers."""
    answer = await proxy.get("/readyz")
    assert (answer.status, answer.json["status"]) == (200, "ok")
    return bool(answer.json["record"] == "ok")


async def says(proxy: Proxy, headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> str:
    """Return the text of one streamed answer."""
    answer = await proxy.ask(ASK, headers)
    assert (answer.status, answer.clean) == (200, True)
    return text_of(payloads_of(answer.body))


async def test_a_locked_record_stops_effects_and_nothing_else(
    watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule R1: while the record is locked, answers and reading tools work, and side effects are refused."""
    path = tmp_path / "r.db"
    scripts = (ANSWER, READ, ANSWER, BUY, ANSWER, READ, ANSWER, BUY, ANSWER)
    async with looping(*scripts, store={"url": f"sqlite:///{path}"}) as (proxy, upstream):
        store = proxy.services.store
        assert isinstance(store, SqliteStore)
        # A short timeout and a short queue keep the test quick.
        store._writer._lock_timeout_s = 0.5
        store._writer._max_writes = 6
        assert await lost_writes(proxy) == 0
        with locked(path):
            assert await says(proxy, NO_TOOLS) == "It is noon."
            assert await says(proxy) == "It is noon."
            assert json.loads(messages_of(upstream.requests[2])[-1]["content"])["echo"] == "hello"
            assert await says(proxy) == "It is noon."
            told = json.loads(messages_of(upstream.requests[4])[-1]["content"])
            assert told == {
                "ok": False,
                "error_code": "execution_failed",
                "message": "the call could not be put on record, so it was not made",
            }
            assert await says(proxy) == "It is noon."
            assert watch.finished == []
            assert watch.started == ["echo", "echo"]
            assert not await ready(proxy)
            lost = await lost_writes(proxy)
            assert lost > 0
        await until(lambda: store._writer.failure is None)
        store._writer._lock_timeout_s = LATE_S
        await until(lambda: ready(proxy))
        assert await says(proxy) == "It is noon."
        assert watch.finished == ["buy"]
        newest, *_ = await proxy.runs()
        detail = await store.get_run(newest.id)
        assert detail is not None
        assert (detail.run.status, len(detail.turns)) == ("completed", 2)
        assert [(row.tool, row.status) for row in detail.invocations] == [("probe_tools__buy", "success")]
        assert await lost_writes(proxy) == lost
    loud = [record.getMessage() for record in caplog.records if record.name.startswith("proxy.store")]
    assert [line for line in loud if "the record cannot be written (locked)" in line]
    assert [line for line in loud if "writes to the record are being lost: too many writes wait" in line]
    assert [line for line in loud if f"the record is written again; {lost:.0f} writes were lost" in line]


async def test_an_effect_that_was_refused_is_on_record_afterwards(watch: Watch, tmp_path: Path) -> None:
    """Rule R1: once the lock is gone, the record has the call that was refused because of it."""
    path = tmp_path / "r.db"
    async with looping(BUY, ANSWER, store={"url": f"sqlite:///{path}"}) as (proxy, _):
        store = proxy.services.store
        assert isinstance(store, SqliteStore)
        store._writer._lock_timeout_s = 0.5
        with locked(path):
            assert await says(proxy) == "It is noon."
        store._writer._lock_timeout_s = LATE_S
        (row,) = (await proxy.run_reaches("completed")).invocations
        assert (row.tool, row.status, row.error_code) == ("probe_tools__buy", "error", "execution_failed")
        assert row.decision.endswith("; not made, the record could not be written")
        assert watch.started == []
        assert store.lost == 0
