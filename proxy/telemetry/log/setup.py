"""Configure the log: structlog, and the standard library's loggers in the same format.

Each event is one line on standard error: JSON in production, columns on a terminal. The last processors
before the renderer make every line safe: known secrets, credential headers and control characters are never
logged, no matter which code logs them.
"""

import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from proxy.base.errors import ToolRelayError
from proxy.telemetry.log.json_lines import MAX_DEPTH, STAMP, JsonLines, LineCleaner
from proxy.telemetry.log.output import LogLines, dropped_line
from proxy.telemetry.log.output_queue import QueuedStream
from proxy.telemetry.log.terminal import TerminalLines

LogFormat = Literal["json", "console"]

MAX_FRAMES = 40
REPLAY = "replay_of"
"""The context variable of structlog that holds the id of the replayed run."""
_NOT_FAULTS = frozenset({"debug", "info", "msg", "warn", "warning"})
_CORO = re.compile(r"coro=<([\w.<>]+)\(")
_LEVELS = {"warn": "warning", "exception": "error", "fatal": "critical", "msg": "info"}

_HTTP_PARSER_LOGGER = "aiohttp.server"
_QUIET = {
    # The proxy writes its own access line; aiohttp's contains the query string.
    "aiohttp.access": logging.CRITICAL,
    # They quote the names of cookies of clients and upstreams.
    "aiohttp.client": logging.ERROR,
    "aiohttp.internal": logging.ERROR,
    # Both log at each attempt that a collector of traces is away; the proxy logs it once.
    "opentelemetry": logging.CRITICAL,
    "urllib3": logging.CRITICAL,
    # Below warnings, libraries log the data that they handle: rows with their values, bodies, addresses.
    "aiohttp": logging.WARNING,
    "aiosqlite": logging.WARNING,
    "asyncio": logging.WARNING,
    "asyncpg": logging.WARNING,
    "redis": logging.WARNING,
    "requests": logging.WARNING,
    "trafilatura": logging.WARNING,
}


def configure_logging(
    *,
    format: LogFormat | None = None,
    level: str = "info",
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
    worker: int = 0,
) -> None:
    """Route every logger of the process to ``stream`` (standard error by default) in one format.

    If ``format`` is ``None``, it is console on a terminal, else JSON. ``secrets`` are values that no line
    may show. Lines contain the number of the ``worker`` if there are several. A second call replaces the
    earlier set-up, except for applications that exist already: their access logs read the set-up only once.
    """
    out = stream if stream is not None else sys.stderr
    chosen = format or ("console" if out.isatty() else "json")
    numbered: list[Processor] = [WorkerNumber(worker)] if worker else []
    correlated: list[Processor] = [*numbered, structlog.contextvars.merge_contextvars]
    stamp = Timestamper()
    lines = JsonLines(secrets)
    console: list[Processor] = []
    if chosen == "console":
        colours = out.isatty() and not os.environ.get("NO_COLOR")
        console = [LineCleaner(secrets), TerminalLines(colours=colours)]
    faults: list[Processor] = [
        structlog.processors.StackInfoRenderer(),
        structlog.processors.ExceptionRenderer(_faults),
    ]
    # toolrelay's own events go directly to the stream: the standard library's loggers would cost more than
    # all the rest of a line, and each request has one.
    structlog.configure(
        processors=[*correlated, add_origin, stamp, *faults, *(console or [lines.encoded])],
        logger_factory=lambda *names: LogLines(str(names[0]) if names else "proxy", out),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    if isinstance(out, QueuedStream):
        steps: list[Processor] = [*numbered, add_origin, stamp, *(console or [lines.encoded])]
        out.queue.make_dropped_line = partial(dropped_line, steps, LogLines("proxy.log", out))
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                *correlated,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.add_log_level,
                stamp,
                structlog.stdlib.ExtraAdder(),
                _drop_formatted,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _drop_parser_details,
                _drop_loop_details,
                *faults,
                *(console or [lines]),
            ],
        )
    )
    _install(handler, level)


