"""Helpers that all commands share: finding the configuration, running the event loop, and safe printing."""

import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from proxy.base.plain_text import plain_text, safe_cell
from proxy.commands.printing import MAX_LINE, say, say_error, say_faults, say_json

# The functions below import the rest, because --help needs none of it.
if TYPE_CHECKING:
    import asyncio

    from rich.console import Console
    from rich.text import Text

    from proxy.config.load import Config, Options
    from proxy.telemetry.log.setup import LogFormat

__all__ = [
    "CONFIG_NAME",
    "MAX_LINE",
    "MOST_EXITS",
    "RECORD_MODES",
    "PreventedExits",
    "config_path",
    "confirmed",
    "console",
    "load",
    "load_quietly",
    "load_with_log",
    "log_format",
    "print_table",
    "run_async",
    "run_or_fail",
    "say",
    "say_error",
    "say_faults",
    "say_json",
    "start_logging",
    "text",
    "upstream_named",
]

CONFIG_NAME = "toolrelay.toml"
T = TypeVar("T")

RECORD_MODES = ("record", "replay", "once")
"""What ``toolrelay record`` may do; see its option ``--mode``."""

MOST_EXITS = 20
"""The most prevented exits that are logged in one second."""

_PAUSE_S = 0.01
_EXIT_HINT = (
    "a tool raised this exception in a task or callback that it had started; raise ToolFailure in "
    "the call instead"
)


def config_path(given: Path | None) -> Path | None:
    """Return the given file, else ``toolrelay.toml`` of the current folder if it exists, else ``None``."""
    if given is not None:
        return given
    default = Path(CONFIG_NAME)
    return default if default.exists() else None


def load(
    given: Path | None, options: "Options | None" = None, *, need_secrets: bool | str = True
) -> "Config":
    """Load the configuration for a command; raises :class:`~proxy.base.errors.ConfigError`."""
    from proxy.config.load import load_config

    return load_config(config_path(given), os.environ, options, need_secrets=need_secrets)


def upstream_named(config: "Config", name: str | None) -> str:
    """Return the name of an upstream of the configuration, by default its first one.

    Raises :class:`~proxy.base.errors.ConfigError` if there is none of that name.
    """
    from proxy.base.errors import ConfigError

    if name is not None and name not in config.upstreams:
        raise ConfigError(
            "--upstream",
            f"the configuration has no upstream named {name!r}",
            f"Write one of these names, or a base URL: {', '.join(config.upstreams)}",
        )
    return name if name is not None else next(iter(config.upstreams))


def start_logging(config: "Config", *, worker: int = 0, serves: bool = False) -> None:
    """Configure the log. On a terminal the format is for people, unless the configuration sets one.

    If the process ``serves``, its output goes through a bounded queue, and is dropped if nobody reads it. Any
    other command waits for its reader.
    """
    from proxy.telemetry.log.output_queue import queue_output
    from proxy.telemetry.log.setup import configure_logging

    if serves:
        queue_output()
    configure_logging(
        format=log_format(config), level=config.log.level, secrets=config.log_secrets(), worker=worker
    )


def load_with_log(given: Path | None) -> "Config":
    """Load the configuration for a command that needs no secrets, and start the log; raises ConfigError."""
    loaded = load(given, need_secrets=False)
    start_logging(loaded)
    return loaded


def load_quietly(given: Path | None, *, need_secrets: bool | str = True) -> "Config":
    """Load the configuration for a command that prints its findings; only errors go to standard error.

    Raises :class:`~proxy.base.errors.ConfigError`.
    """
    from proxy.telemetry.log.setup import configure_logging

    loaded = load(given, need_secrets=need_secrets)
    configure_logging(level="error", secrets=loaded.log_secrets())
    return loaded


