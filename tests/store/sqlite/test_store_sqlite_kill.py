"""Killed processes: their committed rows stay, and only their open rows become ``interrupted``."""

import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from store_records import CUT_OFF, CUT_OFF_SQL, T0, cut_off_runs, invocation, query, run, spawn
from waiting import PATIENCE_S

from proxy.store.options import StoreOptions
from proxy.store.sqlite.owners import OwnerLock, proven_dead
from proxy.store.sqlite.store import SqliteStore

_WORKER = """
import asyncio, sys
from pathlib import Path
from store_records import invocation, message, run, turn
from proxy.store.options import StoreOptions
from proxy.store.sqlite.store import SqliteStore

async def main():
    path, point, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    store = SqliteStore(path, StoreOptions(reap=point == "serve"))
    await store.start()
    store.put_run(run(name))
    if point == "before-row":
        await store.get_run(name)
        print("ready", flush=True)
    elif point == "before-close":
        await store.open_invocation(invocation(name, name), durable=True)
        Path(sys.argv[4]).write_text("effect")
        print("ready", flush=True)
    elif point in ("before-effect", "serve"):
        await store.open_invocation(invocation(name, name), durable=True)
        print("ready", flush=True)
    elif point == "after-close":
        await store.open_invocation(invocation(name, name), durable=True)
        store.close_invocation(invocation(name, name, status="success", ended_at=1.0))
        await store.get_run(name)
        print("ready", flush=True)
    elif point == "random":
        print("ready", flush=True)
        for number in range(1_000_000):
            store.put_messages([message(name, seq=number, content="x" * 700)])
            await store.open_invocation(invocation(f"{name}-{number}", name), durable=True)
            print(number, flush=True)
            store.close_invocation(invocation(f"{name}-{number}", name, status="success"))
    await asyncio.to_thread(sys.stdin.readline)
    await store.aclose()

asyncio.run(main())
"""


def _start(path: Path, point: str, name: str = "run_1", *more: Path) -> "subprocess.Popen[str]":
    child = spawn(_WORKER, path, point, name, *more)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def _kill(child: "subprocess.Popen[str]") -> str:
    """Kill a worker, and return the output that nobody has read yet."""
    child.send_signal(signal.SIGKILL)
    assert child.stdout is not None
    assert child.stdin is not None
    rest = child.stdout.read()  # not communicate(), which misses what is buffered already
    child.wait(PATIENCE_S)
    child.stdout.close()
    child.stdin.close()
    return rest


def _let_go(child: "subprocess.Popen[str]") -> None:
    child.communicate("\n", timeout=PATIENCE_S)
    assert child.returncode == 0


