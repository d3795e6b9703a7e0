"""Fifty workers are killed under load: each effect has its row, none happens twice, others go on."""

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from store_postgres import fetch
from store_records import T0, invocation, query, run, spawn, until

from proxy.store.options import StoreOptions
from proxy.store.sqlite.store import SqliteStore

KILLS = 50
POINTS = ("random", "commit-before", "commit-after", "effect-before", "effect-after")
"""When a process dies: at random, around a commit of the writer, or around the effect of a call."""

_NURSERY = """
import asyncio, os, signal, sys
from pathlib import Path
from store_records import T0, invocation, message, run, turn
from proxy.records.effects import EffectClaim, EffectResult

kind, place, effects = sys.argv[1:]
if kind == "sqlite":
    from proxy.store.sqlite.store import SqliteStore
else:
    from proxy.store.postgres.store import PostgresStore

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def work(name, point, after, first):
    store = SqliteStore(Path(place)) if kind == "sqlite" else PostgresStore(place, lease_s=1.0)
    await store.start()
    store.put_run(run(name))
    # One write each: a line is there whole, or not at all.
    world = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    told = os.open(f"{effects}.{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    count = {"commit": 0, "effect": 0}

    def passes(where):
        what = where.partition("-")[0]
        count[what] += where.endswith("before")
        if where == point and count[what] >= after:
            die()

    write = store._writer._db.write
    async def watched(batches):
        passes("commit-before")
        await write(batches)
        passes("commit-after")
    store._writer._db.write = watched

    async def effect(number):
        mine = invocation(f"{name}-{number}", name, seq=number)
        claim = EffectClaim(f"place:{name}:{number}", f"request:{number}", True, T0)
        if await store.claim_effect(mine, claim) is not None:
            return
        os.write(told, f"{mine.id}\\n".encode())
        passes("effect-before")
        os.write(world, f"{number} {mine.id}\\n".encode())
        passes("effect-after")
        store.keep_effect(mine.id, EffectResult("x" * 300))
        store.close_invocation(invocation(mine.id, name, seq=number, status="success", ended_at=T0 + 9))

    async def load():
        number = 0
        while True:
            number += 1
            store.put_messages([message(name, seq=number, content="x" * 700)])
            store.put_turn(turn(name, 1 + number % 5))
            if number % 5 == 0:
                await asyncio.sleep(0.005)

    background = asyncio.create_task(load())
    number = first
    while True:
        await asyncio.gather(*(effect(number + each) for each in range(4)))
        number += 4

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    name, point, after, first = line.split()
    child = os.fork()
    if child == 0:
        asyncio.run(work(name, point, int(after), int(first)))
    print(child, flush=True)
"""

Rows = Callable[[str], Awaitable[list[tuple[Any, ...]]]]
Check = Callable[[], Awaitable[None]]


class _Nursery:
    """A process that has imported everything and forks workers, which start at once."""

    def __init__(self, kind: str, place: "Path | str", effects: Path) -> None:
        self.effects = effects
        self._process: subprocess.Popen[str] = spawn(_NURSERY, kind, place, effects)

    async def bear(self, name: str, point: str, after: int, first: int) -> int:
        """Fork a worker and return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {point} {after} {first}\n")
        self._process.stdin.flush()
        return int(await asyncio.to_thread(self._process.stdout.readline))

    async def close(self) -> None:
        """End this process; all its workers are dead."""
        await asyncio.to_thread(self._process.communicate)

    def world(self) -> list[tuple[int, str]]:
        """Every effect that happened: its number and the invocation that caused it."""
        if not self.effects.exists():
            return []
        lines = self.effects.read_text().split("\n")[:-1]
        return [(int(number), id_) for number, id_ in (line.split() for line in lines)]

    def told(self, name: str) -> list[str]:
        """The invocations that a worker knew to be committed."""
        path = Path(f"{self.effects}.{name}")
        return path.read_text().split() if path.exists() else []

    def has_told(self, name: str) -> bool:
        """Whether a worker knew any invocation to be committed."""
        return len(self.told(name)) > 0


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def _kill_many(
    nursery: _Nursery, keeper: Any, rows: Rows, check: Callable[[], Awaitable[None]]
) -> None:
    """Kill one worker after the other; ``keeper`` lives, has open rows, and reaps the dead."""
    await keeper.start()
    keeper.put_run(run("alive"))
    await keeper.open_invocation(invocation("alive", "alive"), durable=True)
    chance = random.Random(20260101)
    for place in range(KILLS):
        name, point = f"run_{place:02d}", POINTS[place % len(POINTS)]
        done = len(nursery.world())
        # The worker repeats some requests of its predecessor, as a client does after a crash.
        child = await nursery.bear(name, point, 1 + chance.randrange(12), max(0, done - 8))
        if point == "random":
            await until(partial(nursery.has_told, name))
            await asyncio.sleep(chance.random() * 0.03)  # at any moment; no assertion depends on it
            os.kill(child, signal.SIGKILL)
        await until(partial(_gone, child))
        for table in ("runs", "tool_invocations"):  # wait until ``keeper`` has found out
            while await rows(  # noqa: ASYNC110 - a database tells nobody
                f"SELECT 1 FROM {table} WHERE status IN ('running', 'started') AND id <> 'alive' LIMIT 1"
            ):
                await asyncio.sleep(0.01)
        await check()
        status: dict[str, str] = dict(await rows("SELECT id, status FROM tool_invocations"))
        assert status.pop("alive") == "started"
        assert set(status.values()) <= {"success", "interrupted"}
        assert {id_ for _, id_ in nursery.world()} <= set(status)
        assert set(nursery.told(name)) <= set(status)
        numbers = [number for number, _ in nursery.world()]
        assert len(numbers) == len(set(numbers))
    assert len(nursery.world()) > KILLS
    runs: dict[str, str] = dict(await rows("SELECT id, status FROM runs"))
    assert runs.pop("alive") == "running"
    assert set(runs.values()) == {"interrupted"}
    await nursery.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_fifty_kills_on_one_file(tmp_path: Path) -> None:
    """Rules R1, R5: after each kill the file is intact, each effect has a row, and live rows stay open."""
    path = tmp_path / "r.db"
    keeper = SqliteStore(path, StoreOptions(reap=True, tidy_every_s=0.02, clock=lambda: T0))

    async def rows(sql: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(query, path, sql)

    async def check() -> None:
        assert await rows("PRAGMA integrity_check") == [("ok",)]

    await _kill_many(_Nursery("sqlite", path, tmp_path / "world"), keeper, rows, check)
    await keeper.aclose()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_fifty_kills_on_one_server(tmp_path: Path, postgres_url: str) -> None:
    """Rules R1, R5: after each kill a shared server has a row of each effect, and live rows stay open."""
    from proxy.store.postgres.store import PostgresStore

    keeper = PostgresStore(
        postgres_url, StoreOptions(reap=True, tidy_every_s=0.02, clock=lambda: T0), lease_s=1.0
    )

    async def rows(sql: str) -> list[tuple[Any, ...]]:
        return await fetch(postgres_url, sql)

    async def check() -> None:
        """PostgreSQL checks its own pages."""

    await _kill_many(_Nursery("postgres", postgres_url, tmp_path / "world"), keeper, rows, check)
    await keeper.aclose()
