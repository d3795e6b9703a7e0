"""Access to PostgreSQL: connections, placeholders in its syntax, and what its errors mean.

No message created here contains a value of a row or a password; the server's own messages may.
"""

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.net.keepalive import watch_peer
from proxy.store.look_ups import Answer, QueryBatch

Connection: TypeAlias = "asyncpg.Connection[Any] | PoolConnectionProxy[Any]"

LOCK_CLASS: Final = 0x74726C79
"""The first half of the key of the migrations' advisory lock: the letters ``trly``."""

TOKEN_LOCK_CLASS: Final = LOCK_CLASS + 1
"""The first half of the keys of the locks under which tokens are refreshed."""

CONNECTIONS: Final = 9
"""The most connections of a process: to write, to hear of keys, for its lease, for two look-ups and a probe,
and for three reports."""

CONNECT_S: Final = 5.0
COMMAND_S: Final = 30.0
_GONE_AFTER_S: Final = 8
"""Seconds without a sign of the server's machine after which a connection is lost."""

_IDLE_S: Final = 300.0
"""Seconds after which an unused connection is not used again: a firewall may have forgotten it."""

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""All exceptions of the driver; a time-out is an OSError too."""

_SETTINGS: Final = {
    # A group that waits for a lock fails soon, and is written again later.
    "lock_timeout": "1000",
    # A host that is cut off must not hold the locks of a transaction for longer than its lease.
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "8000",
    "idle_in_transaction_session_timeout": "8000",
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
    """Open a connection with the settings here and ``more``; raises the driver's errors.

    Raises ValueError for a URL that is none.
    """
    connection = await open_session(url)
    try:
        await set_up(connection, url, **more)
    except BaseException:  # A cancelled caller must not leave a connection open.
        connection.terminate()
        raise
    return connection


async def open_session(url: str) -> "asyncpg.Connection[Any]":
    """Open a connection and set nothing in its session; raises the errors of :func:`connect`."""
    bare, _ = _apart(url)
    connection = await asyncpg.connect(
        bare,
        timeout=CONNECT_S,
        command_timeout=COMMAND_S,
        server_settings={"application_name": "toolrelay"},
    )
    # asyncpg has no public name for the socket, nor a parameter for its options.
    transport: asyncio.Transport | None = getattr(connection, "_transport", None)
    if transport is not None:
        watch_peer(transport.get_extra_info("socket"), _GONE_AFTER_S)
    return connection


async def set_up(connection: "asyncpg.Connection[Any]", url: str, **more: str) -> None:
    """Set the settings here, the URL's and ``more`` in a session; raises the driver's errors.

    Not with the start of the connection: PgBouncer refuses a client with start-up parameters that it does not
    know (https://www.pgbouncer.org/config.html#ignore_startup_parameters), and knows none of these.
    """
    _, of_url = _apart(url)
    settings = {**_SETTINGS, **of_url, **more}
    await connection.execute(
        "SELECT "
        + ", ".join(f"set_config({_quoted(name)}, {_quoted(settings[name])}, false)" for name in settings)
    )


def _apart(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without ``search_path``, and that as a setting."""
    head, mark, query = url.partition("?")
    named = [each.partition("=") for each in query.split("&")] if mark else []
    rest = "&".join("".join(each) for each in named if each[0] != "search_path")
    settings = {name: unquote(value) for name, _, value in named if name == "search_path"}
    return f"{head}?{rest}" if rest else head, settings


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
    if isinstance(error, asyncpg.ProtocolViolationError):
        # What a pooler answers that cannot, or may not, serve a client; it names no row.
        return StoreUnavailable(
            f"the server, or a pooler before it, refused the connection: {str(error)[:200]}; check its "
            "settings and store.url"
        )
    failure = failure_of(error)
    if failure == "unreachable":
        return StoreUnavailable(
            "PostgreSQL is not reachable; check that it runs, and that store.url is right"
        )
    if failure is not None:
        return StoreUnavailable(f"the record in PostgreSQL cannot be used: {failure}")
    return StoreError(f"PostgreSQL refused a statement: {error_name(error)}")


def error_name(error: BaseException) -> str:
    """Describe an error without its message, which may quote a row."""
    constraint = getattr(error, "constraint_name", None)
    state = getattr(error, "sqlstate", None)
    parts = [type(error).__name__, *([state] if state else []), *([constraint] if constraint else [])]
    return " ".join(str(word) for word in parts)


class PostgresConnections:
    """Connections for reading, each opened when it is needed, and kept for the next use.

    In place of asyncpg's pool, which resets what was set in a session, and takes a round trip for it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[tuple[float, asyncpg.Connection[Any]]] = []
        self.closed = False

    @contextlib.asynccontextmanager
    async def lend(self) -> "AsyncIterator[asyncpg.Connection[Any]]":
        """Lend a connection, which nobody else uses inside the block; raises the driver's errors.

        A block that fails or is cancelled ends the connection: an answer may be unread on it.
        """
        if self.closed:
            raise StoreUnavailable("the record is closed")
        connection = self._take() or await connect(self._url)
        try:
            yield connection
        except BaseException:  # Also of a cancelled reader: nobody may get its answer.
            connection.terminate()
            raise
        self._give_back(connection)

    def drop_idle(self) -> None:
        """End the connections that nobody uses: what broke one may have broken them all."""
        for _, connection in self._idle:
            connection.terminate()
        self._idle.clear()

    async def aclose(self) -> None:
        """End what nobody uses now, and the others after their use. Idempotent."""
        self.closed = True
        idle, self._idle = self._idle, []
        for _, connection in idle:
            try:
                await connection.close(timeout=CONNECT_S)
            except DRIVER_ERRORS:
                connection.terminate()

    def _give_back(self, connection: "asyncpg.Connection[Any]") -> None:
        if self.closed:
            connection.terminate()
        else:
            self._idle.append((time.monotonic(), connection))

    def _take(self) -> "asyncpg.Connection[Any] | None":
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < _IDLE_S and not connection.is_closed():
                return connection
            connection.terminate()
        return None


async def answer(connection: Connection, batch: QueryBatch) -> list[Answer]:
    """Return the rows of each query, or its error; raises the driver's errors for a fault of the database.

    Queries with the same text take one round trip together, which is a step of the batch.
    """
    queries = batch.queries
    answers: list[Answer] = [()] * len(queries)
    places: dict[str, list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(query.sql, []).append(place)
    for sql, indices in places.items():
        if len(indices) > 1:
            try:
                collected: dict[int, list[Any]] = {place: [] for place in indices}
                each = [(place, *fitting(queries[place].values)) for place in indices]
                for row in await connection.fetchmany(numbered(f"SELECT ?::int, q.* FROM ({sql}) q"), each):
                    place, *values = row.values()
                    collected[place].append(tuple(values))
            except asyncpg.PostgresError as error:
                if failure_of(error) is not None:
                    raise
            else:
                for place in indices:
                    answers[place] = collected[place]
                batch.steps += 1
                continue
        for place in indices:  # Alone, or because one of them is at fault.
            try:
                answers[place] = await PostgresReader(connection).execute_fetchall(sql, queries[place].values)
            except asyncpg.PostgresError as error:
                if failure_of(error) is not None:
                    raise
                answers[place] = store_error(error)
            batch.steps += 1
    return answers


class PostgresReader:
    """A connection with the interface of :class:`~proxy.store.sql.base.SqlReader`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def execute_fetchall(
        self, sql: str, parameters: Iterable[Any] | None = None, /
    ) -> Sequence[Sequence[Any]]:
        rows = await self._connection.fetch(numbered(sql), *fitting(parameters or ()))
        return [tuple(row.values()) for row in rows]
