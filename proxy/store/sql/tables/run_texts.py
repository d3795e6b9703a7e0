"""Lists and searches runs, and indexes the words of those whose content is kept unsealed.

Triggers of the database note which runs have new messages (``runs_to_index``) and delete the words of runs
whose messages go or change. A task of the server indexes what is noted, in small steps, behind the requests.
Runs that are not indexed stay in each search, so nothing is missed meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, Final

from proxy.base.errors import StoreError
from proxy.records.rows import MessageRecord, RunRecord
from proxy.records.words import MOST_BYTES, ROLES, Words, run_words, texts_of
from proxy.store import rows
from proxy.store.base import MAX_CALLED, CalledTool, RunFilter
from proxy.store.seal import MESSAGES
from proxy.store.sql.base import SqlBase

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 20
"""The most runs that are indexed in one step."""
_PAUSE_S: Final = 0.2
"""Seconds between two steps while more runs wait."""
_IDLE_S: Final = 5.0
_READ_BYTES: Final = 8 * 2**20
"""The most bytes of messages that are held at once, and that are read of one run."""
_MOST_SIZES: Final = 20_000

_OPEN: Final = "(SELECT count(*) FROM messages m WHERE m.run_id = q.run_id AND m.sealed_by IS NULL)"
STILL_WAITS: Final = (
    f"SELECT q.run_id FROM runs_to_index q WHERE q.run_id = ? AND q.added = ? AND {_OPEN} = ?"
)
"""SQL for the id of a run that waits, if it has the messages that were read, and no other process has indexed
it. ``added`` does not count messages that go or are sealed."""
_DELETE: Final = f"DELETE FROM run_texts WHERE run_id IN ({STILL_WAITS})"
_PUT: Final = (
    f"INSERT INTO run_texts (words, run_id) SELECT CAST(? AS text), w.run_id FROM ({STILL_WAITS}) w "
    "WHERE true ON CONFLICT (run_id) DO UPDATE SET words = excluded.words"
)
_DONE: Final = f"DELETE FROM runs_to_index WHERE run_id IN ({STILL_WAITS})"
_WAITING: Final = (
    f"SELECT q.run_id, q.added, {_OPEN}, "
    "runs.caller, runs.model, runs.upstream, runs.error_code, runs.agent "
    "FROM runs_to_index q JOIN runs ON runs.id = q.run_id WHERE runs.status <> 'running' "
    f"ORDER BY q.run_id LIMIT {_AT_ONCE}"
)
_NOT_INDEXED: Final = (
    "(NOT EXISTS (SELECT 1 FROM run_texts x WHERE x.run_id = runs.id) "
    "OR EXISTS (SELECT 1 FROM runs_to_index w WHERE w.run_id = runs.id))"
)
_SIZE: Final = "coalesce(length(content), 0) + coalesce(length(content_json), 0)"


class SqlRunTexts(SqlBase):
    """The list of runs, their messages, and the index of their words."""

    _matching: ClassVar[str] = ""
    """SQL for the ids of runs that match a parameter; empty if the database has no index of words."""
    _forget_words: ClassVar[Sequence[str]] = ()
    """Statements that take deleted words out of an index that the database does not keep itself."""
    _add_words: ClassVar[Sequence[str]] = ()
    """Statements that add the words of a run, by the parameters of ``STILL_WAITS``, to such an index."""
    _indexing: asyncio.Task[None] | None = None

    def _match(self, wanted: Words) -> str:
        """Return the parameter of ``_matching``; empty if nothing that is wanted has a word."""
        return ""

    async def list_runs(self, wanted: RunFilter) -> Sequence[RunRecord]:
        """Return runs, the newest first.

        Raises :class:`~proxy.base.errors.StoreUnavailable` if earlier writes cannot be committed, and
        :class:`~proxy.base.errors.StoreError` if the database cannot be read.
        """
        await self._writer.flush()
        match = self._match(wanted.words) if wanted.words and self._has_index else ""
        parts = {f"runs.id IN ({self._matching})": (match,), _NOT_INDEXED: ()} if match else {"": ()}
        async with self._snapshot() as db:
            pages = [await db.execute_fetchall(*rows.runs_query(wanted, *part)) for part in parts.items()]
        found = {run.id: run for page in pages for run in (rows.RUNS.record(tuple(row)) for row in page)}
        if len(pages) == 1:
            return list(found.values())
        newest = sorted(found.values(), key=lambda run: (run.started_at, run.id), reverse=True)
        return newest[: wanted.limit]

    async def called_tools(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[CalledTool]]:
        if not run_ids:
            return {}
        await self._writer.flush()
        places = ", ".join("?" * len(run_ids))
        async with self._snapshot() as db:
            read = await db.execute_fetchall(
                "SELECT run_id, tool, status, error_code FROM tool_invocations "
                f"WHERE run_id IN ({places}) ORDER BY run_id, turn, seq, started_at, id LIMIT {MAX_CALLED}",
                tuple(map(rows.clean_text, run_ids)),
            )
        calls: dict[str, list[CalledTool]] = {}
        for run_id, tool, status, error_code in read:
            calls.setdefault(run_id, []).append(CalledTool(tool, status, error_code))
        return calls

    async def read_messages(
        self, run_ids: Sequence[str], roles: Sequence[str], most_bytes: int
    ) -> AsyncIterator[Mapping[str, Sequence[MessageRecord]]]:
        await self._writer.flush()
        ids = list(map(rows.clean_text, run_ids))
        fit = (
            f"run_id IN ({', '.join('?' * len(ids))}) AND role IN ({', '.join('?' * len(roles))}) "
            f"AND created_at >= ? AND {_SIZE} <= ?"
        )
        wanted = (*ids, *roles, self._oldest_kept(), most_bytes)
        sizes: list[Any] = []
        if ids:
            async with self._snapshot() as db:
                found = await db.execute_fetchall(
                    f"SELECT run_id, turn, seq, {_SIZE} FROM messages WHERE {fit} "
                    f"ORDER BY run_id, turn, seq LIMIT {_MOST_SIZES}",
                    wanted,
                )
                sizes = [tuple(row) for row in found]
        for first, last in _portions(sizes):
            async with self._snapshot() as db:
                read = await self._read(
                    db,
                    MESSAGES,
                    f"{fit} AND (run_id, turn, seq) >= (?, ?, ?) AND (run_id, turn, seq) <= (?, ?, ?) "
                    "ORDER BY run_id, turn, seq",
                    *(*wanted, *first, *last),
                )
            yield {run_id: list(group) for run_id, group in groupby(read, key=lambda row: row.run_id)}

    async def index_runs(self) -> bool:
        """Index the words of some runs that wait for it; return whether more may wait. Raises StoreError."""
        async with self._snapshot() as db:
            waiting = [tuple(row) for row in await db.execute_fetchall(_WAITING)]
            if not waiting:
                return False
            ids = [row[0] for row in waiting]
            sealed = await db.execute_fetchall(
                f"SELECT DISTINCT run_id FROM messages WHERE run_id IN ({', '.join('?' * len(ids))}) "
                "AND sealed_by IS NOT NULL",
                ids,
            )
        closed = {run_id for (run_id,) in sealed}
        open_ids = [run_id for run_id in ids if run_id not in closed]
        facts = await self._facts(waiting, open_ids)
        made: list[rows.Row] = []
        async for portion in self.read_messages(open_ids, ROLES, MOST_BYTES):
            made += await asyncio.to_thread(_rows_of, portion, facts)
        read = {row[0]: row[:3] for row in waiting}
        of_made = [read[run_id] for run_id, _ in made]
        also = [*((each, [()]) for each in self._forget_words)]
        also += [(_PUT, [(words, *read[run_id]) for run_id, words in made])]
        also += [*((each, of_made) for each in self._add_words), (_DONE, [*read.values()])]
        await self._writer.commit(_DELETE, [*read.values()], also=also)
        return len(waiting) == _AT_ONCE

    async def _facts(self, waiting: Sequence[rows.Row], ids: Sequence[str]) -> dict[str, list[str]]:
        """Return what is known about runs besides their messages, and is searched, too."""
        called = await self.called_tools(ids)
        return {
            row[0]: [*filter(None, row[3:]), *(call.tool for call in called.get(row[0], ()))]
            for row in waiting
        }

    @property
    def _has_index(self) -> bool:
        return bool(self._matching) and self._content != "none" and self._ring.id is None

    def _begin_indexing(self) -> None:
        """Index from now on, if content is kept that can be indexed."""
        if self._has_index:
            self._indexing = asyncio.create_task(self._index(), name="record-words")

    async def _end_indexing(self) -> None:
        if self._indexing is not None:
            self._indexing.cancel()
            await asyncio.wait({self._indexing})

    async def _index(self) -> None:
        while True:
            more = False
            try:
                more = await self.index_runs()
            except StoreError as error:
                _log.debug("runs were not indexed: %s", error)
            # The boundary of the task: without it nothing would be indexed until the next start.
            except Exception as error:  # noqa: BLE001
                _log.error("the index of words goes on after %s", type(error).__name__, exc_info=error)
            await asyncio.sleep(_PAUSE_S if more else _IDLE_S)


def _rows_of(
    portion: Mapping[str, Sequence[MessageRecord]], facts: Mapping[str, Sequence[str]]
) -> list[rows.Row]:
    made = []
    for run_id, messages in portion.items():
        words = run_words([*facts[run_id], *(text for row in messages for text in texts_of(row))])
        if words is not None:
            made.append((run_id, words))
    return made


def _portions(sizes: Sequence[rows.Row]) -> list[tuple[rows.Row, rows.Row]]:
    """Divide messages, given as run id, turn, seq and size, into portions of whole runs that can be held.

    Returns the first and the last key of each. Of a run that is too large alone, the rest is left out.
    """
    portions: list[tuple[rows.Row, rows.Row]] = []
    held = _READ_BYTES + 1
    for _, group in groupby(sizes, key=lambda row: row[0]):
        size, last, first = 0, None, None
        for *key, bytes_ in group:
            size += bytes_
            if size > _READ_BYTES and last is not None:
                break
            first, last = first or tuple(key), tuple(key)
        if first is None or last is None:
            continue
        if held + size > _READ_BYTES:
            portions.append((first, last))
            held = size
        else:
            portions[-1] = (portions[-1][0], last)
            held += size
    return portions
