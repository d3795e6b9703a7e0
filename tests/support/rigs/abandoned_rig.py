"""A run of several turns that its process abandons at any moment, and another process that finds it then.

The record is copied at each moment: a copy holds what a process that dies then leaves behind, since nobody
holds its owners' locks or renews their leases. A proxy on a copy goes on with the run.
"""

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pair_kits import SPEAKERS, Call, Turn
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import Proxy, make_config, running
from store_postgres import SERVER, fetch, need_postgres, new_schema
from waiting import LATE_S, PATIENCE_S, until

from proxy.api.detached import take_over
from proxy.config.load import Config
from proxy.config.secret import Secret
from proxy.store.sqlite.owners import lock_folder
from proxy.tools import Redaction, tool

LOOK, STRIKE = "abandoned_rig__look", "abandoned_rig__strike"
PLAN: Sequence[Sequence[tuple[str, Any]]] = (
    ((LOOK, 1),),
    ((STRIKE, "a"),),
    ((LOOK, 2), (STRIKE, "b"), (STRIKE, "c")),
    (),
)
"""The calls of each turn; the last turn has none, so it is the answer."""


@dataclass
class World:
    """What the models and the tools of a test did. ``reach`` is awaited at each place that they reach."""

    plan: Sequence[Sequence[tuple[str, Any]]] = PLAN
    struck: list[str] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    reach: Callable[[str], Awaitable[None]] | None = None

    async def at(self, place: str) -> None:
        """Say that a place is reached."""
        if self.reach is not None:
            await self.reach(place)

    def script(self, upstream: str) -> Callable[[RawRequest], Sequence[Step]]:
        """Return the script of a model that keeps to the plan, and says another word at each request."""
        speaker, tasks = SPEAKERS[upstream], set[asyncio.Task[None]]()

        def held(place: str) -> asyncio.Event:
            free = asyncio.Event()

            async def wait() -> None:
                await self.at(place)
                free.set()

            task = asyncio.get_running_loop().create_task(wait())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return free

        def answer(request: RawRequest) -> Sequence[Step]:
            if request.method != "POST":
                return speaker.refused("404 Not Found", "nothing is here")
            results = sum(one.role == "tool" for one in speaker.got(json.loads(request.body)).messages)
            turn = next(at for at in range(len(self.plan)) if sum(map(len, self.plan[:at])) == results)
            self.turns.append(turn + 1)
            calls = [
                Call(f"call_{turn}_{at}", name, {"name": given})
                for at, (name, given) in enumerate(self.plan[turn])
            ]
            said = Turn(f"Turn {turn + 1}, {secrets.token_hex(4)}. ", calls, (10, 5))
            opening, *rest = speaker.script(said)
            middle = len(rest) // 2
            before, within = held(f"asked {turn + 1}"), _Later(held, f"within {turn + 1}")
            return [before, opening, *rest[:middle], within, *rest[middle:]]

        return answer


class _Later(asyncio.Event):
    """A step that is reached when the upstream waits for it."""

    def __init__(self, held: Callable[[str], asyncio.Event], place: str) -> None:
        super().__init__()
        self._held = held
        self._place = place

    async def wait(self) -> Any:
        """Say that the place is reached, and wait until it may be left."""
        await self._held(self._place).wait()


WORLD = World()
"""The world of the test that runs now."""


@tool(effect="read_only", redaction=Redaction(output=("seen",)))
async def look(name: int) -> dict[str, str]:
    """Look at the world, which looks different each time."""
    await WORLD.at(f"look {name} begins")
    WORLD.looked.append(name)
    return {"seen": secrets.token_hex(4)}


@tool(effect="external_side_effect", redaction=Redaction(output=("done",)))
async def strike(name: str) -> dict[str, str]:
    """Change the world."""
    await WORLD.at(f"strike {name} begins")
    WORLD.struck.append(name)
    await WORLD.at(f"strike {name} is over")
    return {"done": secrets.token_hex(4)}


@dataclass(frozen=True)
class Left:
    """What a process left behind that died at a ``place``: its record, and what had happened by then.

    ``settled`` says that all its writes were stored. ``shown`` are the bytes or events that readers had.
    """

    place: str
    settled: bool
    url: str
    struck: Sequence[str]
    turns: Sequence[int]
    shown: Any


def turns_complete(left: Left) -> int:
    """Return how many turns were answered in full at a place."""
    kind, _, rest = left.place.partition(" ")
    number = int(rest.split()[0]) if kind in ("asked", "within") else len(left.turns) + 1
    return number - 1


