"""Citations of any model: a Markdown link in its answer, whose address a search has found, becomes one.

The text stays as it is. A stream is held back only while the text at its end can still become a link.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from proxy.base.events import CitationAdded, TextDelta
from proxy.wires.hosted.tools import FoundPage, one_line

_LONGEST_LABEL: Final = 500
_LONGEST_URL: Final = 2048
_MOST_CITATIONS: Final = 1000
_IN_PARENTHESES: Final = re.compile(rf"[^\s\[\]]{{1,{_LONGEST_URL + 1}}}")
_PARENTHESIS: Final = re.compile(r"[()]")
_LONGEST_CITED: Final = 300
"""Characters of a page that a citation repeats."""


class LinkFinder:
    """Finds the links to ``pages`` in a text that arrives in pieces. Positions count characters."""

    def __init__(self, pages: Mapping[str, FoundPage]) -> None:
        self._pages = pages
        self._held = ""
        self._length = 0
        self._found = 0

    def take(self, text: str) -> Iterator[TextDelta | CitationAdded]:
        """Yield what is certain once ``text`` has arrived: text, and each citation after its link."""
        left, self._held = self._held + text, ""
        begin = plain = 0
        while (at := left.find("[", plain)) >= 0:
            end = _link_end(left, at)
            if end is None:
                self._held = left[at:]
                left = left[:at]
                break
            if end == 0:
                plain = at + 1
                continue
            yield from self._text(left[begin:end])
            yield from self._citation(left[at:end])
            begin = plain = end
        yield from self._text(left[begin:])

    def end(self) -> Iterator[TextDelta]:
        """Yield the rest at the end of the text."""
        held, self._held = self._held, ""
        yield from self._text(held)

    def _text(self, text: str) -> Iterator[TextDelta]:
        if text:
            self._length += len(text)
            yield TextDelta(text)

    def _citation(self, link: str) -> Iterator[CitationAdded]:
        """Yield the citation of a link that was just written, if its address was found."""
        url = link[link.index("](") + 2 : -1]
        page = self._pages.get(url) or self._pages.get(url.rstrip("/")) or self._pages.get(f"{url}/")
        if page is None or self._found == _MOST_CITATIONS:
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
    # An address has no bracket, so no character is looked at again for the next link.
    run = _IN_PARENTHESES.match(text, close + 1)
    stop = run.end() if run is not None else close + 1
    depth = 0
    for found in _PARENTHESIS.finditer(text, close + 1, stop):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.end()
    return None if stop == len(text) < close + 2 + _LONGEST_URL else 0
