"""Printing for people, without imports that a supervisor would have to load only for it."""

import sys
from collections.abc import Iterable
from typing import Any

from proxy.base.plain_text import plain_text, printable

MAX_LINE = 2000
"""The most characters of one printed line."""


def say(*lines: str) -> None:
    """Print lines to standard output at once, because a reader at a pipe may wait for them.

    Whatever they quote, no character moves the cursor, hides others or begins a further line.
    """
    print("\n".join(printable(line).replace("\n", "\\n") for line in lines), flush=True)


def say_json(*values: Any) -> None:
    """Print JSON values to standard output, each on a line in ASCII."""
    from proxy.api.admin.json_output import to_line

    for value in values:
        say(to_line(value))


def say_error(message: str) -> None:
    """Print one line to standard error; text that it quotes cannot move the cursor or add a line."""
    print(f"toolrelay: {plain_text(message, MAX_LINE)}", file=sys.stderr, flush=True)


def say_faults(faults: Iterable[str], codes: Iterable[str] = (), *, before: Iterable[str] = ()) -> None:
    """Print each fault as a line to standard error, and a hint for the first that has an explanation.

    ``codes`` are the error codes of the faults. ``before`` are faults that were printed before these.
    """
    # Imported here, because it loads all settings, which a command without faults does not need.
    from proxy.commands.explain import hint

    lines = list(faults)
    for line in lines:
        say_error(line)
    if more := hint([*before, *lines], codes):
        say_error(more)
