"""Lines of the log that nothing unsafe gets into: no secret, no credential, no control character.

Most events are safe as they are, and finding that out costs less than cleaning them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from structlog.typing import EventDict, WrappedLogger

from proxy.caches import CacheSize, declare

__all__ = ["ID", "MAX_DEPTH", "NOW", "NUMBER", "STAMP", "TENTHS", "JsonLines", "LineCleaner", "Open"]

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

# A client key, or a token of one, also where somebody put it into a path.
_CLIENT_KEY = re.compile(r"\b(?:tr_[A-Za-z0-9_-]{16,}|trt_[A-Za-z0-9_:-]{1,80}(?:\.[A-Za-z0-9_-]+)+)")
# What comes after "basic" is in base64, which has no hyphen: an option of a command is none.
_BEARER = re.compile(r"(?i)\b(bearer(?=\s)|basic(?=\s+[^\s-]))\s+[A-Za-z0-9._~+/=-]{4,}")

# C0 and C1 controls, line separators, and the marks that make a terminal show text in another order.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_CONTROL_BUT_LAYOUT = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

# What any of the patterns above needs to find something: most strings are done after this one look.
_DOUBTFUL = rf"{_CONTROL.pattern}|(?i:auth|cookie|-key|bearer|basic)|trt?_"
_LAYOUT_KEYS = frozenset({"exception", "stack"})
_PLAIN = frozenset({int, float, bool, type(None)})

# Without any of these a text has no credential in it, whatever the patterns above.
_MARKS = ("auth", "cookie", "-key", "_key", "bearer", "basic", "tr_", "trt_")
STAMP = "timestamp"
_EACH_NEW = frozenset({"correlation_id", "operation_id", "request_id", "run_id", "tool_invocation_id"})
"""Their values come once, so they would only push others out of what is remembered."""

_MAX_REMEMBERED = 256
_MOST_REMEMBERED = 1024
_OF_IDS = frozenset("req_run_0123456789abcdef")
_TOO_LONG_FOR_IDS = 24
"""Hexadecimal digits, and so 96 bits, that no random id has in common with a secret by chance."""


@dataclass(frozen=True, slots=True)
class Open:
    """A value that a form leaves open: its place in a line, for ``%`` of bytes."""

    place: bytes


NUMBER: Final = Open(b"%d")
TENTHS: Final = Open(b"%d.%d")
"""A number with one digit behind the point, filled in as two."""

ID: Final = Open(b'"%b"')
"""An id that the proxy made itself: ``req_`` or ``run_`` and hexadecimal digits."""

NOW: Final = Open(b'"%b.%06dZ"')


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
        text = _CLIENT_KEY.sub(MASK, text)
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


class JsonLines:
    """The processor that makes one JSON line of an event that :class:`LineCleaner` has made safe.

    Nearly every event is safe as it is, and finding that out is cheaper than cleaning it.  Texts that
    come again, which most of a line are, are remembered once nothing was found in them.
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
        """The line with its end, as it goes out."""
        if self._is_safe(event):
            try:
                return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
            except TypeError:  # A number of more than 64 bits.
                pass
        # What JSON cannot say becomes its ``str``, already cleaned of control characters.
        cleaned = self._clean(logger, method, event)
        option = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(cleaned, default=str, option=option)

    def form(self, event: EventDict) -> bytes:
        """The line of all events like this one, as bytes for ``%``; empty where each must be looked at.

        What it leaves :class:`Open` cannot hide anything: numbers, and ids of our own, unless a secret
        is written like a piece of one.
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
        """Whether there is nothing in an event to mask, to cut or to escape."""
        fine = self._fine
        for name, value in event.items():
            if name not in fine and not self._find_fine(name):
                return False
            kind = value.__class__
            if kind is str:
                if value not in fine and name != STAMP and not self._find_fine(value, name not in _EACH_NEW):
                    return False
            elif kind not in _PLAIN and not (kind is dict and self._is_safe_object(value)):
                return False
        return True

    def _is_safe_object(self, value: dict[str, Any]) -> bool:
        """The same for an object of plain values, like a tool's arguments.  None of it is remembered."""
        if len(value) > MAX_ITEMS:
            return False
        for name, part in value.items():
            if name not in self._fine and not self._find_fine(name, False):
                return False
            if part.__class__ is str:
                if part not in self._fine and not self._find_fine(part, False):
                    return False
            elif part.__class__ not in _PLAIN:
                return False
        return True

    def _find_fine(self, text: str, remember: bool = True) -> bool:
        """Look through a text that is not known to be fine."""
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


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