async def _statuses(path: Path, *, reap: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Start a store, stop it, and give the states of the runs and of the invocations."""
    store = SqliteStore(path, StoreOptions(reap=reap, clock=lambda: T0 + 99))
    await store.start()
    await store.aclose()
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    return (
        dict(query(path, "SELECT id, status FROM runs")),
        dict(query(path, "SELECT id, status FROM tool_invocations")),
    )


@pytest.mark.parametrize(
    ("point", "invocations"),
    [
        ("before-row", {}),
        ("before-effect", {"run_1": "interrupted"}),
        ("before-close", {"run_1": "interrupted"}),
        ("after-close", {"run_1": "success"}),
    ],
)
async def test_a_kill_between_row_and_effect_leaves_a_true_record(
    tmp_path: Path, point: str, invocations: dict[str, str]
) -> None:
    """Rule R1: after kill -9 committed rows are there, and open ones become ``interrupted``."""
    path, effect = tmp_path / "r.db", tmp_path / "effect"
    _kill(_start(path, point, "run_1", effect))
    if effect.exists():
        assert query(path, "SELECT status FROM tool_invocations") == [("started",)]
    runs, found = await _statuses(path, reap=True)
    assert runs == {"run_1": "interrupted"}
    assert found == invocations
    ended = query(path, "SELECT ended_at FROM runs")
    assert ended == [(T0 + 99,)]
    assert query(path, "SELECT count(*) FROM owners WHERE ended_at IS NULL") == [(0,)]
    assert list((tmp_path / "r.db.owners").iterdir()) == []


async def test_only_a_store_that_serves_reaps(tmp_path: Path) -> None:
    """Rule R1: a command that only reads leaves the open rows of a dead owner; a server interrupts them."""
    path = tmp_path / "r.db"
    _kill(_start(path, "before-effect"))
    assert await _statuses(path, reap=False) == ({"run_1": "running"}, {"run_1": "started"})
    assert await _statuses(path, reap=True) == ({"run_1": "interrupted"}, {"run_1": "interrupted"})


async def test_a_live_owner_is_never_touched(tmp_path: Path) -> None:
    """Rule R1: a dead worker's rows are interrupted, while the rows of a live one stay open until it ends."""
    path = tmp_path / "r.db"
    dead, alive = _start(path, "before-effect", "dead"), _start(path, "before-effect", "alive")
    _kill(dead)
    assert await _statuses(path, reap=True) == (
        {"dead": "interrupted", "alive": "running"},
        {"dead": "interrupted", "alive": "started"},
    )
    _let_go(alive)
    assert await _statuses(path, reap=False) == (
        {"dead": "interrupted", "alive": "interrupted"},
        {"dead": "interrupted", "alive": "interrupted"},
    )


async def test_a_stopped_worker_is_alive(tmp_path: Path) -> None:
    """Rule R1: a worker that hangs, here stopped by a signal, does not count as dead."""
    path = tmp_path / "r.db"
    child = _start(path, "before-effect")
    child.send_signal(signal.SIGSTOP)
    try:
        assert (await _statuses(path, reap=True))[0] == {"run_1": "running"}
    finally:
        child.send_signal(signal.SIGCONT)
    _let_go(child)


async def test_two_workers_that_start_at_once_both_come_up(tmp_path: Path) -> None:
    """Rule R1: workers that start at once interrupt the rows of a dead worker, and never each other's."""
    path = tmp_path / "r.db"
    _kill(_start(path, "before-effect", "old"))
    workers = [spawn(_WORKER, path, "serve", name) for name in ("w1", "w2", "w3")]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    assert dict(query(path, "SELECT id, status FROM runs")) == {
        "old": "interrupted", "w1": "running", "w2": "running", "w3": "running",
    }  # fmt: skip
    for worker in workers:
        _let_go(worker)


async def test_a_reused_process_id_does_not_hide_a_death(tmp_path: Path) -> None:
    """Rule R1: an owner whose pid now belongs to a live process is still recognised as dead."""
    path = tmp_path / "r.db"
    _kill(_start(path, "before-effect"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE owners SET pid = ?", (os.getpid(),))
    assert (await _statuses(path, reap=True))[0] == {"run_1": "interrupted"}


@pytest.mark.parametrize("change", ["NULL", "'../r.db'", "'" + "0f" * 16 + ".lock'"])
async def test_an_owner_in_doubt_is_left_alone(tmp_path: Path, change: str) -> None:
    """Rule R1: without an owner's own lock file the store cannot prove it dead, and changes no row."""
    path = tmp_path / "r.db"
    _kill(_start(path, "before-effect"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE owners SET lock_file = {change}")
    assert await _statuses(path, reap=True) == ({"run_1": "running"}, {"run_1": "started"})


async def test_an_interrupted_run_keeps_what_its_turns_used(tmp_path: Path) -> None:
    """Rule R1: the row of an interrupted run has the totals of its turns, however far it came."""
    await cut_off_runs(SqliteStore(tmp_path / "r.db"))
    assert query(tmp_path / "r.db", CUT_OFF_SQL) == CUT_OFF


async def test_a_clean_end_leaves_nothing_open(tmp_path: Path) -> None:
    """Rule R1: a store that closes marks its open rows ``interrupted``, as nobody else will close them."""
    store = SqliteStore(tmp_path / "r.db")
    await store.start()
    store.put_run(run())
    store.put_run(run("run_2", status="completed"))
    await store.open_invocation(invocation(), durable=True)
    await store.aclose()
    assert await _statuses(tmp_path / "r.db", reap=False) == (
        {"run_1": "interrupted", "run_2": "completed"},
        {"inv_1": "interrupted"},
    )


def test_a_lock_proves_death_once_and_only_after_it(tmp_path: Path) -> None:
    """Of two that check a dead owner at once only one finds it dead; a live owner is never found dead."""
    database = tmp_path / "r.db"
    owner = OwnerLock(database)
    owner.acquire()
    owner.acquire()
    name = owner.name
    assert name is not None
    with proven_dead(database, name) as dead:
        assert not dead
    owner.release(remove=False)
    with proven_dead(database, name) as first, proven_dead(database, name) as second:
        assert (first, second) == (True, False)
    with proven_dead(database, name) as again:
        assert not again
    owner.release(remove=True)


def test_an_owner_without_a_lock_folder_goes_on(tmp_path: Path) -> None:
    """If no lock can be taken, the owner has no lock file, and so it never counts as dead."""
    (tmp_path / "r.db.owners").write_text("in the way")
    owner = OwnerLock(tmp_path / "r.db")
    owner.acquire()
    assert owner.name is None
    owner.release(remove=True)


async def _random_kill(path: Path, name: str, after: int) -> None:
    child = _start(path, "random", name)
    assert child.stdout is not None
    said = [int(child.stdout.readline()) for _ in range(after)]
    said += [int(line) for line in _kill(child).split("\n")[:-1]]
    runs, found = await _statuses(path, reap=True)
    assert runs[name] == "interrupted"
    mine = {number: status for number, status in found.items() if number.startswith(f"{name}-")}
    for number in said:
        assert mine.pop(f"{name}-{number}") in ("success", "interrupted")
    assert len(mine) <= 1  # committed, and killed before it could say so
    assert set(found.values()) <= {"success", "interrupted"}


async def test_a_kill_in_full_flow_loses_no_committed_row(tmp_path: Path) -> None:
    """Rule R1: every row that a killed worker knew to be committed is in the database."""
    for place, after in enumerate((1, 7, 40)):
        await _random_kill(tmp_path / "r.db", f"run_{place}", after)
