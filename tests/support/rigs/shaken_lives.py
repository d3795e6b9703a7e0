"""Processes that are killed and started again, all of them inside of the test's process.

A life is a whole proxy on a record. A kill is a copy of the record at one moment, in which the world stops to
change, too: the next life goes on with the copy and knows nothing of the one before, as after ``kill -9``.
What was killed may run on with the old record; its effects reach no world. So a kill costs nothing but the
copy.
"""

import asyncio
import contextlib
import secrets
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson
from running_proxy import Proxy, running
from store_postgres import SERVER, fetch, new_schema

from proxy.app.app import Overrides
from proxy.config.load import Config
from proxy.store.sql.store import INTERRUPT
from proxy.tools.contract.provider import CallContext, ToolProvider
from proxy.tools.contract.spec import Redaction, ToolSpec
from proxy.tools.programs.engine import Binding, Session, Step
from proxy.tools.providers.function import tool

_UNDER_WAY = "SELECT arguments_redacted FROM tool_invocations WHERE status = 'started'"
_TABLES = """
SELECT quote_ident(table_name), string_agg(quote_ident(column_name), ', ')
FROM information_schema.columns WHERE table_schema = $1 AND is_generated = 'NEVER' GROUP BY table_name
"""
_NEWEST = (
    "SELECT status FROM runs WHERE coalesce(parent_run, '') = '' ORDER BY started_at DESC, id DESC LIMIT 1"
)
_EXPIRE = "UPDATE approvals SET expires_at = 1 WHERE id = "


class Record(Protocol):
    """A database that can be copied."""

    @property
    def url(self) -> str:
        """Its URL."""

    async def copied(self) -> "Record":
        """Return a copy as it is now, whose writers are all dead."""

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a statement."""


@dataclass
class SqliteRecord:
    """A file in a folder of its own."""

    path: Path

    @property
    def url(self) -> str:
        """Its URL."""
        return f"sqlite:///{self.path}"

    async def copied(self) -> "SqliteRecord":
        """Copy the file with SQLite's own means, and the files of locks, which nobody holds in the copy."""
        copy = self.path.with_name(f"{secrets.token_hex(4)}.db")
        with (
            contextlib.closing(sqlite3.connect(self.path)) as old,
            contextlib.closing(sqlite3.connect(copy)) as new,
        ):
            old.backup(new)
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(f"{self.path}.owners", f"{copy}.owners")
        return SqliteRecord(copy)

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a statement on a connection of its own."""
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            return db.execute(sql).fetchall()


@dataclass
class PostgresRecord:
    """A schema. Those that are copied live until the first is dropped, which drops its sequences."""

    url: str
    name: str
    copies: list[str]

    async def copied(self) -> "PostgresRecord":
        """Copy all tables in one transaction, and end the leases of their owners."""
        import asyncpg

        name = f"toolrelay_{secrets.token_hex(8)}"
        connection = await asyncpg.connect(SERVER)
        try:
            async with connection.transaction(isolation="repeatable_read"):
                found = await connection.fetch(_TABLES, self.name)
                await connection.execute(f"CREATE SCHEMA {name}")
                self.copies.append(name)
                statements = [f"SET LOCAL search_path = {name}"]
                for table, columns in found:
                    old = f"{self.name}.{table}"
                    statements.append(f"CREATE TABLE {table} (LIKE {old} INCLUDING ALL)")
                    statements.append(
                        f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {old}"
                    )
                statements.append("UPDATE owners SET ended_at = 1 WHERE ended_at IS NULL")
                await connection.execute(";\n".join(statements))
                for statement in INTERRUPT:
                    await connection.execute(statement.replace("?", "$1"), 1.0)
        finally:
            await connection.close()
        return PostgresRecord(f"{SERVER}?search_path={name}", name, self.copies)

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a statement on a connection of its own."""
        return await fetch(self.url, sql)


@asynccontextmanager
async def new_record(kind: str, folder: Path) -> AsyncIterator[Record]:
    """Return an empty record of a kind; its copies go with it."""
    if kind == "sqlite":
        yield SqliteRecord(folder / "first.db")
        return
    async with new_schema() as url:
        first = PostgresRecord(url, url.rpartition("=")[2], [])
        try:
            yield first
        finally:
            for name in first.copies:
                await fetch(SERVER, f"DROP SCHEMA IF EXISTS {name} CASCADE")


@dataclass
class World:
    """What has happened outside, and which calls were under way when a process died."""

    effects: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    under_way: set[str] = field(default_factory=set)
    kills: list[str] = field(default_factory=list)


