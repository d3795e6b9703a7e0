"""A write-behind cache for content: reads look here before they look in the database.

A put returns before its row is written, and some rows are never written. This process still has the record
between the put and the commit, and after a failed commit.
"""

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from proxy.store.shelf import Dated, Shelf
from proxy.store.sql.writing.writes import Write

_Key = TypeVar("_Key", bound=Hashable)
_Record = TypeVar("_Record", bound=Dated)


class _Waiting(Struct, Generic[_Record], eq=False):
    """The latest state of a key that the database does not have yet; without ``record`` it was deleted.

    ``write`` is its queued write, if that has no other rows.
    """

    record: _Record | None
    write: Write | None = None


class WriteBehind(Generic[_Key, _Record]):
    """The newest state of each key that the database does not have, or does not have yet.

    Queued records wait here for their commit. Records that must not or could not be written go to the shelf.
    A newer state withdraws the queued write of an older one. ``withdraw`` removes a queued write and returns
    whether that was in time.
    """

    def __init__(self, shelf: Shelf[_Key, _Record], withdraw: Callable[[Write], bool]) -> None:
        self._shelf = shelf
        self._withdraw = withdraw
        self._waiting: dict[_Key, _Waiting[_Record]] = {}
        self._groups: dict[Hashable, dict[_Key, None]] = {}
        # The others beside the latest are being committed, were when it replaced them, or are among several
        # rows of one write.
        self._unsettled: dict[_Key, list[_Waiting[_Record]]] = {}

    def has_latest(self, key: _Key) -> bool:
        """Return whether :meth:`find` knows the latest state, so that the database need not be asked."""
        return key in self._waiting or key in self._shelf

    def find(self, key: _Key) -> _Record | None:
        """Return the record of that key if it is known, not deleted and not too old."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return self._shelf.find(key)
        record = waiting.record
        return record if record is not None and record.created_at >= self._shelf.oldest() else None

    def find_all(self, group: Hashable) -> list[_Record]:
        """Return the known records of a group. The database may have more, and older versions of these."""
        kept, waiting = self._shelf.find_all(group), self._groups.get(group)
        if waiting is None:  # So it is for nearly all answers of a long conversation.
            return kept
        known = {self._shelf.key_of(record): record for record in kept}
        for key in waiting:
            known.pop(key, None)
            if (record := self.find(key)) is not None:
                known[key] = record
        return list(known.values())

    def keep(self, record: _Record) -> None:
        """Keep a record only in memory, and replace an earlier one of its key."""
        key = self._shelf.key_of(record)
        self._take_back(key)
        self._no_longer(key)
        self._shelf.put(record)

    def queue(self, records: Sequence[_Record], put: Callable[[Callable[[bool], None]], Write]) -> None:
        """Keep records until the write that ``put`` queues is settled; if the write fails, keep them longer.

        ``put`` receives a callback, which the write must call with whether it was committed.
        """
        key_of, unsettled = self._shelf.key_of, self._unsettled
        entries: list[tuple[_Key, _Waiting[_Record]]] = []

        def settled(committed: bool) -> None:
            self._leave(entries)
            for key, entry in entries:
                if self._waiting.get(key) is entry:
                    self._no_longer(key)
                    if not committed and entry.record is not None:
                        self._shelf.put(entry.record)  # At least this process still has it.

        for record in records:
            key, entry = key_of(record), _Waiting(record)
            if key in self._shelf.records:
                self._shelf.drop(key)
            if key in unsettled:
                self._take_back(key)
            unsettled.setdefault(key, []).append(entry)
            entries.append((key, entry))
        self._wait(entries)
        write = put(settled)
        if len(entries) == 1:  # Of several rows none can be withdrawn alone; a later state follows them.
            entries[0][1].write = write

    def forget_runs(self, run_ids: Collection[str]) -> None:
        """Drop the records of these runs that are only in memory."""
        self._shelf.drop_runs(run_ids)

    @contextlib.contextmanager
    def deleting(self, key: _Key) -> Iterator[bool]:
        """Drop a key, and treat it as deleted inside the block unless it is put again.

        Yields whether a write of it is being committed and may still reach the database.
        """
        entry: _Waiting[_Record] = _Waiting(None)
        under_way = self._take_back(key)
        self._shelf.drop(key)
        self._wait([(key, entry)])
        try:
            yield under_way
        finally:
            if self._waiting.get(key) is entry:
                self._no_longer(key)

    def _wait(self, entries: Iterable[tuple[_Key, _Waiting[_Record]]]) -> None:
        for key, entry in entries:
            self._waiting[key] = entry
            self._groups.setdefault(self._shelf.group_of(key), {})[key] = None

    def _no_longer(self, key: _Key) -> None:
        if self._waiting.pop(key, None) is None:
            return
        group = self._shelf.group_of(key)
        del self._groups[group][key]
        if not self._groups[group]:
            del self._groups[group]

    def _take_back(self, key: _Key) -> bool:
        """Withdraw what is queued; return whether any write is still being committed."""
        for entry in list(self._unsettled.get(key, ())):
            if entry.write is not None and self._withdraw(entry.write):
                self._leave([(key, entry)])
        return key in self._unsettled

    def _leave(self, entries: Iterable[tuple[_Key, _Waiting[_Record]]]) -> None:
        for key, entry in entries:
            entry.write = None  # Breaks a reference cycle, which would keep the record alive.
            unsettled = self._unsettled.get(key, [])
            if entry in unsettled:
                unsettled.remove(entry)
                if not unsettled:
                    del self._unsettled[key]
