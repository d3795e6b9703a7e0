"""Several processes on one port: one binds, starts them, starts them again, and lets them end.

The supervisor serves nothing.  It binds the sockets once, and each worker inherits them: the kernel
gives a connection to whoever takes it first, and no connection is lost when one of them goes.
"""

import asyncio
import json
import pickle
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import structlog

from proxy.commands.common import say, say_error
from proxy.commands.link import Link, LinkBroken
from proxy.commands.orders import STOPPING, Orders, first_of, on_signals
from proxy.commands.questions import Questions
from proxy.commands.spawning import WorkerSpec, spawn
from proxy.errors import ConfigError, ToolRelayError
from proxy.server.config import Config
from proxy.server.record import open_record
from proxy.server.snapshots import METRICS, merge

__all__ = ["Supervisor"]

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 30.0
_STEADY_S = 60.0
"""A worker that served for so long begins its back-off anew when it dies."""

_MARGIN_S = 15.0
"""What a worker gets beyond its own times to end, before it is killed."""


class _State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


class _StartFailed(ToolRelayError):
    """A worker ended before it served; the message is its own where it had one."""


@dataclass(eq=False, slots=True)
class _Worker:
    number: int
    process: "subprocess.Popen[bytes]"
    link: Link
    started_at: float
    ready: "asyncio.Future[list[str]]"
    state: _State = _State.STARTING
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)


