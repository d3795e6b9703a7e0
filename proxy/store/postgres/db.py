"""Access to PostgreSQL: connections, placeholders in its syntax, and what its errors mean.

No message created here contains a value of a row or a password; the server's own messages may.
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
"""The first half of the key of every toolrelay advisory lock: the letters ``trly``."""

TOKEN_LOCK_CLASS: Final = LOCK_CLASS + 1
"""The first half of the keys of the locks under which tokens are refreshed."""

CONNECT_S: Final = 5.0
COMMAND_S: Final = 30.0
_READERS: Final = 4

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""All exceptions of the driver; a time-out is an OSError too."""

_SETTINGS: Final = {
    "application_name": "toolrelay",
    # A group that waits for a lock fails soon, and is written again later.
    "lock_timeout": "1000",
    # The server must notice that a process has died, because only then it frees the lock.
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
"""One word for each fault of the whole database, by a prefix of its SQLSTATE."""

_MARK: Final = re.compile(r"\?")


def numbered(statement: str) -> str:
    """Replace the question marks of a statement with ``$1, $2, …``."""
    numbers = itertools.count(1)
    return _MARK.sub(lambda _: f"${next(numbers)}", statement)


def fitting(values: Iterable[Any]) -> list[Any]:
    """Replace NUL, which PostgreSQL text cannot contain, with U+FFFD."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values]


async def connect(url: str, **more: str) -> "asyncpg.Connection[Any]":
    """Open a connection with the settings here and ``more``; raises the driver's errors."""
    return await asyncpg.connect(
        url, timeout=CONNECT_S, command_timeout=COMMAND_S, server_settings={**_SETTINGS, **more}
    )


async def make_pool(url: str) -> "asyncpg.Pool[Any]":
    """Create a pool for reading, without opening a connection yet; raises the driver's errors."""
    return await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=_READERS,
        timeout=CONNECT_S,
        command_timeout=COMMAND_S,
        server_settings=_SETTINGS,
    )


def failure_of(error: BaseException) -> str | None:
    """Return one word for a fault of the whole database; ``None`` if a single row is at fault."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return next((_FAILURES[state[:size]] for size in (5, 3, 2) if state[:size] in _FAILURES), None)
    return "unreachable" if isinstance(error, DRIVER_ERRORS) else None


def store_error(error: BaseException) -> StoreError:
    """Translate an error into a message for the operator: what went wrong, and what to do."""
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
    """Describe an error without its message, which may quote a row."""
    constraint = getattr(error, "constraint_name", None)
    state = getattr(error, "sqlstate", None)
    words = [type(error).__name__, *([state] if state else []), *([constraint] if constraint else [])]
    return " ".join(str(word) for word in words)


async def _rolled_back(connection: "asyncpg.Connection[Any]", transaction: Transaction) -> bool:
    """Roll back; return whether the connection is usable, outside a transaction."""
    with contextlib.suppress(*DRIVER_ERRORS):
        if connection.is_in_transaction():  # A refused commit has already ended it.
            await transaction.rollback()
        return not connection.is_closed()
    return False


class PostgresReader:
    """A connection with the interface of :class:`~proxy.store.sql.base.SqlReader`.

    A query may take ``timeout_s`` seconds; the default is the connection's own limit.
    """

    def __init__(self, connection: Connection, timeout_s: float | None = None) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    async def execute_fetchall(
        self, sql: str, parameters: Iterable[Any] | None = None, /
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of a query."""
        found = await self._connection.fetch(
            numbered(sql), *fitting(parameters or ()), timeout=self._timeout_s
        )
        return [tuple(row.values()) for row in found]


class PostgresWriting:
    """The connection that writes; it is opened when needed, and again after it broke.

    ``lost`` is called when the connection breaks, whether or not it is in use.
    """

    def __init__(self, url: str, settings: dict[str, str], lost: Callable[[], None]) -> None:
        self._url = url
        self._settings = settings
        self._lost = lost
        self._connection: asyncpg.Connection[Any] | None = None

    async def connection(self) -> "asyncpg.Connection[Any]":
        """Return the connection, after opening one if there is none; raises :class:`WriteError`."""
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await connect(self._url, **self._settings)
            except DRIVER_ERRORS as error:
                raise WriteError(failure_of(error) or "unreachable", _name(error)) from error
            self._connection.add_termination_listener(self._terminated)
        return self._connection

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit all batches in one transaction; without a batch, check that there is a connection."""

        async def work(connection: "asyncpg.Connection[Any]") -> None:
            for statement, rows in batches:
                await connection.executemany(numbered(statement), [fitting(row) for row in rows])

        await self.transaction(work)

    async def transaction(self, work: "Callable[[asyncpg.Connection[Any]], Awaitable[None]]") -> None:
        """Commit all of ``work`` or nothing; raises :class:`WriteError`."""
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
        except BaseException:  # The end of the session also ends this work, so no rollback is needed.
            self._drop()
            raise

    async def aclose(self) -> None:
        """Close the connection; the server frees the locks of its session."""
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
