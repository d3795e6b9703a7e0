"""Speaking to PostgreSQL: connections, statements in its own words, and what its errors mean.

No message made here shows a value of a row or a password: the server's own messages may.
"""

import contextlib
import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction

from proxy.errors import StoreError, StoreUnavailable
from proxy.store.sql.writer import WriteError
from proxy.store.sql.writes import Batch

__all__ = [
    "CONNECT_S",
    "DRIVER_ERRORS",
    "LOCK_CLASS",
    "TOKEN_LOCK_CLASS",
    "Connection",
    "PostgresReader",
    "PostgresWriting",
    "connect",
    "failure_of",
    "fitting",
    "make_pool",
    "numbered",
    "store_error",
]

Connection: TypeAlias = "asyncpg.Connection[Any] | PoolConnectionProxy[Any]"

LOCK_CLASS: Final = 0x74726C79
"""The first half of every advisory lock of ours: the letters ``trly``."""

TOKEN_LOCK_CLASS: Final = LOCK_CLASS + 1
"""The first half of the locks under which tokens are refreshed."""

CONNECT_S: Final = 5.0
COMMAND_S: Final = 30.0
_READERS: Final = 4

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Everything that the driver raises; a time-out is an OSError too."""

_SETTINGS: Final = {
    "application_name": "toolrelay",
    # A group that waits for a lock gives way, and is written again later.
    "lock_timeout": "1000",
    # The server has to notice that a process is gone, for its lock to be free.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_FAILURES: Final = {
    "08": "unreachable",
    "25006": "read-only",
    "28": "access is refused",
    "40": "locked",
    "53100": "disk full",
    "53": "out of resources",
    "55P03": "locked",
    "57014": "too slow",
    "57P": "unreachable",
    "58": "unreadable",
    "XX001": "damaged",
    "XX002": "damaged",
}
"""One word for the faults of a database as a whole, by the beginning of their SQLSTATE."""

_MARK: Final = re.compile(r"\?")


def numbered(statement: str) -> str:
    """A statement of the stores' with ``$1, $2, …`` in place of its question marks."""
    numbers = itertools.count(1)
    return _MARK.sub(lambda _: f"${next(numbers)}", statement)


def fitting(values: Iterable[Any]) -> list[Any]:
    """Values that PostgreSQL takes: its text knows no NUL, which becomes U+FFFD."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values]


async def connect(url: str, **more: str) -> "asyncpg.Connection[Any]":
    """A connection with settings of ours, and ``more`` of them; raises what the driver raises."""
    return await asyncpg.connect(
        url, timeout=CONNECT_S, command_timeout=COMMAND_S, server_settings={**_SETTINGS, **more}
    )


async def make_pool(url: str) -> "asyncpg.Pool[Any]":
    """Connections for reading, none of them made yet; raises what the driver raises."""
    return await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=_READERS,
        timeout=CONNECT_S,
        command_timeout=COMMAND_S,
        server_settings=_SETTINGS,
    )


def failure_of(error: BaseException) -> str | None:
    """One word for a fault of the database as a whole; ``None`` where a single row is at fault."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return next((_FAILURES[state[:size]] for size in (5, 3, 2) if state[:size] in _FAILURES), None)
    return "unreachable" if isinstance(error, DRIVER_ERRORS) else None


def store_error(error: BaseException) -> StoreError:
    """What went wrong, in words for the operator, and what to do."""
    if isinstance(error, (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError)):
        return StoreUnavailable("PostgreSQL refuses the user or the password; set both in store.url")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreError(
            "PostgreSQL has no database with this name; create it, or name another in store.url"
        )
    if isinstance(error, asyncpg.InvalidSchemaNameError):
        return StoreError(
            "PostgreSQL has no schema with the name in search_path; create it, or name another in store.url"
        )
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreError("PostgreSQL gives this user no right to the record; grant it")
    failure = failure_of(error)
    if failure == "unreachable":
        return StoreUnavailable(
            "PostgreSQL is not reachable; check that it runs, and that store.url is right"
        )
    if failure is not None:
        return StoreUnavailable(f"the record in PostgreSQL cannot be used: {failure}")
    return StoreError(f"PostgreSQL refused a statement: {_name(error)}")


def _name(error: BaseException) -> str:
    """An error without its message, which may quote a row."""
    constraint = getattr(error, "constraint_name", None)
    state = getattr(error, "sqlstate", None)
    words = [type(error).__name__, *([state] if state else []), *([constraint] if constraint else [])]
    return " ".join(str(word) for word in words)


async def _rolled_back(connection: "asyncpg.Connection[Any]", transaction: Transaction) -> bool:
    """Whether the connection is outside of a transaction again, and still there."""
    with contextlib.suppress(*DRIVER_ERRORS):
        if connection.is_in_transaction():  # a commit that is refused has ended it already
            await transaction.rollback()
        return not connection.is_closed()
    return False


class PostgresReader:
    """A connection, as the stores in SQL ask for it; a query may take ``timeout_s``, else what is usual."""

    def __init__(self, connection: Connection, timeout_s: float | None = None) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    async def execute_fetchall(
        self, sql: str, parameters: Iterable[Any] | None = None, /
    ) -> Sequence[Sequence[Any]]:
        """The rows of a query."""
        found = await self._connection.fetch(
            numbered(sql), *fitting(parameters or ()), timeout=self._timeout_s
        )
        return [tuple(row.values()) for row in found]


class PostgresWriting:
    """The connection that writes; it is made when it is needed, and again when it broke.

    ``lost`` is called when it breaks, whether or not it was in use.
    """

    def __init__(self, url: str, settings: dict[str, str], lost: Callable[[], None]) -> None:
        self._url = url
        self._settings = settings
        self._lost = lost
        self._connection: asyncpg.Connection[Any] | None = None

    async def connection(self) -> "asyncpg.Connection[Any]":
        """The connection, a new one where there is none; raises :class:`WriteError`."""
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await connect(self._url, **self._settings)
            except DRIVER_ERRORS as error:
                raise WriteError(failure_of(error) or "unreachable", _name(error)) from error
            self._connection.add_termination_listener(self._terminated)
        return self._connection

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit in one transaction; without a batch, find out whether there is a connection."""

        async def work(connection: "asyncpg.Connection[Any]") -> None:
            for statement, rows in batches:
                await connection.executemany(numbered(statement), [fitting(row) for row in rows])

        await self.transaction(work)

    async def transaction(self, work: "Callable[[asyncpg.Connection[Any]], Awaitable[None]]") -> None:
        """Do all of ``work`` or nothing; raises :class:`WriteError`."""
        connection = await self.connection()
        transaction = connection.transaction()
        try:
            await transaction.start()
            await work(connection)
            await transaction.commit()
        except DRIVER_ERRORS as error:
            failure = failure_of(error)
            if failure == "unreachable" or not await _rolled_back(connection, transaction):
                failure = "unreachable"
                self._drop()
            raise WriteError(failure, _name(error)) from error
        except BaseException:  # Whatever is under way ends with the session; nobody waits for a rollback.
            self._drop()
            raise

    async def aclose(self) -> None:
        """Close the connection; the locks of its session go with it."""
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        connection.remove_termination_listener(self._terminated)
        try:
            await connection.close(timeout=CONNECT_S)
        except DRIVER_ERRORS:
            connection.terminate()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.remove_termination_listener(self._terminated)
            connection.terminate()

    def _terminated(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            self._lost()
