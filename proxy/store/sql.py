"""What every store in SQL does, whichever database it is in.

A record becomes rows and is queued; a read looks at what waits first, then at the database.  How a
database is opened, read and written is its own store's to know.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

from proxy.errors import StoreError, StoreUnavailable
from proxy.records import (
    HiddenTurns,
    MessageRecord,
    ResponseRecord,
    RunRecord,
    SuspendedTurn,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.store import rows
from proxy.store.base import PurgeFilter, RunDetail, RunFilter, UsageFilter, UsageRow
from proxy.store.seal import CONTENT, HIDDEN, MESSAGES, RESPONSES, SUSPENDED, ContentTable, Seal
from proxy.store.shelf import (
    ContentPolicy,
    ResponseKey,
    hidden_shelf,
    newest_two,
    oldest_kept,
    response_shelf,
    suspended_shelf,
)
from proxy.store.sql_reports import (
    DELETE_LOST_INVOCATIONS,
    DELETE_RUN,
    purge_query,
    read_usage,
    usage_query,
)
from proxy.store.write_behind import WriteBehind
from proxy.store.writer import GroupWriter, Write

__all__ = ["END_OWNER", "INTERRUPT", "Reader", "SqlStore", "Synchronous"]

Synchronous = Literal["normal", "full"]
"""What a commit survives: ``normal`` the death of the process, ``full`` a power loss too."""

_PUT_RUN: Final = rows.upsert("runs", ("owner_id", *rows.RUN_COLUMNS), ("id",))
_PUT_TURN: Final = rows.upsert("turns", rows.TURN_COLUMNS, ("run_id", "number"))
_PUT_INVOCATION: Final = rows.upsert("tool_invocations", ("owner_id", *rows.INVOCATION_COLUMNS), ("id",))
_PUT_CONTENT: Final = {
    table.name: rows.upsert(table.name, (*table.columns, "sealed_by"), table.key)
    for table in (SUSPENDED, HIDDEN, RESPONSES)
}
_PUT_MESSAGE: Final = rows.upsert(MESSAGES.name, ("created_at", *MESSAGES.columns, "sealed_by"), MESSAGES.key)
_DELETE_RESPONSE: Final = "DELETE FROM responses WHERE id = ? AND caller = ?"
_WITHDRAW_INVOCATION: Final = (
    "UPDATE tool_invocations SET status = 'cancelled', ended_at = ? WHERE id = ? AND status = 'started'"
)

END_OWNER: Final = "UPDATE owners SET ended_at = ? WHERE id = ?"
INTERRUPT: Final = tuple(
    f"UPDATE {table} SET status = 'interrupted', ended_at = ? WHERE status = '{status}' "
    "AND owner_id IN (SELECT id FROM owners WHERE ended_at IS NOT NULL)"
    for table, status in (("runs", "running"), ("tool_invocations", "started"))
)
"""Marks what ended owners left open (rule R1)."""

_PROBE_S: Final = 2.0

_Record = TypeVar("_Record")


class Reader(Protocol):
    """One consistent view of a database."""

    def execute_fetchall(
        self, sql: str, parameters: Iterable[Any] | None = None, /
    ) -> Awaitable[Iterable[Any]]:
        """The rows of a query, each a sequence of its values."""
        ...


class SqlStore(ABC):
    """The part of :class:`~proxy.store.base.Store` that rows and queues are enough for.

    ``content`` and ``keep_days`` say what becomes of messages, suspended turns, hidden turns and
    responses; ``keep_days`` of 0 sets no limit.  ``seal`` closes content before it is queued, and
    opens it as it is read.  Methods are called from one event loop's thread.
    """

    def __init__(
        self,
        writer: GroupWriter,
        owner_id: str,
        *,
        content: ContentPolicy,
        keep_days: float,
        clock: Callable[[], float],
        seal: Seal | None,
    ) -> None:
        self._seal = seal
        self._writer = writer
        self._owner_id = owner_id
        self._content = content
        self._keep_days = keep_days
        self._clock = clock
        self._suspended = WriteBehind(suspended_shelf(self._oldest_kept), writer.withdraw)
        self._hidden = WriteBehind(hidden_shelf(self._oldest_kept), writer.withdraw)
        self._responses = WriteBehind(response_shelf(self._oldest_kept), writer.withdraw)

    @property
    def lost(self) -> int:
        """How many writes never reached the database."""
        return self._writer.lost

    @property
    def sealed(self) -> bool:
        """Whether no content is written as it is: it is sealed first, or not written at all."""
        return self._seal is not None or self._content == "none"

    @abstractmethod
    def _snapshot(self) -> contextlib.AbstractAsyncContextManager[Reader]:
        """One consistent view of the database for all that is read inside.

        Raises :class:`~proxy.errors.StoreUnavailable` where there is none to be had, and turns the
        database's errors inside into :class:`~proxy.errors.StoreError`.
        """

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Write the row of an execution that is about to start (rule R1).

        With ``durable`` it is committed when this returns; raises
        :class:`~proxy.errors.StoreUnavailable` where it cannot be.
        """
        if not durable:
            self.close_invocation(record)
            return
        withdraw = Write(_WITHDRAW_INVOCATION, [(self._clock(), rows.clean_text(record.id))])
        row = (self._owner_id, *rows.invocation_row(record))
        await self._writer.commit(_PUT_INVOCATION, [row], undo=withdraw)

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Queue the row's final state; it is inserted where its beginning was lost."""
        self._put(_PUT_INVOCATION, (self._owner_id,), rows.invocation_row, (record,))

    def put_run(self, record: RunRecord) -> None:
        """Queue the run, in place of an earlier row with its id."""
        self._put(_PUT_RUN, (self._owner_id,), rows.run_row, (record,))

    def put_turn(self, record: TurnRecord) -> None:
        """Queue a turn; its run must have been put."""
        self._put(_PUT_TURN, (), rows.turn_row, (record,))

    def put_messages(self, records: Sequence[MessageRecord]) -> None:
        """Queue messages, together or not at all, unless the policy is ``none``."""
        if self._content == "none" or not records:
            return
        now = self._clock()
        self._put(
            _PUT_MESSAGE, (now,), lambda record: self._closed(MESSAGES, rows.message_row(record)), records
        )

    def put_suspended(self, record: SuspendedTurn) -> None:
        """Hold a turn in place of an earlier one of its key.

        Under ``none``, and an ephemeral one always, in memory only.
        """
        if record.ephemeral or self._content == "none":
            self._suspended.keep(record)
        else:
            self._suspended.queue(
                record, lambda settled: self._put_content(SUSPENDED, rows.suspended_row, record, settled)
            )

    async def find_suspended(self, key: str) -> SuspendedTurn | None:
        """The last held turn of that key, also while it waits for its commit or could not be written.

        Raises :class:`~proxy.errors.StoreError` where the database cannot be read.
        """
        if self._suspended.knows(key) or self._content == "none":
            return self._suspended.find(key)
        async with self._snapshot() as db:
            found = await self._read(
                db,
                SUSPENDED,
                "key = ? AND created_at >= ?",
                rows.clean_text(key),
                self._oldest_kept(),
            )
        return rows.read_suspended(found[0]) if found else None

    def put_hidden(self, record: HiddenTurns) -> None:
        """Keep hidden turns in place of the same variant of their key; under ``none`` in memory only."""
        if self._content == "none":
            self._hidden.keep(record)
        else:
            self._hidden.queue(
                record, lambda settled: self._put_content(HIDDEN, rows.hidden_row, record, settled)
            )

    async def find_hidden(self, key: str) -> Sequence[HiddenTurns]:
        """The two variants of that key that came last, also while they wait or could not be written.

        Raises :class:`~proxy.errors.StoreError` where the database cannot be read.
        """
        known = newest_two(self._hidden.find_all(key))
        if len(known) == 2 or self._content == "none":
            return known
        async with self._snapshot() as db:
            found = await self._read(
                db,
                HIDDEN,
                "key = ? AND created_at >= ? ORDER BY created_at DESC, variant LIMIT 2",
                rows.clean_text(key),
                self._oldest_kept(),
            )
        variants = {turns.variant: turns for turns in [*map(rows.read_hidden, found), *known]}
        return newest_two(variants.values())

    def put_response(self, record: ResponseRecord) -> None:
        """Keep a response in place of the caller's earlier one with its id; under ``none`` in memory only."""
        if self._writes_response((record.id, record.caller)):
            self._responses.queue(
                record, lambda settled: self._put_content(RESPONSES, rows.response_row, record, settled)
            )
        else:
            self._responses.keep(record)

    async def find_response(self, response_id: str, caller: str) -> ResponseRecord | None:
        """The caller's own response of that id, also while it waits for its commit or could not be written.

        Raises :class:`~proxy.errors.StoreError` where the database cannot be read.
        """
        key = (response_id, caller)
        if self._responses.knows(key) or not self._writes_response(key):
            return self._responses.find(key)
        async with self._snapshot() as db:
            found = await self._read(
                db,
                RESPONSES,
                "id = ? AND caller = ? AND created_at >= ?",
                *key,
                self._oldest_kept(),
            )
        return rows.read_response(found[0]) if found else None

    async def delete_response(self, response_id: str, caller: str) -> bool:
        """Forget a response of the caller's, written or not; whether there was one.

        What never reached the database is forgotten without it.  Raises
        :class:`~proxy.errors.StoreUnavailable` where the database has the response and the deletion is
        not known to be committed, :class:`~proxy.errors.StoreError` where the database cannot be read;
        what the database has may then still be there.
        """
        key = (response_id, caller)
        held = self._responses.find(key) is not None
        with self._responses.gone(key) as under_way:
            if not self._writes_response(key):
                return held
            async with self._snapshot() as db:
                found = await _select(db, "responses", ("created_at",), "id = ? AND caller = ?", *key)
            if found or under_way:
                # In order: after a put that is under way, and before one that follows.
                await self._writer.commit(_DELETE_RESPONSE, [key], in_order=True)
        return held or any(created_at >= self._oldest_kept() for (created_at,) in found)

    async def list_runs(self, wanted: RunFilter) -> Sequence[RunRecord]:
        """Runs, newest first.

        Raises :class:`~proxy.errors.StoreUnavailable` where earlier writes cannot be committed,
        :class:`~proxy.errors.StoreError` where the database cannot be read.
        """
        await self._writer.flush()
        async with self._snapshot() as db:
            found = await db.execute_fetchall(*rows.runs_query(wanted))
        return [rows.read_run(tuple(row)) for row in found]

    async def get_run(self, run_id: str) -> RunDetail | None:
        """One run by its id, or by a prefix that fits exactly one; raises like :meth:`list_runs`."""
        wanted = rows.clean_text(run_id)
        if not wanted:
            return None
        await self._writer.flush()
        async with self._snapshot() as db:
            select_run = f"SELECT {', '.join(rows.RUN_COLUMNS)} FROM runs WHERE "
            found = list(await db.execute_fetchall(select_run + "id = ?", (wanted,)))
            if not found:
                bounds = (wanted, wanted + "\U0010ffff")
                found = list(await db.execute_fetchall(select_run + "id >= ? AND id < ? LIMIT 2", bounds))
            if len(found) != 1:
                return None
            run = rows.read_run(tuple(found[0]))
            turns = await _select(db, "turns", rows.TURN_COLUMNS, "run_id = ? ORDER BY number", run.id)
            messages = await self._read(
                db,
                MESSAGES,
                "run_id = ? AND created_at >= ? ORDER BY turn, seq",
                run.id,
                self._oldest_kept(),
            )
            invocations = await _select(
                db,
                "tool_invocations",
                rows.INVOCATION_COLUMNS,
                "run_id = ? ORDER BY turn, seq, started_at, id",
                run.id,
            )
        return RunDetail(
            run,
            [rows.read_turn(row) for row in turns],
            [rows.read_message(row) for row in messages],
            [rows.read_invocation(row) for row in invocations],
        )

    async def usage(self, wanted: UsageFilter) -> Sequence[UsageRow]:
        """What was used, a row for each group, sorted by group; raises like :meth:`list_runs`."""
        await self._writer.flush()
        async with self._snapshot() as db:
            found = await db.execute_fetchall(*usage_query(wanted))
        return [read_usage(wanted, tuple(row)) for row in found]

    async def purge(self, wanted: PurgeFilter) -> int:
        """Delete one batch of runs with everything that hangs on them; how many.

        The batch after the last deletes calls that belong to no run, and is 0.  Raises like
        :meth:`list_runs`, and where the deletion is not known to be committed.
        """
        await self._writer.flush()
        async with self._snapshot() as db:
            found = [row[0] for row in await db.execute_fetchall(*purge_query(wanted))]
        if found:
            await self._writer.commit(DELETE_RUN, [(run_id,) for run_id in found])
            for content in (self._suspended, self._hidden, self._responses):
                content.forget_runs(frozenset(found))
        elif wanted.run_id is None:
            before = self._clock() if wanted.before is None else wanted.before
            await self._writer.commit(DELETE_LOST_INVOCATIONS, [(before,)])
        return len(found)

    async def healthy(self) -> bool:
        """Whether the write lock can be had and the last write went in."""
        if not self._writer.running or self._writer.failure is not None:
            return False
        try:
            await self._writer.probe(_PROBE_S)
        except StoreUnavailable:
            return False
        return True

    async def _check_seal(self) -> None:
        """Find out at once whether all content can be read.

        Raises :class:`~proxy.errors.StoreError` where there are rows that another key has sealed.
        """
        own = self._seal.id if self._seal is not None else None
        async with self._snapshot() as db:
            for table in CONTENT:
                for end in ("min", "max"):
                    for (found,) in await db.execute_fetchall(
                        f"SELECT {end}(sealed_by) FROM {table.name} WHERE sealed_by IS NOT NULL"
                    ):
                        if found is not None and found != own:
                            raise _foreign_seal(found, own)

    def _closed(self, table: ContentTable, row: rows.Row) -> rows.Row:
        if self._seal is None:
            return (*row, None)
        return (*self._seal.close(table, row), self._seal.id)

    def _put_content(
        self,
        table: ContentTable,
        encode: Callable[[_Record], rows.Row],
        record: _Record,
        settled: Callable[[bool], None],
    ) -> Write:
        return self._put(
            _PUT_CONTENT[table.name], (), lambda each: self._closed(table, encode(each)), (record,), settled
        )

    async def _read(self, db: Reader, table: ContentTable, where: str, *values: Any) -> list[rows.Row]:
        found = await _select(db, table.name, (*table.columns, "sealed_by"), where, *values)
        opened: list[rows.Row] = []
        for *row, sealed_by in found:
            if sealed_by is None:
                opened.append(tuple(row))
            elif self._seal is None or sealed_by != self._seal.id:
                raise _foreign_seal(sealed_by, self._seal.id if self._seal is not None else None)
            else:
                opened.append(self._seal.open(table, tuple(row)))
        return opened

    def _oldest_kept(self) -> float:
        return oldest_kept(self._clock(), self._keep_days)

    def _writes_response(self, key: ResponseKey) -> bool:
        # A name that the database does not take would be made to fit, and might then be somebody
        # else's: such a response stays in memory, under its very name.
        return self._content != "none" and all(map(self._is_storable, key))

    def _is_storable(self, name: str) -> bool:
        """Whether the database takes a name as it is."""
        return rows.is_text(name)

    def _put(
        self,
        statement: str,
        prefix: rows.Row,
        encode: Callable[[_Record], rows.Row],
        records: Sequence[_Record],
        settled: Callable[[bool], None] | None = None,
    ) -> Write:
        try:
            encoded = [(*prefix, *encode(record)) for record in records]
        except (TypeError, ValueError, AttributeError) as error:  # a field is not of its declared type
            write = Write(statement, (), settled=settled)
            self._writer.lose([write], f"a record does not encode: {error}")
        else:
            write = Write(statement, encoded, settled=settled)
            self._writer.put(write)
        return write


def _foreign_seal(found: str, own: str | None) -> StoreError:
    have = "store.seal_key is empty" if own is None else f"store.seal_key is the key {own}"
    return StoreError(
        f"the record has content sealed with the key {found}, and {have}; "
        "give the record its key again, or name another one in store.url"
    )


async def _select(db: Reader, table: str, columns: Sequence[str], where: str, *values: Any) -> list[rows.Row]:
    found = await db.execute_fetchall(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", values)
    return [tuple(row) for row in found]
