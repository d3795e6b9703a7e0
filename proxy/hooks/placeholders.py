"""Placeholders that stand for private texts while a model works, and how they are put back.

A text may come in pieces that cut a placeholder anywhere. What may still become one is held back, and
nothing else.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from proxy.hooks.contract import MOST_ORIGINALS, MOST_PLACEHOLDER

_FEWEST: Final = 3
_MOST_ORIGINAL: Final = 64 * 1024
_NOWHERE: Final = re.compile(r"(?!)")


class Placeholders:
    """The placeholders of one request, with the texts that they stand for. It may grow during a run."""

    def __init__(self) -> None:
        self._originals: dict[str, str] = {}
        self._sorted: list[str] = []
        self._begins: frozenset[str] = frozenset()
        self._begin = _NOWHERE

    def __bool__(self) -> bool:
        return bool(self._originals)

    def add(self, originals: Mapping[str, str]) -> None:
        """Add placeholders, all or none of them.

        Raise ``ValueError`` or ``TypeError``, which repeat none of them, for one that cannot be used.
        """
        merged = {**self._originals, **originals}
        if len(merged) > MOST_ORIGINALS:
            raise ValueError(f"more than {MOST_ORIGINALS} placeholders")
        for placeholder, original in originals.items():
            _check(placeholder, original)
            if self._originals.get(placeholder, original) != original:
                raise ValueError("a placeholder stands for two texts")
        ordered = sorted(merged)
        if any(later.startswith(one) for one, later in pairwise(ordered)):
            raise ValueError("a placeholder is the beginning of another")
        self._originals, self._sorted = merged, ordered
        begins = frozenset(one[0] for one in ordered)
        if begins != self._begins:
            self._begins, self._begin = begins, re.compile(f"[{re.escape(''.join(sorted(begins)))}]")

    def split(self, text: str, *, in_json: bool = False) -> tuple[str, str]:
        """Return the text with the originals of all whole placeholders, and its end that may become one.

        With ``in_json`` the text is a part of a JSON document, inside of whose strings placeholders stand.
        """
        done: list[str] = []
        at = begin = 0
        while (at := self._next(text, at)) >= 0:
            whole = self._whole(text, at)
            if whole:
                original = self._originals[whole]
                done += (text[begin:at], _escaped(original) if in_json else original)
                at = begin = at + len(whole)
            elif self._may_become(text[at : at + MOST_PLACEHOLDER], at, len(text)):
                return "".join((*done, text[begin:at])), text[at:]
            else:
                at += 1
        return "".join((*done, text[begin:])), ""

    def restored(self, text: str, *, in_json: bool = False) -> str:
        """Return a complete text with the originals in it."""
        if self._begins.isdisjoint(text):
            return text
        done, rest = self.split(text, in_json=in_json)
        while rest:  # Its first character begins no placeholder; one may begin after it.
            more, after = self.split(rest[1:], in_json=in_json)
            done, rest = done + rest[0] + more, after
        return done

    def _next(self, text: str, at: int) -> int:
        # One search for all of them: a search for each would read on to the end for one that is not there.
        found = self._begin.search(text, at)
        return found.start() if found else -1

    def _whole(self, text: str, at: int) -> str:
        """Return the placeholder at a place of a text; empty if there is none. Only one can be."""
        place = bisect_left(self._sorted, text[at : at + MOST_PLACEHOLDER + 1])
        for candidate in self._sorted[max(place - 1, 0) : place + 1]:
            if text.startswith(candidate, at):
                return candidate
        return ""

    def _may_become(self, end: str, at: int, size: int) -> bool:
        """Return whether a text of ``size`` characters ends with the proper beginning of a placeholder."""
        if at + len(end) < size:
            return False
        place = bisect_left(self._sorted, end)
        return place < len(self._sorted) and self._sorted[place].startswith(end)


def _check(placeholder: Any, original: Any) -> None:
    if not isinstance(placeholder, str) or not isinstance(original, str):
        raise TypeError("a placeholder or its original is no text")
    if not _FEWEST <= len(placeholder) <= MOST_PLACEHOLDER:
        raise ValueError(f"a placeholder has fewer than {_FEWEST} or more than {MOST_PLACEHOLDER} characters")
    plain = placeholder.isascii() and placeholder.isprintable()
    if not plain or '"' in placeholder or "\\" in placeholder:
        raise ValueError("a placeholder has a character that JSON may write differently")
    if len(original) > _MOST_ORIGINAL:
        raise ValueError("an original is too large")
    original.encode()  # A lone surrogate could not be sent; UnicodeEncodeError is a ValueError.


def _escaped(original: str) -> str:
    return json.dumps(original, ensure_ascii=False)[1:-1]
