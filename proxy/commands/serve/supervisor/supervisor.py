"""Several worker processes on one port: the supervisor starts, restarts and ends them.

The supervisor itself serves nothing. It binds the sockets once, and each worker inherits them. The kernel
gives a connection to the worker that accepts it first, so no connection is lost when a worker ends.
"""

import asyncio
import contextlib
import json
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import structlog

from proxy.base.errors import ConfigError, ToolRelayError
from proxy.commands.printing import say, say_error
from proxy.commands.serve.notify import STOPPING as STATE_STOPPING
from proxy.commands.serve.notify import notify_manager
from proxy.commands.serve.signals import STOPPING, Signals, first_of, has_terminal, on_signals
from proxy.commands.serve.supervisor.broadcast import Broadcast
from proxy.commands.serve.supervisor.children import Child, Children
from proxy.commands.serve.supervisor.plan import Handover, ServePlan
from proxy.commands.serve.supervisor.spawning import spawn
from proxy.net.channel import Channel, ChannelBroken
from proxy.telemetry.snapshots import METRICS, merge
from proxy.tools.mcp.process import HostProcess

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 30.0
_STEADY_S = 60.0
"""If a worker served for this many seconds before it died, the back-off begins anew."""

_DEATH_S = 5.0
"""Seconds for a killed worker to disappear."""

_MARGIN_S = 15.0
"""Seconds that a worker gets beyond its own time limits, before it is killed."""


_HANGUP_S = 0.1
"""Seconds after SIGHUP until the terminal that may have sent it is gone."""


class _State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


class _StartFailed(ToolRelayError):
    """A worker, or the process that reads the configuration, ended too early.

    The message is that of the process, if it sent one. ``for_good`` says that a new process would fail alike.
    """

    def __init__(self, message: str, *, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good


@dataclass(eq=False, slots=True)
class _Worker:
    number: int
    process: Child
    channel: Channel
    started_at: float
    ready: "asyncio.Future[list[str]]"
    mcp: bytes = b""
    state: _State = _State.STARTING
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)


