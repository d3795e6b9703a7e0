"""What every command needs: the configuration found, a loop to run in, and safe printing."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from proxy.server.config import Config, Options, load_config
from proxy.server.terminal import plain_text, safe_cell

if TYPE_CHECKING:  # Two megabytes that a command which prints no table does without.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "CONFIG_NAME",
    "MAX_LINE",
    "config_path",
    "confirmed",
    "console",
    "load",
    "run_async",
    "say",
    "say_error",
    "table",
    "text",
]

CONFIG_NAME = "toolrelay.toml"
MAX_LINE = 2000
"""Characters of one printed line."""

T = TypeVar("T")


def config_path(given: Path | None) -> Path | None:
    """The file that was named, else ``toolrelay.toml`` of the current folder if there is one."""
    if given is not None:
        return given
    default = Path(CONFIG_NAME)
    return default if default.exists() else None


def load(given: Path | None, options: Options | None = None, *, need_secrets: bool = True) -> Config:
    """The configuration of this call; raises :class:`~proxy.errors.ConfigError`."""
    return load_config(config_path(given), os.environ, options, need_secrets=need_secrets)


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop where there is one."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Not built for this platform; the standard loop does the same, slower.
        return None
    return uvloop.new_event_loop


def say(line: str) -> None:
    """Print one line to standard output at once: somebody may be waiting for it in a pipe."""
    print(line, flush=True)


def say_error(message: str) -> None:
    """Print one line to standard error; what it quotes cannot move the cursor or add a line."""
    print(f"toolrelay: {plain_text(message, MAX_LINE)}", file=sys.stderr, flush=True)


def confirmed(question: str) -> bool:
    """Whether somebody at a terminal says yes; without a terminal nobody does."""
    if not sys.stdin.isatty():
        return False
    print(f"{plain_text(question, MAX_LINE)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def console() -> "Console":
    """Standard output for tables; as wide as needed where it is no terminal, so that nothing is cut."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else 240, highlight=False, soft_wrap=not terminal)


def table(*titles: str) -> "Table":
    """A table without a frame, with a column for each title."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for title in titles:
        made.add_column(title)
    return made


def text(value: object, style: str = "") -> "Text":
    """Untrusted text for a table: no markup, no control characters."""
    return safe_cell(str(value), style, MAX_LINE)
