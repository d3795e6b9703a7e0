"""What the tests of the commands call the command line by."""

from collections.abc import Callable
from subprocess import CompletedProcess

__all__ = ["HINT", "Here"]

Here = Callable[..., CompletedProcess[str]]
"""Runs one command in this process; ``env`` are the settings of its environment."""

HINT = "toolrelay: to read more, run: toolrelay explain "
"""How the last line of a command that failed begins, if a fault has an explanation; its name follows."""
