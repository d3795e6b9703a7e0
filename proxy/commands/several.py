"""``toolrelay serve`` with several workers, or with ``--reload``."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from proxy.commands.common import say
from proxy.commands.reach import warn_of_upstreams
from proxy.commands.sockets import bind
from proxy.commands.supervisor import Supervisor
from proxy.commands.watching import stamps, watch, watched_files
from proxy.server.config import Config

__all__ = ["serve_several"]


async def serve_several(
    config: Config, load: Callable[[], Config], files: Path | None, *, reload: bool
) -> None:
    """Serve in ``server.workers`` processes until told to stop; SIGHUP starts them anew.

    ``load`` reads the configuration again.  With ``reload`` a change of the configuration's file, or of
    the operator's own tools, does as SIGHUP does.  Raises ConfigError or StoreError as :func:`serve`.
    """
    sockets = bind(config.server.host, config.server.port)
    beside: list[asyncio.Task[None]] = []
    try:
        supervisor = Supervisor(config, load, sockets)
        # Before any worker reads them: what changes while they start has changed.
        before = stamps(watched_files(files, config))

        def changed(paths: list[Path]) -> None:
            say(f"changed: {', '.join(path.name for path in paths)}")
            supervisor.changed.set()

        def started(lines: Sequence[str]) -> None:
            several = f"workers: {config.server.workers}"
            say("\n".join([*lines, several]))
            beside.append(asyncio.create_task(warn_of_upstreams(config)))
            if reload:
                watching = watch(lambda: watched_files(files, supervisor.config), before, changed)
                beside.append(asyncio.create_task(watching))

        await supervisor.run(started)
    finally:
        for task in beside:
            task.cancel()
        for listener in sockets:
            listener.close()
