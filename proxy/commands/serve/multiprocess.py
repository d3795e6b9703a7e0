"""``toolrelay serve``: reads the configuration, starts the first worker, and becomes the supervisor."""

import asyncio
import os
import pickle
import signal
import socket
import sys
from pathlib import Path

from proxy.app.open_record import opened_record
from proxy.base.errors import ConfigError, ToolRelayError
from proxy.commands import common
from proxy.commands.mcp.host import mcp_settings
from proxy.commands.serve.sockets import bind
from proxy.commands.serve.supervisor.plan import Handover, ServePlan, write_handover
from proxy.commands.serve.supervisor.spawning import become
from proxy.commands.serve.watching import watched_places
from proxy.config.load import Config, Options
from proxy.net.channel import Channel


def serve_multiprocess(file: Path | None, options: Options, config: Config, *, reload: bool) -> None:
    """Serve in ``server.workers`` processes until stopped; SIGHUP replaces the workers.

    The first worker is forked, so that it starts as fast as a server without a supervisor. This process then
    becomes the supervisor, a smaller program, so the function returns only in the worker. With ``reload``, a
    change of the configuration's ``file`` or of the operator's own tools acts like SIGHUP. Raises ConfigError
    or StoreError before anything is started.
    """
    sockets = bind(config.server.host, config.server.port)
    try:
        common.run_async(_prepare(config))
        plan = _plan(file, config)
    except BaseException:  # A failed or interrupted start must not leave a port bound.
        for listener in sockets:
            listener.close()
        raise
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        # The worker creates its own socket objects from the descriptors.
        for listener in sockets:
            listener.detach()
        _work(theirs)
    theirs.close()
    listeners = tuple(listener.fileno() for listener in sockets)
    handover = Handover(plan, pickle.dumps((file, options)), reload, listeners, pid, ours.fileno())
    try:
        become("supervise", write_handover(handover), (*listeners, ours.fileno()))
    except OSError as error:
        # The worker ends when the channel closes.
        raise ConfigError(
            "installation",
            f"toolrelay cannot start its own program again: {error.strerror}",
            "Install it again",
        ) from None


def _work(channel: socket.socket) -> None:
    """Run the first worker, in the forked process."""
    from proxy.commands.serve.supervisor.worker import main

    # Like later workers, it gets no signals from a terminal: they are for the supervisor.
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.exit(main(channel.detach()))


async def _prepare(config: Config) -> None:
    """Open the record once, so that its migrations do not run in several processes at a time."""
    async with opened_record(config):
        pass


def _plan(file: Path | None, config: Config) -> ServePlan:
    """Extract what the supervisor needs from a configuration."""
    server = config.server
    files, folders = watched_places(common.config_path(file), config)
    return ServePlan(
        config=pickle.dumps(config),
        mcp=mcp_settings(config),
        host=server.host,
        port=server.port,
        workers=server.workers,
        drain_s=server.drain_s,
        notice_s=server.notice_s,
        log_format=common.log_format(config),
        log_level=config.log.level,
        secrets=config.log_secrets(),
        files=files,
        folders=folders,
    )


def load_again(channel_fd: int) -> int:
    """Read the configuration for a supervisor, in a short-lived process; return the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return asyncio.run(_load_again(channel_fd))


async def _load_again(channel_fd: int) -> int:
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    first = await channel.receive()
    if first is None:
        return 1
    # The supervisor got these bytes from the process that it was before, so unpickling them is safe.
    file, options = pickle.loads(first[1])
    try:
        config = common.load(file, options)
        await _prepare(config)
        channel.send("plan", pickle.dumps(_plan(file, config)))
    except ToolRelayError as error:
        channel.send("failed", str(error).encode())
    await channel.flush()
    channel.close()
    return 0
