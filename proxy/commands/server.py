"""Running the server: sockets first, then the application, then signals until the end."""

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from proxy.errors import ConfigError
from proxy.server.config import Config
from proxy.server.connection import EdgeRunner, Served
from proxy.server.draining import Draining

__all__ = [
    "STOPPING",
    "Orders",
    "address_of",
    "bind",
    "find_unreachable",
    "first_of",
    "on_signals",
    "places_of",
    "run_server",
]

BACKLOG = 1024
CUT_S = 2.0
"""Seconds in which a response that is cut can still tell its client."""

REACH_S = 3.0
"""Seconds in which a server must take a connection to count as reachable."""

_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a server: the first in order, a further one now."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address that ``host`` stands for.

    Done before anything else starts, so that a port in use stops the start and nothing more.
    Raises :class:`~proxy.errors.ConfigError`.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(
            "server.host", f"{host!r} is no address of this machine", "Use 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            # With port 0 the first address chooses, and the others follow.
            chosen = sockets[0].getsockname()[1] if sockets else port
            sockets.append(_listen(family, kind, protocol, (address[0], chosen, *address[2:])))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise _bind_fault(error, host, port) from None
    return sockets


def _listen(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_fault(error: OSError, host: str, port: int) -> ConfigError:
    other = "Choose another with --port, or server.port in the configuration (0 takes any free one)"
    if error.errno == errno.EADDRINUSE:
        return ConfigError("server.port", f"port {port} on {host} is in use", other)
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError("server.port", f"this user may not listen on port {port}", other)
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            "server.host", f"{host} is no address of this machine", "Use 127.0.0.1, or 0.0.0.0 for all"
        )
    return ConfigError("server.port", f"cannot listen on {host} port {port}: {error.strerror}", other)


def address_of(sockets: Sequence[socket.socket]) -> str:
    """The first listening address as a URL."""
    host, port = sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Orders:
    """What a serving process is told: ``stop``, after that ``hurry``; or ``retire``, where others go on."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.retire = asyncio.Event()

    def signalled(self) -> None:
        """Somebody sent a signal: the first stops, a further one makes it now."""
        (self.hurry if self.stop.is_set() else self.stop).set()


def _settle_garbage() -> None:
    """Let the collector look at what requests make, not at what the start has made once and for all.

    Each request makes some hundred objects that die with it, without a cycle; by default the collector
    runs for every few of them, and every so often goes through all that modules have loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


async def run_server(
    app: Served,
    sockets: Sequence[socket.socket],
    *,
    drain_s: float,
    notice_s: float = 0.0,
    orders: Orders | None = None,
    announce: Callable[[], None] | None = None,
    ready: Callable[[], Awaitable[None]] | None = None,
    draining: Callable[[], None] | None = None,
) -> None:
    """Serve until told to end, then end as :func:`_end` says, or :func:`_hand_over` before that.

    ``orders`` come from whoever supervises this process; without them SIGINT and SIGTERM are the orders.
    ``announce`` is called once requests are taken and orders are heard; ``ready`` then runs beside
    the serving; ``draining`` is called when it is to end.
    """
    runner = EdgeRunner(app, shutdown_timeout=CUT_S)
    given = orders or Orders()
    greeting: asyncio.Future[None] | None = None
    told = dict.fromkeys(STOPPING, given.signalled)
    listening = on_signals(told) if orders is None else contextlib.nullcontext()
    with listening:
        try:
            await runner.setup()
            for listener in sockets:
                await web.SockSite(runner, listener, backlog=BACKLOG).start()
            _settle_garbage()
            if announce is not None:
                announce()
            if ready is not None:
                greeting = asyncio.ensure_future(ready())
            await first_of(given.stop.wait(), given.retire.wait())
            if draining is not None:
                draining()
            state = app.draining
            if not given.stop.is_set() and await _hand_over(runner, state, given.stop, drain_s):
                drain_s = 0.0
            await _end(runner, state, given, notice_s=notice_s, drain_s=drain_s)
        finally:
            if greeting is not None:
                greeting.cancel()
                await asyncio.wait({greeting})
            await runner.cleanup()


async def _hand_over(runner: EdgeRunner, draining: Draining, stop: asyncio.Event, drain_s: float) -> bool:
    """Leave new connections to the processes that have taken over; serve those that are open to their end.

    A connection that a client keeps ends with the response to its next request, so that none is closed
    while a request is on its way.  Returns whether ``drain_s`` seconds went by, or all have ended; false
    where everything is to stop.
    """
    draining.retire()
    for site in list(runner.sites):
        await site.stop()
    deadline = asyncio.get_running_loop().time() + drain_s
    # aiohttp tells nobody when its last connection has ended.
    while runner.server is not None and runner.server.connections:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0 or await first_of(stop.wait(), within_s=min(left, 0.1)):
            break
    return not stop.is_set()


async def _end(
    runner: EdgeRunner, draining: Draining, orders: Orders, *, notice_s: float, drain_s: float
) -> None:
    """Say that this process goes, let open requests end, cut what does not, close the application.

    For ``notice_s`` seconds only ``/readyz`` says no; after that new requests get 503.  The sockets
    listen until the open requests have ended, so that whoever asks in the meantime is told and not
    refused.  What is open after ``drain_s`` seconds more is cut.  An order to hurry makes it now, also
    where tools with effects are still waited for.
    """
    hurry = asyncio.ensure_future(orders.hurry.wait())
    hurry.add_done_callback(lambda done: None if done.cancelled() else draining.hurried.set())
    try:
        if not draining.closing and notice_s:
            draining.leaving = True
            await asyncio.wait({hurry}, timeout=notice_s)
        draining.refuse()
        await first_of(draining.idle(), orders.hurry.wait(), within_s=drain_s)
        if draining.open:
            log = structlog.get_logger("proxy.server")
            log.warning("responses_cut", open=draining.open, hurried=draining.hurried.is_set())
            draining.cut()
            await first_of(draining.idle(), within_s=CUT_S)
        await runner.cleanup()
    finally:
        hurry.cancel()


async def first_of(*works: Coroutine[Any, Any, Any], within_s: float | None = None) -> bool:
    """Wait for the first of these to end, the others are cancelled; whether one did in time."""
    tasks = {asyncio.ensure_future(work) for work in works}
    try:
        done, _ = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return bool(done)


@contextlib.contextmanager
def on_signals(told: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Call what stands beside each signal when it comes."""
    loop = asyncio.get_running_loop()
    for number, act in told.items():
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in told:
            loop.remove_signal_handler(number)


def places_of(config: Config) -> dict[str, str]:
    """The servers that a configuration names, by the setting: the upstreams, and where limits are counted."""
    upstreams = {f"upstreams.{name}": upstream.base_url for name, upstream in config.upstreams.items()}
    return {**upstreams, "limits.storage": config.limits.storage_url}


async def find_unreachable(places: dict[str, str]) -> list[str]:
    """One line for each server of :func:`places_of` that takes no connection now.  Nothing is sent to it."""
    lines = await asyncio.gather(*(_reach(setting, url) for setting, url in places.items()))
    return [line for line in lines if line]


async def _reach(setting: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        return ""
    port = parts.port or _PORTS[parts.scheme]
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return f"{setting}: {parts.hostname} port {port} takes no connection within {REACH_S:.0f} s"
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return f"{setting}: {parts.hostname} port {port} is not reachable ({reason})"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
