"""Makes a record of many runs in seconds, and measures how much more a large record costs than a small one.

``fill(path)`` adds runs, turns and invocations to a SQLite record with its present schema, like many days of
use. ``growth(small, large)`` measures a tool turn, a rehydration look-up and ``runs list`` with each filter
on two records, and returns their ratios.

Run it: ``python -m bench.big_record [FOLDER]``
"""

import asyncio
import contextlib
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from proxy.records.effects import EffectClaim
from proxy.records.rows import HiddenTurns, RunRecord, ToolEffect, ToolInvocationRecord, TurnRecord
from proxy.store.base import RunFilter
from proxy.store.options import StoreOptions
from proxy.store.sql.migrate import migrate_sqlite
from proxy.store.sqlite.store import SqliteStore

Work = Callable[[SqliteStore, int], Awaitable[object]]

RUNS: Final = 300_000
INVOCATIONS: Final = 1_000_000
END: Final = 1_760_000_000.0
"""When the newest of these runs began (seconds since the epoch)."""

_OWNER: Final = "0" * 32
_EVERY_S: Final = 20.0
_TOOLS: Final = ("core__get_weather", "core__calculate", "flights__search_flights", "web__fetch_page")
_RARE: Final = "calendar__list_events"

FILTERS: Final[dict[str, RunFilter]] = {
    "all": RunFilter(),
    "status": RunFilter(status="cancelled"),
    "model": RunFilter(model="model-3"),
    "key": RunFilter(caller="caller-7"),
    "end user": RunFilter(caller="caller-3/someone"),
    "tool": RunFilter(tool=_TOOLS[0]),
    "rare tool": RunFilter(tool=_RARE),
    "errors": RunFilter(errors_only=True),
    "since": RunFilter(since=END - 90_000, until=END - 3600),
    "page": RunFilter(before="run_000000000100"),
}
"""The filters of the measured ``runs list``."""


def fill(path: Path, runs: int = RUNS, invocations: int = INVOCATIONS) -> None:
    """Add this number of runs to a record, and create the record if there is none.

    A power loss may destroy the record, and no one else may write meanwhile. Raises the errors of
    :func:`~proxy.store.sql.migrate.migrate_sqlite` and SQLite.
    """
    migrate_sqlite(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN IMMEDIATE")
        # Indexes and triggers work row by row, so they are removed during the insertion and then restored.
        apart = db.execute(
            "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('trigger', 'index') AND sql IS NOT NULL"
        ).fetchall()
        for kind, name, _ in apart:
            db.execute(f"DROP {kind} {name}")
        db.execute(
            "INSERT OR IGNORE INTO owners (id, pid, host, started_at, seen_at, ended_at) "
            "VALUES (?, 1, 'bench', 0, 0, 1)",
            (_OWNER,),
        )
        _insert(db, "runs", 20, _runs(runs), "trace", "prompt_hash")
        _insert(db, "turns", 10, _turns(runs))
        _insert(db, "tool_invocations", 18, _invocations(runs, invocations))
        db.execute(
            "INSERT OR IGNORE INTO run_tools SELECT DISTINCT i.tool, r.started_at, r.id "
            "FROM tool_invocations i JOIN runs r ON r.id = i.run_id"
        )
        _insert(db, "hidden_turns", 7, _hidden(runs))
        for _, _, sql in apart:
            db.execute(sql)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")


def _insert(
    db: sqlite3.Connection, table: str, width: int, rows: Iterator[tuple[Any, ...]], *more: str
) -> None:
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")][:width]
    names = ", ".join([*columns, *more])
    marks = ", ".join("?" * (len(columns) + len(more)))
    db.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)


def _id(number: int) -> str:
    return f"run_{number:012d}"


def _caller(number: int) -> str:
    """Return a key, or an end user of one."""
    key = number % 50
    return f"caller-{key}/someone" if key == 3 else f"caller-{key}"


def _runs(count: int) -> Iterator[tuple[Any, ...]]:
    offered = json.dumps(_TOOLS)
    for number in range(count):
        at = END - number * _EVERY_S
        status = ("failed", "cancelled")[number % 2] if number % 40 < 2 else "completed"
        error = "upstream_broken" if status == "failed" else None
        yield (
            _id(number), _OWNER, f"req-{number}", _caller(number), "chat", f"model-{number % 9}",
            "default", 1, status, at, at + 3.5, error, "stop", 2, 3, 900, 120, 1020, offered, "{}",
            "silent", f"{number % 30:064x}",
        )  # fmt: skip


