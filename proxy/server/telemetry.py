"""The log: structlog over the standard library's loggers, so that ours and aiohttp's read alike.

One line per event on standard error: JSON in production, columns on a terminal.  The last processors
before the renderer make every line safe: known secrets, credential headers and control characters
never get out, whoever logged them.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TextIO

import orjson
import structlog
from aiohttp.http_exceptions import HttpProcessingError
from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["LineCleaner", "configure_logging"]

LogFormat = Literal["json", "console"]

MASK = "[redacted]"
MAX_TEXT = 8192
"""Characters of one logged string; a log line is no place for a body."""
MAX_DEPTH = 8
MAX_ITEMS = 200

_MIN_SECRET = 4
"""Shorter values would mask half of every line, and are no secrets."""

_SECRET_NAMES = frozenset(
    {
        "api_key",
        "authorization",
        "cookie",
        "proxy_authorization",
        "set_cookie",
        "x_api_key",
        "x_goog_api_key",
    }
)
_HEADER_IN_TEXT = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|(?:x-)?(?:goog-)?api-key)"
    r"(['\"]?\s*[:=,]\s*(?:b(?=['\"]))?['\"]?)[^\r\n'\"]+"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}")
# C0 and C1 controls, line separators, and the marks that make a terminal show text in another order.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_CONTROL_BUT_LAYOUT = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
# What any of the patterns above needs to find something: most strings are done after this one look.
_DOUBTFUL = rf"{_CONTROL.pattern}|(?i:auth|cookie|-key|bearer|basic)"
_LAYOUT_KEYS = frozenset({"exception", "stack"})

_HTTP_PARSER_LOGGER = "aiohttp.server"
_QUIET = {"aiohttp.access": logging.CRITICAL}
"""The proxy writes its own access line; aiohttp's has the query string in it."""


def configure_logging(
    *,
    format: LogFormat | None = None,
    level: str = "info",
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Route every logger of the process to ``stream`` (standard error) in one format.

    ``format`` of ``None`` means console on a terminal, else JSON.  ``secrets`` are values that no
    line may show.  Calling it again replaces what an earlier call set up.
    """
    out = stream if stream is not None else sys.stderr
    chosen = format or ("console" if out.isatty() else "json")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
    ]
    rendering: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        _drop_parser_details,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        LineCleaner(secrets),
        _console() if chosen == "console" else structlog.processors.JSONRenderer(serializer=_to_json),
    ]
    # Our own events go straight to the stream: a round trip through the standard library's loggers
    # costs more than all the rest of a line, and there is one for every request.
    structlog.configure(
        processors=[*shared[:-1], structlog.stdlib.PositionalArgumentsFormatter(), *rendering[1:]],
        logger_factory=lambda *names: _Lines(str(names[0]) if names else "proxy", out),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=rendering))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, type(handler.formatter))]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, floor in _QUIET.items():
        logging.getLogger(name).setLevel(floor)
    logging.captureWarnings(True)


class _Lines:
    """Where structlog's events end: one line each on a stream, under the logger's name."""

    def __init__(self, name: str, out: TextIO) -> None:
        self.name = name
        self._out = out

    def msg(self, line: str) -> None:
        """Write a line at once.  A log that cannot be written must not stop what it tells of."""
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except (OSError, ValueError):
            return

    debug = info = warning = warn = error = exception = critical = fatal = msg


def _console() -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


def _to_json(event: Any, **_: Any) -> str:
    """One JSON line; what JSON cannot say becomes its ``str``, already cleaned of control characters."""
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _drop_parser_details(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Say that a request could not be parsed, not with which bytes.

    aiohttp's server logs the exception of a malformed request, whose text and traceback quote the
    start of the offending header line: a client's key, if that was the line.
    """
    failure = event.get("exc_info")
    error = failure[1] if isinstance(failure, tuple) else failure
    chain: list[BaseException] = []
    while isinstance(error, BaseException) and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    if event.get("logger") == _HTTP_PARSER_LOGGER and any(isinstance(e, HttpProcessingError) for e in chain):
        event.pop("exc_info", None)
        event["error"] = type(chain[0]).__name__
        if isinstance(chain[0], HttpProcessingError):
            event["status"] = chain[0].code
    return event


class LineCleaner:
    """The processor that lets nothing unsafe through, at any depth of the event.

    It masks known secret values, values under credential names, and what looks like a credential in
    running text; it cuts long strings and escapes control characters.
    """

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= _MIN_SECRET}, key=len, reverse=True)
        names = "|".join(re.escape(secret) for secret in known)
        self._known = re.compile(names) if known else None
        self._doubtful = re.compile(f"{_DOUBTFUL}|{names}" if known else _DOUBTFUL)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {self.text(str(key)): self._value(str(key), value, 0) for key, value in event.items()}

    def text(self, text: str, *, layout: bool = False) -> str:
        """One string made safe; ``layout`` keeps line breaks and tabs (tracebacks)."""
        if len(text) <= MAX_TEXT and self._doubtful.search(text) is None:
            return text
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _HEADER_IN_TEXT.sub(rf"\1\2{MASK}", text)
        text = _BEARER.sub(rf"\1 {MASK}", text)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}… ({len(text)} characters)"
        pattern = _CONTROL_BUT_LAYOUT if layout else _CONTROL
        return pattern.sub(_escape, text)

    def _value(self, name: str, value: Any, depth: int) -> Any:
        if name.lower().replace("-", "_") in _SECRET_NAMES:
            return MASK
        match value:
            case None | bool() | float():
                return value
            case int():
                return value if -(1 << 63) <= value < 1 << 63 else hex(value)[:80]  # JSON lines take 64 bits.
            case str():
                return self.text(value, layout=depth == 0 and name in _LAYOUT_KEYS)
            case bytes():
                return self.text(value[:MAX_TEXT].decode("utf-8", "backslashreplace"))
            case _ if depth >= MAX_DEPTH:
                return "…"
            case Mapping():
                items = list(value.items())[:MAX_ITEMS]
                return {self.text(str(key)): self._value(str(key), item, depth + 1) for key, item in items}
            case list() | tuple() | set() | frozenset():
                return self._sequence(list(value)[:MAX_ITEMS], depth)
            case _:
                return self.text(str(value))

    def _sequence(self, values: list[Any], depth: int) -> list[Any]:
        """A list; a pair whose first part names a credential is a header, as header lists have them."""
        if len(values) == 2 and isinstance(values[0], str | bytes):
            name = values[0] if isinstance(values[0], str) else values[0].decode("latin-1")
            return [self.text(name), self._value(name, values[1], depth + 1)]
        return [self._value("", item, depth + 1) for item in values]


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