def _install(handler: logging.Handler, level: str) -> None:
    """Install ``handler`` for all of the standard library's loggers, in place of an earlier one."""
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, type(handler.formatter))]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, floor in _QUIET.items():
        logging.getLogger(name).setLevel(max(floor, root.level))
    logging.captureWarnings(True)


@dataclass(frozen=True, slots=True)
class WorkerNumber:
    """The processor that adds the number of the worker."""

    worker: int

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event["worker"] = self.worker
        return event


def add_origin(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add the logger's name and the level to an event of toolrelay's own.

    In a replay no client asks, and a refused call is the replay's result. So the log contains only faults of
    the proxy itself, with the run.
    """
    if REPLAY in event and method in _NOT_FAULTS:
        raise structlog.DropEvent
    event["logger"] = logger.name
    event["level"] = _LEVELS.get(method, method)
    return event


class Timestamper:
    """The processor that adds the time, in UTC; it formats each second only once."""

    def __init__(self) -> None:
        self._made = (-1, "")

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        text, micros = self.now()
        # Seven digits without the first, which is faster than padding with zeros.
        event[STAMP] = f"{text}.{str(1_000_000 + micros)[1:]}Z"
        return event

    def now(self) -> tuple[str, int]:
        """Return the current second as text, and the microseconds."""
        now = time.time()
        second = int(now)
        known, text = self._made  # One pair, because threads log too.
        if known != second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._made = (second, text)
        return text, int((now - second) * 1_000_000)


def _drop_formatted(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Remove what another handler's formatter added to a record: a copy of the whole message."""
    event.pop("message", None)
    event.pop("asctime", None)
    return event


def _drop_parser_details(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Remove a client's bytes from the log of a request that could not be parsed.

    aiohttp's server logs the exception of a malformed request, whose text and traceback quote the start of
    the offending header line, which may be a client's key.
    """
    if event.get("logger") != _HTTP_PARSER_LOGGER:
        return event
    # Imported here, because a process without aiohttp, such as a supervisor, never comes here.
    from aiohttp.http_exceptions import HttpProcessingError

    failure = event.get("exc_info")
    error = failure[1] if isinstance(failure, tuple) else failure
    chain: list[BaseException] = []
    while isinstance(error, BaseException) and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    if any(isinstance(e, HttpProcessingError) for e in chain):
        event.pop("exc_info", None)
        event["error"] = type(chain[0]).__name__
        if isinstance(chain[0], HttpProcessingError):
            event["status"] = chain[0].code
    return event


def _drop_loop_details(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Remove values from the log of a fault on the event loop.

    After its first line, asyncio writes tasks, callbacks and their arguments: received data, and the text of
    exceptions. The traceback shows where the fault was.
    """
    if event.get("logger") == "asyncio":
        first, _, rest = str(event.get("event", "")).partition("\n")
        event["event"] = first.partition("(")[0].partition("<")[0].rstrip()
        if place := _CORO.search(first + rest):
            event["coro"] = place[1]
    return event


def _faults(exc_info: Any) -> str:
    """Format an exception, its causes and the members of its group: their types and places, without their
    texts.

    An exception's text may contain anything: a value that could not be parsed, or a whole request. Only the
    errors of this package and of the system are known not to contain such data.
    """
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    blocks: list[str] = []
    waiting: list[BaseException] = [error] if isinstance(error, BaseException) else []
    while waiting and len(blocks) < MAX_DEPTH:
        fault = waiting.pop(0)
        reason = f": {fault}" if isinstance(fault, ToolRelayError) else ""
        if isinstance(fault, OSError):
            reason = f": {fault.strerror}" if fault.strerror else ""
        name = f"{type(fault).__module__}.{type(fault).__qualname__}".removeprefix("builtins.")
        frames = "".join(traceback.format_tb(fault.__traceback__, limit=-MAX_FRAMES))
        blocks.append(f"Traceback (most recent call last):\n{frames}{name}{reason}")
        behind = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
        if behind is not None:
            waiting.append(behind)
        if isinstance(fault, BaseExceptionGroup):
            waiting.extend(fault.exceptions)
    return "\n\n".join(blocks)