class Records:
    """Records of one kind, and copies of them."""

    def __init__(self, kind: str, folder: Path, stack: AsyncExitStack) -> None:
        self._kind = kind
        self._folder = folder
        self._stack = stack
        self._count = 0

    async def new(self) -> str:
        """Return the URL of an empty record."""
        self._count += 1
        if self._kind == "postgres":
            return await self._stack.enter_async_context(new_schema())
        return f"sqlite:///{self._folder / f'r{self._count}.db'}"

    async def copy(self, url: str) -> str:
        """Return the URL of a copy of a record as it is now, whose owners have died."""
        copied = await self.new()
        if self._kind != "postgres":
            with (
                sqlite3.connect(url.removeprefix("sqlite:///")) as source,
                sqlite3.connect(copied.removeprefix("sqlite:///")) as target,
            ):
                source.backup(target)
            source.close()
            target.close()
            there, here = (lock_folder(Path(one.removeprefix("sqlite:///"))) for one in (url, copied))
            here.mkdir(mode=0o700)
            for lock in there.iterdir():  # A file that nobody locks proves that its owner has died.
                (here / lock.name).touch(mode=0o600)
            return copied
        old, new = (one.rpartition("=")[2] for one in (url, copied))
        columns = await fetch(SERVER, _COLUMNS, old)
        made = "".join(f"CREATE TABLE {new}.{t} (LIKE {old}.{t} INCLUDING ALL);" for t, _ in columns)
        filled = "".join(
            f"INSERT INTO {new}.{t} ({named}) OVERRIDING SYSTEM VALUE SELECT {named} FROM {old}.{t};"
            for t, named in columns
        )
        snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;"
        await _run(f"BEGIN;{snapshot}{made}{filled}UPDATE {new}.owners SET lease_until = 0;COMMIT;")
        return copied


_COLUMNS = (
    "SELECT c.table_name, string_agg(quote_ident(c.column_name), ', ') FROM information_schema.columns c "
    "JOIN pg_tables t ON t.schemaname = c.table_schema AND t.tablename = c.table_name "
    "WHERE c.table_schema = $1 AND c.is_generated = 'NEVER' GROUP BY c.table_name"
)


async def _run(sql: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(SERVER, timeout=PATIENCE_S)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@dataclass
class Abandoned:
    """A model, its tools, and the records of the processes that run them. ``config`` makes a proxy's."""

    upstream: RawUpstream
    wire: str
    records: Records
    sections: dict[str, Any]
    name: str = "default"

    def config(self, record: str) -> Config:
        """Return the configuration of a proxy with a record."""
        return make_config(
            {"name": self.name, "base_url": self.upstream.url, "wires": (self.wire,), "retries": 0},
            modules=("abandoned_rig",),
            allow=(LOOK, STRIKE),
            store={"url": record, "seal_key": Secret("env:SEAL", "ab" * 32)},
            tools={"timeout_s": LATE_S, "keepalive_s": LATE_S},
            limits={"requests": (), "tool_calls": ()},
            **self.sections,
        )

    async def until_the_end(
        self,
        serve: Callable[[Proxy], Awaitable[Any]],
        shown: Callable[[Proxy], Sequence[Any]] | None = None,
        places: Collection[str] = (),
        found: Left | None = None,
    ) -> tuple[list[Left], Any]:
        """Let a proxy serve a run to its end. Return what it left at each place, or at these ``places``, with
        all writes stored; and what ``serve`` returned. The proxy begins with an empty record, or with what it
        has ``found``.

        ``shown`` returns what readers have at a moment.
        """
        left: list[Left] = []
        reached: list[Any] = []
        record = await self.records.new() if found is None else found.url
        WORLD.struck[:], WORLD.turns[:] = () if found is None else found.struck, []
        async with running(self.config(record)) as proxy:

            async def reach(place: str) -> None:
                if shown and place.startswith("within"):  # What was sent before it arrives a moment later.
                    await until(lambda: len(shown(proxy)) > len(reached[-1]))
                reached.append(shown(proxy) if shown else ())
                if places and place not in places:
                    return
                for settled in (True,) if places else (False, True):
                    if settled:
                        assert await proxy.services.store.wait_until_visible(PATIENCE_S)
                    left.append(
                        Left(
                            place,
                            settled,
                            await self.records.copy(record),
                            tuple(WORLD.struck),
                            tuple(WORLD.turns),
                            reached[-1],
                        )
                    )

            WORLD.reach = reach
            claim = proxy.services.store.claim_effect

            async def claiming(row: Any, wanted: Any) -> Any:
                await WORLD.at(f"{row.tool} is about to be claimed")
                return await claim(row, wanted)

            proxy.services.store.claim_effect = claiming  # type: ignore[assignment,method-assign]
            done = await serve(proxy)
            WORLD.reach = None
        return left, done

    @asynccontextmanager
    async def found(self, left: Left) -> AsyncIterator[Proxy]:
        """Run a proxy that finds what another one left; the world is as it was then."""
        WORLD.struck[:], WORLD.turns[:] = left.struck, []
        async with running(self.config(left.url)) as proxy:
            yield proxy


@asynccontextmanager
async def abandoned(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str, wire: str, **sections: Any
) -> AsyncIterator[Abandoned]:
    """Run a model of a dialect, for proxies with records of a kind, ``sqlite`` or ``postgres``."""
    if kind == "postgres":
        need_postgres()
    monkeypatch.setattr(take_over, "_LOOK_EVERY_S", 0.02)
    WORLD.__init__()  # type: ignore[misc]
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RawUpstream(WORLD.script(wire)))
        yield Abandoned(upstream, wire, Records(kind, folder, stack), sections)
