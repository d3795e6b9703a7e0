"""Handle the orders of administrators to capture the bytes of runs that would not be kept otherwise.

Nothing is captured without an order, and an order covers a limited number of runs and minutes. Captured
bytes are content (rule R3): they are sealed with the record and kept for an hour.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.base.errors import StoreError
from proxy.store.base import Store

CAPTURES: Final = "captures"
"""The name under which the processes of a port notify each other of a new order."""
MOST_RUNS: Final = 100
MOST_S: Final = 3600.0
_MOST_ORDERS: Final = 20
_MARK: Final = "capture:"
_ENDED: Final = "capture-end:"


@dataclass(eq=False, slots=True)
class Order:
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
