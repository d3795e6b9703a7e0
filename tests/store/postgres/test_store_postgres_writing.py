"""How a group of writes reaches PostgreSQL: in how many statements, and what a refused row takes along."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from store_postgres import fetch
from store_records import hidden, hidden_of, invocation, message, run, suspended, turn, wire
from waiting import LATE_S

asyncpg = pytest.importorskip("asyncpg")

from proxy.store.base import RunFilter  # noqa: E402
from proxy.store.postgres.store import PostgresStore  # noqa: E402
from proxy.store.seal import Seal  # noqa: E402

Make = Callable[..., PostgresStore]


@pytest.fixture(autouse=True)
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the writer delay a write that nobody waits for until after the test."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", LATE_S)


async def _started(make: Make, **options: Any) -> PostgresStore:
    """Start a store whose first group, with the owner's row, is committed."""
    store = make(**options)
    await store.start()
    store.put_run(run("run_0"))
    await store.list_runs(RunFilter())
    return store


def _put_one_of_each(store: PostgresStore, number: int) -> None:
    run_id = f"run_{number}"
    store.put_run(run(run_id))
    store.put_hidden(hidden(f"key-{number}"))
    store.put_suspended(suspended(f"key-{number}", run_id))
    store.put_turn(turn(run_id))
    store.put_messages([message(run_id), message(run_id, seq=1)])
    store.close_invocation(invocation(f"inv_{number}", run_id))
    store.put_wire(replace(wire(run_id), run_id=run_id))
    store.put_run(run(run_id, status="completed"))


async def test_a_group_of_runs_is_one_statement(make_postgres: Make, postgres_url: str) -> None:
    """All rows of fifty runs, in seven tables, are committed by one statement."""
    store = await _started(make_postgres, content="all", seal=Seal(b"k" * 32))
    _put_one_of_each(store, 1)
    await store.list_runs(RunFilter())
    seen: list[str] = []
    connection = await store._writing.connection()
    connection.add_query_logger(lambda query: seen.append(query.query))
    for number in range(2, 52):
        _put_one_of_each(store, number)
    await store.list_runs(RunFilter())
    assert len(seen) == 1
    assert store.lost == 0
    names = ("hidden_turns", "messages", "runs", "suspended_turns", "tool_invocations", "turns", "wire_bytes")
    counted = [(await fetch(postgres_url, f"SELECT count(*) FROM {name}"))[0][0] for name in names]
    assert counted == [51, 102, 52, 51, 51, 51, 51]
    assert await hidden_of(store, "key-40") == [hidden("key-40")]
    detail = await store.get_run("run_40")
    assert detail is not None
    assert (detail.run.status, len(detail.turns), len(detail.messages)) == ("completed", 1, 2)
    tools = await fetch(postgres_url, "SELECT count(*) FROM run_tools")
    assert tools == [(51,)]


async def test_a_refused_row_loses_only_itself(make_postgres: Make) -> None:
    """Of a group in one statement a row that the server refuses is lost alone: at once, or at the commit."""
    store = await _started(make_postgres)
    for number in range(1, 9):
        _put_one_of_each(store, number)
    store.put_run(run("run_bad", status="no such status"))
    store.put_turn(turn("run_missing"))  # Its foreign key is checked at the commit.
    found = await store.list_runs(RunFilter())
    assert {one.id for one in found} == {f"run_{number}" for number in range(9)}
    assert store.lost == 2
    detail = await store.get_run("run_8")
    assert detail is not None
    assert len(detail.turns) == 1


async def test_two_keys_that_the_server_cannot_tell_apart_are_written(make_postgres: Make) -> None:
    """Two runs whose ids become one, since text in PostgreSQL cannot contain NUL, are both written."""
    store = await _started(make_postgres)
    store.put_run(run("run_\0"))
    store.put_run(run("run_\ufffd", status="completed"))
    found = {one.id: one.status for one in await store.list_runs(RunFilter())}
    assert found == {"run_0": "running", "run_\ufffd": "completed"}
    assert store.lost == 0


async def test_hidden_turns_of_one_group_stay_two(make_postgres: Make) -> None:
    """Of three variants of a key in one statement the two newest stay, as if they came one by one."""
    store = await _started(make_postgres)
    for number in range(3):
        store.put_hidden(hidden("key-1", f"v{number}", created_at=hidden().created_at + number))
    await store.list_runs(RunFilter())
    assert [one.variant for one in await hidden_of(store, "key-1")] == ["v2", "v1"]
