"""Reads the heads of one upstream's responses.

An upstream sends the same header names again and again. If a head has the names of an earlier one, the proxy
reads it with one regular expression, the template of these names. The template reads a head in the strictest
way, and at once selects the headers for the client. The parser judges every head that fits no template.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.http.headers import HeaderSection, by_names
from proxy.http.rules import HeaderRules, HeaderSelection, is_name

_MAX_TEMPLATES = 4
"""Templates are tried one after the other; an upstream has few kinds of responses."""

_MAX_PLAIN_BYTES = 8192
"""The longest head that is read with a template."""

_MAX_NAMES = 64
_MAX_NAME_BYTES = 1024
"""The most bytes of all names together.

The length of a template costs time and memory, also in the cache of ``re``.
"""

_HEADS_PER_TEMPLATE = 64
"""After so many heads that the parser had to read, a new template may replace the oldest.

A template costs some milliseconds at most, and a server that sends ever new names makes useless ones.
"""

# No interim response and none without a body: they are framed in another way.
_STATUS_LINE = r"HTTP/1\.1 (?!204|304)([2-5][0-9]{2}) [ -~]*+\r\n"
_VALUE = "(?! )[ -~]*+"
_VALUES = {
    "connection": "[Kk]eep-[Aa]live",
    "content-length": "[0-9]{1,15}",
    "transfer-encoding": "[Cc]hunked",
}
_NEVER_PLAIN = frozenset({"proxy-connection", "upgrade"})
"""The parser takes these headers into account when it decides about the connection."""


class PlainHead(NamedTuple):
    """A head that can be read in one way only, and whose connection can be kept.

    ``headers`` are clean. ``length`` is that of the body in bytes, ``None`` if it is chunked. ``size`` is
    that of the head in bytes, with its blank line.
    """

    status: int
    headers: HeaderSection
    length: int | None
    size: int


class ResponseHeads:
    """Reads heads, and keeps templates of earlier ones, without their values."""

    __slots__ = ("_heads", "_last", "_rules", "_secrets", "_template", "_templates")

    def __init__(self, rules: HeaderRules, secrets: tuple[bytes, ...]) -> None:
        """``rules`` say which headers pass to the client; ``secrets`` are removed from them."""
        self._rules = rules
        self._secrets = secrets

        def template(raw_names: tuple[bytes, ...]) -> _HeadTemplate | None:
            return _template(raw_names, rules.returned(raw_names))

        self._template = by_names(template)
        self._templates: dict[tuple[bytes, ...], _HeadTemplate] = {}
        self._last: tuple[bytes, ...] = ()
        self._heads = 0
        """The number of heads that the parser read since the last template was made."""

    def plain(self, data: bytes) -> PlainHead | None:
        """Return the head of a response; ``None`` unless it is complete, plain and like an earlier one."""
        # Each byte is one character, so positions in the text are positions in the data.
        text = data[:_MAX_PLAIN_BYTES].decode("latin-1")
        for match, names, length_at in self._templates.values():
            if (match_ := match(text)) is not None:
                size = match_.end()
                for secret in self._secrets:
                    if data.find(secret, 0, size) >= 0:
                        return None
                status, *values = match_.groups()
                length = None if length_at is None else int(values[length_at])
                return PlainHead(int(status), HeaderSection(names, values), length, size)
        return None

    def clean(self, raw_names: Sequence[bytes], raw_values: Sequence[bytes]) -> HeaderSection:
        """Return the end-to-end headers of a head that the parser has read; see :class:`HeaderRules`."""
        names = tuple(raw_names)
        self._heads += 1
        # Names that came only once may never come again, so they get no template.
        if names != self._last:
            self._last = names
        elif names not in self._templates:
            self._make_template(names)
        return self._rules.response_headers(raw_names, raw_values, self._secrets)

    def _make_template(self, names: tuple[bytes, ...]) -> None:
        """Make a template if there is room, or replace the oldest one if it has had its time."""
        is_full = len(self._templates) >= _MAX_TEMPLATES
        if (is_full and self._heads < _HEADS_PER_TEMPLATE) or (template := self._template(names)) is None:
            return
        if is_full:
            del self._templates[next(iter(self._templates))]
        self._templates[names] = template
        self._heads = 0


class _HeadTemplate(NamedTuple):
    """Extracts the status and the values of ``names`` from a complete head.

    ``length_at`` is the index of the content length among them.
    """

    match: Callable[[str], re.Match[str] | None]
    names: tuple[str, ...]
    length_at: int | None


def _template(raw_names: tuple[bytes, ...], selection: HeaderSelection) -> _HeadTemplate | None:
    """Build the template for plain heads with these names; ``None`` if there can be none."""
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
    for name, goes_on in zip(every, selection.mask, strict=True):
        value = _VALUES.get(name.lower(), _VALUE)
        lines.append(f"{re.escape(name)}: {f'({value})' if goes_on else value}\\r\\n")
    kept = [name.lower() for name in selection.names]
    length_at = kept.index("content-length") if "content-length" in kept else None
    return _HeadTemplate(re.compile("".join(lines) + r"\r\n").match, selection.names, length_at)