def _turns(runs: int) -> Iterator[tuple[Any, ...]]:
    for number in range(runs):
        at = END - number * _EVERY_S
        yield (_id(number), 1, f"chatcmpl-{number}", "tool_calls", at, at + 1.5, 500, 60, 560, 3)


def _invocations(runs: int, count: int) -> Iterator[tuple[Any, ...]]:
    for number in range(count):
        run = number * runs // count
        at = END - run * _EVERY_S + 1.5
        tool = _RARE if number % (count // 60) == 0 else _TOOLS[number % len(_TOOLS)]
        yield (
            f"inv_{number:024x}", _OWNER, _id(run), 1, number % 4, f"call_{number}", tool, tool[:4], "0" * 64,
            "read_only", "allowed: policy.allow", "success", None, '{"city":"Oslo"}', '{"ok":true}', 300,
            at, at + 0.2,
        )  # fmt: skip


def _hidden(runs: int) -> Iterator[tuple[Any, ...]]:
    payload = b"x" * 400
    for number in range(0, runs, 10):
        yield (
            f"{number:048x}", f"{number:032x}", _id(number), f"caller-{number % 50}", "chat", payload,
            END - number,
        )  # fmt: skip


def growth(small: Path, large: Path, rounds: int = 100) -> dict[str, tuple[float, float, float]]:
    """Measure each operation: its seconds on the small and on the large record, and their ratio.

    The seconds are the median over all rounds; in each round the two records take turns.
    """
    return asyncio.run(_growth(small, large, rounds))


async def _growth(small: Path, large: Path, rounds: int) -> dict[str, tuple[float, float, float]]:
    stores = [SqliteStore(path, StoreOptions(keep_days=0, clock=lambda: END + 1)) for path in (small, large)]
    for store in stores:
        await store.start()
    found = {}
    try:
        for name, work in _operations().items():
            took: list[list[float]] = [[], []]
            for at in range(rounds):
                for store, seconds in zip(stores, took, strict=True):
                    begin = time.perf_counter()
                    await work(store, at)
                    seconds.append(time.perf_counter() - begin)
            few, many = (statistics.median(seconds) for seconds in took)
            found[name] = (few, many, many / few)
    finally:
        for store in stores:
            await store.aclose()
    return found


def _operations() -> dict[str, Work]:
    def listing(wanted: RunFilter) -> Work:
        return lambda store, _: store.list_runs(wanted)

    return {
        "tool turn": _tool_turn,
        "rehydration": _rehydration,
        **{f"runs list: {name}": listing(wanted) for name, wanted in FILTERS.items()},
    }


async def _rehydration(store: SqliteStore, at: int) -> None:
    """Look up what a conversation with ten answers needs: each has hidden turns in the record."""
    keys = [f"{(at + answer) % 20 * 10:048x}" for answer in range(10)]
    found = await store.find_hidden(keys)
    if not all(found.values()):
        raise LookupError("hidden turns that were filled in are not found")


async def _tool_turn(store: SqliteStore, at: int) -> None:
    """Write what one turn with a side effect records, and wait until all of it is committed."""
    name = f"run_turn_{at}_{time.perf_counter_ns()}"
    run = RunRecord(name, "r", "caller-7", "chat", "model-3", "default", True, "running", END)
    store.put_run(run)
    call = ToolInvocationRecord(
        f"inv_{name}",
        name,
        1,
        0,
        "c",
        _TOOLS[0],
        "core",
        "",
        ToolEffect.STATE_CHANGE,
        "allowed",
        "started",
        END,
    )
    await store.claim_effect(
        call, EffectClaim(f"place:{name}", f"request:{name}", False, END, f"tool:{name}")
    )
    store.close_invocation(call)
    store.put_turn(TurnRecord(name, 1, "id", "tool_calls", END, END + 1))
    store.put_hidden(HiddenTurns(name, "v", name, "caller-7", "chat", b"x" * 400, END))
    store.put_run(run)
    await store.healthy()


def main(folder: Path) -> None:
    """Make both records, and print a line for each operation."""
    small, large = folder / "small.db", folder / "large.db"
    # A page of each list is full in both records; otherwise an empty list would be compared with one of
    # fifty.
    fill(small, 6000, 20_000)
    begin = time.perf_counter()
    fill(large)
    size = large.stat().st_size / 2**20
    print(f"{RUNS} runs and {INVOCATIONS} invocations in {time.perf_counter() - begin:.1f} s, {size:.0f} MiB")
    for name, (few, many, ratio) in growth(small, large).items():
        print(f"{name:24} {few * 1000:8.2f} ms {many * 1000:8.2f} ms  x {ratio:.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
