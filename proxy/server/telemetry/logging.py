"""The log: structlog over the standard library's loggers, so that ours and aiohttp's read alike.

One line per event on standard error: JSON in production, columns on a terminal.  The last processors
before the renderer make every line safe: known secrets, credential headers and control characters
never get out, whoever logged them.
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

from proxy.errors import ToolRelayError
from proxy.server.telemetry.json_lines import MAX_DEPTH, STAMP, JsonLines, LineCleaner
from proxy.server.telemetry.log_output import LogLines, dropped_line
from proxy.server.telemetry.output_queue import QueuedStream
from proxy.server.telemetry.terminal_log import TerminalLines

__all__ = ["REPLAY", "LogFormat", "Timestamper", "WorkerNumber", "add_origin", "configure_logging"]

LogFormat = Literal["json", "console"]

MAX_FRAMES = 40
REPLAY = "replay_of"
"""The context variable of structlog that has the id of the run that is replayed."""
_NOT_WRONG = frozenset({"debug", "info", "msg", "warn", "warning"})
_CORO = re.compile(r"coro=<([\w.<>]+)\(")
_LEVELS = {"warn": "warning", "exception": "error", "fatal": "critical", "msg": "info"}

_HTTP_PARSER_LOGGER = "aiohttp.server"
_QUIET = {
    # The proxy writes its own access line; aiohttp's has the query string in it.
    "aiohttp.access": logging.CRITICAL,
    # They quote cookies' names, of clients and of upstreams.
    "aiohttp.client": logging.ERROR,
    "aiohttp.internal": logging.ERROR,
    # Both say anew with each try that a collector of traces is away; the proxy says it once.
    "opentelemetry": logging.CRITICAL,
    "urllib3": logging.CRITICAL,
    # Below a warning libraries tell what they work on: rows with their values, bodies, addresses.
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
    """Route every logger of the process to ``stream`` (standard error) in one format.

    ``format`` of ``None`` means console on a terminal, else JSON.  ``secrets`` are values that no
    line may show.  Lines carry the number of a ``worker``, where there are several.  Calling it again
    replaces what an earlier call set up, but for applications that were created before: what writes
    most of their lines looks once.
    """
    out = stream if stream is not None else sys.stderr
    chosen = format or ("console" if out.isatty() else "json")
    numbered: list[Processor] = [WorkerNumber(worker)] if worker else []
    correlated: list[Processor] = [*numbered, structlog.contextvars.merge_contextvars]
    stamp = Timestamper()
    lines = JsonLines(secrets)
    console: list[Processor] = []
    if chosen == "console":
        console = [LineCleaner(secrets), TerminalLines(colours=_in_colour(out))]
    faults: list[Processor] = [
        structlog.processors.StackInfoRenderer(),
        structlog.processors.ExceptionRenderer(_faults),
    ]
    # Our own events go straight to the stream: a round trip through the standard library's loggers
    # costs more than all the rest of a line, and there is one for every request.
    structlog.configure(
        processors=[*correlated, add_origin, stamp, *faults, *(console or [lines.encoded])],
        logger_factory=lambda *names: LogLines(str(names[0]) if names else "proxy", out),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    if isinstance(out, QueuedStream):
        steps: list[Processor] = [*numbered, add_origin, stamp, *(console or [lines.encoded])]
        out.queue.say_dropped = partial(dropped_line, steps, LogLines("proxy.log", out))
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
    """Make ``handler`` the one of all the standard library's loggers, in place of an earlier one."""
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
    """The processor that says which worker it was."""

    worker: int

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event["worker"] = self.worker
        return event


def add_origin(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add the name and the level to an event of toolrelay's own.

    In a replay no client asks, and a refused call is the replay's result.  So the log has only faults of the
    proxy itself, with the run.
    """
    if REPLAY in event and method in _NOT_WRONG:
        raise structlog.DropEvent
    event["logger"] = logger.name
    event["level"] = _LEVELS.get(method, method)
    return event


class Timestamper:
    """The processor that says when, in UTC; the text of a second is made once for all its lines."""

    def __init__(self) -> None:
        self._made = (-1, "")

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        text, micros = self.now()
        # Six digits: the first of seven is cut off, which is faster than to fill up with zeros.
        event[STAMP] = f"{text}.{str(1_000_000 + micros)[1:]}Z"
        return event

    def now(self) -> tuple[str, int]:
        """The second as text, and microseconds."""
        now = time.time()
        second = int(now)
        known, text = self._made  # One pair, since threads log too.
        if known != second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._made = (second, text)
        return text, int((now - second) * 1_000_000)


def _in_colour(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR")


def _drop_formatted(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Take out what another handler's formatter left on a record: the whole message, once more."""
    event.pop("message", None)
    event.pop("asctime", None)
    return event


def _drop_parser_details(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Say that a request could not be parsed, not with which bytes.

    aiohttp's server logs the exception of a malformed request, whose text and traceback quote the
    start of the offending header line: a client's key, if that was the line.
    """
    if event.get("logger") != _HTTP_PARSER_LOGGER:
        return event
    # Who logs this has aiohttp; a supervisor has not.
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
    """Say what went wrong on the event loop, not with which values.

    Behind its first line asyncio writes out tasks, callbacks and their arguments: data that came in,
    the text of exceptions.  Where it was stands in the traceback.
    """
    if event.get("logger") == "asyncio":
        first, _, rest = str(event.get("event", "")).partition("\n")
        event["event"] = first.partition("(")[0].partition("<")[0].rstrip()
        if place := _CORO.search(first + rest):
            event["coro"] = place[1]
    return event


def _faults(exc_info: Any) -> str:
    """An exception, those behind it and in it: what they are and where, without their words.

    An exception's text may be anything: a value that did not parse, a whole request.  Only errors of
    this package and of the system are known to say nothing that they were handed.
    """
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    blocks: list[str] = []
    waiting: list[BaseException] = [error] if isinstance(error, BaseException) else []
    while waiting and len(blocks) < MAX_DEPTH:
        fault = waiting.pop(0)
        words = f": {fault}" if isinstance(fault, ToolRelayError) else ""
        if isinstance(fault, OSError):
            words = f": {fault.strerror}" if fault.strerror else ""
        name = f"{type(fault).__module__}.{type(fault).__qualname__}".removeprefix("builtins.")
        frames = "".join(traceback.format_tb(fault.__traceback__, limit=-MAX_FRAMES))
        blocks.append(f"Traceback (most recent call last):\n{frames}{name}{words}")
        behind = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
        if behind is not None:
            waiting.append(behind)
        if isinstance(fault, BaseExceptionGroup):
            waiting.extend(fault.exceptions)
    return "\n\n".join(blocks)
