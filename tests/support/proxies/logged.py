"""Sets up logging as a server does, and restores the previous state after a test."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import structlog

from proxy.telemetry.log.setup import _QUIET, configure_logging


@contextmanager
def logging_put_back() -> Iterator[None]:
    """Restore the configuration of logging after the block."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in _QUIET}
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
        logging.captureWarnings(False)
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()


@contextmanager
def logged_to(sink: TextIO, **options: Any) -> Iterator[None]:
    """Write the log to ``sink`` as lines of JSON; ``options`` are those of ``configure_logging``."""
    with logging_put_back():
        configure_logging(format="json", stream=sink, **options)
        yield
