"""Keys of this proxy in text where none may stand: in an address, or in what goes to a provider.

Whoever makes such an address did not mean to hide the key; it was encoded on the way, once, twice, or as the
half of ``Basic`` that is base64. So a text is read in every way in which programs write one, up to a bound.
"""

import base64
import binascii
import contextlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final, Protocol

from proxy.errors import RequestError
from proxy.server.serving.heads.head import Head
from proxy.server.serving.target import MAX_TARGET

__all__ = ["SHORTEST_KEY", "KeyFinder", "KnownSecrets", "readings"]

SHORTEST_KEY: Final = 32
"""In characters, what an operator may declare; an address no longer than this has no room for a key."""

_DEEPEST: Final = 5
_MOST_CHARACTERS: Final = 12 * 1024
"""Of all readings together."""

_KEY: Final = re.compile(r"\b(?:tr_[A-Za-z0-9_-]{43}|trt_[A-Za-z0-9_:-]{3,80}\.)", re.ASCII)
_MADE_KEY: Final = re.compile(r"tr_[A-Za-z0-9_-]{43}")
_WORD: Final = re.compile(r"(?<![A-Za-z0-9])[!-~]")
_MOST_WORDS: Final = 512
_MOST_MADE: Final = 32
_WHOLE_TOKEN: Final = re.compile(r"trt_[A-Za-z0-9_:-]{3,80}\.[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{86}")
_BETWEEN: Final = re.compile(r"[\x00-\x20\x7f/?&=#;,@\"'\\]+")
_FIELD_NAME: Final = re.compile(r"[?&][^?&=#]*=")

_ESCAPE: Final = re.compile(
    r"%u(?P<a>[0-9a-fA-F]{4})|%(?P<b>[0-9a-fA-F]{2})"
    r"|\\u\{(?P<c>[0-9a-fA-F]{1,6})\}|\\u(?P<d>[0-9a-fA-F]{4})|\\x(?P<e>[0-9a-fA-F]{2})"
    r"|&#[xX](?P<f>[0-9a-fA-F]{1,6});?|&#(?P<dec>[0-9]{1,7});?"
)
_OVERLONG: Final = re.compile("[\xc0\xc1][\x80-\xbf]|\xe0[\x80\x81][\x80-\xbf]|\xf0\x80[\x80\x81][\x80-\xbf]")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{43,}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{64,}")
_PRINTED: Final = re.compile(r"[\x20-\x7e]{32,}")
_STANDARD: Final = str.maketrans("-_", "+/")


class KnownSecrets(Protocol):
    """What is asked of the keys that there are."""

    def knows(self, secret: str) -> bool:
        """Whether this is the secret of a key."""
        ...

    def declared_at(self, text: str, starts: Sequence[int]) -> bool:
        """Whether a key of the configuration, which looks like nothing, stands at one of these places."""
        ...

    async def refresh(self) -> None:
        """Know of all keys that there are; raises :class:`~proxy.errors.RequestError` where it cannot."""
        ...


class KeyFinder:
    """Finds keys and tokens in texts, however they are written there."""

    def __init__(self, known: KnownSecrets, start_token: str = "") -> None:
        """``start_token`` is what clients send before the first key is made; no key ring holds it."""
        self._known = known
        self._start_token = start_token

    async def in_target(self, head: Head) -> bool:
        """Whether a key stands in the target of a request: path, query, or whatever was sent as one."""
        found: bool | None = head.get(self)
        if found is None:
            target = head.message.path
            found = head[self] = SHORTEST_KEY < len(target) <= MAX_TARGET and await self._find(target)
        return found

    async def _find(self, text: str) -> bool:
        if self.holds(text):
            return True
        # In pieces a key is told from chance by asking for it: then also for those that were made just now.
        if not any(_made_keys(*cut) for reading in readings(text) for cut in _cuts(reading)):
            return False
        with contextlib.suppress(RequestError):
            await self._known.refresh()
        return self.holds(text)

    def holds(self, text: str) -> bool:
        """Whether a key or token stands in a text, in one piece or with separators between its pieces.

        In one piece the form of a key is enough, so that one that was revoked is found too.  A key of the
        configuration has no form, and is looked for where a word begins.
        """
        return any(
            _KEY.search(reading) is not None or any(self._stands_in(*cut) for cut in _cuts(reading))
            for reading in readings(text)
        )

    def _stands_in(self, joined: str, starts: Sequence[int]) -> bool:
        """Whether a key that there is stands in a text; by its form alone it could be chance."""
        return (
            self._known.declared_at(joined, starts)
            or any(map(self._known.knows, _made_keys(joined, starts)))
            or _WHOLE_TOKEN.search(joined) is not None
            or (self._start_token != "" and self._start_token in joined)
        )


