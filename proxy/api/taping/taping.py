"""Decide which runs are recorded byte by byte, and where their bytes are kept.

Without a setting or an order nothing is recorded: a run reads two attributes, and upstreams are called
directly. A run whose client asked the proxy to keep nothing is never recorded.

An order of an administrator covers a limited number of runs and minutes. Captured bytes are content (rule
R3): they are sealed with the record and kept for an hour.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.api.taping.tape import Leg, Room, RunTape, Taped, TapedStream, read_tape
from proxy.base.caches import CacheSize, declare
from proxy.base.chance import Draws, Value, drawing
from proxy.base.errors import StoreError, UpstreamError
from proxy.http.secrets import Sink
from proxy.records.rows import KeptResult, KeptWire
from proxy.relay.base import ClientStream
from proxy.relay.run.job import Job
from proxy.store.base import Store
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse


class TapedUpstream:
    """An upstream that records its traffic while any run is recorded, and is called directly otherwise.

    ``current`` returns the tape of the current run, or ``None``.
    """

    def __init__(self, inner: Upstream, current: Callable[[], RunTape | None]) -> None:
        self.name = inner.name
        self._inner = inner
        self._current = current
        self.open: Callable[[UpstreamRequest], Any] = inner.open

    def listen(self, on: bool) -> None:
        """Record the requests of recorded runs (``on``), or call the upstream directly."""
        self.open = self._open if on else self._inner.open

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _open(self, request: UpstreamRequest) -> UpstreamResponse:
        tape = self._current()
        if tape is None:
            return await self._inner.open(request)
        number = tape.asked(self.name, request.path, request.body)
        try:
            response = await self._inner.open(request)
        except UpstreamError as error:
            tape.failed(number, error.code, error.message)
            raise
        return _TapedResponse(response, tape, tape.answered(number, response.status, response.content_type))


class _TapedResponse:
    """A response that records its pieces as they arrive."""

    def __init__(self, inner: UpstreamResponse, tape: RunTape, leg: Leg) -> None:
        self._inner = inner
        self._tape = tape
        self._leg = leg
        self.status = inner.status
        self.headers = inner.headers
        self.content_type = inner.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        with self._broken():
            async for piece in self._inner.chunks():
                self._tape.record(self._leg, piece)
                yield piece

    def push(self, sink: Sink) -> Awaitable[None] | None:
        with self._broken():
            rest = self._inner.push(self._tape.recording_sink(self._leg, sink))
        return None if rest is None else self._rest(rest)

    async def _rest(self, rest: Awaitable[None]) -> None:
        with self._broken():
            await rest

    async def read(self, limit: int) -> bytes:
        with self._broken():
            whole = await self._inner.read(limit)
        self._tape.record(self._leg, whole)
        return whole

    @contextmanager
    def _broken(self) -> Iterator[None]:
        """Record the error if the upstream breaks off."""
        try:
            yield
        except UpstreamError as error:
            self._leg.error = (error.code, error.message)
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


CAPTURES: Final = "captures"
"""The name under which the processes of a port notify each other of a new order."""
MOST_RUNS: Final = 100
MOST_S: Final = 3600.0
_MOST_ORDERS: Final = 20
_MARK: Final = "capture:"
_ENDED: Final = "capture-end:"


class Order(Struct, eq=False):
    """An order to capture the next ``runs`` runs of a key until a time.

    ``key`` is empty for all callers; ``until`` is in epoch seconds; ``by`` is the administrator. ``left`` is
    the number of runs that this process may still capture.
    """

    id: str
    key: str
    runs: int
    until: float
    by: str
    left: int = 0
    bytes: int = 0

    def fits(self, caller: str, now: float) -> bool:
        """Return whether this order captures a run of the caller now."""
        return self.left > 0 and now < self.until and (not self.key or caller.partition("/")[0] == self.key)

    def as_json(self, key_name: str | None = None) -> dict[str, Any]:
        """Return the order as the pages of the web UI get it."""
        return {
            "id": self.id,
            "key": key_name or self.key or None,
            "runs": self.runs,
            "runs_left": self.left,
            "until": self.until,
            "by": self.by,
            "bytes": self.bytes,
        }


class Captures:
    """The orders that this process knows.

    ``refused`` is the reason why orders are not allowed, or ``None`` if they are. ``changed`` is called when
    the orders change.
    """

    def __init__(self, store: Store, refused: str | None, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._loading: asyncio.Task[None] | None = None
        self.refused = refused
        self.orders: Sequence[Order] = ()
        """The orders that may still capture something; each run reads this."""
        self.changed: Callable[[], None] = _nothing

    async def ask(self, order: Order) -> None:
        """Start an order in this process, and store it for the other processes; raises StoreError."""
        name = f"{_MARK}{order.id}:{order.runs}:{order.by[:40]}:{order.key}"
        await self._store.mark_once(name, order.until)
        self._set([*self.live(), order])

    async def end(self, order_id: str) -> bool:
        """End an order, and return whether it existed. Raises StoreError."""
        orders = [order for order in self.live() if order.id == order_id]
        for order in orders:
            await self._store.mark_once(f"{_ENDED}{order_id}", order.until)
        self._set([order for order in self.live() if order.id != order_id])
        return bool(orders)

    def live(self) -> list[Order]:
        """Return the orders whose time has not passed."""
        now = self._now()
        return [order for order in self.orders if now < order.until]

    def report(self) -> bytes:
        """Return how many runs each order has left, as JSON, and start to read the orders of other
        processes."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._load())
        return orjson.dumps({order.id: order.left for order in self.orders})

    async def _load(self) -> None:
        try:
            marks, ended = await self._store.marks(_MARK), await self._store.marks(_ENDED)
        except StoreError:
            return
        known = {order.id: order for order in self.orders}
        orders = []
        for name, until in marks.items():
            order_id, _, rest = name.removeprefix(_MARK).partition(":")
            runs, _, rest = rest.partition(":")
            by, _, key = rest.partition(":")
            if f"{_ENDED}{order_id}" not in ended and runs.isdecimal():
                made = Order(order_id, key, int(runs), until, by, left=int(runs))
                orders.append(known.get(order_id) or made)
        self._set(orders)

    def take(self, caller: str) -> Order | None:
        """Return the order that captures this run of the caller, and count the run; ``None`` if no order
        does."""
        now = self._now()
        order = next((order for order in self.orders if order.fits(caller, now)), None)
        if order is None:
            self._set(self.live())
        else:
            order.left -= 1
        return order

    def _set(self, orders: Sequence[Order]) -> None:
        self.orders = tuple(orders)[:_MOST_ORDERS]
        self.changed()


