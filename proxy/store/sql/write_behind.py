"""Content on its way to a database: reads look here before they look there.

A put returns before its row is written, and some rows never are.  Between the put and the commit,
and after a commit that failed, this process still knows the record.
"""

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from proxy.store.shelf import Dated, Shelf
from proxy.store.sql.writes import Write

__all__ = ["WriteBehind"]

_Key = TypeVar("_Key", bound=Hashable)
_Record = TypeVar("_Record", bound=Dated)


@dataclass(slots=True, eq=False)
class _Waiting(Generic[_Record]):
    """The last word on a key while the database does not have it; no record means deleted."""

    record: _Record | None
    write: Write | None = None


class WriteBehind(Generic[_Key, _Record]):
    """The newest state of each key that the database does not have, or not yet.

    What is queued waits here for its commit; what is not to be written, or could not be, goes on
    the shelf.  A newer state takes the queued write of an older one back.  ``withdraw`` takes
    a queued write back and tells whether that was in time.
    """

    def __init__(self, shelf: Shelf[_Key, _Record], withdraw: Callable[[Write], bool]) -> None:
        self._shelf = shelf
        self._withdraw = withdraw
        self._waiting: dict[_Key, _Waiting[_Record]] = {}
        self._groups: dict[Hashable, dict[_Key, None]] = {}
        # One at most is queued; the others are under way, or were when something took their place.
        self._unsettled: dict[_Key, list[_Waiting[_Record]]] = {}

    def knows(self, key: _Key) -> bool:
        """Whether :meth:`find` has the last word, so that the database need not be asked."""
        return key in self._waiting or key in self._shelf

    def find(self, key: _Key) -> _Record | None:
        """The record of that key, if it is known, not deleted and not past its days."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return self._shelf.find(key)
        record = waiting.record
        return record if record is not None and record.created_at >= self._shelf.oldest() else None

    def find_all(self, group: Hashable) -> list[_Record]:
        """The known records of a group: the database may have others, and older forms of these."""
        known = {self._shelf.key_of(record): record for record in self._shelf.find_all(group)}
        for key in self._groups.get(group, ()):
            known.pop(key, None)
            if (record := self.find(key)) is not None:
                known[key] = record
        return list(known.values())

    def keep(self, record: _Record) -> None:
        """Keep a record in memory alone, in place of an earlier one of its key."""
        key = self._shelf.key_of(record)
        self._take_back(key)
        self._no_longer(key)
        self._shelf.put(record)

    def queue(self, record: _Record, put: Callable[[Callable[[bool], None]], Write]) -> None:
        """Keep a record until its write, which ``put`` queues, is settled; after a failure too.

        ``put`` is given what the write has to call with whether it was committed.
        """
        key = self._shelf.key_of(record)
        entry = _Waiting(record)

        def settled(committed: bool) -> None:
            self._leave(key, entry)
            if self._waiting.get(key) is entry:
                self._no_longer(key)
                if not committed:
                    self._shelf.put(record)  # this process at least still has it

        self._shelf.drop(key)
        self._take_back(key)
        self._wait(key, entry)
        self._unsettled.setdefault(key, []).append(entry)
        entry.write = put(settled)

    def forget_runs(self, run_ids: Collection[str]) -> None:
        """Forget what is in memory alone of these runs."""
        self._shelf.drop_runs(run_ids)

    @contextlib.contextmanager
    def gone(self, key: _Key) -> Iterator[bool]:
        """Forget a key, and know it as deleted while inside, unless it is put again.

        Gives whether any write of it is under way and may still reach the database.
        """
        entry: _Waiting[_Record] = _Waiting(None)
        under_way = self._take_back(key)
        self._shelf.drop(key)
        self._wait(key, entry)
        try:
            yield under_way
        finally:
            if self._waiting.get(key) is entry:
                self._no_longer(key)

    def _wait(self, key: _Key, entry: _Waiting[_Record]) -> None:
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
        """Take back what is queued; whether anything is under way."""
        for entry in list(self._unsettled.get(key, ())):
            if entry.write is not None and self._withdraw(entry.write):
                self._leave(key, entry)
        return key in self._unsettled

    def _leave(self, key: _Key, entry: _Waiting[_Record]) -> None:
        entry.write = None  # it knows the entry, and the record would wait for the garbage collector
        rest = [other for other in self._unsettled.get(key, ()) if other is not entry]
        if rest:
            self._unsettled[key] = rest
        else:
            self._unsettled.pop(key, None)
