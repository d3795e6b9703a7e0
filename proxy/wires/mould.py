"""The mould of an event: what all events have in common that differ in their text alone.

Most events of a stream say one word more and repeat everything else.  Once one of them has been read,
those that fit its mould need not be: they can mean nothing but other text.  Whether an event fits is
seen by comparing bytes; one that does not fit may still mean the same, and is read.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Mould"]

# What stands between the quotes of a JSON string that every reader reads alike, also where more of its
# kind is put behind it: no half of a surrogate pair, no half of a character in UTF-8 (RFC 3629).
_PLAIN = rb"[ !#-\[\]-\x7f]*+"
_TEXT = re.compile(
    _PLAIN + rb'(?:(?:\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
    rb"|[\xc2-\xdf][\x80-\xbf]"
    rb"|(?:\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f])[\x80-\xbf]"
    rb"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])[\x80-\xbf]{2})" + _PLAIN + rb")*+"
)
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,15}+")
_VALUE = re.compile(rb'[ \t]*:[ \t]*("?)')
_ESCAPED_KEY = b"\\u00"
_ENDS = (b"\n\n", b"\r\n\r\n")

_Match = Callable[[bytes, int], re.Match[bytes] | None]


@dataclass(frozen=True, slots=True)
class _Slot:
    """A free place of an event: where its value begins and ends, and whether it is text."""

    start: int
    end: int
    match: _Match
    is_text: bool


class Mould:
    """The fixed bytes of an event and what may stand between them.

    ``found`` holds what stood in the free places of each event that fitted and was not cast since.
    """

    __slots__ = ("_head", "_head_size", "_joined", "_places", "found")

    def __init__(self, raw: bytes, slots: Sequence[_Slot]) -> None:
        ends = [*(slot.start for slot in slots[1:]), len(raw)]
        fixed = [raw[slot.end : end] for slot, end in zip(slots, ends, strict=True)]
        self._head = raw[: slots[0].start]
        self._head_size = len(self._head)
        self._places = [(slot.match, part, len(part)) for slot, part in zip(slots, fixed, strict=True)]
        self._joined = [slot.is_text for slot in slots]
        self.found: list[list[bytes]] = []

    @classmethod
    def of(cls, raw: bytes, texts: Sequence[str], loose: Sequence[str]) -> "Mould | None":
        """The mould of a whole event; ``None`` where it is not certain which of its bytes are free.

        ``texts`` name its members whose strings are the text, ``loose`` those whose string or number
        says nothing at all.  Each of these names may stand in it only once.
        """
        slots = [_slot(raw, name, is_text=name in texts) for name in (*texts, *loose)]
        known = sorted((slot for slot in slots if slot is not None), key=lambda slot: slot.start)
        if not texts or len(known) < len(slots) or not raw.endswith(_ENDS):
            return None
        mould = cls(raw, known)
        # A name that is spelled with escapes may be one of ours once more.
        parts = (mould._head, *(fixed for _, fixed, _ in mould._places))
        return None if any(_ESCAPED_KEY in part for part in parts) else mould

    def fit(self, data: bytes, at: int) -> int:
        """The end of the event that begins at ``at`` and fits, -1 where none does."""
        if not data.startswith(self._head, at):
            return -1
        at += self._head_size
        values = []
        for match, fixed, size in self._places:
            value = match(data, at)
            if value is None or not data.startswith(fixed, end := value.end()):
                return -1
            values.append(data[at:end])
            at = end + size
        self.found.append(values)
        return at

    def cast(self) -> bytes:
        """One event that says what all did that were found: their texts joined, the rest as in the last."""
        found, self.found = self.found, []
        parts = [self._head]
        for place, (_, fixed, _) in enumerate(self._places):
            value = b"".join([values[place] for values in found]) if self._joined[place] else found[-1][place]
            parts += [value, fixed]
        return b"".join(parts)


def _slot(raw: bytes, name: str, *, is_text: bool) -> _Slot | None:
    """Where the value of the member of this name stands."""
    key = b'"%b"' % name.encode()
    if raw.count(key) != 1:
        return None
    # Inside a string quotes are escaped, so what is followed by a colon is a member's name.
    value = _VALUE.match(raw, raw.find(key) + len(key))
    if value is None:
        return None
    kind = _TEXT if value[1] else _NUMBER
    found = kind.match(raw, value.end())
    ends = (b'"',) if value[1] else (b",", b"}", b" ")
    if found is None or raw[found.end() : found.end() + 1] not in ends:
        return None
    return _Slot(found.start(), found.end(), kind.match, is_text)
