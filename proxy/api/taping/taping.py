"""Decide which runs are recorded byte by byte, and where their bytes are kept.

Without a setting or an order nothing is recorded: a run reads two attributes, and upstreams are called
directly. A run whose client asked the proxy to keep nothing is never recorded.
"""

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Final

from proxy.api.taping.captures import Captures, Order
from proxy.api.taping.tape import Room, RunTape, Taped, TapedStream, read_tape
from proxy.api.taping.upstreams import TapedUpstream
from proxy.base.caches import CacheSize, declare
from proxy.base.chance import Draws, Value, drawing
from proxy.records.rows import KeptResult, KeptWire
from proxy.relay.base import ClientStream
from proxy.relay.run.job import Job
from proxy.store.base import Store
from proxy.upstreams.base import Upstream

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
        most_held: int = _MOST_HELD,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.captures = captures
        self.not_kept = not_kept
        self.again = again
        self._keeps = self._listens = not not_kept
        self._store = store
        self._now = now
        self._room = Room(most_held)
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
        tape = RunTape(job.identity.run_id, self._room, Draws(self.again))
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
            self._store.put_wire(KeptWire(tape.run_id, running.caller, size, tape.cut, payload, self._now()))
        else:
            text = base64.b64encode(payload).decode()
            self._store.put_result(
                KeptResult(_handle(tape.run_id), tape.run_id, _OWNER, text, True, self._now())
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
