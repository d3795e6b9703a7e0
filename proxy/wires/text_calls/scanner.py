"""Finds the calls in the text of a turn while it arrives.

Text goes on as soon as it is certain to be text. A character that could begin a call holds back the text
from there on, until that is decided. After the first call all text is held until the turn has ended. The
result does not depend on how the text was cut.
"""

import re
from collections.abc import Generator
from typing import Final

from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.form import Form
from proxy.wires.text_calls.source import Incomplete, NotACall, Reading, Source
from proxy.wires.turn.texts import joined_texts

_BLANKS: Final = re.compile(r"[ \t\r\n]*+")
_TICKS: Final = re.compile(r"`*+")
_LOOK_AGAIN: Final = 1024
"""Longer text that failed to be a call is not searched again, or this could go on endlessly."""
_THOUGHT: Final = "<think>"
_THOUGHT_END: Final = "</think>"
"""The marks around a thought, which some servers leave at the beginning of a text."""
_FENCE_WORDS: Final = re.compile(r"[A-Za-z_]{0,16}")


class Scanner:
    """Scans the text of one turn.

    ``settled`` counts the characters that are certain to be text and stand before any call. ``parts`` is
    the rest, as text and calls, once the text has ended. ``notes`` report actions that the text and the
    calls alone do not show.
    """

    def __init__(self, form: Form, declared: Declared, most: int) -> None:
        """Take ``most``, the largest number of characters in one call."""
        self._form = form
        self._declared = declared
        self._most = most
        self._source = Source(most, quotes=declared.repair)
        self._first = {marker[0] for marker in form.markers}
        self.settled = 0
        self.parts: list[str | TextCall] = []
        self.notes: list[str] = []
        self.has_call = False
        self._fed = 0
        self._at_start = True
        self._line_start = True
        self._fence = 0
        self._inline = 0
        signs = "".join(sorted({*self._first, "`", "\n"}))
        self._signs = re.compile(f"[{re.escape(signs)}]")
        self._running: Generator[None, None, None] = self._run()
        next(self._running)

    @property
    def is_undecided(self) -> bool:
        """Whether the next character may matter although it is not one of :attr:`signs`."""
        return self.settled < self._fed or self._at_start

    @property
    def signs(self) -> frozenset[str]:
        """The characters that matter anywhere in a text."""
        return frozenset({*self._first, "`", "\n"})

    def feed(self, text: str) -> None:
        """Take the next piece of the text."""
        if text:
            self._fed += len(text)
            self._source.feed(text)
            next(self._running)

    def close(self, *, cut: bool) -> None:
        """End the text. ``cut`` means that a length limit stopped it."""
        self._source.ended = True
        self._source.cut = cut
        for _ in self._running:
            raise RuntimeError("a grammar waits behind the end of its text")
        self.parts = joined_texts(self.parts)

    # Grammar of the whole text.

    def _run(self) -> Generator[None, None, None]:
        source = self._source
        yield from self._start()
        if (yield from source.opening((_THOUGHT,))):
            yield from self._thought()
            yield from self._start()
        self._at_start = False
        while (yield from source.peek()):
            sign = source.text[source.at]
            if sign == "`":
                yield from self._ticks()
            elif sign == "\n" and not self._fence:
                yield from self._line_end()
            elif sign in self._first and not self._fence and not self._inline:
                if not (yield from self._marked("")):
                    self._take(1)
                    self._line_start = False
            else:
                self._plain()

    def _plain(self) -> None:
        """Take text up to the next character that matters."""
        source = self._source
        match = self._signs.search(source.text, source.at + 1)
        end = match.start() if match is not None else len(source.text)
        piece = source.text[source.at : end]
        if piece[0] == "\n":
            self._line_start, self._inline = True, 0
        self._line_start = self._line_start and piece.isspace()
        self._take(end - source.at)

    def _take(self, size: int) -> None:
        """Take the next ``size`` characters as text."""
        source = self._source
        piece = source.text[source.at : source.at + size]
        source.at += len(piece)
        self._say(piece)

    def _say(self, text: str) -> None:
        if not text:
            return
        if self.has_call:
            self.parts.append(text)
        else:
            self.settled += len(text)

    def _start(self) -> Reading[None]:
        """Read the white space at the beginning, which is held back, and calls that need no marker there."""
        source, form = self._source, self._form
        blanks = yield from source.blanks()
        first = yield from source.peek()
        if (yield from source.opening((_THOUGHT,))):
            self._say(blanks)
            return
        self._at_start = False
        if first == "{" and (form.bare or (form.bare_if_repairing and self._declared.repair)):
            done = yield from self._attempt(blanks, self._bare(repaired=not form.bare), marked=False)
        elif first == "`" and self._declared.repair:
            done = yield from self._attempt(blanks, self._fenced(), marked=False, least=0)
        elif first in self._first:
            done = yield from self._marked(blanks)
        else:
            done = False
        if not done:
            self._say(blanks)

    def _thought(self) -> Reading[None]:
        """Read a thought. It goes on at once and is not searched."""
        source = self._source
        tail = ""
        self._at_start = False
        while (yield from source.peek()):
            end = (tail + source.text[source.at :]).find(_THOUGHT_END)
            if end >= 0:
                self._take(end + len(_THOUGHT_END) - len(tail))
                break
            tail = (tail + source.text[source.at :])[1 - len(_THOUGHT_END) :]
            self._take(len(source.text) - source.at)
        self._at_start = True

    def _line_end(self) -> Reading[None]:
        """Read white space that begins with a line end. It belongs to a call that follows."""
        source = self._source
        blanks = yield from source.blanks()
        self._line_start, self._inline = True, 0
        sign = yield from source.peek()
        done = False
        if sign in self._first:
            done = yield from self._marked(blanks)
        elif sign == "{" and self._form.bare_if_repairing and self._declared.repair:
            done = yield from self._attempt(blanks, self._bare(repaired=True), marked=False)
        if not done:
            self._say(blanks)

    def _ticks(self) -> Reading[None]:
        """Read a run of backticks. It begins or ends a fence at the start of a line, else inline code."""
        source = self._source
        size = 0
        while True:
            match = _TICKS.match(source.text, source.at)
            assert match is not None
            size += len(match[0])
            self._take(len(match[0]))
            if source.at < len(source.text) or not (yield from source.more()):
                break
        if self._fence:
            if self._line_start and size >= self._fence:
                self._fence = 0
        elif self._line_start and size >= 3:
            self._fence = size
        elif not self._inline:
            self._inline = size
        elif self._inline == size:
            self._inline = 0
        self._line_start = False

    # Calls.

    def _marked(self, blanks: str) -> Reading[bool]:
        """Read the calls of a marker, if one stands here. ``blanks`` stood before it."""
        if not (yield from self._source.opening(self._form.markers)):
            return False
        return (yield from self._attempt(blanks, self._form.read(self._source, self._declared), marked=True))

    def _bare(self, *, repaired: bool) -> Reading[list[TextCall]]:
        """Read calls without a marker, up to the end of the text."""
        calls = yield from self._form.read_json(self._source, self._declared)
        yield from self._source.end()
        if repaired:
            self._declared.note("the marker is missing")
        return calls

    def _fenced(self) -> Reading[list[TextCall]]:
        """Read calls in a code fence that is the whole text."""
        source, form = self._source, self._form
        yield from source.literal("```")
        word = yield from source.until("\n", 32)
        if _FENCE_WORDS.fullmatch(word.strip()) is None:
            raise NotACall
        yield from source.blanks()
        calls: list[TextCall] = []
        while (first := (yield from source.peek())) != "`":
            if first == "{" and not calls and form.bare_if_repairing:
                calls += yield from form.read_json(source, self._declared)
            elif (yield from source.opening(form.markers)):
                calls += yield from form.read(source, self._declared)
            else:
                raise NotACall if first else Incomplete
            yield from source.blanks()
        yield from source.literal("```")
        yield from source.end()
        if not calls:
            raise NotACall
        self._declared.note("a code fence stands around the call")
        return calls

    def _attempt(
        self, blanks: str, reading: Reading[list[TextCall]], *, marked: bool, least: int = 1
    ) -> Reading[bool]:
        """Read calls. If there are none, what was read is text: its first ``least`` characters at once, the
        rest if no call is found in it.

        Always returns true, because ``blanks`` and the text read have been handled.
        """
        source = self._source
        source.begin()
        repaired = dict(self._declared.repaired)
        try:
            calls = yield from reading
            if len(source.taken()) > self._most:
                raise NotACall
        except NotACall as fault:
            self._declared.repaired = repaired
            self._failed(blanks, isinstance(fault, Incomplete) and marked, least)
            return True
        source.commit()
        self.has_call = True
        self.parts += calls
        yield from self._behind()
        return True

    def _failed(self, blanks: str, cut_short: bool, least: int) -> None:
        source = self._source
        if cut_short and source.sure and source.cut:
            source.commit()
            source.at = len(source.text)
            self.has_call = True
            self.notes.append("a call that the bound of the answer cut off is left out")
            return
        if cut_short and source.sure:
            self.notes.append("a call that does not end is left in the text")
        size = len(source.taken())
        kept = source.back(self._most if size > self._most else least if size <= _LOOK_AGAIN else size)
        self._say(blanks)
        self._say(kept)
        self._line_start = self._line_start and not kept

    def _behind(self) -> Reading[None]:
        """Read what follows a call: white space is dropped with it, and a result is the model's invention."""
        source = self._source
        yield from source.blanks()
        self._line_start, self._inline = True, 0
        if (yield from source.opening(self._form.result_beginnings)):
            self.notes.append("a result that the model made up behind its call is left out")
            while True:
                source.at = len(source.text)
                if not (yield from source.more()):
                    return
