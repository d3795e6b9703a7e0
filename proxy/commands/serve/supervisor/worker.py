"""A serving process, which gets sockets and configuration from its supervisor.

The first worker is forked after its parent's event loop has ended; later ones are new Python processes. So a
worker contains nothing of a running event loop or thread of its parent.
"""

import asyncio
import itertools
import json
import pickle
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from proxy.app.app import Overrides, create_app
from proxy.base.errors import StoreUnavailable, ToolRelayError
from proxy.commands.common import run_async, start_logging
from proxy.commands.doctor.connectivity import warn_of_upstreams
from proxy.commands.serve.port_holders import WORKER, set_process_name
from proxy.commands.serve.run import run_server
from proxy.commands.serve.serve import banner
from proxy.commands.serve.signals import STOPPING, Signals
from proxy.commands.serve.sockets import address_of
from proxy.commands.ui import ui_lines
from proxy.config.load import Config
from proxy.net.channel import Channel, ChannelBroken
from proxy.net.own_process import hide_memory
from proxy.server.peers import Answers, Peers

_GRACE_S = 1.0
"""Seconds to wait for an expected message of the supervisor."""


def main(channel_fd: int) -> int:
    """Serve until the supervisor ends this worker, or has died itself; return the exit status."""
    set_process_name(WORKER)
    hide_memory()
    # Only the supervisor acts on SIGHUP.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return run_async(_work(channel_fd))


async def _work(channel_fd: int) -> int:
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    first = await channel.receive()
    if first is None:
        return 1
    # The sender is this program's supervisor, over a private socket, so unpickling is safe.
    spec = _Spec(config=pickle.loads(first[1]), **{name: first[0][name] for name in _TOLD})
    number = spec.number if spec.config.server.workers > 1 else 0
    start_logging(spec.config, worker=number, serves=True)
    worker = _Worker(spec, channel)
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, worker.signalled)
    listening = asyncio.create_task(worker.listen())
    try:
        await worker.serve()
        worker.say_last()
    except ToolRelayError as error:
        # A record that is away may come back; whatever else prevents a start stays until somebody changes it.
        channel.send("failed", str(error).encode(), for_good=not isinstance(error, StoreUnavailable))
        await channel.flush()
        return 1
    finally:
        listening.cancel()
        await asyncio.wait({listening})
        await channel.flush()
        channel.close()
    return 0


@dataclass(frozen=True, slots=True)
class _Spec:
    """The data that the supervisor sends to a worker at its start.

    ``listeners`` are inherited file descriptors. The worker that ``greets`` reports unreachable upstreams.
    ``mcp_socket`` is the socket of the process that talks to MCP servers; empty for none.
    """

    config: Config
    number: int
    listeners: list[int]
    greets: bool
    mcp_socket: str


_TOLD = ("number", "listeners", "greets", "mcp_socket")


@dataclass(slots=True)
class _Question:
    """A question of this worker to the others, with the answers so far."""

    bodies: list[bytes] = field(default_factory=list)
    missing: int = 0
    ended: bytes = b""
    done: asyncio.Event = field(default_factory=asyncio.Event)


class _Worker:
    def __init__(self, spec: _Spec, channel: Channel) -> None:
        self.signals = Signals()
        self._spec = spec
        self._channel = channel
        self._peers = Peers()
        self._peers.ask_others = self._ask_others
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}

    async def serve(self) -> None:
        """Create the application and serve it until the end. Raises the errors that prevent a start."""
        config = self._spec.config
        given = Overrides(mcp_socket=Path(self._spec.mcp_socket) if self._spec.mcp_socket else None)
        app = await create_app(config, overrides=given, peers=self._peers)
        sockets = [socket.socket(fileno=listener) for listener in self._spec.listeners]
        for listener in sockets:
            listener.setblocking(False)
        address = address_of(sockets)
        lines = banner(config, app.services, address, app.authentication)
        lines += ui_lines(app, config, address)
        upstreams = app.services.upstreams
        await run_server(
            app,
            sockets,
            drain_s=config.server.drain_s,
            notice_s=config.server.notice_s,
            signals=self.signals,
            announce=lambda: self._ready(lines),
            ready=(lambda: warn_of_upstreams(config, upstreams)) if self._spec.greets else None,
        )

    def signalled(self) -> None:
        """Handle a signal to this process.

        If all processes of a service were signalled, the supervisor's command follows. If no command follows,
        the signal is for this worker only, and the others take over.
        """
        asyncio.get_running_loop().call_later(_GRACE_S, self.signals.retire.set)

    def say_last(self) -> None:
        """Send the supervisor this worker's last answers, because it cannot be asked any more."""
        for name in self._peers.published:
            if (body := self._peers.own_answer(name)) is not None:
                self._channel.send("last", body, name=name)

    def _ready(self, lines: Sequence[str]) -> None:
        self._channel.send("ready", json.dumps(lines).encode())

    async def listen(self) -> None:
        """Follow the supervisor's commands until it has ended; then close the port and stop.

        The port is closed first, so that the service can be started again.
        """
        try:
            while (message := await self._channel.receive()) is not None:
                self._heed(*message)
        except ChannelBroken as fault:
            structlog.get_logger("proxy.supervisor").error("channel_broken", reason=str(fault))
        self.signals.abandoned.set()
        self.signals.stop.set()

    def _heed(self, header: dict[str, Any], body: bytes) -> None:
        question = self._questions.get(header.get("id", 0))
        match header["kind"]:
            case "stop":
                self.signals.stop.set()
            case "hurry":
                self.signals.stop.set()
                self.signals.hurry.set()
            case "retire":
                self.signals.retire.set()
            case "question":
                answer = self._peers.own_answer(header["name"])
                if not self._channel.send("answer", answer or b"", id=header["id"], known=answer is not None):
                    self._channel.send("answer", id=header["id"], known=False)
            case "answer" if question is not None:
                question.bodies.append(body)
            case "answered" if question is not None:
                question.missing, question.ended = header["missing"], body
                question.done.set()

    async def _ask_others(self, name: str, within_s: float) -> Answers:
        """Return the answers of all other workers, as the supervisor collects them."""
        number = next(self._numbers)
        question = self._questions[number] = _Question()
        try:
            own = self._peers.own_answer(name) or b""
            if not self._channel.send("ask", own, id=number, name=name, within_s=within_s):
                return Answers(missing=1)
            async with asyncio.timeout(within_s + _GRACE_S):
                await question.done.wait()
        except TimeoutError:
            question.missing = max(1, question.missing)
        finally:
            del self._questions[number]
        ended = (question.ended,) if question.ended else ()
        return Answers(tuple(question.bodies), question.missing, ended)