def _cuts(text: str) -> Iterator[tuple[str, Sequence[int]]]:
    """A text, the same without what separates its parts, and without the names of its fields as well.

    Beside each it says where words begin in it, up to a bound: no address has as many.
    """
    yield text, [found.start() for found in islice(_WORD.finditer(text), _MOST_WORDS)]
    done = set()
    for less in (text, _FIELD_NAME.sub("&", text)):
        parts = _BETWEEN.split(less)
        joined = "".join(parts)
        if len(parts) == 1 or len(joined) < SHORTEST_KEY or joined in done:
            continue
        done.add(joined)
        starts, at = [], 0
        for part in parts[:_MOST_WORDS]:
            starts += [at + found.start() for found in _WORD.finditer(part)]
            at += len(part)
        yield joined, starts[:_MOST_WORDS]


def _made_keys(text: str, starts: Sequence[int]) -> Sequence[str]:
    """What has the form of a key that was made here, of a few at most."""
    found = (_MADE_KEY.match(text, start) for start in starts if text.startswith("tr_", start))
    return [match[0] for match in islice(filter(None, found), _MOST_MADE)]


def readings(text: str) -> Iterator[str]:
    """A text, and what it may be read as: with its escapes decoded, and what in it is base64 or hexadecimal.

    At most ``_DEEPEST`` layers, and so much text in all that reading it never takes long.
    """
    # One character for each byte, so that escapes of bytes and bytes sent as they are look alike.
    first = text.encode("utf-8", "surrogateescape").decode("latin-1")
    seen, layer, left = {first}, [first], _MOST_CHARACTERS
    for _ in range(_DEEPEST):
        yield from layer
        below = []
        for other in chain.from_iterable(map(_decoded, layer)):
            if len(other) < SHORTEST_KEY or other in seen or len(other) > left:
                continue
            left -= len(other)
            seen.add(other)
            below.append(other)
        layer = below
    yield from layer


def _decoded(text: str) -> Iterator[str]:
    """What a text may be read as, one step further."""
    if "%" in text or "\\" in text or "&#" in text:
        yield _ESCAPE.sub(_character, text)
    if "+" in text:
        yield text.replace("+", " ")
    if not text.isascii():
        yield _OVERLONG.sub(lambda found: chr(_overlong(found[0])), text)
        plain = text.encode("latin-1", "replace").decode("utf-8", "replace")
        yield unicodedata.normalize("NFKC", plain).encode("latin-1", "replace").decode("latin-1")
    for found in _BASE64.finditer(text):
        # A slash is a letter of base64, and stands before it in a path.
        for segment in found[0].split("/") if "/" in found[0] else ():
            yield from _from_base64(segment.translate(_STANDARD))
        word = found[0].translate(_STANDARD)
        # What stands before it may be letters of base64 too: then it begins at any of four places.
        for start in range(4):
            yield from _from_base64(word[start:])
    for found in _HEX.finditer(text):
        for start in range(2):
            part = found[0][start:]
            data = bytes.fromhex(part[: len(part) // 2 * 2])
            yield from _PRINTED.findall(data.decode("latin-1"))


def _from_base64(text: str) -> Sequence[str]:
    """What is printable in what a text of base64 says."""
    if len(text) < SHORTEST_KEY:
        return ()
    text = text[:-1] if len(text) % 4 == 1 else text
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return ()
    return _PRINTED.findall(data.decode("latin-1"))


def _character(escape: re.Match[str]) -> str:
    tens = escape["dec"]
    number = int(escape[escape.lastgroup or "b"], 16) if tens is None else int(tens)
    return chr(number) if number < 256 else unicodedata.normalize("NFKC", chr(min(number, 0x10FFFF)))


def _overlong(text: str) -> int:
    """The character of a sequence of UTF-8 that is longer than it may be: its last two bytes say it."""
    return (ord(text[-2]) & 0x3F if len(text) > 2 else ord(text[-2]) & 0x1F) << 6 | ord(text[-1]) & 0x3F
