"""The base of all SQL stores: the writer, the keys, and how content is written and read."""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.store import rows
from proxy.store.base import LOOK_UP_S
from proxy.store.key_file import KeyFile
from proxy.store.look_ups import Answer, LookUps, QueryBatch
from proxy.store.options import StoreOptions
from proxy.store.seal import CALLS, CONTENT, MESSAGES, NATIVE_CALLS, SEALED, ContentTable, Seal, SealRing
from proxy.store.shelf import oldest_kept
from proxy.store.sql.retention import CallerCap
from proxy.store.sql.writing.writer import GroupWriter, WriterHooks
from proxy.store.sql.writing.writes import StateKey, Write
from proxy.store.tokens import TOKENS

_log = logging.getLogger(__name__)

_Record = TypeVar("_Record")

_MOST_IDS: Final = 100

_PUT_CONTENT: Final = {
    table.name: rows.upsert(table.name, (*table.columns, "sealed_by"), table.key) for table in CONTENT
}
_PUT_DATED: Final = {
    table.name: rows.upsert(table.name, ("created_at", *table.columns, "sealed_by"), table.key)
    for table in (MESSAGES, NATIVE_CALLS)
}


NOTE_KEY: Final = "INSERT INTO seal_keys (id, host, noted_at) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
"""Notes that a server seals with a key."""


class SqlReader(Protocol):
    """A consistent view of a database."""

    def execute_fetchall(
        self, sql: str, parameters: Iterable[Any] | None = None, /
    ) -> Awaitable[Iterable[Any]]:
        """Return the rows of a query, each a sequence of its values."""


