"""Orders of administrators to capture the bytes of runs that would not be kept otherwise.

Nothing is captured until somebody asks, and then only some runs within some minutes.  Captured bytes are
content (rule R3): they are sealed with the record and kept for an hour.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.errors import StoreError
from proxy.store.base import Store

__all__ = ["CAPTURES", "MOST_RUNS", "MOST_S", "Captures", "Order"]

CAPTURES: Final = "captures"
"""The name under which the processes of a port tell each other about a new order."""
MOST_RUNS: Final = 100
MOST_S: Final = 3600.0
_MOST_ORDERS: Final = 20
_MARK: Final = "capture:"
_ENDED: Final = "capture-end:"


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


class Captures:
    """The orders of this process.  ``refused`` says why nobody may ask, if so; ``changed`` is called when
    there are other orders than before."""

    def __init__(self, store: Store, refused: str | None, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._loading: asyncio.Task[None] | None = None
        self.refused = refused
        self.orders: Sequence[Order] = ()
        """The orders that may still capture something; each run reads this."""
        self.changed: Callable[[], None] = _nothing

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

    def take(self, caller: str) -> Order | None:
        """The order that captures a run of this caller, which is counted; ``None`` for none."""
        now = self._now()
        order = next((one for one in self.orders if one.fits(caller, now)), None)
        if order is None:
            self._set(self.live())
        else:
            order.left -= 1
        return order

    def _set(self, orders: Sequence[Order]) -> None:
        self.orders = tuple(orders)[:_MOST_ORDERS]
        self.changed()


def _nothing() -> None:
    """Nobody has to know."""
