"""The PostgreSQL store when the server, the network or another process fails."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from closed_port import closed_port
from store_postgres import SERVER, Network, fetch, locked_table, need_postgres, network_to
from store_records import (
    APPROVED,
    CUT_OFF,
    CUT_OFF_SQL,
    T0,
    approval,
    cut_off_runs,
    grant,
    hidden,
    hidden_of,
    invocation,
    kept,
    message,
    native_call,
    response,
    run,
    suspended,
    turn,
    until,
    wire,
)
from waiting import LATE_S, PATIENCE_S

asyncpg = pytest.importorskip("asyncpg")

from proxy.base.errors import ConfigError, StoreError, StoreUnavailable  # noqa: E402
from proxy.records.background import BackgroundRecord  # noqa: E402
from proxy.store.base import PurgeFilter, RunFilter  # noqa: E402
from proxy.store.look_ups import Query, QueryBatch  # noqa: E402
from proxy.store.options import StoreOptions  # noqa: E402
from proxy.store.postgres.db import fitting, numbered, store_error  # noqa: E402
from proxy.store.postgres.store import PostgresStore  # noqa: E402
from proxy.store.seal import CONTENT, Seal  # noqa: E402
from proxy.store.sql.migrate import find_migrations, load_migrations  # noqa: E402
from proxy.store.sql.writing.writer import WriteError  # noqa: E402

DAY = 86400.0
LATEST = len(load_migrations(find_migrations("postgres")))

Make = Callable[..., PostgresStore]


async def _kept(store: PostgresStore, *names: str) -> None:
    for name in names:
        store.put_response(response(name))
    await store.list_runs(RunFilter())


async def _sessions_end(url: str, store: PostgresStore) -> None:
    """Cut every session of a store, as a restart of the server does."""
    connections = [store._writing._connection, *(idle for _, idle in store._reading._idle)]
    pids = [each.get_server_pid() for each in connections if each is not None and not each.is_closed()]
    await fetch(url, "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid", pids)


@pytest.fixture
async def network(postgres_url: str) -> AsyncIterator[tuple[Network, str]]:
    """A relay that a test can freeze, and the URL of the test's schema through it."""
    async with network_to(postgres_url) as made:
        yield made


async def test_what_one_process_wrote_another_reads(make_postgres: Make) -> None:
    """Two stores on one schema see each other's commits, and find a response only for its caller."""
    first, second = make_postgres(), make_postgres()
    await first.start()
    await second.start()
    first.put_run(run())
    await _kept(first, "resp_1")
    assert await second.find_response("resp_1", "key:b") is None
    assert await second.find_response("resp_1", "open") == response()
    assert await second.delete_response("resp_1", "open") is True
    assert await first.find_response("resp_1", "open") is None
    assert [found.id for found in await second.list_runs(RunFilter())] == ["run_1"]


async def test_a_store_that_only_reads_leaves_no_trace(make_postgres: Make, postgres_url: str) -> None:
    """A store that only reads registers no owner in the database."""
    store = make_postgres()
    await store.start()
    assert list(await store.list_runs(RunFilter())) == []
    assert await store.healthy() is True
    await store.aclose()
    assert await fetch(postgres_url, "SELECT count(*) FROM owners") == [(0,)]


async def test_after_a_restart_of_the_server_nothing_is_lost(make_postgres: Make, postgres_url: str) -> None:
    """The store replaces ended sessions by itself, and writes all that was queued."""
    store = make_postgres()
    await store.start()
    store.put_run(run())
    await _kept(store, "resp_1")
    for number in range(5):
        await _sessions_end(postgres_url, store)
        store.put_turn(turn(number=number + 1))
    await until(lambda: store._writer.failure is None and not store._writer._queue.count)
    assert await store.healthy() is True
    await store.open_invocation(invocation(), durable=True)
    detail = await store.get_run("run_1")
    assert detail is not None
    assert len(detail.turns) == 5
    assert store.lost == 0


async def test_a_session_that_a_slow_statement_ends_is_replaced(make_postgres: Make) -> None:
    """If tidying outlasts the driver's time limit, its session ends, and the next write takes a new one."""
    store = make_postgres()
    await store.start()
    await _kept(store, "resp_0")

    async def slow(connection: Any) -> None:
        await connection.execute("SELECT pg_sleep(60)", timeout=0.01)

    with pytest.raises(WriteError, match="TimeoutError"):
        await store._writing.transaction(slow)
    await store.open_invocation(invocation(), durable=True)


