"""Runs the server: it opens sockets, starts the application, and waits for signals."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiohttp import web

from proxy.commands.serve.signals import STOPPING, Signals, first_of, on_signals
from proxy.commands.serve.sockets import BACKLOG
from proxy.server.connections.application import Application
from proxy.server.connections.draining import Draining
from proxy.server.connections.runner import EdgeRunner

CUT_S = 2.0
"""Seconds that a response has to tell its client that it was cut."""


def _settle_garbage() -> None:
    """Exclude the objects from the start from garbage collection."""
    gc.collect()
    gc.freeze()


async def run_server(
    app: Application,
    sockets: Sequence[socket.socket],
    *,
    drain_s: float,
    notice_s: float = 0.0,
    signals: Signals | None = None,
    announce: Callable[[], None] | None = None,
    ready: Callable[[], Awaitable[None]] | None = None,
    draining: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal ends it, then end as :func:`_end` does, possibly after :func:`_hand_over`.

    ``signals`` come from a supervisor. Without them this process handles SIGINT, SIGTERM and SIGHUP itself;
    SIGHUP then ends it too, because nothing would start it again. ``announce`` is called when it accepts
    requests and signals. ``ready`` then runs concurrently. ``draining`` is called when it begins to end.
    """
    runner = EdgeRunner(app, shutdown_timeout=CUT_S)
    given = signals or Signals()
    greeting: asyncio.Future[None] | None = None
    leaving: asyncio.Future[None] | None = None
    notices = dict.fromkeys(STOPPING, given.signalled)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As set by nohup.
        notices[signal.SIGHUP] = given.signalled
    listening = on_signals(notices) if signals is None else contextlib.nullcontext()
    with listening:
        try:
            await runner.setup()
            for listener in sockets:
                await web.SockSite(runner, listener, backlog=BACKLOG).start()
            leaving = asyncio.ensure_future(_leave_port(runner, given.abandoned))
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
            for beside in (greeting, leaving):
                if beside is not None:
                    beside.cancel()
                    await asyncio.wait({beside})
            await runner.cleanup()


async def _leave_port(runner: EdgeRunner, abandoned: asyncio.Event) -> None:
    """Close the listening sockets as soon as the supervisor has died, whatever else is in progress."""
    await abandoned.wait()
    for site in list(runner.sites):
        await site.stop()


async def _hand_over(runner: EdgeRunner, draining: Draining, stop: asyncio.Event, drain_s: float) -> bool:
    """Leave new connections to the processes that have taken over; serve the open ones until they end.

    A connection that a client keeps open ends with the response to its next request, so that none is closed
    while a request is under way. Return true if all connections have ended or ``drain_s`` seconds have
    passed, and false if everything must stop.
    """
    draining.retire()
    for site in list(runner.sites):
        await site.stop()
    deadline = asyncio.get_running_loop().time() + drain_s
    # aiohttp has no event for the end of its last connection.
    while runner.server is not None and runner.server.connections:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0 or await first_of(stop.wait(), within_s=min(left, 0.1)):
            break
    return not stop.is_set()


async def _end(
    runner: EdgeRunner, draining: Draining, signals: Signals, *, notice_s: float, drain_s: float
) -> None:
    """Announce the end, let open requests finish, cut those that do not, and close the application.

    For ``notice_s`` seconds only ``/readyz`` reports the end; after that, new requests get 503. The sockets
    listen until the open requests have ended, so that clients get a response instead of a refused connection.
    Requests that are open ``drain_s`` seconds later are cut. The ``hurry`` signal cuts them at once, even if
    tools with effects are still awaited.
    """
    hurry = asyncio.ensure_future(signals.hurry.wait())
    hurry.add_done_callback(lambda done: None if done.cancelled() else draining.hurried.set())
    try:
        if not draining.closing and notice_s:
            draining.leaving = True
            # Without its supervisor it has already left the port, so nothing needs the notice.
            await first_of(signals.hurry.wait(), signals.abandoned.wait(), within_s=notice_s)
        draining.refuse()
        await first_of(draining.idle(), signals.hurry.wait(), within_s=drain_s)
        if draining.open:
            log = structlog.get_logger("proxy.server")
            log.warning("responses_cut", open=draining.open, hurried=draining.hurried.is_set())
            draining.cut()
            await first_of(draining.idle(), within_s=CUT_S)
        await runner.cleanup()
    finally:
        hurry.cancel()