@dataclass
class Life:
    """One process. It dies at its point ``dies_at``, counted from 1; 0 is never."""

    world: World
    record: Record
    dies_at: int = 0
    points: int = 0
    next_record: Record | None = None
    dead: bool = False
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def point(self, name: str) -> None:
        """Come to a point at which the process may die."""
        self.points += 1
        if self.points != self.dies_at:
            return
        self.dead = True
        self.world.kills.append(name)
        try:
            self.world.under_way |= await under_way(self.record)
            self.next_record = await self.record.copied()
        finally:
            self.killed.set()

    def looked(self) -> int:
        """Return which look this is; no two have the same number."""
        self.world.looks += 1
        return self.world.looks

    def act(self, name: str) -> None:
        """Change the world."""
        if not self.dead:
            self.world.effects[name] += 1


async def under_way(record: Record) -> set[str]:
    """Return the names of the calls of programs that have begun and not ended."""
    found = [orjson.loads(arguments) for (arguments,) in await record.rows(_UNDER_WAY)]
    return {given["name"] for given in found if "name" in given}


async def is_answered(record: Record) -> bool:
    """Return whether the newest request has its whole answer, as far as the record knows."""
    rows = await record.rows(_NEWEST)
    return bool(rows) and rows[0][0] in ("suspended", "completed")


async def expire(record: Record, approval: str) -> None:
    """Let an approval expire."""
    assert approval.removeprefix("appr_").isalnum()
    await record.rows(f"{_EXPIRE}'{approval}'")


LIFE: ContextVar[Life] = ContextVar("LIFE")


@tool(effect="external_side_effect", redaction=Redaction())
async def act(name: str) -> str:
    """Change the world."""
    LIFE.get().act(name)
    return f"did {name}"


@tool(effect="external_side_effect", redaction=Redaction())
async def ask(name: str) -> str:
    """Change the world, after a person has approved it."""
    LIFE.get().act(name)
    return f"did {name}"


@tool(effect="read_only", redaction=Redaction())
async def look(name: str) -> str:
    """Read something that is different each time."""
    return f"saw {name} {LIFE.get().looked()}"


class _LifeTools:
    """The tools of one life: it may die before and after each call."""

    def __init__(self, inner: ToolProvider, life: Life) -> None:
        self._inner = inner
        self._life = life
        self.name = inner.name

    async def list_tools(self) -> Sequence[ToolSpec]:
        return await self._inner.list_tools()

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        if self.name != "shaken_lives":
            return await self._inner.call_tool(spec, arguments, context)
        LIFE.set(self._life)
        await self._life.point(f"before {spec.name}")
        made = await self._inner.call_tool(spec, arguments, context)
        await self._life.point(f"after {spec.name}")
        return made

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LifeEngine:
    """The engine of one life: it may die around each step of a program."""

    def __init__(self, inner: Any, life: Life) -> None:
        self._inner = inner
        self._life = life

    def session(self) -> "_LifeSession":
        return _LifeSession(self._inner.session(), self._life)


class _LifeSession:
    def __init__(self, inner: Session, life: Life) -> None:
        self._inner = inner
        self._life = life

    async def start(self, code: str, tools: Mapping[str, Binding], state: bytes = b"") -> Step:
        made: Step = await self._around("start", lambda: self._inner.start(code, tools, state))
        return made

    async def resume(self, results: Mapping[int, str]) -> Step:
        made: Step = await self._around("resume", lambda: self._inner.resume(results))
        return made

    async def dump(self) -> bytes:
        made: bytes = await self._around("dump", self._inner.dump)
        return made

    async def close(self) -> None:
        await self._inner.close()

    async def _around(self, name: str, act: Callable[[], Awaitable[Any]]) -> Any:
        await self._life.point(f"before {name}")
        made = await act()
        await self._life.point(f"after {name}")
        return made


@asynccontextmanager
async def living(config: Config, life: Life) -> AsyncIterator[Proxy]:
    """Run a proxy that may die around each commit, each step of a program and each call of a tool."""
    overrides = Overrides(wrap_provider=lambda inner: _LifeTools(inner, life))
    async with running(config, overrides) as proxy:
        runs: Any = proxy.services.links.programs
        runs._run._engine = _LifeEngine(runs._run._engine, life)
        database: Any = proxy.services.store
        writing = database._writer._db
        write = writing.write

        async def watched(batches: Any) -> None:
            await life.point("before commit")
            await write(batches)
            await life.point("after commit")

        writing.write = watched
        yield proxy
