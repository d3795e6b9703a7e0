"""The command line, one module per family of commands; it and ``app/app.py`` read the configuration."""

import gc
import sys

from proxy.base.light_imports import import_structlog


def _start() -> None:
    """Tune the garbage collector for imports and for short-lived objects; call this first in a process.

    Each request creates some hundred objects that die with it, without a cycle. With its defaults the
    collector runs after every few of them, and often also scans everything that modules have loaded.
    """
    gc.set_threshold(10_000, 20, 50)


def main() -> None:
    """Run ``toolrelay``; print every expected error as one line on standard error and exit with status 1."""
    _start()
    # Imported here, to report conflicting packages before they can break an import.
    from proxy.commands.doctor.dependencies import find_conflicting_package

    clash = find_conflicting_package()
    if clash is not None:
        print(f"toolrelay: {clash}", file=sys.stderr)
        raise SystemExit(1)
    from proxy.commands.cli import run

    raise SystemExit(run(sys.argv[1:]))


def work(channel: int) -> None:
    """Run a worker of the supervisor at the other end of ``channel``, a file descriptor."""
    from proxy.commands.serve.memory import share_one_arena

    share_one_arena()
    _start()
    import_structlog()
    from proxy.commands.serve.supervisor.worker import main as serve

    sys.exit(serve(channel))


def supervise(handover: int) -> None:
    """Run the supervisor in the process started for it; the descriptor ``handover`` gives it its options."""
    _start()
    import_structlog()
    from proxy.commands.serve.supervisor.supervisor_main import main as start

    sys.exit(start(handover))


def load_again(channel: int) -> None:
    """Read the configuration for the supervisor at the other end of ``channel``, a file descriptor."""
    _start()
    import_structlog()
    from proxy.commands.serve.multiprocess import load_again as load

    sys.exit(load(channel))
