"""``python -m bench.deployment``: a deployment while many streams are open and many clients keep connections.

Two workers hold silent streams (a model that thinks), paced streams and idle connections. In the middle the
server gets a SIGHUP, as a deployment sends it: new workers take over, and the old ones serve their streams to
the end. The result says what broke, what each worker needs, and how late the paced chunks came. The clients,
the upstream and both generations of workers share the machine, so delays on few cores say more about the
cores than about the proxy.
"""

import argparse
import asyncio
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from bench.contestants import toolrelay
from bench.load import Load, Result
from bench.measure import run_load
from bench.processes import Process, free_port, python, started

WORKERS = 2
SILENT_S = 75
PACED_MS, PACED_CHUNKS = 250, 180
RESTART_S = 15
OPENING_MS = 4
"""Milliseconds between the starts of two streams."""
_AT_ONCE = 100
_MIB = 1024


class Idle(asyncio.Protocol):
    """A client that asks once, keeps its connection, and asks again when told."""

    def __init__(self) -> None:
        self.closed = False
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # The answer has a few hundred bytes, and comes in one piece.
        if not self.answered.done():
            self.answered.set_result(data.startswith(b"HTTP/1.1 200 "))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.answered.done():
            self.answered.set_result(False)

    async def ask(self) -> bool:
        """Ask for ``/healthz``; return whether the answer was 200."""
        assert self._transport is not None
        self.answered = asyncio.get_running_loop().create_future()
        self._transport.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return await self.answered


async def _connected(port: int) -> Idle:
    _, client = await asyncio.get_running_loop().create_connection(Idle, "127.0.0.1", port)
    return client


async def open_idle(port: int, number: int) -> list[Idle]:
    """Open connections that have had an answer."""
    clients: list[Idle] = []
    while len(clients) < number:
        some = min(_AT_ONCE, number - len(clients))
        clients += await asyncio.gather(*(_connected(port) for _ in range(some)))
        await asyncio.gather(*(client.ask() for client in clients[-some:]))
    return clients


async def ask_again(port: int, clients: list[Idle]) -> tuple[int, int]:
    """Ask on each connection, on a new one where the server had closed it; return closed and failed ones."""
    closed = failed = 0
    for client in clients:
        if client.closed:
            closed += 1
            client = await _connected(port)
        failed += not await client.ask()
    return closed, failed


def in_thread(load: Load) -> tuple[threading.Thread, threading.Event, list[Result]]:
    """Run a load in its own process; the event is set once its streams are open."""
    opened, results = threading.Event(), list[Result]()

    def run() -> None:
        results.append(run_load(load, None, opened.set))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, opened, results


def memory(process: Process) -> list[int]:
    """Return the MiB (proportional set size) of each process of the server, the largest first."""
    found = []
    for pid in process.pids():
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found.append(sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) // _MIB)
    return sorted(found, reverse=True)


async def deploy(proxy: Process, silent: int, paced: int, idle: int, say: Callable[[str], None]) -> int:
    """Hold everything, restart the workers in the middle, and return how much broke."""
    waiting = await open_idle(proxy.port, idle)
    say(f"{idle} idle connections: {memory(proxy)} MiB")
    loads = [
        Load(
            proxy.port,
            "paced",
            count,
            pause_ms,
            number,
            number,
            hold=True,
            opening_ms=OPENING_MS * number,
        )
        for number, count, pause_ms in ((silent, 1, 1000 * SILENT_S), (paced, PACED_CHUNKS, PACED_MS))
    ]
    running = [in_thread(load) for load in loads]
    for _, opened, _ in running:
        await asyncio.to_thread(opened.wait)
    say(f"{silent} silent and {paced} paced streams more: {memory(proxy)} MiB")
    began = time.monotonic()
    proxy.send(signal.SIGHUP)
    await asyncio.sleep(RESTART_S)
    say(f"during the restart: {memory(proxy)} MiB")
    closed, failed = await ask_again(proxy.port, waiting)
    for thread, _, _ in running:
        await asyncio.to_thread(thread.join)
    (quiet,), (busy,) = (results for _, _, results in running)
    say(f"{time.monotonic() - began:.0f} s after the restart all streams have ended: {memory(proxy)} MiB")
    say(f"silent: {quiet.failed} of {quiet.done} broken; paced: {busy.failed} of {busy.done} broken")
    say(f"delay of a paced chunk: median {busy.delay[0]:.1f} ms, 99th percentile {busy.delay[1]:.1f} ms")
    say(f"idle connections: {closed} closed before they were used again, {failed} requests failed")
    return quiet.failed + busy.failed + failed


def main(arguments: list[str] | None = None) -> int:
    """Print what a deployment costs under load; the exit status is 1 if anything broke."""
    parser = argparse.ArgumentParser(prog="python -m bench.deployment", description="Deploy under load.")
    for name, number in (("silent", 2000), ("paced", 500), ("idle", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=number, help=f"how many ({number})")
    parser.add_argument("--tools", action="store_true", help="offer tools")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        mock = python("-m", "bench.mock", str(port))
        stack.enter_context(started("mock", port, mock, folder / "mock.log", core=None))
        proxy = stack.enter_context(
            toolrelay(
                "toolrelay",
                folder,
                port,
                tools=given.tools,
                core=None,
                workers=WORKERS,
                env={"TOOLRELAY_SERVER__DRAIN_S": "300", "TOOLRELAY_LIMITS__CONCURRENT_STREAMS": "100000"},
            )
        )
        return int(asyncio.run(deploy(proxy, given.silent, given.paced, given.idle, print)) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
