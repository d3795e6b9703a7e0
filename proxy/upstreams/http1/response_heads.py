"""The heads of one upstream's responses.

The same upstream sends the same header names again and again.  A head that is like an earlier one in
its names is read with one regular expression, its template, which is at once the strictest reading of a
head and the choice of what goes on to the client.  Whatever does not fit it is the parser's to judge.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.http.headers import HeaderSection, by_names
from proxy.http.rules import HeaderRules, Uses, is_name

__all__ = ["PlainHead", "ResponseHeads"]

_MAX_TEMPLATES = 4
"""Tried one after the other; an upstream has few kinds of responses."""

_MAX_PLAIN_BYTES = 8192
"""Of a head that is read with a template."""

_MAX_NAMES = 64
_MAX_NAME_BYTES = 1024
"""All names together: a template costs time and memory by their length, also in the cache of ``re``."""

_HEADS_PER_TEMPLATE = 64
"""How many heads the parser has to read before another template takes the place of one.

A template costs some milliseconds at most, and whoever sends ever new names makes useless ones.
"""

# No interim response and none without a body, whose framing says something else.
_STATUS_LINE = r"HTTP/1\.1 (?!204|304)([2-5][0-9]{2}) [ -~]*+\r\n"
_VALUE = "(?! )[ -~]*+"
_VALUES = {
    "connection": "[Kk]eep-[Aa]live",
    "content-length": "[0-9]{1,15}",
    "transfer-encoding": "[Cc]hunked",
}
_NEVER_PLAIN = frozenset({"proxy-connection", "upgrade"})
"""The parser takes them to say what becomes of the connection."""


class PlainHead(NamedTuple):
    """A head that can be read in one way only; its connection can be kept.

    ``headers`` are clean; ``length`` of the body is in bytes, ``None`` where it comes in chunks;
    ``size`` is that of the head, in bytes, with its blank line.
    """

    status: int
    headers: HeaderSection
    length: int | None
    size: int


class ResponseHeads:
    """Reads heads and keeps the templates of those that came before; their values are not kept."""

    __slots__ = ("_heads", "_last", "_rules", "_secrets", "_template", "_templates")

    def __init__(self, rules: HeaderRules, secrets: tuple[bytes, ...]) -> None:
        """``rules`` say which headers go on; ``secrets`` are taken out of them."""
        self._rules = rules
        self._secrets = secrets

        def template(raw_names: tuple[bytes, ...]) -> _HeadTemplate | None:
            return _template(raw_names, rules.returned(raw_names))

        self._template = by_names(template)
        self._templates: dict[tuple[bytes, ...], _HeadTemplate] = {}
        self._last: tuple[bytes, ...] = ()
        self._heads = 0
        """Read by the parser since the last template was made."""

    def plain(self, data: bytes) -> PlainHead | None:
        """The head that a response begins with, where that is whole, plain and like an earlier one."""
        # Each byte is one character, so that places in the text are places in the data.
        text = data[:_MAX_PLAIN_BYTES].decode("latin-1")
        for match, names, length_at in self._templates.values():
            if (found := match(text)) is not None:
                size = found.end()
                for secret in self._secrets:
                    if data.find(secret, 0, size) >= 0:
                        return None
                status, *values = found.groups()
                length = None if length_at is None else int(values[length_at])
                return PlainHead(int(status), HeaderSection(names, values), length, size)
        return None

    def clean(self, raw_names: Sequence[bytes], raw_values: Sequence[bytes]) -> HeaderSection:
        """The end-to-end headers of a head that the parser has read; see :class:`HeaderRules`."""
        names = tuple(raw_names)
        self._heads += 1
        # Names that came only once may never come again.
        if names != self._last:
            self._last = names
        elif names not in self._templates:
            self._make_template(names)
        return self._rules.response_headers(raw_names, raw_values, self._secrets)

    def _make_template(self, names: tuple[bytes, ...]) -> None:
        """Where there is room, or the one made first has had its time."""
        is_full = len(self._templates) >= _MAX_TEMPLATES
        if (is_full and self._heads < _HEADS_PER_TEMPLATE) or (template := self._template(names)) is None:
            return
        if is_full:
            del self._templates[next(iter(self._templates))]
        self._templates[names] = template
        self._heads = 0


class _HeadTemplate(NamedTuple):
    """Takes the status and the values of ``names`` out of a whole head; ``length_at`` is a place in them."""

    match: Callable[[str], re.Match[str] | None]
    names: tuple[str, ...]
    length_at: int | None


def _template(raw_names: tuple[bytes, ...], uses: Uses) -> _HeadTemplate | None:
    """What fits any plain head with these names; ``None`` where there can be none."""
    if len(raw_names) > _MAX_NAMES or sum(map(len, raw_names)) > _MAX_NAME_BYTES:
        return None
    if not all(map(is_name, raw_names)):
        return None
    every = [name.decode("ascii") for name in raw_names]
    low = [name.lower() for name in every]
    framed = low.count("content-length") + low.count("transfer-encoding")
    if framed != 1 or low.count("connection") > 1 or not _NEVER_PLAIN.isdisjoint(low):
        return None
    lines = [_STATUS_LINE]
    for name, goes_on in zip(every, uses.mask, strict=True):
        value = _VALUES.get(name.lower(), _VALUE)
        lines.append(f"{re.escape(name)}: {f'({value})' if goes_on else value}\\r\\n")
    kept = [name.lower() for name in uses.names]
    length_at = kept.index("content-length") if "content-length" in kept else None
    return _HeadTemplate(re.compile("".join(lines) + r"\r\n").match, uses.names, length_at)
