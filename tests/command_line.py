"""What the tests of the commands call the command line by."""

from collections.abc import Callable
from subprocess import CompletedProcess

__all__ = ["Here"]

Here = Callable[..., CompletedProcess[str]]
"""Runs one command in this process; ``env`` are the settings of its environment."""