async def test_each_round_trip_of_a_batch_is_a_step(make_postgres: Make) -> None:
    """A batch of many different look-ups has the time limit for each round trip, not for all together."""
    store = make_postgres()
    await store.start()
    loop = asyncio.get_running_loop()
    asked = [("SELECT 1", ()), ("SELECT 2", ()), ("SELECT ?::int", (3,)), ("SELECT ?::int", (4,))]
    batch = QueryBatch([Query(sql, values, loop.create_future()) for sql, values in asked])
    assert await store._read_batch(batch) == [[(1,)], [(2,)], [(3,)], [(4,)]]
    assert batch.steps == 3


async def test_while_a_table_is_locked_nobody_waits_but_an_effect(
    make_postgres: Make, postgres_url: str
) -> None:
    """Rule R1: under a lock puts return at once and an effect times out; later all puts are written."""
    store = make_postgres(lock_timeout_s=1.5)
    await store.start()
    await _kept(store, "resp_0")
    async with locked_table(postgres_url, "tool_invocations"):
        store.put_run(run())
        store.put_response(response())
        with pytest.raises(StoreUnavailable, match=r"within 1\.5 s"):
            await store.open_invocation(invocation(), durable=True)
        assert await store.find_response("resp_1", "open") == response()
        await until(lambda: store._writer.failure == "locked")
        assert await store.healthy() is False
    await store.list_runs(RunFilter())
    assert await fetch(postgres_url, "SELECT id FROM responses ORDER BY id") == [("resp_0",), ("resp_1",)]
    # The row was dropped from the queue, or was committed too late and then withdrawn.
    assert await fetch(postgres_url, "SELECT 1 FROM tool_invocations WHERE status = 'started'") == []
    assert store.lost == 0


