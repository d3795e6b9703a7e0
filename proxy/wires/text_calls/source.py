"""The text of a turn as it arrives, and the methods with which a grammar reads it.

A grammar is a generator. It asks a :class:`Source` for a literal, a name or a JSON value, and the source
yields whenever it needs more text. So a grammar is written as if the whole text were there. Each character
is read once, and the result does not depend on where the text was cut.
"""

import re
from collections.abc import Generator
from typing import Final, TypeVar

_T = TypeVar("_T")

Reading = Generator[None, None, _T]
"""A generator that returns what it reads, and yields when it needs more text."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{0,129}+")
_HEAD: Final = re.compile(
    r"""\{\s*+(?:(["'])(\w{0,32}+)(?:(\1)(?:\s*+:\s*+(?:(["'])([^"'\\]{0,160}+)(\4)?)?)?)?)?"""
)
"""An object's first key and, if it is a string, its value, as far as they have arrived."""
_MOST_HEAD: Final = 512
_BLANKS: Final = re.compile(r"\s*+")
_MOST_NAME: Final = 128
_MOST_DEPTH: Final = 128
_PAIRS: Final = {"}": "{", "]": "["}
_OUTSIDE: Final = re.compile(r"[\"{}\[\]]")
_OUTSIDE_QUOTES: Final = re.compile(r"[\"'{}\[\]]")
_IN_STRING: Final = {'"': re.compile(r'[\\"]'), "'": re.compile(r"[\\']")}


class NotACall(Exception):
    """The text is not a call."""


class Incomplete(NotACall):
    """The text ended in the middle of what may have been a call."""


