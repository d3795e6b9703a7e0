"""The command line: one module per family of commands, and the only readers of the configuration
beside ``server/app.py``."""

import sys

__all__ = ["load_again", "main", "supervise", "work"]


def main() -> None:
    """Run ``toolrelay``; every fault that has a name ends as one line on standard error, exit 1."""
    # Imported here, so that a clash of packages is named before it can break an import.
    from proxy.commands.doctor.dependencies import find_conflicting_package

    clash = find_conflicting_package()
    if clash is not None:
        print(f"toolrelay: {clash}", file=sys.stderr)
        raise SystemExit(1)
    from proxy.commands.cli import run

    raise SystemExit(run(sys.argv[1:]))


def work(channel: int) -> None:
    """Be a worker of the supervisor at the other end of the ``channel``, a file descriptor."""
    from proxy.commands.serve.memory import share_one_arena

    share_one_arena()
    from proxy.commands.serve.worker import main as serve

    sys.exit(serve(channel))


def supervise(handover: int) -> None:
    """Be the supervisor that the process began for; ``handover`` is a file descriptor to be read."""
    from proxy.commands.serve.supervisor_main import main as start

    sys.exit(start(handover))


def load_again(channel: int) -> None:
    """Read the configuration for the supervisor at the other end of the ``channel``."""
    from proxy.commands.serve.multiprocess import load_again as load

    sys.exit(load(channel))
