"""Queued writes, and the batches of statements for a group of them."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import length_hint
from typing import Final, TypeAlias

from msgspec import Struct

from proxy.store.rows import Row, Upsert

Batch = tuple[str, Sequence[Row]]
"""A statement and the rows that it is executed with, in order."""

Rows: TypeAlias = Sequence[Row] | Callable[[], Sequence[Row]]
"""Rows for one statement, or a function that makes them."""

StateKey: TypeAlias = tuple[str, str]
"""A table and the key of a row that is written several times, each time as a whole."""

_OVERHEAD_BYTES: Final = 200
_UNMADE_BYTES: Final = 2000
"""The bytes that count for rows that are not made yet."""


class Write(Struct, eq=False):
    """One or more rows for one statement, committed together or not at all.

    ``also`` are further statements with their rows, which follow in the same commit. ``settled`` is called
    once, with whether the rows were committed. If ``done`` is set, a caller waits for the commit. If that
    future is cancelled, the caller has given up: the write is skipped or, if it was already being committed,
    followed by the write that ``undo`` returns.

    A write without a statement only marks a place in the queue. A write ``in_order`` stays behind all writes
    queued before it and ahead of all later ones. Others may change places within a group, statement by
    statement.

    A write that is not ``needed`` is only for people to read. ``state_of`` names the row of which this is a
    state; a later state takes its place in the queue. ``before`` has the rows of the state before that. Rows
    that will probably be replaced are given as a function, which makes them if they are written all the same.
    """

    statement: str
    rows: Rows
    settled: Callable[[bool], None] | None = None
    done: "asyncio.Future[None] | None" = None
    undo: "Callable[[], Write] | None" = None
    in_order: bool = False
    also: Sequence[Batch] = ()
    needed: bool = True
    state_of: StateKey | None = None
    before: Rows | None = None
    withdrawn: bool = False
    size: int = 0

    def __post_init__(self) -> None:
        statement, rows, also = self.statement, self.rows, self.also
        size = _OVERHEAD_BYTES + (_UNMADE_BYTES if callable(rows) else 0)
        for _, each in ((statement, () if callable(rows) else rows), *also):
            for row in each:
                # The length of each text; a number has none, and counts as 0. To find that out takes as long
                # as ten lengths, so NULL is left out first.
                size += sum(map(length_hint, filter(None, row)))
        self.size = size

    def become(self, later: "Write") -> None:
        """Write a later state of the row in place of this one."""
        self.before, self.rows, self.size = self.rows, later.rows, later.size

    def made(self) -> Sequence[Row]:
        """Return the rows; they are made once."""
        if callable(self.rows):
            self.rows = self.rows()
        return self.rows

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
        made = write.made() if callable(write.rows) else write.rows
        for statement, rows in ((write.statement, made), *write.also):
            by_key = open_to.get(statement)
            if by_key is None:
                by_key = open_to[statement] = {}
                batches.append((statement, by_key))
            key_of = statement.key_of if type(statement) is Upsert else None
            for row in rows:
                by_key[len(by_key) if key_of is None else key_of(row)] = row
        if write.in_order:
            open_to.clear()
    return [(statement, list(by_key.values())) for statement, by_key in batches if by_key]
