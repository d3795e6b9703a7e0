"""Captures the bytes of runs for an administrator: both sides of the wire, with times.

Nothing is captured until somebody asks, and then only some runs within some minutes.  Without an order, no
byte is delayed: a run reads one attribute, and upstreams are called directly.  Captured bytes are content
(rule R3): they are sealed with the record and kept for an hour.  Nothing is captured of a client that asked
to keep nothing.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from proxy.errors import StoreError
from proxy.http.headers import Headers
from proxy.http.rules import media_type
from proxy.http.secrets import Sink
from proxy.records import KeptResult
from proxy.relay.base import ClientStream
from proxy.server.serving.tee import TeeStream
from proxy.store.base import Store
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse

__all__ = ["CAPTURES", "MOST_RUNS", "MOST_S", "Captures", "Order", "Tape"]

CAPTURES: Final = "captures"
"""The name under which the processes of a port tell each other about a new order."""
MOST_RUNS: Final = 100
MOST_S: Final = 3600.0
_MAX_BYTES: Final = 1 << 20
"""The most that is kept of one run, both sides together."""
_MAX_CHUNKS: Final = 20_000
_MOST_ORDERS: Final = 20
_MARK: Final = "capture:"
_ENDED: Final = "capture-end:"
_OWNER: Final = "ui:captures"
"""The owner of the kept bytes: no client has this name, so none can read them."""


@dataclass(eq=False, slots=True)
class Order:
    """An order to capture the next ``runs`` runs of a key until a time.

    ``key`` is empty for all callers; ``until`` is in epoch seconds.  ``left`` is how many runs this process
    may still capture.
    """

    id: str
    key: str
    runs: int
    until: float
    by: str
    left: int = 0
    bytes: int = 0

    def fits(self, caller: str, now: float) -> bool:
        """Whether a caller's run is to be captured now."""
        return self.left > 0 and now < self.until and (not self.key or caller.partition("/")[0] == self.key)

    def as_json(self, key_name: str | None = None) -> dict[str, Any]:
        """The order as a page gets it."""
        return {
            "id": self.id,
            "key": key_name or self.key or None,
            "runs": self.runs,
            "runs_left": self.left,
            "until": self.until,
            "by": self.by,
            "bytes": self.bytes,
        }


@dataclass(eq=False, slots=True)
class Tape:
    """What is kept of one run: its bodies, and when each piece of them arrived or was sent."""

    run_id: str
    order: Order
    began: float = field(default_factory=time.monotonic)
    size: int = 0
    turns: int = 0
    truncated: bool = False
    legs: dict[str, dict[str, Any]] = field(default_factory=dict)
    chunks: list[tuple[str, float, int, bytes]] = field(default_factory=list)

    def leg(self, name: str, turn: int, status: int | None, content_type: str) -> None:
        """Start a body."""
        side, _, _ = name.partition(".")
        asks = name.endswith("request")
        self.legs[name] = {
            "id": name,
            "side": side,
            "direction": "in" if asks == (side == "client") else "out",
            "turn": turn,
            "status": status,
            "content_type": content_type,
            "bytes": 0,
            "truncated": False,
        }

    def note(self, name: str, data: bytes) -> None:
        """Add a piece of a body.  Bytes beyond the limit are dropped, and the body is marked as truncated."""
        leg = self.legs[name]
        kept = data[: max(0, _MAX_BYTES - self.size)] if len(self.chunks) < _MAX_CHUNKS else b""
        if kept:
            self.chunks.append((name, time.monotonic() - self.began, leg["bytes"], bytes(kept)))
            self.size += len(kept)
        if len(kept) < len(data):
            leg["truncated"] = self.truncated = True
        leg["bytes"] += len(kept)

    # As a listener of the client's response.

    def started(self, status: int, headers: Headers) -> None:
        self.leg("client.response", 0, status, media_type(headers))

    def heard(self, data: bytes) -> None:
        if "client.response" in self.legs:
            self.note("client.response", data)

    def ended(self) -> None:
        """Nothing to do: every piece is noted already."""

    def encoded(self) -> str:
        """The tape as JSON text."""
        chunks = [
            {
                "seq": seq,
                "leg": leg,
                "at_ms": round(at * 1000, 2),
                "start": start,
                "data": base64.b64encode(data).decode(),
            }
            for seq, (leg, at, start, data) in enumerate(self.chunks)
        ]
        said = {"legs": list(self.legs.values()), "chunks": chunks, "truncated": self.truncated}
        return orjson.dumps(said).decode()


