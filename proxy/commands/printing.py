"""Printing for people, without anything that a supervisor would have to load for it."""

import sys
from collections.abc import Iterable

from proxy.plain_text import plain_text

__all__ = ["MAX_LINE", "say", "say_error", "say_faults"]

MAX_LINE = 2000
"""Characters of one printed line."""


def say(line: str) -> None:
    """Print one line to standard output at once: somebody may be waiting for it in a pipe."""
    print(line, flush=True)


def say_error(message: str) -> None:
    """Print one line to standard error; what it quotes cannot move the cursor or add a line."""
    print(f"toolrelay: {plain_text(message, MAX_LINE)}", file=sys.stderr, flush=True)


def say_faults(faults: Iterable[str], codes: Iterable[str] = ()) -> None:
    """Print each fault as a line to standard error, and how to read about the first that has an explanation.

    ``codes`` are error codes that the faults have.
    """
    # Who has no fault does without what knows all settings.
    from proxy.commands.explain import hint

    lines = list(faults)
    for line in lines:
        say_error(line)
    if said := hint(lines, codes):
        say_error(said)