class Supervisor:
    """The workers of one port.

    ``load`` reads the configuration anew; ``changed`` is set by whoever watches its files.
    """

    def __init__(self, config: Config, load: Callable[[], Config], sockets: Sequence[socket.socket]) -> None:
        self.config = config
        self.changed = asyncio.Event()
        self._load = load
        self._sockets = sockets
        self._current: dict[int, _Worker] = {}
        self._all: set[_Worker] = set()
        self._orders = Orders()
        self._gone = asyncio.Event()
        self._backoff_s = _FIRST_BACKOFF_S
        self._questions = Questions({METRICS: lambda ended: merge((), ended)})
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.supervisor")

    async def run(self, started: Callable[[Sequence[str]], None]) -> None:
        """Serve until SIGINT or SIGTERM.  ``started`` gets what the first worker has to say, once.

        SIGHUP starts the workers anew: the new ones serve before the old ones go.  Raises
        :class:`~proxy.errors.ToolRelayError` for a start that fails, once for all workers.
        """
        told = dict.fromkeys(STOPPING, self._orders.signalled)
        with on_signals({**told, signal.SIGHUP: self.changed.set}):
            try:
                await self._prepare(self.config)
                lines = await self._start(self.config)
                if lines:
                    started(lines)
                await self._keep_up()
                say(f"stopping: open streams get {self.config.server.drain_s:g} s to end")
            finally:
                await self._end()

    # Starting.

    @staticmethod
    async def _prepare(config: Config) -> None:
        """Open the record once, alone: its migrations must not run in several processes at a time."""
        store = open_record(config)
        await store.start()
        await store.aclose()

    async def _start(self, config: Config) -> list[str]:
        """Start workers in place of the current ones; what the first of them has to say.

        Raises :class:`_StartFailed` with the current ones untouched, where one does not come up.
        """
        new: dict[int, _Worker] = {}
        try:
            for number in range(1, config.server.workers + 1):
                new[number] = await self._spawn(number, config)
            said = await self._all_ready(list(new.values()))
        except _StartFailed:
            self._dismiss(new.values())
            raise
        if said is None:
            self._dismiss(new.values())
            return []
        old, self._current, self.config = self._current, new, config
        for worker in old.values():
            self._let_go(worker, "retire")
        return said[0]

    async def _all_ready(self, workers: Sequence[_Worker]) -> list[list[str]] | None:
        """What each has to say when all serve; ``None`` where everything is to stop first."""
        ready = asyncio.gather(*(worker.ready for worker in workers))
        await first_of(_settled(ready), self._orders.stop.wait())
        if not ready.done():
            ready.cancel()
            return None
        return ready.result()

    async def _spawn(self, number: int, config: Config) -> _Worker:
        """Start one worker.  Raises :class:`_StartFailed` where the system has no room for it."""
        ours, theirs = socket.socketpair()
        listeners = tuple(listener.fileno() for listener in self._sockets)
        try:
            with theirs:
                process = spawn(theirs.fileno(), listeners)
        except OSError as error:
            ours.close()
            raise _StartFailed(f"worker {number} cannot be started: {error.strerror}") from None
        link = await Link.over(ours)
        ready = asyncio.get_running_loop().create_future()
        # Nobody may be left to ask for it, where another of them failed first.
        ready.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        worker = _Worker(number, process, link, time.monotonic(), ready)
        link.send("spec", pickle.dumps(WorkerSpec(number, config, listeners)))
        self._all.add(worker)
        worker.tasks = [asyncio.create_task(self._attend(worker))]
        return worker

    async def _attend(self, worker: _Worker) -> None:
        """Take what a worker says until its end, and take note of that."""
        said = ""
        try:
            while (message := await worker.link.receive()) is not None:
                header, body = message
                match header["kind"]:
                    case "ready" if worker.state is _State.STARTING:
                        worker.state = _State.SERVING
                        self._questions.joined(worker, worker.link)
                        worker.ready.set_result(json.loads(body))
                    case "failed":
                        said = body.decode(errors="replace")
                    case _:
                        self._questions.heed(worker, header, body)
        except LinkBroken:
            worker.process.kill()
        # Its end of the channel closes with the process, however that ends.
        status = await asyncio.to_thread(worker.process.wait)
        worker.link.close()
        self._questions.left(worker)
        self._all.discard(worker)
        if not worker.ready.done():
            said = said or f"worker {worker.number} ended with status {status} before it served"
            worker.ready.set_exception(_StartFailed(said))
        elif worker.state is not _State.LEAVING:
            self._log.error("worker_died", worker=worker.number, status=status)
        self._gone.set()

    # Keeping up.

    async def _keep_up(self) -> None:
        """Start again what died and what changed, until it is time to stop."""
        while not self._orders.stop.is_set():
            await first_of(self._orders.stop.wait(), self._gone.wait(), self.changed.wait())
            if self._orders.stop.is_set():
                return
            if self.changed.is_set():
                self.changed.clear()
                await self._restart()
            self._gone.clear()
            for number, worker in list(self._current.items()):
                if worker not in self._all:
                    await self._replace(number, worker)

    async def _replace(self, number: int, dead: _Worker) -> None:
        """Start a worker in the place of one that died, later each time where it dies soon."""
        if time.monotonic() - dead.started_at > _STEADY_S:
            self._backoff_s = _FIRST_BACKOFF_S
        if await first_of(self._orders.stop.wait(), self.changed.wait(), within_s=self._backoff_s):
            self._gone.set()
            return
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)
        try:
            worker = self._current[number] = await self._spawn(number, self.config)
        except _StartFailed as error:
            self._log.error("worker_failed", worker=number, reason=str(error))
            self._gone.set()
        else:
            worker.ready.add_done_callback(lambda done: self._came_up(worker, done))

    def _came_up(self, worker: _Worker, done: "asyncio.Future[list[str]]") -> None:
        if done.cancelled() or worker.state is _State.LEAVING:
            return
        if (error := done.exception()) is not None:
            self._log.error("worker_failed", worker=worker.number, reason=str(error))
            self._gone.set()
        else:
            self._log.info("worker_started", worker=worker.number)

    async def _restart(self) -> None:
        """Read the configuration anew and let new workers take over; if anything is wrong, the old stay."""
        try:
            config = self._load()
            self._check_place(config)
            await self._prepare(config)
            lines = await self._start(config)
        except ToolRelayError as error:
            say_error(f"not restarted, the workers serve as before: {error}")
            self._log.error("restart_refused", reason=str(error))
            return
        if lines:
            say(f"restarted: {config.server.workers} new workers serve, the old ones end what is open")
            self._log.info("restarted", workers=config.server.workers)

    def _check_place(self, config: Config) -> None:
        """What was bound stays bound: a port that changes needs a start."""
        for name in ("host", "port"):
            if getattr(config.server, name) != getattr(self.config.server, name):
                raise ConfigError(
                    f"server.{name}", "has changed, which a restart cannot follow", "Stop and start"
                )

    # Ending.

    async def _end(self) -> None:
        """Let all workers end what is open; hurry them where a further signal comes; kill what stays."""
        hurry = self._orders.hurry
        for worker in list(self._all):
            self._let_go(worker, "stop")
        if self._all and not await first_of(self._empty(), hurry.wait(), within_s=self._patience_s()):
            self._kill()
        if self._all and hurry.is_set():
            for worker in list(self._all):
                self._order(worker, "hurry")
            if not await first_of(self._empty(), within_s=_MARGIN_S):
                self._kill()
        await self._empty()

    def _patience_s(self) -> float:
        server = self.config.server
        # Streams get the drain, and tools with effects once more as long.
        return server.notice_s + 2 * server.drain_s + _MARGIN_S

    def _kill(self) -> None:
        for worker in self._all:
            self._log.error("worker_killed", worker=worker.number)
            worker.process.kill()

    async def _empty(self) -> None:
        while self._all:
            self._gone.clear()
            await self._gone.wait()

    def _let_go(self, worker: _Worker, word: str) -> None:
        """End a worker in the way that the word says, one that serves nobody yet at once."""
        if worker.state is _State.STARTING:
            self._dismiss([worker])
        else:
            self._order(worker, word)

    def _order(self, worker: _Worker, word: str) -> None:
        """Tell a worker to go, and see to it that it does."""
        if worker.state is not _State.LEAVING:
            worker.state = _State.LEAVING
            worker.tasks.append(asyncio.create_task(self._outlive(worker)))
        worker.link.send(word)

    async def _outlive(self, worker: _Worker) -> None:
        await asyncio.sleep(self._patience_s() + self.config.server.drain_s)
        if worker in self._all:
            self._log.error("worker_killed", worker=worker.number)
            worker.process.kill()

    @staticmethod
    def _dismiss(workers: Iterable[_Worker]) -> None:
        """End workers that serve nobody yet."""
        for worker in workers:
            worker.state = _State.LEAVING
            worker.process.kill()


async def _settled(ready: "asyncio.Future[Any]") -> None:
    await asyncio.wait({ready})
