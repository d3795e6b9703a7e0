"""Which threads kept by upstreams contain untrusted text, in SQL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from proxy.records.rows import SOURCES_SEPARATOR
from proxy.store import rows
from proxy.store.sql.base import SqlBase
from proxy.store.sql.writing.writes import Write

THREADS: Final = "threads"

# Text that a thread once contained stays in it. This joins sources as proxy.records.rows.join_sources does.
_KNOWN: Final = f"{THREADS}.untrusted"
_NEW: Final = "excluded.untrusted"
_PUT: Final = (
    f"INSERT INTO {THREADS} (id, caller, untrusted, created_at) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (id, caller) DO UPDATE SET created_at = excluded.created_at, untrusted = "
    f"CASE WHEN {_KNOWN} IN ('', {_NEW}) THEN {_NEW} "
    f"WHEN {_NEW} = '' OR replace({_KNOWN}, '{SOURCES_SEPARATOR}', '') <> {_KNOWN} THEN {_KNOWN} "
    f"WHEN replace({_NEW}, '{SOURCES_SEPARATOR}', '') <> {_NEW} THEN {_NEW} "
    f"ELSE {_KNOWN} || '{SOURCES_SEPARATOR}' || {_NEW} END"
)


class SqlThreads(SqlBase):
    """The part of a SQL store that implements :class:`~proxy.store.base.Store`."""

    def put_threads(
        self,
        ids: Sequence[str],
        caller: str,
        untrusted: str,
        settled: Callable[[bool], None] | None = None,
    ) -> None:
        now = self._clock()
        thread_rows = [(thread, caller, untrusted[: rows.MAX_NAME], now) for thread in ids if _fits(thread)]
        if thread_rows and rows.is_text(caller) and rows.is_text(untrusted):
            self._writer.put(Write(_PUT, thread_rows, settled=settled))
        elif settled is not None:
            settled(False)

    async def find_threads(self, ids: Sequence[str], caller: str) -> Mapping[str, str]:
        wanted = [thread for thread in ids if _fits(thread)]
        if not wanted or not rows.is_text(caller):
            return {}
        await self._see_writes()
        placeholders = ", ".join("?" * len(wanted))
        result = await self._look_up(
            f"SELECT id, untrusted FROM {THREADS} "
            f"WHERE id IN ({placeholders}) AND caller = ? AND created_at >= ?",
            (*wanted, caller, self._oldest_kept()),
            caller,
        )
        return {row[0]: row[1] for row in result}


def _fits(thread: str) -> bool:
    """Return whether the databases can store an id unchanged; any other thread stays unknown."""
    return rows.is_text(thread) and "\0" not in thread and 0 < len(thread) <= rows.MAX_NAME
