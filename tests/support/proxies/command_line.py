"""The type with which the tests of the commands run the command line, and the hint of a failed command."""

from collections.abc import Callable
from subprocess import CompletedProcess

Here = Callable[..., CompletedProcess[str]]
"""Runs one command in this process; ``env`` are its environment variables."""

HINT = "toolrelay: to read more, run: toolrelay explain "
"""The beginning of the last line of a failed command; the name of the fault's explanation follows."""
