"""Counters in Redis, shared by every process that uses the same server, cluster or group under Sentinels.

The library sends a command for each step of each limit. Here all commands of one moment share a round trip.
If Redis does not answer in time, no request waits for it again until it answers a probe. So a dead server
delays only the first requests, for a moment.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, urlsplit

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from proxy.rights.limit_rules import Limit, LimitStatus, LimitsUnavailable, LimitVerdict
from proxy.server.limits.counters import Counters, name_in_keys

if TYPE_CHECKING:
    from limits.aio.storage import RedisStorage
    from limits.aio.storage.redis.redispy import RedispyBridge

ANSWER_S: Final = 0.1
"""The most seconds that a request waits for one answer about its limits."""

_GRACE_S: Final = 0.02
"""Extra time for a response that already arrived while this process was busy."""

LEASE_S: Final = 30.0
"""Seconds after which the place of a dead holder is free again; living holders renew theirs in a third of
it."""

_PROBE_S: Final = (0.05, 1.0)
_SENTINEL_S: Final = 0.3
"""The most seconds to wait for one Sentinel, so that a probe can ask the next ones, too."""

_CLOSE_S: Final = 1.0
_BATCH: Final = 256

_TAKE_PLACE: Final = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
    return 0
end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1
"""
"""Arguments: now in seconds, the number of places, the end of the lease in seconds, its name, and the
milliseconds after which nobody uses the key."""


