"""The template of an event: what all events have in common that differ in their text alone.

Most events of a stream say one word more and repeat everything else.  Once one of them has been read,
those that fit its template need not be: they can mean nothing but other text.  Whether an event fits is
seen by comparing bytes; one that does not fit may still mean the same, and is read.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.wires.json.patterns import repeated

__all__ = ["MOST_TEMPLATE_BYTES", "Template", "split_text"]

MOST_KEPT: Final = 256
"""Events that one template keeps the values of before they are merged."""

MOST_TEMPLATE_BYTES: Final = 16 * 1024
"""Of an event that is taken unread: so many of them as are kept are merged and read in some milliseconds."""

_MOST_TAKEN_BYTES: Final = 32 * 1024
"""Of a chunk of several events that is taken at once; a larger one is looked at in parts, with pauses."""

# What stands between the quotes of a JSON string that every reader reads alike, also where more of its
# kind is put behind it: no half of a surrogate pair, no half of a character in UTF-8 (RFC 3629).
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


@dataclass(frozen=True, slots=True)
class _Placeholder:
    """A free place of an event: where its value begins and ends, what may stand there, and whether that
    is text."""

    start: int
    end: int
    fits: Callable[[bytes], bool]
    is_text: bool


class Template:
    """The fixed bytes of an event and what may stand between them.

    ``found`` holds what stood in the free places, one after the other, of each event that fitted and
    was not merged since.
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
        """Of how many events the values are kept."""
        return len(self.found) // len(self._joined)

    @property
    def full(self) -> bool:
        """Whether what was found has to be merged before anything is taken."""
        return len(self.found) >= self._most

    @property
    def has_one_text(self) -> bool:
        """Whether its events say one text each."""
        return self._text_place >= 0

    def texts(self, start: int) -> list[bytes]:
        """The texts of the events that were found since ``found`` had ``start`` values, between their quotes.

        Only for a template that :attr:`has_one_text`.
        """
        return self.found[start + self._text_place :: len(self._joined)]

    @classmethod
    def of(
        cls, raw: bytes, texts: Sequence[str], loose: Sequence[str], ends: tuple[bytes, ...] = _ENDS
    ) -> "Template | None":
        """The template of a whole event; ``None`` where it is not certain which of its bytes are free.

        ``texts`` name its members whose strings are the text, ``loose`` those whose string or number
        says nothing at all.  Each of these names may stand in it only once.  ``ends`` are what whole events
        end in.
        """
        placeholders = [_placeholder(raw, name, is_text=name in texts) for name in (*texts, *loose)]
        known = sorted(
            (placeholder for placeholder in placeholders if placeholder is not None),
            key=lambda placeholder: placeholder.start,
        )
        if not texts or len(known) < len(placeholders) or not raw.endswith(ends):
            return None
        if b"\n" in raw[known[0].start : known[-1].end]:
            return None  # Data over several lines.
        template = cls(raw, known)
        # A name that is spelled with escapes may be one of ours once more.
        parts = (template._head, *(fixed for _, fixed in template._places), template._tail)
        return None if any(_ESCAPED_KEY in part for part in parts) else template

    def take(self, chunk: bytes) -> bool:
        """Take whole events, if every one of them fits and there is room for them."""
        before = len(self.found)
        if before >= self._most:
            return False
        size = len(chunk)
        if size <= MOST_TEMPLATE_BYTES and self._fits(chunk):
            return True  # One event, as nearly always.
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
        """The end of the event that begins at ``at`` and fits, -1 where none does."""
        if not data.startswith(self._head, at):
            return -1
        # Looked for no further than in the event's own line: other events may fill all of the data.
        line = data.find(b"\n", at + len(self._head), at + MOST_TEMPLATE_BYTES)
        end = line + self._after_line
        return end if line >= 0 and self._fits(data[at:end]) else -1

    def _fits(self, event: bytes) -> bool:
        """Take one event, if it fits."""
        rest = event.removeprefix(self._head)
        if rest is event:
            return False
        values = []
        for fits, fixed in self._places:
            # Fixed bytes begin with what ends a value, and a quote that ends none has a backslash before it,
            # which does not fit: so this is where the value ends, or the event is read.
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
        """One event that says what all did that were found: their texts joined, the rest as in the last."""
        found, self.found = self.found, []
        count = len(self._joined)
        values = [
            b"".join(found[place::count]) if joined else found[place - count]
            for place, joined in enumerate(self._joined)
        ]
        fixed = [self._head, *(part for _, part in self._places), self._tail]
        return b"".join([part for pair in zip(fixed, [*values, b""], strict=True) for part in pair])


def split_text(raw: bytes, name: str) -> tuple[bytes, bytes]:
    """Split an event at the empty text of the named member: the bytes before it and behind it.

    The event is one that the proxy made, without blanks.  None of its strings contains the same bytes,
    because quotes in strings are escaped.
    """
    before, found, after = raw.partition(b'"%b":""' % name.encode())
    if not found:
        raise ValueError(f"the event has no empty {name}")
    return before + found[:-1], found[-1:] + after


def _placeholder(raw: bytes, name: str, *, is_text: bool) -> _Placeholder | None:
    """Where the value of the member of this name stands."""
    key = b'"%b"' % name.encode()
    if raw.count(key) != 1:
        return None
    # Inside a string quotes are escaped, so what is followed by a colon is a member's name.
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
    """Whether this may stand between the quotes of a string."""
    if value.isascii() and _QUOTE not in value and _BACKSLASH not in value and value.decode().isprintable():
        return True  # As nearly always; seen at a third of the price.
    return _TEXT.fullmatch(value) is not None


def _is_number(value: bytes) -> bool:
    """Whether this is a whole number as JSON writes them."""
    return value.isdigit() and (value[0] != _ZERO or len(value) == 1) and len(value) <= _MOST_DIGITS
