"""Counters in Redis, shared by every process that uses the same server.

Concurrent requests share one round trip. If the server does not answer in time, no request waits for it again
until it answers a probe. So a dead server delays only the first requests, for a moment.
"""

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from proxy.caches import CacheSize, declare
from proxy.server.limits.redis_scripts import RENEW, SPEND, TAKE
from proxy.server.limits.rules import Limit, LimitStatus, LimitsUnavailable, LimitVerdict

__all__ = ["RedisCounters"]

ANSWER_S: Final = 0.1
"""The most seconds that a request waits for its limits."""

_GRACE_S: Final = 0.02
"""Extra time for a response that already arrived while this process was busy."""

LEASE_S: Final = 30.0
"""Seconds after which the place of a dead holder is free again; living holders renew theirs in a third of
it."""

_PROBE_S: Final = (0.05, 1.0)
_CLOSE_S: Final = 1.0
_BATCH: Final = 128
_MOST_OWED: Final = 10_000
_MICROS: Final = 1_000_000
_MOST: Final = 10**15
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:%-]{1,128}\Z")


class _Command(NamedTuple):
    """One script call, and the future that waits for its result."""

    script: str
    keys: Sequence[str]
    arguments: Sequence[Any]
    waiter: "asyncio.Future[Any] | None" = None


