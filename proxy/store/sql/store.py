"""The behaviour that all SQL stores share.

A record becomes rows, which are queued. A read checks the queue first, then the database. The subclass for a
database opens, reads and writes it.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from proxy.base.events import RUN_PROGRAM
from proxy.records.effects import REPEATS_WITHIN_S
from proxy.records.rows import (
    RESULTS_KEPT_S,
    HiddenTurns,
    KeptResult,
    MessageRecord,
    NativeCall,
    ResponseRecord,
    RunRecord,
    SuspendedTurn,
    TurnRecord,
)
from proxy.store import rows
from proxy.store.base import PurgeFilter, RunDetail, UsageFilter, UsageRow
from proxy.store.key_mark import KeyMark
from proxy.store.options import StoreOptions
from proxy.store.seal import (
    CLAIMS,
    CONTENT,
    HIDDEN,
    MESSAGES,
    NATIVE_CALLS,
    RESPONSES,
    RESULTS,
    SUSPENDED,
    ContentTable,
)
from proxy.store.shelf import (
    ResponseKey,
    hidden_shelf,
    newest_first,
    response_shelf,
    result_shelf,
    suspended_shelf,
)
from proxy.store.sql.base import SqlReader, select
from proxy.store.sql.reports import (
    DELETE_LOST,
    DELETE_RUN,
    latency_query,
    purge_query,
    read_usage,
    usage_query,
)
from proxy.store.sql.request_rows import REQUESTS
from proxy.store.sql.retention import SIZE_EVERY_S
from proxy.store.sql.sealing import SqlSealing
from proxy.store.sql.tables.background import SqlBackground
from proxy.store.sql.tables.diagnoses import SqlDiagnoses
from proxy.store.sql.tables.effects import SqlEffects
from proxy.store.sql.tables.keys import OWNERS, SqlKeys
from proxy.store.sql.tables.pins import SqlPins
from proxy.store.sql.tables.requests import SqlRequests
from proxy.store.sql.tables.run_texts import SqlRunTexts
from proxy.store.sql.tables.threads import THREADS, SqlThreads
from proxy.store.sql.tables.wire_log import SqlWireLog
from proxy.store.sql.writing.write_behind import WriteBehind
from proxy.store.sql.writing.writes import Write
from proxy.store.tokens import SealedTokens

_Record = TypeVar("_Record")

_PUT_RUN: Final = rows.upsert(
    "runs",
    ("owner_id", *rows.RUNS.columns),
    ("id",),
    fixed=(
        "request_id",
        "caller",
        "model",
        "started_at",
        "agent",
        "parent_run",
        "parent_call",
        "takes_over",
        "agent_version",
    ),
)
_PUT_TURN: Final = rows.upsert("turns", rows.TURNS.columns, ("run_id", "number"))
_DELETE_RESPONSE: Final = "DELETE FROM responses WHERE id = ? AND caller = ?"

END_OWNER: Final = "UPDATE owners SET ended_at = ? WHERE id = ?"


def _sum_over(table: str, column: str) -> str:
    """Return SQL for the sum over a run's rows, limited to 64 bits because upstreams report the counts."""
    total = f"SUM(CAST({column} AS DOUBLE PRECISION))"
    return (
        f"(SELECT CASE WHEN {total} < 9e15 THEN CAST({total} AS BIGINT) "
        f"WHEN {total} >= 9e15 THEN 9000000000000000 END FROM {table} WHERE run_id = runs.id)"
    )


def _sum_of_turns(column: str) -> str:
    return f"{column} = coalesce({_sum_over('turns', column)}, 0)"


_COST_OF_TURNS: Final = _sum_over("turns", "cost")
_COST_OF_CALLS: Final = _sum_over("tool_invocations", "cost")


_SO_FAR: Final = ", ".join(
    (
        "turns = (SELECT coalesce(max(number), 0) FROM turns WHERE run_id = runs.id)",
        "tool_calls = (SELECT count(*) FROM tool_invocations WHERE run_id = runs.id)",
        *map(_sum_of_turns, ("unreported", "input_tokens", "output_tokens", "total_tokens")),
        f"cost = coalesce({_COST_OF_TURNS} + coalesce({_COST_OF_CALLS}, 0), {_COST_OF_CALLS}, cost)",
    )
)
INTERRUPT: Final = tuple(
    f"UPDATE {table} SET status = 'interrupted', ended_at = ?{more} WHERE status = '{status}' "
    "AND owner_id IN (SELECT id FROM owners WHERE ended_at IS NOT NULL)"
    for table, status, more in (("runs", "running", f", {_SO_FAR}"), ("tool_invocations", "started", ""))
)
"""Marks what ended owners left open (rule R1), and gives a run the sums of its recorded turns and calls."""

