"""Counts the use of all callers with the library ``limits``, in this process or in Redis.

Requests and tool calls are counted in the library's moving windows. Tokens and cost are counted in its fixed
windows: of its strategies only that one counts a use that exceeds the limit, and it keeps one number for any
amount. Places of open requests are counted here, because the library has no such limit.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from proxy.base.caches import CacheSize, declare, declare_lru
from proxy.rights.limit_rules import Limit, LimitStatus, LimitsUnavailable, LimitVerdict

if TYPE_CHECKING:  # Imported late: a process without limits saves two megabytes.
    from limits import RateLimitItem
    from limits.aio.storage import Storage
    from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
    from proxy.server.limits.memory import BoundedMemory

_PLACE_WAIT_S: Final = 1.0
_LEAST_WAIT_S: Final = 0.001
_BATCH: Final = 128
_MOST_OWED: Final = 10_000
_MOST: Final = 10**15
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:%-]{1,128}\Z")


class _Windows(NamedTuple):
    """The library's strategies, by what they count."""

    hits: "MovingWindowRateLimiter"
    spending: "FixedWindowRateLimiter"


class Counters:
    """The counters of all callers' use, in the memory of this process; they end with it.

    ``lost`` counts the callers' uses that could not be counted.
    """

    down = False
    """Whether nothing can be counted now."""

    def __init__(self) -> None:
        self._owed: dict[str, dict[Limit, int]] = {}
        self._open: dict[str, int] = {}
        self._payer: asyncio.Task[None] | None = None
        self.lost = 0
        declare("limits_owed", self._owed_size)

    async def take(
        self, caller: str, hits: Sequence[Limit], spending: Sequence[Limit], streams: int | None, lease: str
    ) -> LimitVerdict:
        """Count one against all of ``hits`` if each has room and each of ``spending`` is not used up.

        With ``streams`` the caller also takes one of that many places, and gives it back later by the name
        ``lease``. All limits are tested before one is hit, and the one with the least left is hit first. So a
        refused request counts nowhere, except if others use up two limits at the same moment. Raises
        :class:`LimitsUnavailable`.
        """
        name = name_in_keys(caller)
        if (
            len(hits) == 1
            and not spending
            and (streams is None or await self._take_place(caller, streams, lease))
        ):
            # One limit alone needs no test: the hit is one, and comes together with what is left after it.
            taken, status = await self._hit_one(name, hits[0])
            if taken:
                return LimitVerdict(None, 0.0, (status,))
            if streams is not None:
                self.release(caller, lease)
            return _refusal((status,), (status,))
        owed = self._owed.pop(caller, {}) if spending else {}
        asked = [*self._paying(caller, owed), *(self._status(name, limit) for limit in (*hits, *spending))]
        try:
            answers = await self._together(asked)
        except LimitsUnavailable:
            self.lost += bool(owed)  # Unknown whether it was counted; never count it twice.
            raise
        statuses: list[LimitStatus] = answers[len(owed) :]
        used_up = [status for status in statuses if not status.left]
        if used_up:
            return _refusal(used_up, statuses)
        if streams is not None and not await self._take_place(caller, streams, lease):
            full = LimitStatus(Limit("concurrent_streams", streams, 0), 0, _PLACE_WAIT_S)
            return _refusal([full], statuses)
        tightest_first = sorted(statuses[: len(hits)], key=lambda status: status.left)
        for group in (tightest_first[:1], tightest_first[1:]):
            hit = await self._together([self._hit(name, status.limit) for status in group])
            if not all(hit):
                if streams is not None:
                    self.release(caller, lease)
                return _refusal([group[hit.index(False)]], statuses)
        left = [LimitStatus(limit, left - 1, reset_s) for limit, left, reset_s in statuses[: len(hits)]]
        return LimitVerdict(None, 0.0, [*left, *statuses[len(hits) :]])

    def spend(self, caller: str, spent: Iterable[tuple[Limit, int]]) -> None:
        """Count the use soon, also past the limit. Never waits, never raises."""
        owed = self._owed.get(caller)
        if owed is None:
            if len(self._owed) >= _MOST_OWED:
                self.lost += 1
                return
            owed = self._owed[caller] = {}
        for limit, amount in spent:
            owed[limit] = min(owed.get(limit, 0) + amount, _MOST)
        self._wake()

    def release(self, caller: str, lease: str) -> None:
        """Give back the place that was taken as ``lease``."""
        left = self._open.get(caller, 0) - 1
        if left > 0:
            self._open[caller] = left
        else:
            self._open.pop(caller, None)

    async def aclose(self) -> None:
        """Count what is still to be counted."""
        await self._pay()

    # What Redis does in another way.

    def _storage(self) -> "Storage":
        from proxy.server.limits.memory import BoundedMemory

        return BoundedMemory()

    async def _together(self, asked: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Return the answers; in memory none of these coroutines waits."""
        return [await each for each in asked]

    async def _take_place(self, caller: str, most: int, lease: str) -> bool:
        count = self._open.get(caller, 0)
        if count < most:
            self._open[caller] = count + 1
        return count < most

    # The library.

    @cached_property
    def _windows(self) -> _Windows:
        from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

        storage = self._storage()
        return _Windows(MovingWindowRateLimiter(storage), FixedWindowRateLimiter(storage))

    def _hit(self, name: str, limit: Limit) -> Coroutine[Any, Any, bool]:
        return self._windows.hits.hit(_item(limit), name)

    async def _hit_one(self, name: str, limit: Limit) -> tuple[bool, LimitStatus]:
        """Count a hit if there is room; return whether there was, and what is left after it."""
        # In one call, which every request makes: the strategy would look at the window twice.
        memory = cast("BoundedMemory", self._windows.hits.storage)
        taken, start, used = memory.count(_key(limit, name), limit.amount, limit.seconds)
        left, reset_s = limit.amount - used, start + limit.seconds - time.time()
        return taken, LimitStatus(limit, max(left, 0), max(reset_s, 0.0))

    async def _status(self, name: str, limit: Limit) -> LimitStatus:
        item = _item(limit)
        if limit.kind in ("tokens", "cost"):
            # What the strategy would ask one after the other.
            storage, key = self._windows.spending.storage, _key(limit, name)
            used, reset = await self._together([storage.get(key), storage.get_expiry(key)])
            left = limit.amount - used
        else:
            reset, left = await self._windows.hits.get_window_stats(item, name)
        return LimitStatus(limit, max(left, 0), max(reset - time.time(), 0.0))

    # What was used.

    def _paying(self, caller: str, owed: dict[Limit, int]) -> list[Coroutine[Any, Any, bool]]:
        name, window = name_in_keys(caller), self._windows.spending
        return [window.hit(_item(limit), name, cost=amount) for limit, amount in owed.items()]

    def _wake(self) -> None:
        if not self.down and (self._payer is None or self._payer.done()):
            self._payer = asyncio.get_running_loop().create_task(self._pay())

    async def _pay(self) -> None:
        while self._owed and not self.down:
            owed = {caller: self._owed.pop(caller) for caller in [*islice(self._owed, _BATCH)]}
            try:
                await self._together([each for debt in owed.items() for each in self._paying(*debt)])
            except LimitsUnavailable:
                self.lost += len(owed)  # As above.
                return

    def _owed_size(self) -> CacheSize:
        # Bounded: a caller is an address, or a name that the operator chose or that has a largest length.
        held = sum(500 + 200 * len(owed) for owed in self._owed.values())
        return CacheSize(held, _MOST_OWED * (500 + 200 * 16))


def _refusal(refusing: Sequence[LimitStatus], statuses: Sequence[LimitStatus]) -> LimitVerdict:
    """Return that the limit with the longest wait refuses."""
    refused = max(refusing, key=lambda status: status.reset_s)
    return LimitVerdict(refused.limit, max(refused.reset_s, _LEAST_WAIT_S), statuses)


@lru_cache(maxsize=4096)
def _item(limit: Limit) -> "RateLimitItem":
    from limits import RateLimitItemPerSecond

    return RateLimitItemPerSecond(limit.amount, limit.seconds, namespace=limit.kind)


@lru_cache(maxsize=4096)
def _key(limit: Limit, name: str) -> str:
    """Return the library's key for the uses of a caller that count against a limit."""
    return _item(limit).key_for(name)


@lru_cache(maxsize=4096)
def name_in_keys(caller: str) -> str:
    """Return a caller's name as part of a key: plain names and addresses unchanged, others as a digest."""
    if _PLAIN.match(caller):
        return caller
    return "~" + hashlib.blake2b(caller.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


declare_lru("limit_items", _item, 400)
declare_lru("limit_keys", _key, 600)
declare_lru("limit_callers", name_in_keys, 2000)