def _nothing() -> None:
    """Ignore the change: the default callback."""


_MOST_HELD: Final = 128 << 20
"""The most bytes that the tapes of all current runs hold; further bytes are cut."""
_OWNER: Final = "ui:captures"
"""The owner of captured bytes. No client has this name, so none can read them."""


class Taping:
    """Records the bytes of runs; a :class:`~proxy.relay.run.tapes.Tapes`. One per process.

    ``not_kept`` is the reason why bytes are not kept with every run, or empty if they are. ``again`` are the
    values that runs use in place of new ones; see :class:`~proxy.base.chance.Draws`.
    """

    def __init__(
        self,
        store: Store,
        captures: Captures,
        *,
        not_kept: str = "",
        again: Mapping[str, Sequence[Value]] | None = None,
    ) -> None:
        self.captures = captures
        self.not_kept = not_kept
        self.again = again
        self._keeps = self._listens = not not_kept
        self._store = store
        self._room = Room(_MOST_HELD)
        self._running: ContextVar[_Running | None] = ContextVar("taped_run", default=None)
        self._upstreams: list[TapedUpstream] = []
        captures.changed = self._listen
        declare("tapes", self._cache_size)

    def wrap(self, upstream: Upstream) -> Upstream:
        """Wrap an upstream so that its requests can be recorded."""
        taped = TapedUpstream(upstream, self._tape)
        self._upstreams.append(taped)
        taped.listen(self._listens)
        return taped

    def begin(self, job: Job, client: ClientStream) -> "_Running | None":
        """Begin to record a run if its bytes will be kept or captured; return ``None`` otherwise."""
        if not self._listens or not job.client.request.may_store:
            return None
        kept, order = self._keeps, None
        if job.client.ask.nested is not None:
            # An agent's run is recorded if its caller's run is, on a tape of its own.
            outer = self._running.get()
            if outer is None:
                return None
            kept, order = outer.kept, outer.order
        elif self.captures.orders:
            order = self.captures.take(job.identity.caller)
        if not kept and order is None:
            return None
        steps = job.client.ask.options.steps
        draws = Draws(self.again) if steps is None else steps.draws
        tape = RunTape(job.identity.run_id, self._room, draws)
        running = _Running(job, client, tape, self._keep, kept=kept, order=order)
        running.within.enter_context(drawing(tape.draws))
        running.within.callback(self._running.reset, self._running.set(running))
        return running

    async def find(self, run_id: str) -> Taped | None:
        """Return the bytes of a run, or ``None`` if there are none. Raises StoreError."""
        payload = await self.payload(run_id)
        return None if payload is None else read_tape(payload)

    async def payload(self, run_id: str) -> bytes | None:
        """Return the bytes of a run in their stored form, or ``None`` if there are none. Raises
        StoreError."""
        if (wire := await self._store.find_wire(run_id)) is not None:
            return wire.payload
        captured = await self._store.find_result(_handle(run_id), _OWNER)
        return None if captured is None else base64.b64decode(captured.content)

    async def size(self, run_id: str) -> int | None:
        """Return the number of bytes in the bodies of a run, or ``None`` if there are none. Raises
        StoreError."""
        if (size := await self._store.wire_size(run_id)) is not None:
            return size
        captured = await self.find(run_id)
        return None if captured is None else sum(leg.size for leg in captured.legs.values())

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._room.held, self._room.most)

    def _tape(self) -> RunTape | None:
        """Return the tape of the current run, or ``None``."""
        running = self._running.get()
        return None if running is None else running.tape

    def _listen(self) -> None:
        self._listens = self._keeps or bool(self.captures.orders)
        for upstream in self._upstreams:
            upstream.listen(self._listens)

    def _keep(self, running: "_Running") -> None:
        """Queue the recorded bytes of an ended run for storing."""
        tape, order = running.tape, running.order
        size = sum(leg.size for leg in tape.legs.values())
        tape.close()
        payload = tape.encoded()
        if order is not None:
            order.bytes += size
        if running.kept:
            self._store.put_wire(KeptWire(tape.run_id, running.caller, size, tape.cut, payload, time.time()))
        else:
            text = base64.b64encode(payload).decode()
            self._store.put_result(
                KeptResult(_handle(tape.run_id), tape.run_id, _OWNER, text, True, time.time())
            )


class _Running:
    """A run that is being recorded; a :class:`~proxy.relay.run.tapes.Tape`."""

    def __init__(
        self,
        job: Job,
        client: ClientStream,
        tape: RunTape,
        keep: Callable[["_Running"], None],
        *,
        kept: bool,
        order: Order | None,
    ) -> None:
        self.tape = tape
        self.caller = job.identity.caller
        self.kept = kept
        self.order = order
        self.within = ExitStack()
        self._keep = keep
        tape.record(tape.leg("client.request", 0, None, "application/json"), job.client.ask.body.raw)
        self.client: ClientStream = TapedStream(client, tape)

    def finish(self) -> None:
        """Stop recording, and keep the recorded bytes."""
        self.within.close()
        self._keep(self)


def _handle(run_id: str) -> str:
    return f"wire_{run_id}"
