"""What happens in the record, for pages that watch: one look a second, for all who listen at this process.

A run writes its rows as ever and knows of nobody who watches; only who listens makes this process look.
Other processes and machines write to the same record, so all of them are seen.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import structlog

from proxy.errors import StoreError
from proxy.records import RunRecord
from proxy.server.api.json_output import to_line
from proxy.server.ui.run_rows import RunRows
from proxy.store.base import CalledTool, RunFilter, Store

__all__ = ["POLL_S", "Event", "Feed", "Listener", "PendingApprovals"]

POLL_S: Final = 1.0
_NEWEST: Final = 100
_RUNNING: Final = 200
_MOST_ENDED: Final = 20
_KNOWN: Final = 600
_REPLAYED: Final = 300
_MOST_PENDING: Final = 300
_MAX_EVENT_BYTES: Final = 8 * 1024
_LONG: Final = ("offered", "withheld", "left_out", "calls")
"""Lists of a row, which a page can read of the run itself."""

PendingApprovals = Callable[[], Awaitable[list[dict[str, Any]]]]
"""The newest approvals, each a row with its ``id`` and ``state``."""


@dataclass(frozen=True, slots=True)
class Event:
    """``key`` names what it is about: a later one of the same key stands for it.  ``seq`` counts from 1."""

    seq: int
    name: str
    key: str
    data: str


@dataclass(eq=False, slots=True)
class Listener:
    """What waits for one page; bounded, since of each thing only the newest word waits."""

    pending: "OrderedDict[str, Event]" = field(default_factory=OrderedDict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    missed: bool = False

    def put(self, event: Event) -> None:
        self.pending.pop(event.key, None)
        self.pending[event.key] = event
        if len(self.pending) > _MOST_PENDING:
            self.pending.clear()
            self.missed = True
        self.woken.set()

    def take(self) -> tuple[list[Event], bool]:
        """What waits, oldest first, and whether more has been missed."""
        events, missed = list(self.pending.values()), self.missed
        self.pending.clear()
        self.missed = False
        self.woken.clear()
        return events, missed


class Feed:
    """The listeners of this process, and the one task that looks for them."""

    def __init__(self, store: Store, rows: RunRows, epoch: str, approvals: PendingApprovals | None) -> None:
        """``epoch`` tells this process from others, and from itself before a restart."""
        self._store = store
        self._rows = rows
        self._epoch = epoch
        self._approvals = approvals
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen: OrderedDict[str, tuple[Any, ...]] = OrderedDict()
        self._ring: deque[Event] = deque(maxlen=_REPLAYED)
        self._seq = 0
        self._ready = asyncio.Event()
        self._away = False
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    @property
    def listeners(self) -> int:
        """How many pages listen now."""
        return len(self._listeners)

    @property
    def cursor(self) -> str:
        """Where a page is that has seen all."""
        return f"{self._epoch}-{self._seq}"

    def id_of(self, event: Event) -> str:
        """The cursor behind an event."""
        return f"{self._epoch}-{event.seq}"

    async def join(self, after: str | None) -> Listener:
        """Listen from now on, and from the cursor ``after`` where that is known still.

        Returns once this process has looked, so that what a page lists afterwards misses nothing.
        """
        listener = Listener()
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._begin()
        try:
            await self._ready.wait()
        except asyncio.CancelledError:
            self.leave(listener)
            raise
        if after:
            self._repeat(listener, after)
        return listener

    def leave(self, listener: Listener) -> None:
        """Listen no more; the last one ends the looking."""
        self._listeners.discard(listener)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    def tell(self, name: str, key: str, data: Mapping[str, Any]) -> None:
        """Tell all who listen of something that is in no record."""
        if self._listeners:
            self._put(name, key, dict(data))

    def _begin(self) -> None:
        """Begin to look, knowing nothing: what happened while nobody listened is no news."""
        self._seen.clear()
        self._ring.clear()
        self._seq += 1
        self._ready = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(self._ready), name="ui-feed")

    async def _run(self, ready: asyncio.Event) -> None:
        while True:
            try:
                await self._look(news=ready.is_set())
                self._away = False
            except StoreError as error:
                if not self._away:
                    self._away = True
                    self._log.warning("ui_feed_unread", reason=str(error))
            except Exception:  # noqa: BLE001
                # The boundary of this task: pages would wait for ever for one that has died.
                self._log.exception("ui_feed_failed")
            ready.set()
            await asyncio.sleep(POLL_S)

    async def _look(self, *, news: bool) -> None:
        newest = await self._store.list_runs(RunFilter(limit=_NEWEST))
        running = await self._store.list_runs(RunFilter(status="running", limit=_RUNNING))
        found = {run.id: run for run in (*running, *newest)}
        for run_id in await self._ended(found):
            detail = await self._store.get_run(run_id)
            if detail is not None:
                found[run_id] = detail.run
        called = await self._store.called_tools([run.id for run in found.values() if self._may_differ(run)])
        changed: list[RunRecord] = []
        # The oldest first, so that the newest comes last and on top.
        for run in sorted(found.values(), key=lambda run: (run.started_at, run.id)):
            if not self._may_differ(run):
                continue
            now = _fingerprint(run, called.get(run.id, ()))
            if self._seen.get(run.id) != now:
                changed.append(run)
            self._seen[run.id] = now
            self._seen.move_to_end(run.id)
        while len(self._seen) > _KNOWN:
            self._seen.popitem(last=False)
        if news:
            for row in await self._rows.of(changed):
                self._put("run", f"run:{row['id']}", row)
        await self._look_at_approvals(news=news)
        count = sum(run.status == "running" for run in found.values())
        self._put_if_new("stats", {"running": count, "listeners": len(self._listeners)})

    async def _ended(self, found: Mapping[str, RunRecord]) -> list[str]:
        """Runs that were under way and are in neither list now."""
        gone = [run_id for run_id, seen in self._seen.items() if seen[0] == "running" and run_id not in found]
        return gone[:_MOST_ENDED]

    def _may_differ(self, run: RunRecord) -> bool:
        """Whether a run has to be looked at: one that has ended, and was seen so, stays as it is."""
        seen = self._seen.get(run.id)
        return seen is None or run.status == "running" or seen[: len(_state(run))] != _state(run)

    async def _look_at_approvals(self, *, news: bool) -> None:
        if self._approvals is None:
            return
        for row in await self._approvals():
            key = f"approval:{row['id']}"
            now = (row.get("state"), row.get("status"), row.get("decided_at"))
            if self._seen.get(key) != now and news:
                self._put("approval", key, row)
            self._seen[key] = now

    def _put_if_new(self, name: str, data: dict[str, Any]) -> None:
        now = tuple(data.values())
        if self._seen.get(name) != now:
            self._seen[name] = now
            self._put(name, name, data)

    def _put(self, name: str, key: str, data: dict[str, Any]) -> None:
        line = to_line(data)
        if len(line) > _MAX_EVENT_BYTES:
            line = to_line(
                {**data, **{name: type(data[name])() for name in _LONG if name in data}, "cut": True}
            )
        if len(line) > _MAX_EVENT_BYTES:
            line = orjson.dumps({"id": data.get("id"), "cut": True}).decode()
        self._seq += 1
        event = Event(self._seq, name, key, line)
        self._ring.append(event)
        for listener in self._listeners:
            listener.put(event)

    def _repeat(self, listener: Listener, after: str) -> None:
        epoch, _, seq = after.rpartition("-")
        known = epoch == self._epoch and seq.isdecimal() and len(seq) < 16
        first = self._ring[0].seq if self._ring else self._seq + 1
        if not known or not first - 1 <= int(seq) <= self._seq:
            listener.missed = True
            listener.woken.set()
            return
        for event in self._ring:
            if event.seq > int(seq) and event.key not in listener.pending:
                listener.put(event)


def _state(run: RunRecord) -> tuple[Any, ...]:
    return (run.status, run.ended_at, run.turns, run.tool_calls, run.error_code)


def _fingerprint(run: RunRecord, calls: Sequence[CalledTool]) -> tuple[Any, ...]:
    """What a row says that may change."""
    return (*_state(run), tuple((call.tool, call.status) for call in calls))