class Source:
    """Text that has arrived and has not been read yet.

    ``ended`` means that no more text comes; ``cut`` that a length limit stopped the model. After
    :meth:`begin` at most ``most`` characters are read. ``sure`` means that the text read since then can
    only be a call. ``quotes`` allows single quotes in JSON.
    """

    def __init__(self, most: int, *, quotes: bool = False) -> None:
        self._most = most
        self._outside = _OUTSIDE_QUOTES if quotes else _OUTSIDE
        self.text = ""
        self.at = 0
        self.ended = False
        self.cut = False
        self.sure = False
        self._marked = False
        self._mark = 0
        self._before: list[str] = []
        self._size = 0

    def feed(self, text: str) -> None:
        """Add text at the end."""
        if self._marked:
            piece = self.text[self._mark : self.at]
            self._before.append(piece)
            self._size += len(piece)
        self.text = self.text[self.at :] + text
        self.at = self._mark = 0

    def more(self) -> Reading[bool]:
        """Wait for more text or the end of the text. Return ``False`` if it had ended already."""
        if self.ended:
            return False
        if self._marked and self._size + self.at - self._mark > self._most:
            raise NotACall
        yield
        return True

    # Reading with a way back.

    def begin(self) -> None:
        """Mark this place, to which :meth:`back` returns."""
        self._marked, self._mark = True, self.at
        self._before.clear()
        self._size = 0
        self.sure = False

    def commit(self) -> None:
        """Remove the mark."""
        self._marked = False

    def taken(self) -> str:
        """Return the text that was read since :meth:`begin`."""
        return "".join((*self._before, self.text[self._mark : self.at]))

    def back(self, keep: int) -> str:
        """Unread what was read since :meth:`begin`, except its first ``keep`` characters. Return these."""
        taken = self.taken()
        kept = taken[:keep]
        if self._before:
            self.text = taken[keep:] + self.text[self.at :]
            self.at = 0
        else:
            self.at = self._mark + len(kept)
        self.commit()
        return kept

    # The methods for grammars.

    def peek(self) -> Reading[str]:
        """Return the next character without reading it; ``""`` at the end."""
        while self.at >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def blanks(self) -> Reading[str]:
        """Read white space, possibly none."""
        blanks = []
        while True:
            match = _BLANKS.match(self.text, self.at)
            assert match is not None
            blanks.append(match[0])
            self.at = match.end()
            if self.at < len(self.text) or not (yield from self.more()):
                return "".join(blanks)

    def opening(self, literals: tuple[str, ...]) -> Reading[str]:
        """Return the literal that stands here, without reading it; ``""`` if none does."""
        while True:
            may_come = False
            for literal in literals:
                if self.text.startswith(literal, self.at):
                    return literal
                left = len(self.text) - self.at
                may_come = may_come or (
                    left < len(literal) and literal.startswith(self.text[self.at : self.at + left])
                )
            if not may_come or not (yield from self.more()):
                return ""

    def maybe(self, *literals: str) -> Reading[str]:
        """Read one of these literals if it stands here. Raise :class:`Incomplete` if one is cut off."""
        found = yield from self.opening(literals)
        if not found and self.cut and self.at < len(self.text):
            rest = self.text[self.at :]
            if any(literal.startswith(rest) for literal in literals):
                raise Incomplete
        self.at += len(found)
        return found

    def literal(self, *literals: str) -> Reading[str]:
        """Read one of these literals. Raises :class:`NotACall` if none stands here."""
        literal = yield from self.maybe(*literals)
        if not literal:
            at_end = any(text.startswith(self.text[self.at :]) for text in literals)
            raise Incomplete if self.ended and at_end else NotACall
        self._check()
        return literal

    def name(self, most: int = _MOST_NAME) -> Reading[str]:
        """Read a tool's name: as many characters as a name may contain."""
        name = ""
        while True:
            match = _NAME.match(self.text, self.at)
            assert match is not None
            name += match[0]
            self.at = match.end()
            if len(name) > most:
                self.at -= len(name) - most
                raise NotACall
            if self.at < len(self.text):
                break
            if not (yield from self.more()):
                raise Incomplete
        if not name:
            raise NotACall
        return name

    def until(self, literal: str, most: int | None = None) -> Reading[str]:
        """Read up to and including a literal; return the text before it."""
        parts: list[str] = []
        size = 0
        while True:
            end = self.text.find(literal, self.at)
            stop = end if end >= 0 else max(self.at, len(self.text) - len(literal) + 1)
            parts.append(self.text[self.at : stop])
            size += stop - self.at
            self.at = stop
            if most is not None and size > most:
                self.at -= size - most
                raise NotACall
            self._check()
            if end >= 0:
                self.at += len(literal)
                return "".join(parts)
            if not (yield from self.more()):
                raise Incomplete

    def end(self) -> Reading[None]:
        """Read white space and the end of the text. Raises :class:`NotACall` for more text."""
        yield from self.blanks()
        if (yield from self.peek()):
            raise NotACall

    def head(self) -> Reading[tuple[str, str]]:
        """Return the first key of the object here, and its value if that is a string, without reading them.
        Each is ``""`` if missing."""
        while True:
            match = _HEAD.match(self.text, self.at)
            decided = match is None or match.end() < len(self.text) or match.end() - self.at > _MOST_HEAD
            if decided and self.at < len(self.text):
                break
            if not (yield from self.more()):
                raise Incomplete
        if match is None or match[3] is None:
            return "", ""
        return match[2], match[5] if match[6] is not None else ""

    def json(self, opens: str = "{") -> Reading[str]:
        """Read the text of one JSON object or array that begins with a character of ``opens``.

        It only follows brackets and strings; the caller must parse the text to know whether it is JSON.
        """
        first = yield from self.peek()
        if not first or first not in opens:
            raise NotACall if first else Incomplete
        pieces: list[str] = []
        stack: list[str] = []
        quote, escaped = "", False
        while True:
            start = place = self.at
            while place < len(self.text):
                if escaped:
                    escaped = False
                    place += 1
                    continue
                match = (_IN_STRING[quote] if quote else self._outside).search(self.text, place)
                if match is None:
                    break
                place, sign = match.end(), match[0]
                if quote:
                    quote, escaped = ("", False) if sign == quote else (quote, True)
                elif sign in _PAIRS:
                    if not stack or stack.pop() != _PAIRS[sign]:
                        self.at = place
                        raise NotACall
                    if not stack:
                        self.at = place
                        self._check()
                        return "".join((*pieces, self.text[start:place]))
                elif sign in "{[":
                    stack.append(sign)
                    if len(stack) > _MOST_DEPTH:
                        self.at = place
                        raise NotACall
                else:
                    quote = sign
            pieces.append(self.text[start:])
            self.at = len(self.text)
            if not (yield from self.more()):
                raise Incomplete

    def _check(self) -> None:
        if self._marked and self._size + self.at - self._mark > self._most:
            raise NotACall