class SqlBase(ABC):
    """The base class of the SQL stores. It queues writes, and seals and opens content.

    All methods must be called from the thread of one event loop.
    """

    _look_up_lanes: ClassVar[int] = 1
    """How many batches of look-ups the database answers at once."""

    def __init__(
        self, owner_id: str, options: StoreOptions, clock: Callable[[], float] | None = None
    ) -> None:
        """``clock`` is the one that all processes of the record share; by default this machine's."""
        self._needs_all_keys = options.needs_all_keys
        self._configured = options.seal
        self._key_file = options.key_file
        self._ring = SealRing(options.seal, options.old_seals, awaits=options.seals_by_file)
        self._lock_timeout_s = options.lock_timeout_s
        self._writer = GroupWriter(
            WriterHooks(self._introduce, self._tidy),
            max_writes=options.max_queued,
            max_bytes=options.max_queued_bytes,
            lock_timeout_s=options.lock_timeout_s,
        )
        self._owner_id = owner_id
        self._content = options.content
        self._keep_days = options.keep_days
        self._clock = clock or options.clock or time.time
        self._look_ups = LookUps(self._read_batch, self._look_up_lanes)
        self._cap = CallerCap(options.max_per_caller, options.max_bytes_per_caller)

    def now(self) -> float:
        return self._clock()

    @property
    def waiting(self) -> int:
        return self._writer.waiting

    @property
    def lost(self) -> int:
        return self._writer.lost

    @property
    def lost_needed(self) -> int:
        return self._writer.lost_needed

    @property
    def crowded(self) -> bool:
        return self._writer.pressure.crowded

    async def wait_for_room(self, within_s: float) -> None:
        await self._writer.pressure.wait(within_s)

    @property
    def sealed(self) -> bool:
        return self._ring.seals or self._content == "none"

    @abstractmethod
    async def start(self) -> None:
        """Open the database, migrate it and begin to write."""

    @abstractmethod
    async def aclose(self) -> None:
        """Write what is queued and close."""

    @abstractmethod
    async def scrub(self) -> str:
        """Remove deleted data from the store's own files; see :class:`~proxy.store.base.Store`."""

    @abstractmethod
    async def _introduce(self) -> Sequence[tuple[str, rows.Row]]:
        """Return the statements that write the owner's row; see
        :class:`~proxy.store.sql.writing.writer.WriterHooks`."""

    @abstractmethod
    async def _tidy(self) -> float:
        """Delete one batch of what must go; return the seconds until the next call."""

    @abstractmethod
    def _snapshot(self) -> contextlib.AbstractAsyncContextManager[SqlReader]:
        """Open one consistent view of the database for all reads inside the block.

        Raises :class:`~proxy.base.errors.StoreUnavailable` if there is no connection, and turns errors of the
        database into :class:`~proxy.base.errors.StoreError`.
        """

    @abstractmethod
    async def _read_batch(self, batch: QueryBatch) -> Sequence[Answer]:
        """Return the rows of each query of a batch, or its error. Each query sees a consistent state.

        The connection is not one of those that snapshots use, so no report delays a look-up. Raises
        StoreError if no query can be answered.
        """

    def _look_up(self, sql: str, values: rows.Row, caller: str = "") -> Awaitable[Iterable[Any]]:
        """Return the rows of a query that a request waits for, within the time limit of look-ups.

        Look-ups of several callers take turns. Raises the errors of a snapshot. While the record is known not
        to answer, raises :class:`~proxy.base.errors.StoreUnavailable` at once.
        """
        return self._look_ups.run(sql, values, caller)

    async def _see_writes(self) -> None:
        """Wait until look-ups see the queued writes that requests need; limit and errors are a look-up's."""
        if self._writer.waiting:
            if self._look_ups.is_unresponsive or self._writer.failure is not None:
                reason = self._writer.failure or "it does not answer"
                raise StoreUnavailable(f"the record cannot be written: {reason}")
            await self._writer.flush(LOOK_UP_S, needed=True)

    async def _take_key(self) -> None:
        """Read the key beside the record; create one if it should seal and there is none.

        Raises the errors of :meth:`_check_seal` before a key is created: a new key file would hide that the
        old one was lost. Raises :class:`~proxy.base.errors.ConfigError` if the key file cannot be used.
        """
        file = self._key_file
        key = await asyncio.to_thread(file.read) if file is not None else None
        if key is not None:
            take = self._ring.seal_with if self._ring.awaits else self._ring.open_with
            take(Seal(key))
        await self._check_seal()
        if file is not None and self._ring.awaits:
            self._ring.seal_with(Seal(await asyncio.to_thread(file.make)))
            # Commands tell their users themselves, so this is only for debugging.
            _log.debug(
                "the record encrypts its content with a new key: %s; back it up with the record", file.path
            )

    async def _check_seal(self) -> None:
        """Check that all content can be read.

        Raises :class:`StoreError` if a key is missing that sealed rows. Calls are not checked:
        they stay as long as their runs, and are shown without their sealed values. Each table has a small
        index for this, and no rows are counted if one known key sealed them all.
        """
        if not self._needs_all_keys:
            return
        async with self._snapshot() as db:
            noted = await db.execute_fetchall("SELECT id FROM seal_keys ORDER BY id")
            missing: dict[str, list[str]] = {key: [] for (key,) in noted if not self._ring.opens(key)}
            for table in (*SEALED, TOKENS):
                if table is CALLS:
                    continue
                ends = [
                    key
                    for end in ("min", "max")
                    for (key,) in await db.execute_fetchall(
                        f"SELECT {end}(sealed_by) FROM {table.name} WHERE sealed_by IS NOT NULL"
                    )
                ]
                if all(end is None or self._ring.opens(end) for end in ends) and ends[0] == ends[1]:
                    continue
                for key, number in await db.execute_fetchall(
                    f"SELECT sealed_by, count(*) FROM {table.name} "
                    "WHERE sealed_by IS NOT NULL GROUP BY sealed_by ORDER BY sealed_by"
                ):
                    if not self._ring.opens(key):
                        missing.setdefault(key, []).append(table.counted(number))
        if missing:
            raise _keys_missing(missing, self._ring, self._key_file)

    def _put_dated(self, table: ContentTable[_Record], records: Sequence[_Record]) -> Write:
        """Queue content whose records have no time of their own, and which only people read."""
        return self._put(
            _PUT_DATED[table.name],
            (self._clock(),),
            lambda record: self._ring.close(table, table.row(record)),
            records,
            needed=False,
        )

    def _put_content(
        self,
        table: ContentTable[_Record],
        records: Sequence[_Record],
        settled: Callable[[bool], None] | None = None,
        encode: Callable[[_Record], rows.Row] | None = None,
        *,
        needed: bool = True,
    ) -> Write:
        row_of = encode or table.row
        return self._put(
            _PUT_CONTENT[table.name],
            (),
            lambda record: self._ring.close(table, row_of(record)),
            records,
            settled,
            needed=needed,
        )

    async def _read(
        self, db: SqlReader, table: ContentTable[_Record], where: str, *values: Any
    ) -> list[_Record]:
        """Return the matching records of content from a snapshot."""
        sealed_rows = await db.execute_fetchall(_selecting(table, where), values)
        return list(map(table.record, self._opened(table, sealed_rows)))

    async def _find(
        self, table: ContentTable[_Record], where: str, *values: Any, caller: str = ""
    ) -> list[_Record]:
        """Return the same by a look-up, if nothing else must be read in the same state."""
        return list(map(table.record, await self._find_rows(table, where, *values, caller=caller)))

    async def _find_rows(
        self, table: ContentTable[Any], where: str, *values: Any, caller: str = ""
    ) -> list[rows.Row]:
        return self._opened(table, await self._look_up(_selecting(table, where), values, caller))

    async def _find_ids(self, table: ContentTable[_Record], ids: Sequence[str]) -> list[_Record]:
        """Return the records with these ids that are not too old; of very many ids only the first count."""
        wanted = [each for each in ids if rows.is_text(each) and "\0" not in each][:_MOST_IDS]
        if not wanted:
            return []
        fit = f"id IN ({', '.join('?' * len(wanted))}) AND created_at >= ?"
        return await self._find(table, fit, *wanted, self._oldest_kept())

    def _opened(self, table: ContentTable[Any], sealed_rows: Iterable[Any]) -> list[rows.Row]:
        return [self._ring.open(table, tuple(row[:-1]), row[-1]) for row in sealed_rows]

    def _oldest_kept(self) -> float:
        return oldest_kept(self._clock(), self._keep_days)

    def _is_storable(self, name: str) -> bool:
        """Return whether the database can store a name unchanged."""
        return rows.is_text(name)

    def _put(
        self,
        statement: str,
        prefix: rows.Row,
        encode: Callable[[_Record], rows.Row],
        records: Sequence[_Record],
        settled: Callable[[bool], None] | None = None,
        *,
        needed: bool = True,
        state_of: StateKey | None = None,
        later: bool = False,
    ) -> Write:
        """Queue records in one write; with ``later`` they are encoded if the write still has them then."""

        def encoded() -> list[rows.Row]:
            try:
                made = list(map(encode, records))
                return [prefix + row for row in made] if prefix else made
            except (TypeError, ValueError, AttributeError) as error:  # A field has not its declared type.
                lost = Write(statement, (), settled=settled)
                self._writer.drop_as_lost([lost], f"a record does not encode: {error}")
                return []

        given = encoded if later else encoded()
        write = Write(statement, given, settled=settled, needed=needed, state_of=state_of)
        if given:
            self._writer.put(write)
        return write