async def test_a_network_that_swallows_everything_stops_no_stream(
    network: tuple[Network, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a frozen network an effect times out, puts and finds still work, and the close ends."""
    wire, url = network
    # The driver's own timeouts must not end the test's waits.
    monkeypatch.setattr("proxy.store.postgres.db.CONNECT_S", LATE_S)
    monkeypatch.setattr("proxy.store.postgres.db.COMMAND_S", LATE_S)
    store = PostgresStore(url, StoreOptions(clock=lambda: T0, lock_timeout_s=0.5))
    await store.start()
    await _kept(store, "resp_1")
    wire.flows.clear()
    with pytest.raises(StoreUnavailable, match=r"within 0\.5 s"):
        await store.open_invocation(invocation(), durable=True)
    store.put_response(response("resp_2"))
    assert await store.find_response("resp_2", "open") == response("resp_2")
    assert await store.healthy() is False
    closing = asyncio.create_task(store.aclose())
    await until(lambda: store._writer._task is None)  # the store has given up the queued writes
    wire.flows.set()
    async with asyncio.timeout(PATIENCE_S):
        await closing
    assert store.lost >= 1


async def test_a_server_that_is_not_there_is_named() -> None:
    """A start without a server raises StoreUnavailable, and the message has no password."""
    with closed_port() as port:
        store = PostgresStore(f"postgresql://u:hunter2@127.0.0.1:{port}/db")
        with pytest.raises(StoreUnavailable, match="not reachable") as caught:
            await store.start()
    assert "hunter2" not in str(caught.value)
    assert await store.healthy() is False
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.list_runs(RunFilter())


async def test_a_database_or_address_that_is_none_is_named() -> None:
    """A missing database, a missing schema and a bad address are errors of their own, without a password."""
    need_postgres()
    missing = SERVER.rpartition("/")[0] + "/no_such_database"
    with pytest.raises(StoreError, match="no database with this name"):
        await PostgresStore(missing).start()
    with pytest.raises(StoreError, match="no schema with the name in search_path"):
        await PostgresStore(f"{SERVER}?search_path=no_such_schema").start()
    with pytest.raises(ConfigError, match="not a PostgreSQL address") as caught:
        await PostgresStore("postgresql://u:hunter2@h:port/db").start()
    assert "hunter2" not in str(caught.value)


async def test_a_refused_row_takes_no_other_with_it(
    make_postgres: Make, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The store counts rows that the server refuses, writes the rest of their group, and logs no value."""
    store = make_postgres()
    await store.start()
    store.put_response(response("resp_1"))
    store.put_response(response("odd", continuation="hunter2, where the server takes bytes alone"))
    store.put_turn(turn("run_lost"))
    store.put_run(run(status="hunter2"))
    await _kept(store, "resp_2")
    assert store.lost == 3
    assert await fetch(postgres_url, "SELECT id FROM responses ORDER BY id") == [("resp_1",), ("resp_2",)]
    assert await store.find_response("odd", "open") is not None
    with pytest.raises(StoreUnavailable, match="refuses the row"):
        await store.open_invocation(invocation(status="hunter2"), durable=True)
    assert await store.healthy() is True
    assert "hunter2" not in caplog.text


async def test_a_read_only_server_refuses_effects(make_postgres: Make) -> None:
    """On a read-only server an effect fails with that reason, and reads still work."""
    store = make_postgres()
    await store.start()
    await _kept(store, "resp_1")
    connection = await store._writing.connection()
    await connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.open_invocation(invocation(), durable=True)
    assert await store.find_response("resp_1", "open") == response()
    await connection.execute("SET default_transaction_read_only = off")
    await until(lambda: store._writer.failure is None)
    await store.open_invocation(invocation(), durable=True)


async def test_names_that_no_index_takes_stay_in_memory(make_postgres: Make, postgres_url: str) -> None:
    """Callers with NULs or of any length stay different, and long names of models and tools lose no run."""
    store = make_postgres()
    await store.start()
    for caller in ("a\0", "a\ufffd", "x" * 5000, "x" * 5001):
        store.put_response(response(caller=caller, response=caller.encode()))
    store.put_run(run(model="m" * 100_000, caller="é" * 9000))
    store.close_invocation(invocation(tool="t" * 9000))
    (found,) = await store.list_runs(RunFilter(model="m" * 100_000, tool="t" * 9000, caller="é" * 9000))
    assert (len(found.model), len(found.caller)) == (200, 200)
    for caller in ("a\0", "a\ufffd", "x" * 5000, "x" * 5001):
        kept = await store.find_response("resp_1", caller)
        assert kept is not None
        assert kept.response == caller.encode()
    assert await store.delete_response("resp_1", "a\0") is True
    assert await fetch(postgres_url, "SELECT caller FROM responses") == [("a\ufffd",)]
    assert store.lost == 0


async def test_content_leaves_with_its_days_and_with_its_run(make_postgres: Make, postgres_url: str) -> None:
    """Rule R3: a purge deletes all content of its run, and tidying deletes content past ``keep_days``."""
    now = [T0]
    first = make_postgres(keep_days=1, clock=lambda: now[0], seal=Seal(bytes(32)))
    await first.start()
    for name in ("run_1", "run_2"):
        first.put_run(run(name))
        first.put_messages([message(name)])
        first.put_suspended(suspended(name, run_id=name))
        for number in range(4):
            first.put_hidden(hidden(name, f"v{number}", run_id=name, created_at=T0 + number))
        first.put_response(response(name, run_id=name))
        first.put_result(kept(name, run_id=name))
        first.close_invocation(invocation(name, name, status="success"))
        first.put_native_call(native_call(name, name))
        first.put_wire(wire(name))
        await first.put_approvals([asked := approval(name, run_id=name)])
        given = grant(f"grant_{name}", approval_id=name, run_id=name)
        await first.decide_approval(asked, APPROVED, T0, given)
    await _kept(first, *(f"many_{number}" for number in range(1200)))
    first.put_run(run("run_1", status="completed"))

    async def counts() -> list[int]:
        tables = [table.name for table in CONTENT]
        found = [await fetch(postgres_url, f"SELECT count(*) FROM {table}") for table in tables]
        return [int(rows[0][0]) for rows in found]

    assert await counts() == [2, 2, 4, 1202, 2, 2, 2, 0, 2, 2]
    assert await first.purge(PurgeFilter(run_id="run_1")) == 1
    assert await counts() == [1, 1, 2, 1, 1, 1, 1, 0, 1, 1]
    assert await fetch(postgres_url, "SELECT run_id FROM tool_invocations") == [("run_2",)]
    await _kept(first, *(f"many_{number}" for number in range(1200)))
    now[0] = T0 + DAY + 10
    keeper = make_postgres(
        keep_days=1, clock=lambda: now[0], reap=True, tidy_every_s=0.01, seal=Seal(bytes(32))
    )
    await keeper.start()
    keeper.put_response(response("fresh", run_id="run_2", created_at=now[0]))
    async with asyncio.timeout(PATIENCE_S):
        while await counts() != [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]:  # noqa: ASYNC110 - a database
            await asyncio.sleep(0.02)
    assert len(await keeper.list_runs(RunFilter())) == 1


async def test_sealed_content_is_not_in_the_database(make_postgres: Make, postgres_url: str) -> None:
    """Rule R3: with a seal key no column holds content in plain text; without the key the start fails."""
    store = make_postgres(seal=Seal(bytes(32)))
    await store.start()
    store.put_run(run())
    store.put_messages([message(content="a secret sentence")])
    store.put_suspended(suspended(payload=b"a secret sentence"))
    store.put_hidden(hidden(payload=b"a secret sentence"))
    store.put_response(response(response=b"a secret sentence"))
    store.put_result(kept(content="a secret sentence"))
    store.put_native_call(native_call(payload="a secret sentence"))
    store.put_wire(wire(payload=b"a secret sentence"))
    background = BackgroundRecord("resp_bg", "open", "run_1", T0)
    await store.put_background(background, b"a secret sentence")
    await store.put_approvals([asked := approval(arguments="a secret sentence")])
    await store.decide_approval(asked, APPROVED, T0, grant(approval_id=asked.id, bounds="a secret sentence"))
    detail = await store.get_run("run_1")
    assert detail is not None
    assert detail.messages[0].content == "a secret sentence"
    assert await store.find_response("resp_1", "open") == response(response=b"a secret sentence")
    assert list(await hidden_of(store, "key-1")) == [hidden(payload=b"a secret sentence")]
    for table in CONTENT:
        ((row, sealed_by),) = await fetch(postgres_url, f"SELECT t::text, sealed_by FROM {table.name} t")
        assert "a secret sentence" not in row
        assert b"a secret sentence".hex() not in row
        assert sealed_by == Seal(bytes(32)).id
    with pytest.raises(StoreError, match="cannot be read: the key"):
        await make_postgres().start()


async def test_an_interrupted_run_keeps_what_its_turns_used(make_postgres: Make, postgres_url: str) -> None:
    """Rule R1: the row of an interrupted run has the totals of its turns, however far it came."""
    await cut_off_runs(make_postgres())
    assert await fetch(postgres_url, CUT_OFF_SQL) == CUT_OFF


async def test_the_commands_take_a_record_in_postgres(postgres_url: str, tmp_path: Path) -> None:
    """``runs`` creates no tables, ``migrate`` does; ``tools call`` writes to them and ``runs`` reads them."""
    env = {
        **os.environ,
        "TOOLRELAY_STORE__URL": postgres_url,
        "OPENAI_API_KEY": "k",
        "TOOLRELAY_POLICY__ALLOW": '["*"]',
    }

    async def toolrelay(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "proxy", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LATE_S
        )
        return done.returncode, done.stdout + done.stderr

    code, said = await toolrelay("runs", "list")
    assert (code != 0, "no record in this database" in said) == (True, True), said
    code, said = await toolrelay("migrate")
    assert code == 0, said
    assert f"schema {LATEST}" in said
    code, said = await toolrelay("tools", "call", "core__get_current_time", '{"timezone":"UTC"}')
    assert code == 0, said
    assert await fetch(postgres_url, "SELECT tool, status FROM tool_invocations") == [
        ("core__get_current_time", "success")
    ]
    code, said = await toolrelay("runs", "list", "--json")
    assert code == 0, said


def test_statements_are_put_into_the_servers_words() -> None:
    """Question marks become numbered parameters in order, and NULs in text become U+FFFD."""
    assert numbered("a = ? AND b IN (?, ?)") == "a = $1 AND b IN ($2, $3)"
    assert fitting(("a\0b", b"\0", None, 1)) == ["a\ufffdb", b"\0", None, 1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (asyncpg.InvalidPasswordError("hunter2"), "user or the password"),
        (asyncpg.InsufficientPrivilegeError("hunter2"), "no right"),
        (asyncpg.DiskFullError("hunter2"), "disk full"),
        (asyncpg.TooManyConnectionsError("hunter2"), "out of resources"),
        (asyncpg.CannotConnectNowError("hunter2"), "not reachable"),
        (asyncpg.UndefinedTableError("hunter2"), "UndefinedTableError"),
        (socket.gaierror(8, "hunter2"), "not reachable"),
        (TimeoutError(), "not reachable"),
    ],
)
def test_errors_are_words_for_the_operator(error: Exception, words: str) -> None:
    """Each kind of fault has its own message, which repeats nothing of the server's message."""
    said: Any = store_error(error)
    assert words in str(said)
    assert "hunter2" not in str(said)
