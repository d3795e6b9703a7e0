"""Writes on their way to a database, and the statements that a group of them comes to."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from proxy.store.rows import Row, Upsert

__all__ = ["Batch", "Write", "batches_of"]

Batch = tuple[str, Sequence[Row]]
"""A statement and the rows it is executed with, in order."""

_OVERHEAD_BYTES: Final = 200
_COUNTED: Final = frozenset({str, bytes})


class Write:
    """One or more rows for one statement, committed together or not at all.

    ``also`` are further statements with their rows, which come right after it in the same commit.
    ``settled`` is called once, with whether the rows were committed.  Where ``done`` is set
    somebody waits for the commit; a cancelled one has given up: the write is skipped, or where it
    was under way already, followed by what ``undo`` makes.  Without a statement it only marks a place in the
    queue.  A write ``in_order`` comes after all that were queued before it and before all that come
    after; others may change places within a group, statement by statement.
    """

    __slots__ = ("also", "done", "in_order", "rows", "settled", "size", "statement", "undo", "withdrawn")

    def __init__(
        self,
        statement: str,
        rows: Sequence[Row],
        *,
        settled: Callable[[bool], None] | None = None,
        done: "asyncio.Future[None] | None" = None,
        undo: "Callable[[], Write] | None" = None,
        in_order: bool = False,
        also: Sequence[Batch] = (),
    ) -> None:
        self.statement = statement
        self.rows = rows
        self.also = also
        self.settled = settled
        self.done = done
        self.undo = undo
        self.in_order = in_order
        self.withdrawn = False
        size = _OVERHEAD_BYTES
        for _, each in ((statement, rows), *also):
            for row in each:
                for value in row:
                    if type(value) in _COUNTED:
                        size += len(value)
        self.size = size

    @property
    def abandoned(self) -> bool:
        return self.withdrawn or (self.done is not None and self.done.cancelled())


def batches_of(group: Iterable[Write]) -> list[Batch]:
    """The rows of each statement together, for speed; none moves past a write that is in order.

    Of the rows that an upsert replaces one by the other only the last is left, in the place of the first.
    """
    batches: list[tuple[str, dict[Hashable, Row]]] = []
    open_to: dict[str, dict[Hashable, Row]] = {}
    for write in group:
        if not write.statement:
            continue
        if write.in_order:
            open_to.clear()
        for statement, rows in ((write.statement, write.rows), *write.also):
            found = open_to.get(statement)
            if found is None:
                found = open_to[statement] = {}
                batches.append((statement, found))
            key_of = statement.key_of if type(statement) is Upsert else None
            for row in rows:
                found[len(found) if key_of is None else key_of(row)] = row
        if write.in_order:
            open_to.clear()
    return [(statement, list(found.values())) for statement, found in batches]