class Captures:
    """The orders, and the tapes that are running.  ``refused`` says why nobody may ask, if so."""

    def __init__(self, store: Store, refused: str | None, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._current: ContextVar[Tape | None] = ContextVar("tape", default=None)
        self._upstreams: list[_Taped] = []
        self._loading: asyncio.Task[None] | None = None
        self.refused = refused
        self.orders: Sequence[Order] = ()
        """The orders that may still capture something; each run reads this."""

    def wrap(self, upstream: Upstream) -> Upstream:
        """The upstream, wrapped so that its requests can be captured while there are orders."""
        taped = _Taped(upstream, self._current)
        self._upstreams.append(taped)
        return taped

    async def ask(self, order: Order) -> None:
        """Start an order in this process, and store it for the others; raises StoreError."""
        name = f"{_MARK}{order.id}:{order.runs}:{order.by[:40]}:{order.key}"
        await self._store.mark_once(name, order.until)
        self._set([*self.live(), order])

    async def end(self, order_id: str) -> bool:
        """End an order; whether there was one.  Raises StoreError."""
        found = [order for order in self.live() if order.id == order_id]
        for order in found:
            await self._store.mark_once(f"{_ENDED}{order_id}", order.until)
        self._set([order for order in self.live() if order.id != order_id])
        return bool(found)

    def live(self) -> list[Order]:
        """The orders whose time is not over."""
        now = self._now()
        return [order for order in self.orders if now < order.until]

    def told(self) -> bytes:
        """Read the orders that another process changed.  Returns how many runs each has left, as JSON."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._load())
        return orjson.dumps({order.id: order.left for order in self.orders})

    async def _load(self) -> None:
        try:
            marks, ended = await self._store.marks(_MARK), await self._store.marks(_ENDED)
        except StoreError:
            return
        known = {order.id: order for order in self.orders}
        found = []
        for name, until in marks.items():
            order_id, _, rest = name.removeprefix(_MARK).partition(":")
            runs, _, rest = rest.partition(":")
            by, _, key = rest.partition(":")
            if f"{_ENDED}{order_id}" not in ended and runs.isdecimal():
                made = Order(order_id, key, int(runs), until, by, left=int(runs))
                found.append(known.get(order_id) or made)
        self._set(found)

    def begin(
        self, client: ClientStream, run_id: str, caller: str, asked: bytes, *, keeps: bool
    ) -> tuple[ClientStream, Tape, Token[Tape | None]] | None:
        """Start to capture a run if an order fits it; ``keeps`` says whether its client allows that."""
        now = self._now()
        order = next((one for one in self.orders if one.fits(caller, now)), None)
        if order is None or not keeps:
            self._set(self.live())
            return None
        order.left -= 1
        tape = Tape(run_id, order)
        tape.leg("client.request", 0, None, "application/json")
        tape.note("client.request", asked)
        return TeeStream(client, tape), tape, self._current.set(tape)

    def finish(self, tape: Tape, token: Token[Tape | None]) -> None:
        """Store what was captured, without waiting."""
        self._current.reset(token)
        tape.order.bytes += tape.size
        self._store.put_result(
            KeptResult(_handle(tape.run_id), tape.run_id, _OWNER, tape.encoded(), True, self._now())
        )

    async def find(self, run_id: str) -> dict[str, Any] | None:
        """What was captured of a run, as JSON values; ``None`` for nothing.  Raises StoreError."""
        kept = await self._store.find_result(_handle(run_id), _OWNER)
        return None if kept is None else dict(orjson.loads(kept.content))

    def _set(self, orders: Sequence[Order]) -> None:
        self.orders = tuple(orders)[:_MOST_ORDERS]
        for upstream in self._upstreams:
            upstream.listen(bool(self.orders))


class _Taped:
    """An upstream that is called directly while there are no orders."""

    def __init__(self, inner: Upstream, current: "ContextVar[Tape | None]") -> None:
        self.name = inner.name
        self._inner = inner
        self._current = current
        self.open: Callable[[UpstreamRequest], Any] = inner.open

    def listen(self, on: bool) -> None:
        """Note the requests of captured runs (``on``), or call the upstream directly."""
        self.open = self._open if on else self._inner.open

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _open(self, request: UpstreamRequest) -> UpstreamResponse:
        tape = self._current.get()
        if tape is None:
            return await self._inner.open(request)
        tape.turns += 1
        turn = tape.turns
        name = f"upstream.{turn}"
        tape.leg(f"{name}.request", turn, None, "application/json")
        if isinstance(request.body, bytes):
            tape.note(f"{name}.request", request.body)
        response = await self._inner.open(request)
        tape.leg(f"{name}.response", turn, response.status, response.content_type)
        return _TapedResponse(response, tape, f"{name}.response")


class _TapedResponse:
    """A response whose pieces are noted as they arrive."""

    def __init__(self, inner: UpstreamResponse, tape: Tape, leg: str) -> None:
        self._inner = inner
        self._tape = tape
        self._leg = leg
        self.status = inner.status
        self.headers = inner.headers
        self.content_type = inner.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        async for piece in self._inner.chunks():
            self._tape.note(self._leg, piece)
            yield piece

    def push(self, sink: Sink) -> Awaitable[None] | None:
        def noted(piece: bytes) -> Awaitable[None] | None:
            self._tape.note(self._leg, piece)
            return sink(piece)

        return self._inner.push(noted)

    async def read(self, limit: int) -> bytes:
        whole = await self._inner.read(limit)
        self._tape.note(self._leg, whole)
        return whole

    async def aclose(self) -> None:
        await self._inner.aclose()


def _handle(run_id: str) -> str:
    return f"wire_{run_id}"