class Supervisor:
    """Runs the workers of one port. The watcher of the configuration's files sets ``changed``."""

    def __init__(self, handover: Handover) -> None:
        self.plan = handover.plan
        self.changed = asyncio.Event()
        self._handover = handover
        self._children = Children()
        self._current: dict[int, _Worker] = {}
        self._all: set[_Worker] = set()
        self._hosts: dict[bytes, HostProcess] = {}
        self._signals = Signals()
        self._gone = asyncio.Event()
        self._backoff_s = _FIRST_BACKOFF_S
        # A user who started it with nohup wants it to survive the terminal, as a service does.
        self._on_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()
        self._auth = ""
        self._questions = Broadcast({METRICS: lambda ended: merge((), ended)})
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.supervisor")

    async def run(self, listening: Callable[[], None], started: Callable[[Sequence[str]], None]) -> None:
        """Serve until SIGINT or SIGTERM, or until the terminal closes.

        ``listening`` is called when signals are handled. ``started`` is called once, with the lines of the
        first worker. SIGHUP replaces the workers: the new ones serve before the old ones end. Raises
        :class:`~proxy.base.errors.ToolRelayError` for a start that fails, once for all workers.
        """
        actions: dict[signal.Signals, Callable[[], object]] = dict.fromkeys(STOPPING, self._signals.signalled)
        with on_signals({**actions, signal.SIGHUP: self._hung_up, signal.SIGCHLD: self._children.reap}):
            listening()
            try:
                lines = await self._first_start()
                if lines:
                    self._auth = _auth_line(lines)
                    started(lines)
                await self._keep_up()
                notify_manager(STATE_STOPPING)
                self._say(f"stopping: open streams have {self.plan.drain_s:g} s to end")
            finally:
                await self._end()
                for host in self._hosts.values():
                    await host.aclose()

    def _hung_up(self) -> None:
        """Handle SIGHUP: a user wants new workers, or the terminal from which this was started has closed."""
        asyncio.get_running_loop().call_later(_HANGUP_S, self._heed_hangup)

    def _heed_hangup(self) -> None:
        if self._on_terminal and not has_terminal():
            self._signals.signalled()
        else:
            self.changed.set()

    @staticmethod
    def _say(line: str) -> None:
        # A closed terminal accepts no line.
        with contextlib.suppress(OSError):
            say(line)

    # Starting.

    async def _first_start(self) -> list[str]:
        """Start all workers; return the lines of the first one that serves.

        A worker that dies meanwhile is started again later, if another one serves. Raises
        :class:`_StartFailed` if none does. The result is empty if a signal to stop comes first.
        """
        plan = self.plan
        channel = socket.socket(fileno=self._handover.channel)
        begun = [await self._attended(1, plan, self._handover.pid, channel)]
        # It may have ended before SIGCHLD was handled.
        self._children.reap()
        failed: list[str] = []
        for number in range(2, plan.workers + 1):
            try:
                begun.append(await self._spawn(number, plan))
            except _StartFailed as error:
                failed.append(str(error))
        self._current = {worker.number: worker for worker in begun}
        if not await self._settle(begun, asyncio.ALL_COMPLETED):
            return []
        failed += [str(fault) for worker in begun if (fault := worker.ready.exception())]
        serving = [worker for worker in begun if worker.ready.exception() is None]
        if not serving:
            raise _StartFailed(failed[0])
        for reason in failed:
            self._log.error("worker_failed", reason=reason)
        return serving[0].ready.result()

    async def _start(self, plan: ServePlan) -> list[str]:
        """Start workers that replace the current ones; return the lines of one of them.

        If a worker fails to start, raises :class:`_StartFailed`, and the current workers stay.
        """
        new: dict[int, _Worker] = {}
        ready = False
        try:
            for number in range(1, plan.workers + 1):
                new[number] = await self._spawn(number, plan)
            ready = await self._settle(new.values(), asyncio.FIRST_EXCEPTION)
            if not ready:
                return []
            # If one has failed, others may not be ready; the exception of the failed one must be raised.
            reports = [worker.ready.result() for worker in sorted(new.values(), key=_is_up)]
        except _StartFailed:
            ready = False
            raise
        finally:
            if not ready:
                # Some of them may already serve requests, which must not be cut off.
                for worker in new.values():
                    self._let_go(worker, "retire")
        old, self._current, self.plan = self._current, new, plan
        for worker in old.values():
            self._let_go(worker, "retire")
        return reports[-1]

    async def _settle(self, workers: Iterable[_Worker], until: str) -> bool:
        """Wait until all workers serve or have failed; return false if a signal to stop comes first."""
        ready = [worker.ready for worker in workers]
        await first_of(asyncio.wait(ready, return_when=until), self._signals.stop.wait())
        return not self._signals.stop.is_set()

    async def _spawn(self, number: int, plan: ServePlan) -> _Worker:
        """Start one worker. Raises :class:`_StartFailed` if the system cannot start a process."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = spawn("work", theirs.fileno(), self._handover.listeners)
        except OSError as error:
            ours.close()
            raise _StartFailed(f"worker {number} cannot be started: {error.strerror}") from None
        return await self._attended(number, plan, pid, ours)

    def _mcp_socket(self, plan: ServePlan) -> str:
        """Return the socket of the process that talks to the plan's MCP servers; empty if it has none."""
        if not plan.mcp:
            return ""
        if plan.mcp not in self._hosts:
            host = self._hosts[plan.mcp] = HostProcess(plan.mcp, tells=True)
            host.start()
        return str(self._hosts[plan.mcp].path)

    async def _release_hosts(self) -> None:
        """End the processes for MCP servers that no worker uses; at a stop, :meth:`run` ends them all."""
        if self._signals.stop.is_set():
            return
        used = {self.plan.mcp, *(worker.mcp for worker in self._all)}
        for settings in [host for host in self._hosts if host not in used]:
            await self._hosts.pop(settings).aclose()

    async def _attended(self, number: int, plan: ServePlan, pid: int, end: socket.socket) -> _Worker:
        """Register a started worker process, send it its configuration, and begin to listen to it."""
        child = self._children.add(pid)
        channel = await Channel.over(end)
        ready = asyncio.get_running_loop().create_future()
        # If another worker failed first, nothing may ever read this exception, which would cause a warning.
        ready.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        worker = _Worker(number, child, channel, time.monotonic(), ready, plan.mcp)
        # Only worker 1 of the first start reports which upstreams are unreachable.
        greets = number == 1 and not self._current
        channel.send(
            "spec",
            plan.config,
            number=number,
            listeners=self._handover.listeners,
            greets=greets,
            mcp_socket=self._mcp_socket(plan),
        )
        self._all.add(worker)
        worker.tasks = [asyncio.create_task(self._attend(worker))]
        return worker

    async def _attend(self, worker: _Worker) -> None:
        """Handle a worker's messages until its process ends, then handle its end."""
        text, for_good = "", False
        try:
            while (message := await worker.channel.receive()) is not None:
                header, body = message
                match header["kind"]:
                    case "ready" if worker.state is _State.STARTING:
                        worker.state = _State.SERVING
                        self._questions.add_member(worker, worker.channel)
                        worker.ready.set_result(json.loads(body))
                    case "failed":
                        text, for_good = body.decode(errors="replace"), header["for_good"]
                    case _:
                        self._questions.on_message(worker, header, body)
        except ChannelBroken:
            worker.process.kill()
        # The worker's end of the channel closes with its process, however it ends.
        status = await worker.process.ended
        worker.channel.close()
        self._questions.remove_member(worker)
        self._all.discard(worker)
        if not worker.ready.done():
            text = text or f"worker {worker.number} ended with status {status} before it was ready"
            worker.ready.set_exception(_StartFailed(text, for_good=for_good))
        elif worker.state is not _State.LEAVING:
            self._log.error("worker_died", worker=worker.number, status=status)
        self._gone.set()
        await self._release_hosts()

    # Keeping up.

    async def _keep_up(self) -> None:
        """Restart workers that died or whose configuration changed, until a signal to stop."""
        while not self._signals.stop.is_set():
            await first_of(self._signals.stop.wait(), self._gone.wait(), self.changed.wait())
            if self._signals.stop.is_set():
                return
            if self.changed.is_set():
                self.changed.clear()
                await self._restart()
            self._gone.clear()
            self._check_hope()
            for number in range(1, self.plan.workers + 1):
                worker = self._current.get(number)
                if worker is None or worker not in self._all:
                    await self._replace(number, worker)

    def _check_hope(self) -> None:
        """Raise :class:`_StartFailed` if no worker serves or starts, and the last one cannot start for good.

        The port closes then, so that clients go to another host. They would wait here for ever.
        """
        errors = [worker.ready.exception() for worker in self._current.values() if worker.ready.done()]
        lost = [error for error in errors if isinstance(error, _StartFailed) and error.for_good]
        if lost and not any(worker in self._all for worker in self._current.values()):
            raise lost[0]

    async def _replace(self, number: int, dead: _Worker | None) -> None:
        """Start a worker in place of one that died or never started, with a growing delay if it dies soon."""
        if dead is not None and time.monotonic() - dead.started_at > _STEADY_S:
            self._backoff_s = _FIRST_BACKOFF_S
        if await first_of(self._signals.stop.wait(), self.changed.wait(), within_s=self._backoff_s):
            self._gone.set()
            return
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)
        try:
            worker = self._current[number] = await self._spawn(number, self.plan)
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
        """Read the configuration again and replace the workers; if anything fails, the old ones stay."""
        try:
            plan = await self._load()
            if plan is None:
                return
            self._check_place(plan)
            lines = await self._start(plan)
        except ToolRelayError as error:
            say_error(f"not restarted, the present workers keep serving: {error}")
            self._log.error("restart_refused", reason=str(error))
            return
        if lines:
            new = "1 new worker serves" if plan.workers == 1 else f"{plan.workers} new workers serve"
            self._say(f"restarted: {new}; the old ones finish their open requests")
            if (auth := _auth_line(lines)) != self._auth:
                # A start token that was not needed before has not been printed yet.
                self._auth = auth
                self._say(auth)
            self._log.info("restarted", workers=plan.workers)

    async def _load(self) -> ServePlan | None:
        """Read the current configuration in a short-lived process.

        Return ``None`` if a signal to stop comes first. Raises :class:`_StartFailed` for a fault in the
        configuration.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = self._children.add(spawn("load_again", theirs.fileno()))
        except OSError as error:
            ours.close()
            raise _StartFailed(f"the configuration cannot be read: {error.strerror}") from None
        channel = await Channel.over(ours)
        channel.send("source", self._handover.source)
        reading = asyncio.create_task(channel.receive())
        try:
            await first_of(asyncio.wait({reading}), self._signals.stop.wait())
            if not reading.done():
                return None
            # The sender is this program, over a private socket, so unpickling is safe.
            message = reading.result()
        except ChannelBroken:
            message = None
        finally:
            reading.cancel()
            child.kill()
            channel.close()
        match message:
            case ({"kind": "plan"}, body):
                plan: ServePlan = pickle.loads(body)
                return plan
            case ({"kind": "failed"}, body):
                raise _StartFailed(body.decode(errors="replace"))
        raise _StartFailed(
            f"the configuration was not read: the process that reads it ended with status {await child.ended}"
        )

    def _check_place(self, plan: ServePlan) -> None:
        """Raise ConfigError if the address has changed: the sockets stay bound, so that needs a new start."""
        for name in ("host", "port"):
            if getattr(plan, name) != getattr(self.plan, name):
                raise ConfigError(
                    f"server.{name}",
                    "has changed, which a restart cannot apply",
                    "Stop toolrelay and start it again",
                )

    # Ending.

    async def _end(self) -> None:
        """Let all workers finish open requests; hurry them at a second signal, and kill those that remain."""
        hurry = self._signals.hurry
        for worker in list(self._all):
            self._let_go(worker, "stop")
        if self._all and not await first_of(self._empty(), hurry.wait(), within_s=self._patience_s()):
            self._kill()
        if self._all and hurry.is_set():
            for worker in list(self._all):
                self._order(worker, "hurry")
            if not await first_of(self._empty(), within_s=_MARGIN_S):
                self._kill()
        if self._all and not await first_of(self._empty(), within_s=_DEATH_S):
            # A process that waits for a disk cannot be killed, so waiting longer would not help.
            for worker in self._all:
                self._log.error("worker_stuck", worker=worker.number, pid=worker.process.pid)

    def _patience_s(self) -> float:
        # Streams get the drain time, and tools with effects get it once more.
        return self.plan.notice_s + 2 * self.plan.drain_s + _MARGIN_S

    def _kill(self) -> None:
        for worker in self._all:
            self._log.error("worker_killed", worker=worker.number)
            worker.process.kill()

    async def _empty(self) -> None:
        while self._all:
            self._gone.clear()
            await self._gone.wait()

    def _let_go(self, worker: _Worker, word: str) -> None:
        """End a worker with the command ``word``; kill one that does not serve yet."""
        if worker.state is _State.STARTING:
            self._dismiss([worker])
        else:
            self._order(worker, word)

    def _order(self, worker: _Worker, word: str) -> None:
        """Send a worker the command to end, and kill it later if it does not."""
        if worker.state is not _State.LEAVING:
            worker.state = _State.LEAVING
            worker.tasks.append(asyncio.create_task(self._outlive(worker)))
        worker.channel.send(word)

    async def _outlive(self, worker: _Worker) -> None:
        await asyncio.sleep(self._patience_s() + self.plan.drain_s)
        if worker in self._all:
            self._log.error("worker_killed", worker=worker.number)
            worker.process.kill()

    @staticmethod
    def _dismiss(workers: Iterable[_Worker]) -> None:
        """Kill workers that do not serve yet."""
        for worker in workers:
            worker.state = _State.LEAVING
            worker.process.kill()


def _auth_line(lines: Iterable[str]) -> str:
    """Return a worker's line about authentication."""
    return next((line for line in lines if line.startswith("auth: ")), "")


def _is_up(worker: _Worker) -> bool:
    return not worker.ready.done() or worker.ready.exception() is None
