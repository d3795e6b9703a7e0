"""Citations of any model: a Markdown link in its answer, whose address a search has found, becomes one.

A numbered marker of a page (:mod:`.markers`) becomes a link to it; all other text stays as it is. A stream is
held back only while the text at its end can still become a link or a marker.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from proxy.base.events import CitationAdded, TextDelta
from proxy.wires.hosted.markers import CodeSpans, marker_at
from proxy.wires.hosted.tools import FoundPage, one_line

_OPENING: Final = re.compile(r"[\[【]")
_LONGEST_LABEL: Final = 500
_LONGEST_URL: Final = 2048
_MOST_CITATIONS: Final = 1000
_IN_PARENTHESES: Final = re.compile(rf"[^\s\[\]]{{1,{_LONGEST_URL + 1}}}")
_IN_ANGLES: Final = re.compile(rf"[^\s\[\]<>]{{0,{_LONGEST_URL}}}")
_TITLE: Final = re.compile(r"""(?:[ \t]{1,8}(?:"[^"\n\[]{0,300}"|'[^'\n\[]{0,300}'))?[ \t]{0,8}\)""")
_TITLE_BEGUN: Final = re.compile(r"""[ \t]{0,8}(?:(?:"[^"\n\[]{0,300}"?|'[^'\n\[]{0,300}'?)[ \t]{0,8})?""")
"""What may follow an address in a link, whole and begun."""
_PARENTHESIS: Final = re.compile(r"[()]")
_LONGEST_CITED: Final = 300
"""Characters of a page that a citation repeats."""


class LinkFinder:
    """Finds the links to ``pages`` in a text that arrives in pieces, and the markers of ``numbers``.

    Positions count characters of the text that leaves: Unicode code points, by which also OpenAI's SDK for
    Python slices it.
    """

    def __init__(
        self, pages: Mapping[str, FoundPage], numbers: Mapping[int, FoundPage] = MappingProxyType({})
    ) -> None:
        self._pages = pages
        self._numbers = numbers
        self._code = CodeSpans()
        self._held = ""
        self._before = ""
        self._length = 0
        self._found = 0

    @property
    def holds(self) -> bool:
        """Whether text is held back that may become a link or a marker."""
        return bool(self._held)

    def take(self, text: str) -> Iterator[TextDelta | CitationAdded]:
        """Yield what is certain once ``text`` has arrived: text, and each citation after its link."""
        yield from self._found_in(self._held + text, whole=False)

    def end(self) -> Iterator[TextDelta | CitationAdded]:
        """Yield the rest at the end of the text."""
        yield from self._found_in(self._held, whole=True)

    def _found_in(self, text: str, *, whole: bool) -> Iterator[TextDelta | CitationAdded]:
        # A marker may depend on the character before it, which has left already.
        left, plain = self._before + text, len(self._before)
        begin, self._held = plain, ""
        while (opening := _OPENING.search(left, plain)) is not None:
            at = opening.start()
            end, number = self._decide(left, at, whole=whole)
            if end is None:
                self._held = left[at:]
                left = left[:at]
                break
            if end == 0:
                plain = at + 1
            elif number == 0:
                yield from self._text(left[begin:end])
                yield from self._citation(left[at:end])
                begin = plain = end
            else:
                self._code.take(left[begin:at])
                known = None if self._code.inside else self._numbers.get(number)
                yield from self._sent(left[begin:at])
                begin, plain = at, end
                if known is not None:
                    begin = end
                    yield from self._marked(number, known)
        yield from self._text(left[begin:])
        self._before = left[-1:]

    def _decide(self, text: str, at: int, *, whole: bool) -> tuple[int | None, int]:
        """Return the end and the number of what begins at a bracket: a link has the number 0.

        The end is 0 if it is neither, and ``None`` if that is not known yet.
        """
        end = _link_end(text, at) if text[at] == "[" else 0
        if end or (end is None and not whole):
            return end, 0
        if not self._numbers:
            return 0, 0
        found = marker_at(text, at, whole=whole)
        return (None, 0) if found is None else found

    def _text(self, text: str) -> Iterator[TextDelta]:
        self._code.take(text)
        return self._sent(text)

    def _sent(self, text: str) -> Iterator[TextDelta]:
        if text:
            self._length += len(text)
            yield TextDelta(text)

    def _marked(self, number: int, page: FoundPage) -> Iterator[TextDelta | CitationAdded]:
        """Yield a link in place of a marker, and its citation."""
        address = page.url if page.url.count("(") == page.url.count(")") else f"<{page.url}>"
        link = f"[[{number}]]({address})"
        yield from self._sent(link)
        yield from self._cited(link, page)

    def _citation(self, link: str) -> Iterator[CitationAdded]:
        """Yield the citation of a link that was just written, if its address was found."""
        url = link[link.index("](") + 2 : -1].lstrip("<").partition(" ")[0].partition("\t")[0].rstrip(">")
        page = self._pages.get(url) or self._pages.get(url.rstrip("/")) or self._pages.get(f"{url}/")
        if page is not None:
            yield from self._cited(link, page)

    def _cited(self, link: str, page: FoundPage) -> Iterator[CitationAdded]:
        if self._found == _MOST_CITATIONS:
            return
        self._found += 1
        start = self._length - len(link)
        yield CitationAdded(start, self._length, page.url, page.title, one_line(page.text[:_LONGEST_CITED]))


def _link_end(text: str, at: int) -> int | None:
    """Return where the link that begins at ``at`` ends; 0 if it is none, ``None`` if that is not known."""
    close = text.find("]", at, at + _LONGEST_LABEL)
    label = text[at + 1 : close if close >= 0 else at + _LONGEST_LABEL]
    if "\n" in label or "[" in label:
        return 0
    if close < 0:
        return None if len(text) - at < _LONGEST_LABEL else 0
    if len(text) == close + 1:
        return None
    if text[close + 1] != "(":
        return 0
    return _target_end(text, close + 2)


def _target_end(text: str, at: int) -> int | None:
    """Return where a link ends whose address begins at ``at``, as :func:`_link_end` does."""
    if text[at : at + 1] == "<":
        run = _IN_ANGLES.match(text, at + 1)
        stop = run.end() if run is not None else at + 1
        if stop == len(text):
            return None if len(text) < at + _LONGEST_URL else 0
        return _after_address(text, stop + 1) if text[stop] == ">" else 0
    # An address has no bracket, so no character is looked at again for the next link.
    run = _IN_PARENTHESES.match(text, at)
    stop = run.end() if run is not None else at
    depth = 1
    for found in _PARENTHESIS.finditer(text, at, stop):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.end()
    if stop == len(text):
        return None if len(text) < at + _LONGEST_URL else 0
    return _after_address(text, stop) if depth == 1 else 0


def _after_address(text: str, at: int) -> int | None:
    """Return where a link ends whose address ends at ``at``: behind its title, if it has one."""
    if (found := _TITLE.match(text, at)) is not None:
        return found.end()
    return None if _TITLE_BEGUN.fullmatch(text, at) is not None else 0
