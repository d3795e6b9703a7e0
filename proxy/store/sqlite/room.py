"""What to delete when a record in memory is larger than its limit.

Content (what conversations need) and rows (what happened) each get at least half of the room. Content goes
from the client key that has the most with all its end users, and there from the end user who has the most,
oldest first. So a caller with less than an equal share loses nothing to others. Rows go with the oldest
runs; the rows that prevent a second side effect go last.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from proxy.store.base import PurgeFilter
from proxy.store.seal import CONTENT, ContentTable
from proxy.store.sql.reports import DELETE_RUN, purge_query
from proxy.store.sql.request_rows import DROP_OLDEST as DROP_REQUESTS
from proxy.store.sql.retention import OF_RUNS, row_size
from proxy.store.sql.tables.keys import OWNERS
from proxy.store.sql.tables.threads import THREADS
from proxy.store.sqlite.db import commit

_AT_ONCE: Final = 500
"""How many rows to delete in one step, whatever their sizes."""

_LENGTH: Final = "length(CAST({} AS BLOB))"


def _caller(table: ContentTable[Any]) -> str:
    """Return SQL for the caller of a row of content, from its run if the row has no such column."""
    if table in OF_RUNS:
        return f"coalesce((SELECT caller FROM runs WHERE id = {table.name}.run_id), '')"
    return "caller"


_EACH: Final = " UNION ALL ".join(
    f"SELECT {number} AS kind, {table.name}.rowid AS place, {_caller(table)} AS whose, created_at, "
    f"{row_size(table, _LENGTH)} AS size FROM {table.name}"
    for number, table in enumerate(CONTENT)
)
_HELD: Final = f"SELECT whose, sum(size) FROM ({_EACH}) GROUP BY whose"
_OLDEST: Final = f"SELECT kind, place, whose, size FROM ({_EACH}) ORDER BY created_at, kind, place"

_DROP_OLDEST: Final = tuple(
    f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} {where} ORDER BY {time} LIMIT {_AT_ONCE})"
    for table, where, time in (
        (
            "tool_invocations",
            "WHERE status <> 'started' AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = run_id)",
            "started_at",
        ),
        (OWNERS, "", "created_at"),
        (THREADS, "", "created_at"),
        ("effect_claims", "", "created_at"),
    )
)
"""Deletes that follow those of runs, in this order."""


def used(db: sqlite3.Connection) -> int:
    """Return the size of the pages in use, in bytes."""
    pages, free, size = [
        int(db.execute(f"PRAGMA {pragma}").fetchone()[0])
        for pragma in ("page_count", "freelist_count", "page_size")
    ]
    return (pages - free) * size


def make_room(db: sqlite3.Connection, empty: int, max_bytes: int) -> None:
    """Delete what exceeds ``max_bytes``, the limit for the rows of a database.

    ``empty`` is the size of the tables without rows, in bytes. To find out who has the most, all content must
    be read. So each step deletes more than necessary: an eighth of the limit of content, and less of rows,
    which take longer.
    """
    while (over := used(db) - empty - max_bytes) > 0:
        held = {str(whose): int(size) for whose, size in db.execute(_HELD)}
        content = sum(held.values())
        gives = who_gives(held, over + max_bytes // 8)
        if content >= (over + max_bytes) // 2 and _drop_content(db, gives):
            continue
        dropped = False
        while used(db) - empty > max_bytes - max_bytes // 64 and _drop_rows(db):
            dropped = True
        if not dropped and not _drop_content(db, gives):
            return


def who_gives(held: Mapping[str, int], need: int) -> dict[str, int]:
    """Return how many bytes each caller must give up, so that together they give up ``need``.

    ``held`` is how many bytes each caller has. The client keys with the most come down to a common level, and
    within a key the end users with the most do.
    """
    keys: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for caller, size in held.items():
        keys[caller.partition("/")[0]][caller] = size
    gives: dict[str, int] = {}
    for key, share in _above_level({key: sum(each.values()) for key, each in keys.items()}, need).items():
        gives |= _above_level(keys[key], share)
    return gives


def _above_level(held: Mapping[str, int], need: int) -> dict[str, int]:
    """Return what each has above the level at which the excess adds up to ``need``, else everything."""
    level, total = 0, 0
    ordered = sorted(held.values(), reverse=True)
    for count, (size, following) in enumerate(zip(ordered, [*ordered[1:], 0], strict=False), 1):
        total += size
        if total - count * following >= need:
            level = max(0, total - need) // count
            break
    return {name: size - level for name, size in held.items() if size > level}


def _drop_content(db: sqlite3.Connection, gives: Mapping[str, int]) -> bool:
    """Delete the oldest content of these callers; return whether there was any."""
    left = {whose: size for whose, size in gives.items() if size > 0}
    gone: defaultdict[int, list[tuple[int]]] = defaultdict(list)
    for kind, place, whose, size in db.execute(_OLDEST):
        if (owed := left.get(whose)) is None:
            continue
        gone[kind].append((place,))
        if owed > size:
            left[whose] = owed - size
        else:
            del left[whose]
            if not left:
                break

    def work(each: sqlite3.Connection) -> None:
        for kind, places in gone.items():
            each.executemany(f"DELETE FROM {CONTENT[kind].name} WHERE rowid = ?", places)

    if gone:
        commit(db, work)
    return bool(gone)


def _drop_rows(db: sqlite3.Connection) -> bool:
    """Delete a batch of the oldest rows; return whether there were any."""
    runs = [(str(row[0]),) for row in db.execute(*purge_query(PurgeFilter()))]
    dropped = db.execute(DROP_REQUESTS, (float("inf"),)).rowcount > 0
    if runs:
        return commit(db, lambda each: each.executemany(DELETE_RUN, runs).rowcount) > 0 or dropped
    if dropped:
        return True
    return any(db.execute(statement).rowcount > 0 for statement in _DROP_OLDEST)