async def select(
    db: SqlReader, table: str, columns: Sequence[str], where: str, *values: Any
) -> list[rows.Row]:
    """Return the matching rows of a table."""
    result = await db.execute_fetchall(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", values)
    return [tuple(row) for row in result]


def _selecting(table: ContentTable[Any], where: str) -> str:
    return f"SELECT {', '.join(table.columns)}, sealed_by FROM {table.name} WHERE {where}"


def key_of_others(keys: Sequence[str]) -> str:
    """Return the words for the operator if other servers seal with keys that this one lacks."""
    names = ", ".join(keys)
    return (
        f"other servers of this record seal with the key {names}, which is not configured here: what "
        "they write cannot be read. Give all servers the same store.seal_key, or name this key in "
        "store.old_seal_keys"
    )


def _keys_missing(missing: dict[str, list[str]], ring: SealRing, file: KeyFile | None) -> StoreError:
    """Build the error that names the missing keys, what only they can open, and what to do."""
    have = f"configured are the keys {', '.join(ring.ids)}" if ring.ids else "store.seal_key is empty"
    lost = "; ".join(
        f"the key {key} sealed {', '.join(counts) or 'what other servers of this record write'}"
        for key, counts in missing.items()
    )
    way = (
        "Name the missing keys in store.old_seal_keys"
        if ring.ids
        else "Set store.seal_key (and store.old_seal_keys)"
    )
    if file is not None and not file.path.exists():
        way = f"If {file.path} was lost, put it back from a backup. Else: {way[0].lower()}{way[1:]}"
    return StoreError(
        f"the record has content that cannot be read: {lost}; {have}. Nothing was deleted. {way}. If a key "
        "is lost for good, delete its content: toolrelay migrate --forget-sealed KEY"
    )