class RedisCounters:
    """The :class:`~proxy.server.limits.rules.Counters` in the Redis at ``url``.

    ``prefix`` begins every key; ``clock`` (seconds) replaces the server's time. ``unanswered`` counts the
    requests that were not counted, ``lost`` the uses that could not be counted.
    """

    def __init__(
        self, url: str, *, prefix: str = "toolrelay", clock: Callable[[], float] | None = None
    ) -> None:
        self._client: Redis = Redis.from_url(
            url,
            protocol=2,  # The older protocol, which every server supports.
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=_PROBE_S[1],
            socket_timeout=_PROBE_S[1],
            health_check_interval=0,
            max_connections=4,
        )
        self._prefix = prefix
        self._time = clock
        self._shas = {
            script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
            for script in (TAKE, SPEND, RENEW)
        }
        self._waiting: list[_Command] = []
        self._owed: dict[str, dict[Limit, int]] = {}
        declare("limits_owed", self._cache_size)
        self._freed: list[tuple[str, str]] = []
        self._held: dict[str, set[str]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None
        self._down_since = 0.0
        self._unanswered_before = 0
        self.down = False
        self.unanswered = 0
        self.lost = 0
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.limits")

    async def take(
        self, caller: str, hits: Sequence[Limit], spending: Sequence[Limit], streams: int | None, lease: str
    ) -> LimitVerdict:
        """Count one against all of ``hits``, or none; see :class:`~proxy.server.limits.rules.Counters`."""
        if self.down:
            self.unanswered += 1
            raise LimitsUnavailable("the Redis server of limits.storage does not answer")
        limits = [*hits, *spending]
        arguments: list[Any] = [
            self._now(),
            len(hits),
            len(spending),
            -1 if streams is None else streams,
            lease,
            int(LEASE_S * _MICROS),
        ]
        for limit in limits:
            arguments += [limit.amount, limit.seconds * _MICROS]
        keys = [self._key(caller, limit) for limit in limits]
        if streams is not None:
            keys.append(self._places(caller))
        waiter: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Command(TAKE, keys, arguments, waiter))
        self._wake()
        try:
            refused, wait, *pairs = await waiter
        except asyncio.CancelledError:
            if streams is not None:
                self._freed.append((caller, lease))
                self._wake()
            raise
        limit_statuses = [
            LimitStatus(limit, int(left), float(reset) / _MICROS)
            for limit, left, reset in zip(limits, pairs[::2], pairs[1::2], strict=True)
        ]
        if refused == 0:
            if streams is not None:
                self._hold(caller, lease)
            return LimitVerdict(None, 0.0, limit_statuses)
        by = limits[refused - 1] if refused <= len(limits) else Limit("concurrent_streams", streams or 0, 0)
        return LimitVerdict(by, float(wait) / _MICROS, limit_statuses)

    def try_hit(self, caller: str, hits: Sequence[Limit]) -> None:
        """Return ``None``: this needs a round trip."""
        return

    def _cache_size(self) -> CacheSize:
        # Bounded: a caller is an address, or a name that the operator chose or that has a largest length.
        held = sum(500 + 200 * len(owed) for owed in self._owed.values())
        return CacheSize(held, _MOST_OWED * (500 + 200 * 16))

    def spend(self, caller: str, spent: Sequence[tuple[Limit, int]]) -> None:
        """Count the use, also past the limit; keep it for later while Redis is unavailable."""
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
        """Give one place back."""
        held = self._held.get(caller)
        if held is not None:
            held.discard(lease)
            if not held:
                del self._held[caller]
        self._freed.append((caller, lease))
        self._wake()

    async def aclose(self) -> None:
        """Count what is still owed and give back all places, if Redis answers within a second."""
        for task in (self._renewer, self._prober):
            if task is not None:
                task.cancel()
        for caller, leases in self._held.items():
            self._freed += [(caller, lease) for lease in leases]
        self._held.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                self._wake()
                if self._worker is not None:
                    await self._worker
        if self._worker is not None:
            self._worker.cancel()
        tasks = [task for task in (self._worker, self._renewer, self._prober) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._owed:
            self._log.warning("limits_not_counted", callers=len(self._owed))
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()

    # Keys: all keys of one caller have one hash slot, for a Redis cluster.

    def _key(self, caller: str, limit: Limit) -> str:
        return f"{self._prefix}:{{{_safe(caller)}}}:{limit.kind}:{limit.amount}:{limit.seconds}"

    def _places(self, caller: str) -> str:
        return f"{self._prefix}:{{{_safe(caller)}}}:streams"

    def _now(self) -> int:
        return 0 if self._time is None else int(self._time() * _MICROS)

    # Round trips.

    def _wake(self) -> None:
        if not self.down and (self._worker is None or self._worker.done()):
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Send the waiting commands, batch by batch, until there are none."""
        while not self.down and (self._waiting or self._owed or self._freed):
            # A request that ended while it waited is not counted.
            waiting = [each for each in self._waiting if each.waiter is None or not each.waiter.done()]
            batch, self._waiting = waiting[:_BATCH], waiting[_BATCH:]
            # Each of the three is bounded: after an outage there may be much to send.
            freed, self._freed = self._freed[:_BATCH], self._freed[_BATCH:]
            owed = {caller: self._owed.pop(caller) for caller in [*islice(self._owed, _BATCH)]}
            # Uses and freed places go before new requests.
            commands = [*(self._spending(caller, spent) for caller, spent in owed.items()), *batch]
            try:
                answers = await self._answered(self._send(commands, freed))
            except Exception as error:  # noqa: BLE001 - no failure may leave a request waiting
                self.lost += len(owed)  # Unknown whether it was counted; never count it twice.
                self._went_down(error, batch)
                return
            for command, answer in zip(commands, answers, strict=True):
                if command.waiter is None or command.waiter.done():
                    continue
                if isinstance(answer, Exception):
                    self.unanswered += 1
                    command.waiter.set_exception(
                        LimitsUnavailable("the Redis server of limits.storage refused to count")
                    )
                else:
                    command.waiter.set_result(answer)
            self.lost += sum(isinstance(answer, Exception) for answer in answers[: len(owed)])
            failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
            if failed is not None:
                self._went_down(failed, ())
                return

    def _spending(self, caller: str, spent: dict[Limit, int]) -> _Command:
        arguments: list[Any] = [self._now()]
        for limit, amount in spent.items():
            arguments += [limit.seconds * _MICROS, amount]
        return _Command(SPEND, [self._key(caller, limit) for limit in spent], arguments)

    async def _answered(self, sending: Any) -> list[Any]:
        """Return the answers; raise :class:`TimeoutError` if they take longer than a request may wait."""
        task: asyncio.Task[list[Any]] = asyncio.ensure_future(sending)
        try:
            for patience in (ANSWER_S, _GRACE_S):
                done, _ = await asyncio.wait({task}, timeout=patience)
                if done:
                    return task.result()
            raise TimeoutError
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _send(self, commands: Sequence[_Command], freed: Sequence[tuple[str, str]]) -> list[Any]:
        """Return the answer to each command, exceptions among them."""
        answers = await self._execute(commands, freed)
        unknown = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            for script in self._shas:
                await self._client.script_load(script)
            again = await self._execute([commands[place] for place in unknown], ())
            for place, answer in zip(unknown, again, strict=True):
                answers[place] = answer
        return answers

    async def _execute(self, commands: Sequence[_Command], freed: Sequence[tuple[str, str]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for caller, lease in freed:
                pipe.zrem(self._places(caller), lease)
            for command in commands:
                sha, keys = self._shas[command.script], command.keys
                pipe.evalsha(sha, len(keys), *keys, *command.arguments)
            answers = await pipe.execute(raise_on_error=False)
        return answers[len(freed) :]

    # When the server is unavailable.

    def _went_down(self, error: Exception, batch: Sequence[_Command]) -> None:
        self.down = True
        self._down_since, self._unanswered_before = time.monotonic(), self.unanswered
        # Log the kind only: messages of connection errors contain addresses, and maybe more.
        self._log.warning("limits_unavailable", error=type(error).__name__)
        for command in (*batch, *self._waiting):
            if command.waiter is not None and not command.waiter.done():
                self.unanswered += 1
                command.waiter.set_exception(
                    LimitsUnavailable("the Redis server of limits.storage does not answer")
                )
        self._waiting.clear()
        self._prober = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        """Probe the server until it answers; then count again."""
        wait, longest = _PROBE_S
        while True:
            await asyncio.sleep(wait)
            wait = min(2 * wait, longest)
            # Whatever the client raises: if this task died, nothing would ever be counted again.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(longest):
                    # A write, because a server that is read-only or full answers a ping but cannot count.
                    await self._client.set(f"{self._prefix}:probe", "1", px=1000)
                    break
        self.down = False
        seconds = round(time.monotonic() - self._down_since, 1)
        unanswered = self.unanswered - self._unanswered_before
        self._log.info("limits_available", seconds=seconds, unanswered=unanswered)
        self._wake()

    # Places.

    def _hold(self, caller: str, lease: str) -> None:
        self._held.setdefault(caller, set()).add(lease)
        if self._renewer is None or self._renewer.done():
            self._renewer = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        """Renew every place of this process, with one timer for all of them."""
        while self._held:
            await asyncio.sleep(LEASE_S / 3)
            if not self.down:
                self._waiting += [
                    _Command(
                        RENEW, [self._places(caller)], [self._now(), int(LEASE_S * _MICROS), *sorted(leases)]
                    )
                    for caller, leases in self._held.items()
                ]
                self._wake()


def _safe(caller: str) -> str:
    """Return a caller's name as part of a key: plain names and addresses unchanged, others as a digest."""
    if _PLAIN.match(caller):
        return caller
    return "~" + hashlib.blake2b(caller.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