class RedisCounters(Counters):
    """The counters in the Redis at ``url``; ``prefix`` begins every key. ``now`` is the clock of leases of
    places, the same for all processes, in seconds since the epoch.

    ``unanswered`` counts the requests that were not counted.
    """

    def __init__(self, url: str, *, prefix: str = "toolrelay", now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._now = now
        self._prefix = prefix
        self._opened = open_storage(url, prefix)
        bridge = cast("RedispyBridge", self._opened.bridge)
        self._client = cast("Redis", bridge.get_connection())
        self._place = self._client.register_script(_TAKE_PLACE)
        scripts = (bridge.lua_moving_window, bridge.lua_acquire_moving_window, bridge.lua_incr_expire)
        self._line = _Line(self._client, f"{prefix}:probe", [*scripts, self._place], self._wake)
        self._held: dict[str, set[str]] = {}
        self._renewer: asyncio.Task[None] | None = None

    @property
    def down(self) -> bool:  # type: ignore[override]
        """Whether Redis does not answer."""
        return self._line.down

    @property
    def unanswered(self) -> int:
        """The number of requests that were not counted."""
        return self._line.unanswered

    async def take(
        self, caller: str, hits: Sequence[Limit], spending: Sequence[Limit], streams: int | None, lease: str
    ) -> LimitVerdict:
        """Count one against all of ``hits``, or none; see :class:`~proxy.server.limits.counters.Counters`."""
        try:
            self._line.check()
            return await super().take(caller, hits, spending, streams, lease)
        except BaseException as error:  # Also a client that leaves: nobody else gives its place back.
            if isinstance(error, LimitsUnavailable):
                self._line.unanswered += 1
            if streams is not None:
                self.release(caller, lease)
            raise

    def release(self, caller: str, lease: str) -> None:
        """Give one place back. While Redis is away, its lease runs out."""
        held = self._held.get(caller)
        if held is not None:
            held.discard(lease)
            if not held:
                del self._held[caller]
        if not self.down:
            self._line.post("ZREM", self._places(caller), lease)

    async def aclose(self) -> None:
        """Count what is still owed and give back all places, if Redis answers within a second."""
        held, self._held = self._held, {}
        if not self.down:
            for caller, leases in held.items():
                self._line.post("ZREM", self._places(caller), *leases)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                if self._payer is not None:
                    await self._payer
                await self._pay()
                await self._line.drain()
        tasks = [task for task in (self._payer, self._renewer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._owed:
            self._line.log.warning("limits_not_counted", callers=len(self._owed))
        await self._line.aclose()
        await close_storage(self._opened)

    def _storage(self) -> "RedisStorage":
        return self._opened

    async def _together(self, asked: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        return await asyncio.gather(*asked)

    async def _hit_one(self, name: str, limit: Limit) -> tuple[bool, LimitStatus]:
        taken, status = await self._together([self._hit(name, limit), self._status(name, limit)])
        return taken, status

    # Places: each is a lease, which the process that holds it renews.

    def _places(self, caller: str) -> str:
        return f"{self._prefix}:streams/{name_in_keys(caller)}"

    async def _take_place(self, caller: str, most: int, lease: str) -> bool:
        now = self._now()
        arguments: list[str | float] = [now, most, now + LEASE_S, lease, int(2000 * LEASE_S)]
        taken = bool(await self._place([self._places(caller)], arguments))
        if taken:
            self._held.setdefault(caller, set()).add(lease)
            if self._renewer is None or self._renewer.done():
                self._renewer = asyncio.get_running_loop().create_task(self._renew())
        return taken

    async def _renew(self) -> None:
        """Renew every place of this process, with one timer for all of them."""
        while self._held:
            await asyncio.sleep(LEASE_S / 3)
            if self.down:
                continue
            end = self._now() + LEASE_S
            for caller, leases in self._held.items():
                key = self._places(caller)
                self._line.post("ZADD", key, "XX", *(each for lease in leases for each in (end, lease)))
                self._line.post("PEXPIRE", key, int(2000 * LEASE_S))


class _Line:
    """Sends the commands of one moment in one pipeline, and none while Redis does not answer.

    It takes the place of ``client.execute_command``, so that whoever uses the client shares the line. Every
    failure is a :class:`LimitsUnavailable`.
    """

    def __init__(
        self, client: "Redis", probe: str, scripts: Sequence[Any], came_back: Callable[[], None]
    ) -> None:
        """``scripts`` are what Redis may have forgotten; ``came_back`` is called after an outage."""
        self._client, self._probe_key, self._scripts, self._came_back = client, probe, scripts, came_back
        self._send_one: Callable[..., Awaitable[Any]] = client.execute_command
        client.execute_command = self.execute  # type: ignore[method-assign]
        self._waiting: list[tuple[tuple[Any, ...], dict[str, Any], asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None
        self._down_since = 0.0
        self._unanswered_before = 0
        self.down = False
        self.unanswered = 0
        self.log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.limits")

    def check(self) -> None:
        """Raise :class:`LimitsUnavailable` while Redis does not answer."""
        if self.down:
            raise LimitsUnavailable("the Redis server of limits.storage does not answer")

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        """Return the answer to one command."""
        return await self.post(*arguments, **options)

    def post(self, *arguments: Any, **options: Any) -> "asyncio.Future[Any]":
        """Send a command with the next batch; return its answer to come, which nobody has to await."""
        self.check()
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        waiter.add_done_callback(_looked_at)
        self._waiting.append((arguments, options, waiter))
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._work())
        return waiter

    async def drain(self) -> None:
        """Wait until everything is sent and answered."""
        if self._sender is not None:
            await self._sender

    async def aclose(self) -> None:
        """Send nothing more."""
        tasks = [task for task in (self._sender, self._prober) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        """Send the waiting commands, batch by batch, until there are none."""
        await asyncio.sleep(0)  # What the requests of this moment ask next goes into the first batch, too.
        while self._waiting and not self.down:
            # A request that ended while it waited is not counted.
            waiting = [each for each in self._waiting if not each[2].done()]
            batch, self._waiting = waiting[:_BATCH], waiting[_BATCH:]
            try:
                answers = await _in_time(self._send([each[:2] for each in batch]))
            except Exception as error:  # noqa: BLE001 - no failure may leave a request waiting
                answers = [error] * len(batch)
            failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
            if failed is not None:
                self._went_down(failed)
            for (_, _, waiter), answer in zip(batch, answers, strict=True):
                if waiter.done():
                    continue
                if isinstance(answer, Exception):
                    _refuse(waiter)
                else:
                    waiter.set_result(answer)

    async def _send(self, commands: "Sequence[tuple[Any, Any]]") -> list[Any]:
        """Return the answer to each command, exceptions among them."""
        answers = await self._pipelined(commands)
        unknown = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            for script in self._scripts:
                await self._send_one("SCRIPT LOAD", script.script)
            again = await self._pipelined([commands[place] for place in unknown])
            for place, answer in zip(unknown, again, strict=True):
                answers[place] = answer
        return answers

    async def _pipelined(self, commands: "Sequence[tuple[Any, Any]]") -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for arguments, options in commands:
                pipe.execute_command(*arguments, **options)
            return await pipe.execute(raise_on_error=False)

    def _went_down(self, error: Exception) -> None:
        self.down = True
        self._down_since, self._unanswered_before = time.monotonic(), self.unanswered
        # Log the kind only: messages of connection errors contain addresses, and maybe more.
        self.log.warning("limits_unavailable", error=type(error).__name__)
        for _, _, waiter in self._waiting:
            if not waiter.done():
                _refuse(waiter)
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
                    await self._send_one("SET", self._probe_key, "1", "PX", 1000)
                    break
        self.down = False
        seconds = round(time.monotonic() - self._down_since, 1)
        unanswered = self.unanswered - self._unanswered_before
        self.log.info("limits_available", seconds=seconds, unanswered=unanswered)
        self._came_back()


def _looked_at(waiter: "asyncio.Future[Any]") -> None:
    if not waiter.cancelled():
        waiter.exception()


def _refuse(waiter: "asyncio.Future[Any]") -> None:
    waiter.set_exception(LimitsUnavailable("the Redis server of limits.storage does not answer"))


async def _in_time(sending: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """Return the answers; raise :class:`TimeoutError` if they take longer than a request may wait."""
    task = asyncio.ensure_future(sending)
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


async def close_storage(storage: "RedisStorage") -> None:
    """Close the connections of a storage."""
    bridge = cast("RedispyBridge", storage.bridge)
    sentinel = getattr(bridge, "sentinel", None)
    for client in (bridge.get_connection(), *(sentinel.sentinels if sentinel else ())):
        with contextlib.suppress(RedisError, OSError):
            await client.aclose()


def open_storage(url: str, prefix: str, timeout_s: float = _PROBE_S[1]) -> "RedisStorage":
    """Return the library's storage at a checked address; a command takes ``timeout_s`` seconds at most.

    Valkey speaks Redis's protocol, so one driver serves both. ``rediss+…`` is a scheme of ours: the library
    knows TLS for one server only.
    """
    from limits.storage import storage_from_string

    scheme, _, rest = url.partition("://")
    scheme = scheme.replace("valkey", "redis")
    options: dict[str, Any] = {
        "protocol": 2,  # The older protocol, which every server supports.
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": _PROBE_S[1],
        "socket_timeout": timeout_s,
    }
    kind = scheme.partition("+")[2]
    parts = urlsplit(url)
    if not kind and not parts.port:
        # The library wants a port in every address.
        rest = f"{parts.netloc.rstrip(':')}:6379{rest.removeprefix(parts.netloc)}"
    if kind:
        # The library reads the address of one server with the driver, and those of several by itself.
        options["username"] = unquote(parts.username or "") or None
        options["password"] = unquote(parts.password or "") or None
        if scheme.startswith("rediss"):
            options["ssl"] = True
    if kind == "sentinel":
        seconds = {"socket_timeout": _SENTINEL_S, "socket_connect_timeout": _SENTINEL_S}
        known: dict[str, Any] = {name: options[name] for name in ("protocol", "ssl") if name in options}
        # A replica lags behind: what was counted a moment ago would be missing.
        options |= {"use_replicas": False, "sentinel_kwargs": known | seconds}
    storage = storage_from_string(
        f"async+redis{'s' if scheme == 'rediss' else ''}{'+' + kind if kind else ''}://{rest}",
        implementation="redispy",
        key_prefix=prefix,
        **options,
    )
    return cast("RedisStorage", storage)
