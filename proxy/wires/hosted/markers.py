"""Numbered markers, the second way in which a model cites pages: 【1】, [1], 【1†source】, or 【1†L1-L3】.

The last form is that of gpt-oss; OpenAI's Assistants write ``source``. Brackets with any other text stay as
they are, because a link in their place would lose that text.

Each page that a search finds gets a number, which the model reads beside it. A marker in the answer becomes
a link to its page, in the form that xAI's models give (``[[1]](https://…)``).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.base.events import ToolResult
from proxy.wires.hosted.tools import FoundPage, listed_in, page_of

_MEMBER: Final = "cite_as"
"""The member of a result that tells the model how to cite it."""
_LISTS: Final = ("results", "organic", "items", "data", "result")
_MARKER: Final = re.compile(r"\[(\d{1,5})\]|【(\d{1,5})(?:†(?:source|L\d{1,6}(?:-L\d{1,6})?))?】")
_BEGUN: Final = re.compile(r"【\d{0,5}(?:†[\w-]{0,15})?")
LONGEST: Final = 23
"""Characters of the longest marker: 【12345†L123456-L123456】."""
_SAID: Final = re.compile(rb'cite_as[\\":\s]{2,12}(?:\xe3\x80\x90|\\+u3010)(\d{1,5})')
_HIGHEST: Final = 90_000
_TOKENS: Final = re.compile(r"`+|[^`]+")
_FENCE: Final = 3


def numbered(result: ToolResult, numbers: Mapping[str, int]) -> ToolResult:
    """Return the result of a search in which the model reads the numbers of pages, by their addresses."""
    if not numbers:
        return result
    try:
        content = orjson.loads(result.content)
    except orjson.JSONDecodeError:
        content = None
    listed: Any = content
    if isinstance(content, dict):
        listed = next((content[name] for name in _LISTS if isinstance(content.get(name), list)), None)
    if isinstance(content, dict) and content.get("url") in numbers:
        listed = [content]
    if not isinstance(listed, list):
        lines = (f"{marker(number)} {url}" for url, number in numbers.items())
        return replace(result, content="\n".join([result.content, "Cite these pages so:", *lines]))
    for entry in listed:
        url = entry.get("url") or entry.get("link") or entry.get("href") if isinstance(entry, dict) else None
        if isinstance(url, str) and url in numbers:
            entry[_MEMBER] = marker(numbers[url])
    return replace(result, content=orjson.dumps(content).decode())


def marker(number: int) -> str:
    """Return the marker that a model is asked for: nothing else is written so."""
    return f"【{number}】"


def pages_in(text: str) -> Iterator[tuple[FoundPage, int]]:
    """Yield the pages in the result of an earlier call, each with its number, 0 for none."""
    for entry in listed_in(text) or ():
        if isinstance(entry, dict) and (page := page_of(entry)) is not None:
            found = _MARKER.fullmatch(str(entry.get(_MEMBER) or ""))
            number = int(found[2] or 0) if found is not None else 0
            yield page, number if number < _HIGHEST else 0


def highest_number(conversation: bytes) -> int:
    """Return the highest number that a page has in a conversation, as JSON; 0 if none has one.

    Numbers of later pages continue there, so that a marker means the same page in every turn.
    """
    highest = max((int(found[1]) for found in _SAID.finditer(conversation)), default=0)
    return highest if highest < _HIGHEST else 0


def marker_at(text: str, at: int, *, whole: bool) -> tuple[int, int] | None:
    """Return the end and the number of the marker at a place; ``(0, 0)`` if there is none.

    ``None`` means that this is not known yet: ``text`` is not ``whole``. A bracket that belongs to an
    identifier (``a[1]``) or defines a link (``[1]: …``) is none.
    """
    found = _MARKER.match(text, at)
    if found is None:
        may = not whole and len(text) - at < LONGEST and _BEGUN.fullmatch(text, at)
        return None if may else (0, 0)
    end = found.end()
    if text[at] == "【":
        return end, int(found[2])
    if end == len(text) and not whole:
        return None
    before, after = text[at - 1 : at], text[end : end + 1]
    if (before.isascii() and (before.isalnum() or before == "_")) or after in (":", "("):
        return 0, 0
    return end, int(found[1])


class CodeSpans:
    """Follows which parts of a text in Markdown are code, where brackets are no markers."""

    def __init__(self) -> None:
        self._open = 0
        self._run = 0
        self._last = ""

    @property
    def inside(self) -> bool:
        """Whether the text that comes next is code, unless it begins with a backtick."""
        self._end_run()
        return bool(self._open)

    def take(self, text: str) -> None:
        """Follow the next piece of the text."""
        for token in _TOKENS.findall(text):
            if token[0] == "`":
                self._run += len(token)
                continue
            self._end_run()
            # Code between single backticks ends with its paragraph.
            if 0 < self._open < _FENCE and "\n\n" in self._last + token:
                self._open = 0
            self._last = token[-1]

    def _end_run(self) -> None:
        if self._run:
            if not self._open:
                self._open = self._run
            elif self._run == self._open or (self._open >= _FENCE and self._run > self._open):
                self._open = 0
            self._run, self._last = 0, ""
