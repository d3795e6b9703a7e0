"""Report changes of the record to open pages: this process reads it once a second for all of them.

Runs write their rows as usual, whether or not a page listens. This process reads only while a page listens.
Other processes and machines write to the same record, so the pages see their runs, too.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from msgspec import Struct, field

from proxy.api.admin.json_output import to_line
from proxy.base.errors import StoreError
from proxy.records.rows import RunRecord
from proxy.store.base import RunFilter, Store
from proxy.ui.runs.run_rows import RunRows

POLL_S: Final = 1.0
_NEWEST: Final = 100
_RUNNING: Final = 200
_MOST_ENDED: Final = 20
_KNOWN: Final = 600
_REPLAYED: Final = 300
_MOST_PENDING: Final = 300
_MAX_EVENT_BYTES: Final = 8 * 1024
_LONG: Final = ("offered", "withheld", "left_out", "calls")
"""Lists that are left out of a long row; a page can read them from the run itself."""

PendingApprovals = Callable[[], Awaitable[list[dict[str, Any]]]]
"""Returns the waiting approvals and the newest others; each row has its ``id``, ``tool`` and ``status``."""


class FeedEvent(Struct, frozen=True):
    """A change.

    ``key`` names its subject: a later event with the same key replaces it. ``seq`` counts from 1. ``tool``
    is the tool of an approval, and ``caller`` that of a run or an approval: who is no administrator gets only
    events about the tools that they decide about, and about their own runs.
    """

    seq: int
    name: str
    key: str
    data: str
    tool: str = ""
    caller: str = ""


class FeedListener(Struct, eq=False):
    """The events that wait for one page. Only the newest event of each key waits, so their number is
    limited."""

    pending: "OrderedDict[str, FeedEvent]" = field(default_factory=OrderedDict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    missed: bool = False

    def put(self, event: FeedEvent) -> None:
        self.pending.pop(event.key, None)
        self.pending[event.key] = event
        if len(self.pending) > _MOST_PENDING:
            self.pending.clear()
            self.missed = True
        self.woken.set()

    def take(self) -> tuple[list[FeedEvent], bool]:
        """Remove and return the waiting events, oldest first, and whether others were dropped."""
        events, missed = list(self.pending.values()), self.missed
        self.pending.clear()
        self.missed = False
        self.woken.clear()
        return events, missed


class Feed:
    """The listeners of this process, and the one task that reads the record for them."""

    def __init__(self, store: Store, rows: RunRows, epoch: str, approvals: PendingApprovals | None) -> None:
        """Create the feed; ``epoch`` differs between processes, and between restarts of a process."""
        self._store = store
        self._rows = rows
        self._epoch = epoch
        self._approvals = approvals
        self._listeners: set[FeedListener] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen: OrderedDict[str, tuple[Any, ...]] = OrderedDict()
        self._approvals_seen: dict[str, tuple[Any, ...]] = {}
        self.waiting: tuple[str, ...] = ()
        """The tools of the calls that wait for approval, as last read."""
        self._stats: FeedEvent | None = None
        self._ring: deque[FeedEvent] = deque(maxlen=_REPLAYED)
        self._seq = 0
        self._ready = asyncio.Event()
        self._away = False
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    @property
    def listeners(self) -> int:
        """The number of pages that listen now."""
        return len(self._listeners)

    @property
    def cursor(self) -> str:
        """The cursor of a page that has seen all events."""
        return f"{self._epoch}-{self._seq}"

    def id_of(self, event: FeedEvent) -> str:
        """Return the cursor after an event."""
        return f"{self._epoch}-{event.seq}"

    async def join(self, after: str | None) -> FeedListener:
        """Listen from now on, or from the cursor ``after`` if its events are still known.

        Returns after this process has read the record once, so a page that lists runs afterwards misses no
        change.
        """
        listener = FeedListener()
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._begin()
        try:
            await self._ready.wait()
        except asyncio.CancelledError:
            self.leave(listener)
            raise
        if self._stats is not None:
            listener.put(self._stats)
        if after:
            self._repeat(listener, after)
        return listener

    def leave(self, listener: FeedListener) -> None:
        """Stop listening. The task ends with the last listener."""
        self._listeners.discard(listener)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    def tell(self, name: str, key: str, data: Mapping[str, Any]) -> None:
        """Send all listeners an event that is not in the record."""
        if self._listeners:
            self._put(name, key, dict(data))

    def _begin(self) -> None:
        """Start the task without earlier state: changes while no page listened are not sent."""
        self._seen.clear()
        self._approvals_seen = {}
        self._stats = None
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
                # The boundary of this task: if it died, pages would wait forever.
                self._log.exception("ui_feed_failed")
            ready.set()
            await asyncio.sleep(POLL_S)

    async def _look(self, *, news: bool) -> None:
        newest = await self._store.list_runs(RunFilter(limit=_NEWEST))
        running = await self._store.list_runs(RunFilter(status="running", limit=_RUNNING))
        runs = {run.id: run for run in (*running, *newest)}
        for run_id in self._ended(runs):
            detail = await self._store.get_run(run_id)
            if detail is not None:
                runs[run_id] = detail.run
        called = await self._store.called_tools([run.id for run in runs.values() if self._may_differ(run)])
        changed: list[RunRecord] = []
        # Oldest first, so that the page shows the newest on top.
        for run in sorted(runs.values(), key=lambda run: (run.started_at, run.id)):
            if not self._may_differ(run):
                continue
            now = *_state(run), tuple((call.tool, call.status) for call in called.get(run.id, ()))
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
        count = sum(run.status == "running" for run in runs.values())
        self._put_stats({"running": count, "listeners": len(self._listeners)})

    def _ended(self, runs: Mapping[str, RunRecord]) -> list[str]:
        """Return runs that were running when last seen, and are in neither list now."""
        gone = [run_id for run_id, seen in self._seen.items() if seen[0] == "running" and run_id not in runs]
        return gone[:_MOST_ENDED]

    def _may_differ(self, run: RunRecord) -> bool:
        """Return whether a run may have changed: not if it was seen in its present state after its end."""
        seen = self._seen.get(run.id)
        return seen is None or run.status == "running" or seen[: len(_state(run))] != _state(run)

    async def _look_at_approvals(self, *, news: bool) -> None:
        if self._approvals is None:
            return
        seen: dict[str, tuple[Any, ...]] = {}
        rows = await self._approvals()
        for row in rows:
            now = seen[row["id"]] = (row["status"], row.get("decided_at"))
            if self._approvals_seen.get(row["id"]) != now and news:
                self._put("approval", f"approval:{row['id']}", row)
        self._approvals_seen = seen
        self.waiting = tuple(row["tool"] for row in rows if row["status"] == "pending")

    def _put_stats(self, data: dict[str, Any]) -> None:
        now = (*data.values(), self.waiting)
        if self._seen.get("stats") != now:
            self._seen["stats"] = now
            self._put("stats", "stats", data | {"approvals_pending": len(self.waiting)})
            self._stats = self._ring[-1]

    def _put(self, name: str, key: str, data: dict[str, Any]) -> None:
        line = to_line(data)
        if len(line) > _MAX_EVENT_BYTES:
            line = to_line(
                {**data, **{name: type(data[name])() for name in _LONG if name in data}, "cut": True}
            )
        if len(line) > _MAX_EVENT_BYTES:
            short = {word: data.get(word) for word in ("id", "status", "tool") if word in data}
            line = to_line(short | {"cut": True})
        self._seq += 1
        event = FeedEvent(self._seq, name, key, line, str(data.get("tool", "")), str(data.get("caller", "")))
        self._ring.append(event)
        for listener in self._listeners:
            listener.put(event)

    def _repeat(self, listener: FeedListener, after: str) -> None:
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
