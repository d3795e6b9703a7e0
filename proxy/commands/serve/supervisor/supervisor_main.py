"""The program of a supervisor: it reads its handover, prints its messages, and returns its exit status."""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from proxy.base.errors import ToolRelayError
from proxy.commands.printing import say, say_faults
from proxy.commands.serve.notify import READY, notify_manager
from proxy.commands.serve.port_holders import SUPERVISOR, set_process_name
from proxy.commands.serve.supervisor.plan import Handover, read_handover
from proxy.commands.serve.supervisor.spawning import SIGNALS_HELD
from proxy.commands.serve.supervisor.supervisor import Supervisor
from proxy.commands.serve.watching import stamps, watch, watched_files
from proxy.net.keep_running import keep_running
from proxy.net.own_process import hide_memory
from proxy.telemetry.log.output_queue import queue_output
from proxy.telemetry.log.setup import configure_logging


def main(fd: int) -> int:
    """Supervise until stopped; return the exit status. ``fd`` is the file descriptor of the handover."""
    set_process_name(SUPERVISOR)
    hide_memory()
    handover = read_handover(fd)
    plan = handover.plan
    queue_output()
    configure_logging(format=plan.log_format, level=plan.log_level, secrets=plan.secrets)
    try:
        asyncio.run(_supervise(handover))
    except ToolRelayError as error:
        say_faults([str(error)])
        return 1
    return 0


async def _supervise(handover: Handover) -> None:
    supervisor = Supervisor(handover)
    beside: list[asyncio.Task[NoReturn]] = []

    def watched() -> set[Path]:
        return watched_files(supervisor.plan.files, supervisor.plan.folders)

    # Taken before any worker reads the files, so that a change during the start is noticed.
    before = stamps(watched()) if handover.reload else {}

    def changed(paths: list[Path]) -> None:
        say(f"changed: {', '.join(path.name for path in paths)}")
        supervisor.changed.set()

    def started(lines: Sequence[str]) -> None:
        workers = supervisor.plan.workers
        notify_manager(READY)
        with contextlib.suppress(OSError):
            say(*lines, *([f"workers: {workers}"] if workers > 1 else []))
        if handover.reload:
            watching = keep_running("reload-watch", lambda: watch(watched, before, changed))
            beside.append(asyncio.create_task(watching))

    def listening() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_HELD)

    try:
        await supervisor.run(listening, started)
    finally:
        for task in beside:
            task.cancel()
