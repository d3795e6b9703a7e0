"""Write log lines that contain nothing unsafe: no secret, no credential, no control character.

Most events are safe already, and checking that costs less than cleaning them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from structlog.typing import EventDict, WrappedLogger

from proxy.base.caches import CacheSize, declare
from proxy.base.plain_text import HIDDEN, written_out

MASK = "[redacted]"
MAX_TEXT = 8192
"""The most characters of one logged string, because a log line is not meant for bodies."""

MAX_DEPTH = 8
MAX_ITEMS = 200
_MIN_SECRET = 4
"""Shorter values are not secrets, and masking them would hide half of every line."""

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

# A client key or a token made from one, even inside a path.
_CLIENT_KEY = re.compile(r"\b(?:tr_[A-Za-z0-9_-]{16,}|trt_[A-Za-z0-9_:-]{1,80}(?:\.[A-Za-z0-9_-]+)+)")
# Base64 follows "basic", and contains no hyphen, so an option of a command does not match.
_BEARER = re.compile(r"(?i)\b(bearer(?=\s)|basic(?=\s+[^\s-]))\s+[A-Za-z0-9._~+/=-]{4,}")

_CONTROL = re.compile(f"[{HIDDEN}]")
_CONTROL_BUT_LAYOUT = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

# Every match of a pattern above contains one of these, so this one search suffices for most strings.
_DOUBTFUL = rf"{_CONTROL.pattern}|(?i:auth|cookie|-key|bearer|basic)|trt?_"
_LAYOUT_KEYS = frozenset({"exception", "stack"})
_PLAIN = frozenset({int, float, bool, type(None)})

# A text without any of these contains no credential, so the patterns above need not run.
_MARKS = ("auth", "cookie", "-key", "_key", "bearer", "basic", "tr_", "trt_")
STAMP = "timestamp"
_EACH_NEW = frozenset({"correlation_id", "operation_id", "request_id", "run_id", "tool_invocation_id"})
"""The values of these fields are unique, so remembering them would only displace others."""

_MAX_REMEMBERED = 256
_MOST_REMEMBERED = 1024
_OF_IDS = frozenset("req_run_0123456789abcdef")
_TOO_LONG_FOR_IDS = 24
"""A number of hexadecimal digits (96 bits) that a random id never shares with a secret by chance."""


@dataclass(frozen=True, slots=True)
class Open:
    """A value that a form leaves open; ``place`` is its placeholder in a line, for ``%`` of bytes."""

    place: bytes


NUMBER: Final = Open(b"%d")
TENTHS: Final = Open(b"%d.%d")
"""A number with one decimal digit, filled in as two integers."""

ID: Final = Open(b'"%b"')
"""An id that the proxy made: ``req_`` or ``run_`` and hexadecimal digits."""

NOW: Final = Open(b'"%b.%06dZ"')


class LineCleaner:
    """The processor that removes everything unsafe, at any depth of the event.

    It masks known secret values, values under credential names, and text that looks like a credential. It
    cuts long strings and escapes control characters.
    """

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= _MIN_SECRET}, key=len, reverse=True)
        names = "|".join(re.escape(secret) for secret in known)
        self._known = re.compile(names) if known else None
        self._doubtful = re.compile(f"{_DOUBTFUL}|{names}" if known else _DOUBTFUL)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {self.text(str(key)): self._value(str(key), value, 0) for key, value in event.items()}

    def text(self, text: str, *, layout: bool = False) -> str:
        """Return a safe version of a string; ``layout`` keeps line breaks and tabs (tracebacks)."""
        if len(text) <= MAX_TEXT and self._doubtful.search(text) is None:
            return text
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _HEADER_IN_TEXT.sub(rf"\1\2{MASK}", text)
        text = _BEARER.sub(rf"\1 {MASK}", text)
        text = _CLIENT_KEY.sub(MASK, text)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}… ({len(text)} characters)"
        pattern = _CONTROL_BUT_LAYOUT if layout else _CONTROL
        return pattern.sub(lambda match: written_out(match[0]), text)

    def _value(self, name: str, value: Any, depth: int) -> Any:
        if name.lower().replace("-", "_") in _SECRET_NAMES:
            return MASK
        match value:
            case None | bool() | float():
                return value
            case int():
                return value if -(1 << 63) <= value < 1 << 63 else hex(value)[:80]  # At most 64 bits.
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
        """Clean a list; treat a pair whose first element is the name of a credential as a header."""
        if len(values) == 2 and isinstance(values[0], str | bytes):
            name = values[0] if isinstance(values[0], str) else values[0].decode("latin-1")
            return [self.text(name), self._value(name, values[1], depth + 1)]
        return [self._value("", item, depth + 1) for item in values]


class JsonLines:
    """The processor that turns an event into one JSON line, cleaned by :class:`LineCleaner` if needed.

    Nearly every event is safe already, and checking that is cheaper than cleaning it. Most texts of a line
    recur, so texts that passed the check are remembered.
    """

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._clean = LineCleaner(secrets)
        self._known = [secret for secret in secrets if len(secret) >= _MIN_SECRET]
        self._fine: set[str] = set()
        declare("log_words", self._cache_size)
        self._in_ids = any(
            len(secret) < _TOO_LONG_FOR_IDS and _OF_IDS.issuperset(secret) for secret in self._known
        )

    def _cache_size(self) -> CacheSize:
        held = sum(100 + len(text) for text in self._fine)
        return CacheSize(held, _MOST_REMEMBERED * (100 + _MAX_REMEMBERED))

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        return self.encoded(logger, method, event)[:-1].decode()

    def encoded(self, logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        """Return the line as bytes, including its end."""
        if self._is_safe(event):
            try:
                return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
            except TypeError:  # A number has more than 64 bits.
                pass
        # Values that JSON lacks become their ``str``, already cleaned of control characters.
        cleaned = self._clean(logger, method, event)
        option = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(cleaned, default=str, option=option)

    def form(self, event: EventDict) -> bytes:
        """Return the line of all events like this one, as bytes for ``%``; empty if each must be checked.

        :class:`Open` values are numbers and the proxy's own ids, which cannot hide anything, unless a secret
        looks like a piece of an id.
        """
        closed = {name: None if isinstance(value, Open) else value for name, value in event.items()}
        if self._in_ids or not self._is_safe(closed):
            return b""
        members = []
        for name, value in event.items():
            place = value.place if isinstance(value, Open) else orjson.dumps(value).replace(b"%", b"%%")
            members.append(orjson.dumps(name) + b":" + place)
        return b"{" + b",".join(members) + b"}\n"

    def _is_safe(self, event: EventDict) -> bool:
        """Return whether an event contains nothing to mask, cut or escape."""
        fine = self._fine
        for name, value in event.items():
            if name not in fine and not self._check_text(name):
                return False
            kind = value.__class__
            if kind is str:
                if value not in fine and name != STAMP and not self._check_text(value, name not in _EACH_NEW):
                    return False
            elif kind not in _PLAIN and not (kind is dict and self._is_safe_object(value)):
                return False
        return True

    def _is_safe_object(self, value: dict[str, Any]) -> bool:
        """Return the same for an object of plain values, such as a tool's arguments, without remembering any
        text."""
        if len(value) > MAX_ITEMS:
            return False
        for name, part in value.items():
            if name not in self._fine and not self._check_text(name, False):
                return False
            if part.__class__ is str:
                if part not in self._fine and not self._check_text(part, False):
                    return False
            elif part.__class__ not in _PLAIN:
                return False
        return True

    def _check_text(self, text: str, remember: bool = True) -> bool:
        """Return whether a text that is not remembered is safe; remember it if wanted."""
        if text.__class__ is not str or len(text) > MAX_TEXT or not (text.isascii() and text.isprintable()):
            return False
        lower = text.lower()
        for mark in _MARKS:
            if mark in lower:
                return False
        for secret in self._known:
            if secret in text:
                return False
        if remember and len(text) <= _MAX_REMEMBERED:
            if len(self._fine) >= _MOST_REMEMBERED:
                self._fine.clear()
            self._fine.add(text)
        return True
