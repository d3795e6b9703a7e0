"""Running the server: sockets first, then the application, then signals until the end."""

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from urllib.parse import urlsplit

from aiohttp import web

from proxy.errors import ConfigError

__all__ = ["address_of", "bind", "find_unreachable", "run_server"]

BACKLOG = 1024
KEEPALIVE_S = 75.0
REACH_S = 3.0
"""Seconds in which an upstream must take a connection to count as reachable."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


async def run_server(
    app: web.Application,
    sockets: Sequence[socket.socket],
    *,
    drain_s: float,
    announce: Callable[[], None] | None = None,
    ready: Callable[[], Awaitable[None]] | None = None,
    draining: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let open streams end for at most ``drain_s`` seconds.

    ``announce`` is called once requests are taken and signals are heard; ``ready`` then runs beside
    the serving; ``draining`` is called when the first signal came.  A second signal cuts what is still open.
    """
    # handler_cancellation: a client that leaves must end its upstream call and its tools (rule E4).
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=drain_s,
    )
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    greeting: asyncio.Future[None] | None = None
    with _on_signals(asyncio.get_running_loop(), signals):
        try:
            await runner.setup()
            for listener in sockets:
                await web.SockSite(runner, listener, backlog=BACKLOG).start()
            if announce is not None:
                announce()
            if ready is not None:
                greeting = asyncio.ensure_future(ready())
            await signals.get()
            if draining is not None:
                draining()
        finally:
            if greeting is not None:
                greeting.cancel()
                await asyncio.wait({greeting})
            await _close(runner, signals)


async def _close(runner: web.AppRunner, signals: "asyncio.Queue[signal.Signals]") -> None:
    """Stop listening, wait for open requests, close the application; hurry on a further signal."""
    closing = asyncio.ensure_future(runner.cleanup())
    hurry = asyncio.ensure_future(signals.get())
    await asyncio.wait({closing, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done() and runner.server is not None:
        for connection in runner.server.connections:
            connection.force_close()
    hurry.cancel()
    await closing


@contextlib.contextmanager
def _on_signals(loop: asyncio.AbstractEventLoop, signals: "asyncio.Queue[signal.Signals]") -> Iterator[None]:
    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def find_unreachable(base_urls: dict[str, str]) -> list[str]:
    """One line for each upstream that takes no connection now.  Nothing is sent to it."""
    lines = await asyncio.gather(*(_reach(name, url) for name, url in base_urls.items()))
    return [line for line in lines if line]


async def _reach(name: str, base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return f"upstreams.{name}: {parts.hostname} port {port} takes no connection within {REACH_S:.0f} s"
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return f"upstreams.{name}: {parts.hostname} port {port} is not reachable ({reason})"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
