"""What a read returns between a put and its commit, whatever happens to the write meanwhile."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import suspended

from proxy.records.rows import SuspendedTurn
from proxy.store.shelf import suspended_shelf
from proxy.store.sql.writing.write_behind import WriteBehind
from proxy.store.sql.writing.writes import Write


class _Database:
    """A test double: a queue, a group being written and committed rows. The test takes each step."""

    def __init__(self) -> None:
        self.rows: dict[str, SuspendedTurn] = {}
        self.queue: list[Write] = []
        self.group: list[Write] = []
        self.behind = WriteBehind(suspended_shelf(lambda: float("-inf")), self._withdraw)
        self._count = 0

    def _withdraw(self, write: Write) -> bool:
        write.withdrawn = True
        if write in self.queue:
            self.queue.remove(write)
            return True
        return False

    def find(self, key: str) -> SuspendedTurn | None:
        return self.behind.find(key) if self.behind.has_latest(key) else self.rows.get(key)

    def new(self, key: str) -> SuspendedTurn:
        self._count += 1
        return suspended(key, payload=b"%d" % self._count)

    def put(self, *records: SuspendedTurn, room: bool = True) -> None:
        def queue(settled: Callable[[bool], None]) -> Write:
            write = Write("put", [(record,) for record in records], settled=settled)
            if room:
                self.queue.append(write)
            else:
                settled(False)
            return write

        self.behind.queue(records, queue)

    def take(self) -> None:
        if not self.group:
            queue, self.queue = self.queue, []
            for write in queue:
                if not write.abandoned:
                    self.group.append(write)
                else:
                    assert write.settled is not None
                    write.settled(False)

    def commit(self) -> None:
        for write in self.group:
            for (record,) in write.made():
                self.rows[record.key] = record
        group, self.group = self.group, []
        for write in group:
            assert write.settled is not None
            write.settled(True)

    def put_back(self) -> None:
        self.queue, self.group = [*self.group, *self.queue], []

    def refuse(self) -> None:
        for write in self.group[:1]:
            del self.group[0]
            assert write.settled is not None
            write.settled(False)

    def delete(self, key: str, meanwhile: SuspendedTurn | None) -> None:
        """Delete as the store does; ``meanwhile`` is put while the deletion waits for its commit."""
        with self.behind.deleting(key) as under_way:
            assert self.find(key) is None
            if key in self.rows or under_way:
                for _ in range(2):  # the group being written, then what was queued before the deletion
                    self.commit()
                    self.take()
                self.commit()
                if meanwhile is not None:
                    self.put(meanwhile)
                del self.rows[key]
            elif meanwhile is not None:
                self.put(meanwhile)


_STEPS = [
    *("put", "put", "put both", "no room", "keep", "delete", "delete and put"),
    *("take", "take", "commit", "put back", "refuse"),
]
_steps = st.lists(st.tuples(st.sampled_from(_STEPS), st.sampled_from("ab")), max_size=25)


@given(steps=_steps)
@settings(max_examples=500, deadline=None)
def test_a_read_sees_the_last_word_whatever_the_writes_do(steps: list[tuple[str, str]]) -> None:
    """After any puts, deletions and write steps a read returns the last value put for a key, or none."""
    database = _Database()
    said: dict[str, SuspendedTurn | None] = {"a": None, "b": None}
    for step, key in steps:
        if step in ("put", "no room"):
            said[key] = record = database.new(key)
            database.put(record, room=step == "put")
        elif step == "put both":
            both = [database.new(each) for each in "ab"]
            said.update((record.key, record) for record in both)
            database.put(*both)
        elif step == "keep":
            said[key] = record = database.new(key)
            database.behind.keep(record)
        elif step == "delete":
            database.delete(key, None)
            said[key] = None
        elif step == "delete and put":
            said[key] = record = database.new(key)
            database.delete(key, record)
        else:
            {
                "take": database.take,
                "commit": database.commit,
                "put back": database.put_back,
                "refuse": database.refuse,
            }[step]()
        assert {key: database.find(key) for key in said} == said
        # One row of several cannot be withdrawn alone; a later one follows it.
        alone = [write for write in database.queue if len(write.made()) == 1]
        queued = [write.made()[0][0].key for write in alone if not write.abandoned]
        assert len(queued) == len(set(queued))
    for _ in range(2):
        database.commit()
        database.take()
    database.commit()
    assert (database.behind._waiting, database.behind._unsettled) == ({}, {})
    assert {key: database.find(key) for key in said} == said