_PROBE_S: Final = 0.9
"""How long a probe waits: less than the second that Kubernetes waits by default for an answer."""

_MOST_CONTINUING: Final = 32
"""The most runs that are listed as continuing a run; usually there are one or few."""


class SqlStore(
    SqlEffects,
    SqlBackground,
    SqlSealing,
    SqlKeys,
    SqlPins,
    SqlDiagnoses,
    SqlRequests,
    SqlRunTexts,
    SqlThreads,
    SqlWireLog,
):
    """The part of :class:`~proxy.store.base.Store` that does not depend on the database."""

    def __init__(
        self,
        owner_id: str,
        mark: KeyMark,
        options: StoreOptions,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(owner_id, options, clock)
        self._mark = mark
        self._max_bytes = options.max_bytes
        self._max_requests = options.max_requests
        self._reap = options.reap
        self._tidy_every_s = options.tidy_every_s
        if options.is_bounded:
            self._tidy_every_s = min(options.tidy_every_s, SIZE_EVERY_S)
        oldest, most = self._oldest_kept, options.max_per_caller
        withdraw = self._writer.withdraw
        self._suspended = WriteBehind(suspended_shelf(oldest, max_per_caller=most), withdraw)
        self._hidden = WriteBehind(hidden_shelf(oldest, max_per_caller=most), withdraw)
        self._responses = WriteBehind(response_shelf(oldest, max_per_caller=most), withdraw)
        self._results = WriteBehind(result_shelf(self._oldest_result, max_per_caller=most), withdraw)

    @property
    def vault(self) -> SealedTokens | None:
        """The vault for tokens of connections; ``None`` if there is no key to seal them."""
        if not self._ring.seals:
            return None
        return SealedTokens(
            self._ring,
            read=self._read_one,
            commit=lambda statement, row: self._writer.commit(statement, [row]),
            lock=self._exclusive,
            clock=self._clock,
        )

    @abstractmethod
    def _exclusive(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context manager that only one process at a time can hold for each name."""

    def put_run(self, record: RunRecord) -> None:
        """Queue the run; it replaces an earlier row with its id.

        Held turns refer to the first row of a run, and the repeat of an effect is judged by the last.
        """
        begins = record.status == "running"
        self._put(
            _PUT_RUN,
            (self._owner_id,),
            rows.RUNS.row,
            (record,),
            needed=begins or record.tool_calls > 0,
            state_of=("runs", record.id),
            later=begins,
        )

    def put_turn(self, record: TurnRecord) -> None:
        """Queue a turn; its run must have been put before."""
        self._put(_PUT_TURN, (), rows.TURNS.row, (record,), needed=False)

    def put_messages(self, records: Sequence[MessageRecord]) -> None:
        if self._content == "none" or not records:
            return
        self._note_run(MESSAGES, records[0].run_id, self._put_dated(MESSAGES, records))

    def put_native_call(self, record: NativeCall) -> None:
        """Queue a call as the upstream sent it, unless ``store.content`` is ``none``."""
        if self._content != "none":
            write = self._put_dated(NATIVE_CALLS, (record,))
            self._note_run(NATIVE_CALLS, record.run_id, write)

    def put_suspended(self, record: SuspendedTurn) -> None:
        """Hold a turn, and replace an earlier one with its key.

        Under ``none`` the turn stays in memory only, and so does an ephemeral turn always.
        """
        if record.ephemeral or self._content == "none":
            self._suspended.keep(record)
        else:
            self._cap.note(SUSPENDED, record.caller, len(record.payload))
            self._suspended.queue((record,), lambda settled: self._put_content(SUSPENDED, (record,), settled))

    async def find_suspended(self, key: str) -> SuspendedTurn | None:
        return (await self.find_all_suspended((key,))).get(key)

    async def find_all_suspended(self, keys: Sequence[str], caller: str = "") -> Mapping[str, SuspendedTurn]:
        known = {key: self._suspended.find(key) for key in keys}
        asked = {rows.clean_text(key): key for key in known if not self._suspended.has_latest(key)}
        if asked and self._content != "none":
            fit = f"key IN ({', '.join('?' * len(asked))}) AND created_at >= ?"
            for turn in await self._find(SUSPENDED, fit, *asked, self._oldest_kept(), caller=caller):
                known[asked[turn.key]] = turn
        return {key: turn for key, turn in known.items() if turn is not None}

    def put_hidden(self, *records: HiddenTurns) -> None:
        """Store hidden turns of one caller in one write, and replace the same variants of their keys; under
        ``none`` in memory only.

        If three differ only in their keys, they are one row.
        """
        if self._content == "none":
            for record in records:
                self._hidden.keep(record)
            return
        made, encode = records, HIDDEN.row
        if len(records) == 3 and records[0].payload == records[1].payload == records[2].payload:
            made, encode = records[:1], partial(encode, asked=records[1].key, alone=records[2].key)
        self._cap.note(HIDDEN, records[0].caller, sum(map(len, map(attrgetter("payload"), made))))
        self._hidden.queue(records, lambda settled: self._put_content(HIDDEN, made, settled, encode))

    async def find_hidden(
        self, keys: Sequence[str], caller: str = "", *, loosely: bool = False
    ) -> Mapping[str, Sequence[HiddenTurns]]:
        variants = {key: {each.variant: each for each in self._hidden.find_all(key)} for key in keys}
        asked = {rows.clean_text(key): key for key, known in variants.items() if len(known) < 2}
        if asked and self._content != "none":
            # The database keeps two for each key, and for a moment a few more.
            columns, placeholders = (
                ("key", "asked", "alone") if loosely else ("key",),
                ", ".join("?" * len(asked)),
            )
            fit = " OR ".join(f"{column} IN ({placeholders})" for column in columns)
            values = (*asked, *asked, *asked) if loosely else asked
            stored = await self._find_rows(
                HIDDEN, f"({fit}) AND created_at >= ?", *values, self._oldest_kept(), caller=caller
            )
            read = [turns for row in stored for turns in HIDDEN.records(row) if turns.key in asked]
            for turns in newest_first(read):
                variants[asked[turns.key]].setdefault(turns.variant, turns)
        return {key: newest_first(known.values())[:2] if known else () for key, known in variants.items()}

    def put_response(self, record: ResponseRecord) -> None:
        """Store a response, replacing the caller's earlier one with its id; under ``none`` in memory only."""
        if self._writes_response((record.id, record.caller)):
            size = len(record.response) + len(record.input_items) + len(record.continuation)
            self._cap.note(RESPONSES, record.caller, size)
            self._responses.queue((record,), lambda settled: self._put_content(RESPONSES, (record,), settled))
        else:
            self._responses.keep(record)

    async def find_response(self, response_id: str, caller: str) -> ResponseRecord | None:
        key = (response_id, caller)
        if self._responses.has_latest(key) or not self._writes_response(key):
            return self._responses.find(key)
        records = await self._find(
            RESPONSES, "id = ? AND caller = ? AND created_at >= ?", *key, self._oldest_kept(), caller=caller
        )
        return records[0] if records else None

    async def delete_response(self, response_id: str, caller: str) -> bool:
        """Delete a response of the caller, written or not; return whether there was one.

        A response that never reached the database is only dropped from memory. Raises
        :class:`StoreUnavailable` if the database has the response and it is unknown whether the
        deletion was committed, and :class:`StoreError` if the database cannot be read. In both
        cases the database may still have the response.
        """
        key = (response_id, caller)
        held = self._responses.find(key) is not None
        with self._responses.deleting(key) as under_way:
            if not self._writes_response(key):
                return held
            times = list(
                await self._look_up(
                    "SELECT created_at FROM responses WHERE id = ? AND caller = ?", key, caller
                )
            )
            if times or under_way:
                # In order: after a put that is being committed, and before a later one.
                await self._writer.commit(_DELETE_RESPONSE, [key], in_order=True)
        return held or any(created_at >= self._oldest_kept() for (created_at,) in times)

    def put_result(self, record: KeptResult) -> None:
        """Store a large result, so that any process can return it; under ``none`` in memory only."""
        if self._writes_response((record.handle, record.caller)):
            self._cap.note(RESULTS, record.caller, len(record.content))
            self._results.queue((record,), lambda settled: self._put_content(RESULTS, (record,), settled))
        else:
            self._results.keep(record)

    async def find_result(self, handle: str, caller: str) -> KeptResult | None:
        key = (handle, caller)
        if self._results.has_latest(key) or not self._writes_response(key):
            return self._results.find(key)
        fit, oldest = "handle = ? AND caller = ? AND created_at >= ?", self._oldest_result()
        records = await self._find(RESULTS, fit, *key, oldest, caller=caller)
        return records[0] if records else None

    async def get_run(self, run_id: str) -> RunDetail | None:
        wanted = rows.clean_text(run_id)
        if not wanted:
            return None
        await self._writer.flush()
        async with self._snapshot() as db:
            select_run = f"SELECT {', '.join(rows.RUNS.columns)} FROM runs WHERE "
            matches = list(await db.execute_fetchall(select_run + "id = ?", (wanted,)))
            if not matches:
                bounds = (wanted, wanted + "\U0010ffff")
                matches = list(await db.execute_fetchall(select_run + "id >= ? AND id < ? LIMIT 2", bounds))
            if len(matches) != 1:
                return None
            run = rows.RUNS.record(tuple(matches[0]))
            kept = (run.id, self._oldest_kept())
            of_run = "run_id = ? AND created_at >= ? ORDER BY"
            of_agents = f"parent_run = ? AND parent_run <> '' ORDER BY started_at, id LIMIT {rows.MAX_LISTED}"
            after = f"continues = ? AND continues <> '' ORDER BY started_at, id LIMIT {_MOST_CONTINUING}"
            children = await _records(db, rows.RUNS, of_agents, run.id)
            programs = [child.id for child in children if child.agent == RUN_PROGRAM]
            return RunDetail(
                run,
                await _records(db, rows.TURNS, "run_id = ? ORDER BY number", run.id),
                await self._read(db, MESSAGES, f"{of_run} turn, seq", *kept),
                await self._calls(db, run.id),
                await self._read(db, NATIVE_CALLS, f"{of_run} invocation_id", *kept),
                children,
                await _records(db, rows.RUNS, after, run.id),
                await _taken_over_by(db, run.id),
                [call for id_ in programs for call in await self._calls(db, id_)],
            )

    async def usage(self, wanted: UsageFilter) -> Sequence[UsageRow]:
        await self._writer.flush()
        async with self._snapshot() as db:
            groups = await db.execute_fetchall(*usage_query(wanted))
            timed = await db.execute_fetchall(*latency_query(wanted)) if "tool" in wanted.by else ()
        took = {tuple(row[:-2]): tuple(row[-2:]) for row in timed}
        return [read_usage(wanted, tuple(row), took) for row in groups]

    async def purge(self, wanted: PurgeFilter) -> int:
        """Delete one batch of runs with all rows that belong to them; return how many runs.

        When no runs are left, the next call deletes calls, content and requests without a run, and returns
        0. Raises the errors of :meth:`list_runs`, and StoreUnavailable if it is unknown whether the deletion
        was committed.
        """
        await self._writer.flush()
        async with self._snapshot() as db:
            run_ids = [row[0] for row in await db.execute_fetchall(*purge_query(wanted))]
        if run_ids:
            await self._writer.commit(DELETE_RUN, [(run_id,) for run_id in run_ids])
            for content in (self._suspended, self._hidden, self._responses, self._results):
                content.forget_runs(frozenset(run_ids))
        elif wanted.run_id is None:
            before = self._clock() if wanted.before is None else wanted.before
            for statement in DELETE_LOST:  # Separate commits, so that a server waits only for one.
                await self._writer.commit(statement, [(before,)])
            await self._purge_requests(before)
        return len(run_ids)

    async def wait_until_visible(self, within_s: float) -> bool:
        """Wait at most ``within_s`` seconds for the commit of what the next request needs; return whether it
        came.

        Under ``none`` there is nothing to wait for: what the next request needs is only in memory.
        """
        return self._content == "none" or await self._writer.settled(within_s)

    async def healthy(self) -> bool:
        """Return whether the write lock is available and the last write succeeded."""
        if not self._writer.running or self._writer.failure is not None:
            return False
        return await self._writer.settled(_PROBE_S, probing=True)

    def _expiring(self) -> list[tuple[str, float]]:
        """Return each table whose rows expire, and the time from which on its rows stay."""
        oldest = self._oldest_kept()
        content = [(table.name, self._oldest_result() if table is RESULTS else oldest) for table in CONTENT]
        return [
            *content,
            (OWNERS, oldest),
            (THREADS, oldest),
            (REQUESTS, oldest),
            (CLAIMS.name, self._clock() - REPEATS_WITHIN_S),
        ]

    def _note_run(self, table: ContentTable[Any], run_id: str, write: Write) -> None:
        self._cap.note(table, run_id, write.size)

    def _oldest_result(self) -> float:
        return max(self._oldest_kept(), self._clock() - RESULTS_KEPT_S)

    async def _read_one(self, table: ContentTable[Any], key: str) -> list[rows.Row]:
        return await self._find_rows(table, f"{table.key[0]} = ?", key)

    def _writes_response(self, key: ResponseKey) -> bool:
        # A name that the database cannot store would be changed and might then equal another one. So such a
        # response stays in memory, under its exact name.
        return self._content != "none" and all(map(self._is_storable, key))


async def _records(db: SqlReader, table: rows.Table[_Record], where: str, *values: Any) -> list[_Record]:
    """Return the matching records of a table."""
    return list(map(table.record, await select(db, table.name, table.columns, where, *values)))


async def _taken_over_by(db: SqlReader, run_id: str) -> str:
    """Return the id of the run that took over a run's background response; empty if there is none."""
    fit = "takes_over = ? AND takes_over <> '' ORDER BY started_at, id LIMIT 1"
    ids = await select(db, "runs", ("id",), fit, run_id)
    return str(ids[0][0]) if ids else ""