def log_format(config: "Config") -> "LogFormat | None":
    """Return the format of the log if the configuration sets one, else ``None``."""
    return config.log.format if "format" in config.log.model_fields_set else None


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop if it is installed.

    asyncio lets SystemExit and KeyboardInterrupt leave the event loop, whichever task raised them. An exit
    in a task of a tool must not end the process. So the loop continues where it stopped, and the log says
    what happened. Exceptions of ``main`` itself, and a real Ctrl-C, leave this function as usual.
    """
    import asyncio

    begun: list[asyncio.Task[Any] | None] = []
    exits = PreventedExits()

    async def known() -> T:
        begun.append(asyncio.current_task())
        return await main

    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        run: Callable[[], T] = partial(runner.run, known())
        while True:
            try:
                return run()
            except (SystemExit, KeyboardInterrupt) as end:
                task = begun[0] if begun else None
                if task is None or _is_real(end) or _is_own(end, task):
                    raise
                if task.done():
                    # A callback that exits every time would never let the loop end.
                    exits.add(end)
                    return cast("T", task.result())
                # The loop logs it: uvloop does not handle signals while it is stopped.
                runner.get_loop().call_soon(exits.add, end)
            run = partial(runner.get_loop().run_until_complete, task)
    finally:
        try:
            runner.close()
        except (SystemExit, KeyboardInterrupt) as end:
            if _is_real(end):
                raise
            exits.add(end)


def run_or_fail(main: Coroutine[Any, Any, bool]) -> None:
    """Run a coroutine as :func:`run_async` does, and exit with status 1 unless it returns ``True``."""
    if not run_async(main):
        from typer import Exit

        raise Exit(1)


class PreventedExits:
    """Logs exits that were prevented, and slows down code that exits again and again.

    A timer or a socket callback that exits every time must neither fill the log nor use a whole processor.
    Beyond :data:`MOST_EXITS` in one second, each exit causes a short pause and no log line.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._since = clock()
        self._count = 0

    def add(self, end: BaseException) -> None:
        """Count one prevented exit, and log it or pause."""
        now = self._clock()
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= MOST_EXITS:
            import structlog

            from proxy.base.errors import fault_facts

            structlog.get_logger("proxy.server").error("exit_prevented", **fault_facts(end), hint=_EXIT_HINT)
        else:
            self._sleep(_PAUSE_S)


def _is_own(end: BaseException, task: "asyncio.Task[Any]") -> bool:
    """Return whether the main task itself ended with this exception, or was cancelled by Ctrl-C."""
    return task.done() and (task.cancelled() or task.exception() is end)


def _is_real(end: BaseException) -> bool:
    """Return whether this may be a real Ctrl-C, which raises nothing if the loop itself handles SIGINT."""
    return (
        isinstance(end, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:  # Not built for this platform; the standard loop does the same, but slower.
        return None

    from proxy.net.resolver import numeric

    class Loop(uvloop.Loop):
        """uvloop without the name look-up when it connects to an IP address.

        uvloop's ``sock_connect`` sends even addresses through ``getaddrinfo`` in libuv's four threads. Names
        that no DNS server answers can keep these threads busy.
        """

        async def getaddrinfo(self, host: Any, port: Any, **options: int) -> Any:
            addresses = numeric(host, port, options.get("family", 0)) if isinstance(host, str) else None
            return await super().getaddrinfo(host, port, **options) if addresses is None else addresses

    return Loop


def confirmed(question: str) -> bool:
    """Ask a question on the terminal; return whether the answer is yes. Without a terminal it is no."""
    if not sys.stdin.isatty():
        return False
    print(f"{plain_text(question, MAX_LINE)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def console() -> "Console":
    """Create the console for tables; without a terminal it is so wide that nothing is cut."""
    from proxy.commands.safe_console import SafeConsole

    terminal = sys.stdout.isatty()
    return SafeConsole(width=None if terminal else 240, highlight=False, soft_wrap=not terminal)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None) -> None:
    """Print a table without a frame; values that are no ``Text`` are untrusted and become one."""
    from rich.table import Table
    from rich.text import Text

    made = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        made.add_row(*(value if isinstance(value, Text) else text(value) for value in row))
    console().print(made, width=width)


def text(value: object, style: str = "") -> "Text":
    """Convert untrusted text to a table cell without markup and control characters."""
    return safe_cell(str(value), style, MAX_LINE)
