"""Queued writes, and the batches of statements for a group of them."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeAlias

from proxy.store.rows import Row, Upsert

__all__ = ["Batch", "StateKey", "Write", "batches_of"]

Batch = tuple[str, Sequence[Row]]
"""A statement and the rows that it is executed with, in order."""

StateKey: TypeAlias = tuple[str, str]
"""A table and the key of a row that is written several times, each time as a whole."""

_OVERHEAD_BYTES: Final = 200
_COUNTED: Final = frozenset({str, bytes})


class Write:
    """One or more rows for one statement, committed together or not at all.

    ``also`` are further statements with their rows, which follow in the same commit. ``settled`` is called
    once, with whether the rows were committed. If ``done`` is set, a caller waits for the commit. If that
    future is cancelled, the caller has given up: the write is skipped or, if it was already being committed,
    followed by the write that ``undo`` returns.

    A write without a statement only marks a place in the queue. A write ``in_order`` stays behind all writes
    queued before it and ahead of all later ones. Others may change places within a group, statement by
    statement.

    A write that is not ``needed`` is only for people to read. ``state_of`` names the row of which this is a
    state; a later state takes its place in the queue. ``before`` has the rows of the state before that.
    """

    __slots__ = (
        "also", "before", "done", "in_order", "needed", "rows", "settled", "size", "state_of", "statement",
        "undo", "withdrawn",
    )  # fmt: skip

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
        needed: bool = True,
        state_of: StateKey | None = None,
    ) -> None:
        self.statement = statement
        self.rows = rows
        self.also = also
        self.settled = settled
        self.done = done
        self.undo = undo
        self.in_order = in_order
        self.needed = needed
        self.state_of = state_of
        self.before: Sequence[Row] | None = None
        self.withdrawn = False
        size = _OVERHEAD_BYTES
        for _, each in ((statement, rows), *also):
            for row in each:
                for value in row:
                    if type(value) in _COUNTED:
                        size += len(value)
        self.size = size

    def become(self, later: "Write") -> None:
        """Write a later state of the row in place of this one."""
        self.before, self.rows, self.size = self.rows, later.rows, later.size

    @property
    def abandoned(self) -> bool:
        return self.withdrawn or (self.done is not None and self.done.cancelled())


def batches_of(group: Iterable[Write]) -> list[Batch]:
    """Collect the rows of each statement, for speed; none moves past a write that is in order.

    If upserts write the same key several times, only the last row remains, in the place of the first.
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
