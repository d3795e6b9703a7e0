"""The template of an event: the bytes that events share if they differ only in their text.

Most events of a stream add one word and repeat everything else. After one of them has been read, those that
fit its template need no reading, because they can only mean other text. A comparison of bytes shows whether
an event fits. An event that does not fit may still mean the same, and is read.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from proxy.json.patterns import repeated

MOST_KEPT: Final = 256
"""The largest number of events whose values a template keeps before they are merged."""

MOST_TEMPLATE_BYTES: Final = 16 * 1024
"""The largest event, in bytes, to take unread. Merging ``MOST_KEPT`` of them takes milliseconds."""

_MOST_TAKEN_BYTES: Final = 32 * 1024
"""The largest chunk of several events to take at once. A larger one is read in parts, with pauses."""

# Content of a JSON string that every reader understands alike, also after more such content is appended: no
# half of a surrogate pair, no half of a character in UTF-8 (RFC 3629).
_PLAIN = rb"[ !#-\[\]-\x7f]*+"
_TEXT = re.compile(
    _PLAIN
    + repeated(
        rb'(?:\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
        rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
        rb"|[\xc2-\xdf][\x80-\xbf]"
        rb"|(?:\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f])[\x80-\xbf]"
        rb"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])[\x80-\xbf]{2})" + _PLAIN
    )
)
_MOST_DIGITS = 16
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,15}+")
_VALUE = re.compile(rb'[ \t]*:[ \t]*("?)')
_ESCAPED_KEY = b"\\u00"
_ENDS = (b"\n\n", b"\r\n\r\n")
_QUOTE, _BACKSLASH, _ZERO = b'"\\0'


class _Placeholder(Struct, frozen=True):
    """A variable part of an event: the place of its value, which values fit, and whether it is text."""

    start: int
    end: int
    fits: Callable[[bytes], bool]
    is_text: bool


class Template:
    """The fixed bytes of an event and the values that may stand between them.

    ``found`` holds the values of each event that fitted and was not merged yet, one after the other.
    """

    __slots__ = (
        *("_after_line", "_fits_last", "_head", "_joined", "_most", "_places", "_tail", "_text_place"),
        "found",
    )

    def __init__(self, raw: bytes, placeholders: Sequence[_Placeholder]) -> None:
        ends = [*(placeholder.start for placeholder in placeholders[1:]), len(raw)]
        *middle, self._tail = [
            raw[placeholder.end : end] for placeholder, end in zip(placeholders, ends, strict=True)
        ]
        self._head = raw[: placeholders[0].start]
        self._places = [
            (placeholder.fits, fixed) for placeholder, fixed in zip(placeholders, middle, strict=False)
        ]
        self._fits_last = placeholders[-1].fits
        self._after_line = len(self._tail) - self._tail.find(b"\n")
        self._joined = [placeholder.is_text for placeholder in placeholders]
        self._text_place = self._joined.index(True) if self._joined.count(True) == 1 else -1
        self._most = MOST_KEPT * len(placeholders)
        self.found: list[bytes] = []

    @property
    def count(self) -> int:
        """The number of events whose values are kept."""
        return len(self.found) // len(self._joined)

    @property
    def full(self) -> bool:
        """Whether the values must be merged before more events are taken."""
        return len(self.found) >= self._most

    @property
    def has_one_text(self) -> bool:
        """Whether each of its events holds exactly one text."""
        return self._text_place >= 0

    def texts(self, start: int) -> list[bytes]:
        """Return the texts, without their quotes, of the events found since ``found`` had ``start`` values.

        Only for a template that :attr:`has_one_text`.
        """
        return self.found[start + self._text_place :: len(self._joined)]

    @classmethod
    def of(
        cls, raw: bytes, texts: Sequence[str], loose: Sequence[str], ends: tuple[bytes, ...] = _ENDS
    ) -> "Template | None":
        """Return the template of a whole event; ``None`` if it is not certain which bytes may vary.

        ``texts`` are the names of members whose strings are the text. ``loose`` are the names of members
        whose string or number means nothing. Each name may occur only once. Whole events end in one of
        ``ends``.
        """
        placeholders = [_placeholder(raw, name, is_text=name in texts) for name in (*texts, *loose)]
        known = sorted(
            (placeholder for placeholder in placeholders if placeholder is not None),
            key=lambda placeholder: placeholder.start,
        )
        if not texts or len(known) < len(placeholders) or not raw.endswith(ends):
            return None
        if b"\n" in raw[known[0].start : known[-1].end]:
            return None  # Data on several lines.
        template = cls(raw, known)
        # A name that is spelled with escapes may repeat one of these names.
        parts = (template._head, *(fixed for _, fixed in template._places), template._tail)
        return None if any(_ESCAPED_KEY in part for part in parts) else template

    def take(self, chunk: bytes) -> bool:
        """Take whole events if all of them fit and there is room for them. Return whether it took them."""
        before = len(self.found)
        if before >= self._most:
            return False
        size = len(chunk)
        if size <= MOST_TEMPLATE_BYTES and self._fits(chunk):
            return True  # One event: the usual case.
        at = 0
        if size > _MOST_TAKEN_BYTES:
            return False
        while at < size:
            at = self.fit(chunk, at)
            if at < 0:
                del self.found[before:]
                return False
        return True

    def fit(self, data: bytes, at: int) -> int:
        """Return the end of the event that begins at ``at`` if it fits, else -1."""
        if not data.startswith(self._head, at):
            return -1
        # Search only the event's own line, because other events may fill all of the data.
        line = data.find(b"\n", at + len(self._head), at + MOST_TEMPLATE_BYTES)
        end = line + self._after_line
        return end if line >= 0 and self._fits(data[at:end]) else -1

    def _fits(self, event: bytes) -> bool:
        """Take one event if it fits. Return whether it does."""
        rest = event.removeprefix(self._head)
        if rest is event:
            return False
        values = []
        for fits, fixed in self._places:
            # Fixed bytes begin with what ends a value. A quote inside a value has a backslash before it,
            # which does not fit. So the value ends here, or the event is read.
            value, end, rest = rest.partition(fixed)
            if not end or not fits(value):
                return False
            values.append(value)
        value = rest.removesuffix(self._tail)
        if value is rest or not self._fits_last(value):
            return False
        values.append(value)
        self.found += values
        return True

    def merge(self) -> bytes:
        """Return one event that means the same as all found: their texts joined, the rest from the last."""
        found, self.found = self.found, []
        count = len(self._joined)
        values = [
            b"".join(found[place::count]) if joined else found[place - count]
            for place, joined in enumerate(self._joined)
        ]
        fixed = [self._head, *(part for _, part in self._places), self._tail]
        return b"".join([part for pair in zip(fixed, [*values, b""], strict=True) for part in pair])


def split_text(raw: bytes, name: str) -> tuple[bytes, bytes]:
    """Split an event at the empty text of the named member. Return the bytes before and after it.

    The proxy made the event, without blanks. No string in it contains the same bytes, because quotes in
    strings are escaped. Raises :class:`ValueError` if there is no such member.
    """
    before, found, after = raw.partition(b'"%b":""' % name.encode())
    if not found:
        raise ValueError(f"the event has no empty {name}")
    return before + found[:-1], found[-1:] + after


def _placeholder(raw: bytes, name: str, *, is_text: bool) -> _Placeholder | None:
    """Return the placeholder of the member with this name; ``None`` if its place is not certain."""
    key = b'"%b"' % name.encode()
    if raw.count(key) != 1:
        return None
    # Quotes inside a string are escaped, so a quoted text before a colon is a member's name.
    value = _VALUE.match(raw, raw.find(key) + len(key))
    if value is None:
        return None
    kind, fits = (_TEXT, _is_text) if value[1] else (_NUMBER, _is_number)
    found = kind.match(raw, value.end())
    ends = (b'"',) if value[1] else (b",", b"}", b" ")
    if found is None or raw[found.end() : found.end() + 1] not in ends:
        return None
    return _Placeholder(found.start(), found.end(), fits, is_text)


def _is_text(value: bytes) -> bool:
    """Return whether ``value`` may stand between the quotes of a string."""
    if value.isascii() and _QUOTE not in value and _BACKSLASH not in value and value.decode().isprintable():
        return True  # The usual case, at a third of the cost.
    return _TEXT.fullmatch(value) is not None


def _is_number(value: bytes) -> bool:
    """Return whether ``value`` is a whole number as JSON writes it."""
    return value.isdigit() and (value[0] != _ZERO or len(value) == 1) and len(value) <= _MOST_DIGITS
