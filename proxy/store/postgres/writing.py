"""Groups of writes in PostgreSQL, with few round trips.

After each round trip the writer waits for its turn of the event loop, which in a busy process takes longer
than the server. So the upserts of a group are one statement. The values of a column are one array, and the
server makes rows of the arrays with ``unnest``. Upserts into several tables are parts of one ``WITH``, which
is executed as a whole or not at all
(https://www.postgresql.org/docs/current/queries-with.html#QUERIES-WITH-MODIFYING).
"""

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import asyncpg
from asyncpg.transaction import Transaction

from proxy.store.postgres.db import (
    CONNECT_S,
    DRIVER_ERRORS,
    connect,
    error_name,
    failure_of,
    fitting,
    numbered,
)
from proxy.store.rows import Row, Upsert
from proxy.store.sql.writing.writer import WriteError
from proxy.store.sql.writing.writes import Batch

_Upserts: TypeAlias = tuple[Upsert, Sequence[Row]]


class PostgresWriting:
    """The connection that writes; it is opened when needed, and again after it broke."""

    def __init__(self, url: str, settings: dict[str, str]) -> None:
        self._url = url
        self._settings = settings
        self._connection: asyncpg.Connection[Any] | None = None
        self._types: dict[str, Sequence[str]] = {}
        """The names of the types of an upsert's columns. The schema of a running process never changes."""

    async def connection(self) -> "asyncpg.Connection[Any]":
        """Return the connection, after opening one if there is none; raises :class:`WriteError`."""
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await connect(self._url, **self._settings)
            except DRIVER_ERRORS as error:
                raise WriteError(failure_of(error) or "unreachable", error_name(error)) from error
        return self._connection

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit all batches in one transaction; without a batch, check that there is a connection."""
        steps = list(_steps_of(batches))

        async def work(connection: "asyncpg.Connection[Any]") -> None:
            for step in steps:
                if isinstance(step, dict):
                    await self._upsert(connection, step.values())
                else:
                    statement, rows = step
                    await connection.executemany(numbered(statement), [fitting(row) for row in rows])

        # One statement is a transaction of its own, without the round trips for its begin and its end.
        await self._commit(work, alone=len(steps) == 1 and isinstance(steps[0], dict))

    async def transaction(self, work: "Callable[[asyncpg.Connection[Any]], Awaitable[None]]") -> None:
        """Commit all of ``work`` or nothing; raises :class:`WriteError`."""
        await self._commit(work)

    async def _commit(
        self, work: "Callable[[asyncpg.Connection[Any]], Awaitable[None]]", *, alone: bool = False
    ) -> None:
        connection = await self.connection()
        transaction = None if alone else connection.transaction()
        try:
            if transaction is not None:
                await transaction.start()
            await work(connection)
            if transaction is not None:
                await transaction.commit()
        except DRIVER_ERRORS as error:
            failure = failure_of(error)
            if failure == "unreachable" or not await _rolled_back(connection, transaction):
                failure = "unreachable"
                self._drop()
            raise WriteError(failure, error_name(error)) from error
        except BaseException:  # The end of the session also ends this work, so no rollback is needed.
            self._drop()
            raise

    async def _upsert(self, connection: "asyncpg.Connection[Any]", batches: Iterable[_Upserts]) -> None:
        """Execute upserts into different tables as one statement; each has one array for each column."""
        places = itertools.count(1)
        parts: list[str] = []
        arrays: list[Sequence[Any]] = []
        for statement, rows in batches:
            types = self._types.get(statement)
            if types is None:
                types = self._types[statement] = await _types_of(connection, statement)
            arrays += [fitting(column) for column in zip(*rows, strict=True)]
            source = ", ".join(f"${next(places)}::{name}[]" for name in types)
            parts.append(statement.of_rows_from(f"unnest({source})"))
        *before, last = parts
        named = ", ".join(f"w{number} AS ({part})" for number, part in enumerate(before))
        await connection.execute(f"WITH {named} {last}" if named else last, *arrays)

    async def aclose(self) -> None:
        """Close the connection; the server frees the locks of its session."""
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=CONNECT_S)
        except DRIVER_ERRORS:
            connection.terminate()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _steps_of(batches: Sequence[Batch]) -> Iterator[dict[str, _Upserts] | Batch]:
    """Join neighbouring upserts into different tables, by table; any other batch is a step of its own."""
    joined: dict[str, _Upserts] = {}
    for statement, rows in batches:
        table = statement.table if isinstance(statement, Upsert) else None
        if joined and (table is None or table in joined):
            yield joined
            joined = {}
        if isinstance(statement, Upsert) and rows:
            joined[statement.table] = (statement, rows)
        elif rows:
            yield statement, rows
    if joined:
        yield joined


async def _types_of(connection: "asyncpg.Connection[Any]", statement: Upsert) -> Sequence[str]:
    """Ask the server for the types of a statement's placeholders."""
    prepared = await connection.prepare(numbered(statement))
    return [each.name for each in prepared.get_parameters()]


async def _rolled_back(connection: "asyncpg.Connection[Any]", transaction: Transaction | None) -> bool:
    """Roll back what is open; return whether the connection is usable, outside a transaction."""
    with contextlib.suppress(*DRIVER_ERRORS):
        if (
            transaction is not None and connection.is_in_transaction()
        ):  # A refused commit has already ended it.
            await transaction.rollback()
        return not connection.is_closed()
    return False
