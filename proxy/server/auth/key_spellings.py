"""Finds keys of this proxy in text that must not contain them: an address, or what goes to a provider.

A key in an address is rarely hidden on purpose: software encoded it on the way, once, twice, or as the base64
part of ``Basic``. So a text is decoded in every way that programs encode one, up to a bound.
"""

import base64
import binascii
import contextlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final, Protocol

from proxy.base.errors import RequestError
from proxy.server.messages.heads.head import Head
from proxy.server.messages.target import MAX_TARGET

SHORTEST_KEY: Final = 32
"""The fewest characters of a key that an operator may declare; a shorter address cannot contain a key."""

_DEEPEST: Final = 5
_MOST_CHARACTERS: Final = 12 * 1024
"""The most characters of all readings together."""

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
    """The queries about existing keys."""

    def knows(self, secret: str) -> bool:
        """Return whether this is the secret of a key."""

    def declared_at(self, text: str, starts: Sequence[int]) -> bool:
        """Return whether a configured key, which has no fixed form, begins at one of these places."""

    async def refresh(self) -> None:
        """Learn of all keys that exist; raise :class:`~proxy.base.errors.RequestError` if that fails."""


class KeyFinder:
    """The search for keys and tokens in texts, in any encoding."""

    def __init__(self, known: KnownSecrets, start_token: str = "") -> None:
        """``start_token`` is the credential of clients before the first key is made; no key ring holds it."""
        self._known = known
        self._start_token = start_token

    async def in_target(self, head: Head) -> bool:
        """Return whether the target of a request contains a key, in its path, its query or any other text."""
        holds_key: bool | None = head.get(self)
        if holds_key is None:
            target = head.message.path
            holds_key = head[self] = SHORTEST_KEY < len(target) <= MAX_TARGET and await self._find(target)
        return holds_key

    async def _find(self, text: str) -> bool:
        if self.holds(text):
            return True
        # A key in pieces is recognised only by a lookup, so keys that were made just now must be known too.
        if not any(_made_keys(*cut) for reading in readings(text) for cut in _cuts(reading)):
            return False
        with contextlib.suppress(RequestError):
            await self._known.refresh()
        return self.holds(text)

    def holds(self, text: str) -> bool:
        """Return whether a text contains a key or token, in one piece or with separators between its pieces.

        In one piece the form of a key is enough, so that a revoked key is found too. A key of the
        configuration has no form, so it is looked for at the start of each word.
        """
        return any(
            _KEY.search(reading) is not None or any(self._stands_in(*cut) for cut in _cuts(reading))
            for reading in readings(text)
        )

    def _stands_in(self, joined: str, starts: Sequence[int]) -> bool:
        """Return whether a text contains an existing key; its form alone could be chance."""
        return (
            self._known.declared_at(joined, starts)
            or any(map(self._known.knows, _made_keys(joined, starts)))
            or _WHOLE_TOKEN.search(joined) is not None
            or (self._start_token != "" and self._start_token in joined)
        )


def _cuts(text: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield a text, the same without the separators of its parts, and without its field names as well.

    Each comes with the places where words begin in it, up to a bound that no address reaches.
    """
    yield text, [match.start() for match in islice(_WORD.finditer(text), _MOST_WORDS)]
    done = set()
    for less in (text, _FIELD_NAME.sub("&", text)):
        parts = _BETWEEN.split(less)
        joined = "".join(parts)
        if len(parts) == 1 or len(joined) < SHORTEST_KEY or joined in done:
            continue
        done.add(joined)
        starts, offset = [], 0
        for part in parts[:_MOST_WORDS]:
            starts += [offset + match.start() for match in _WORD.finditer(part)]
            offset += len(part)
        yield joined, starts[:_MOST_WORDS]


def _made_keys(text: str, starts: Sequence[int]) -> Sequence[str]:
    """Return the texts that have the form of a generated key, a few at most."""
    matches = (_MADE_KEY.match(text, start) for start in starts if text.startswith("tr_", start))
    return [match[0] for match in islice(filter(None, matches), _MOST_MADE)]


def readings(text: str) -> Iterator[str]:
    """Yield a text and its possible readings: with escapes decoded, and with base64 and hexadecimal decoded.

    It decodes at most ``_DEEPEST`` layers and a bounded amount of text, so that this never takes long.
    """
    # One character for each byte, so that escaped bytes and raw bytes look alike.
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
    """Yield what a text may be read as, one step further."""
    if "%" in text or "\\" in text or "&#" in text:
        yield _ESCAPE.sub(_character, text)
    if "+" in text:
        yield text.replace("+", " ")
    if not text.isascii():
        yield _OVERLONG.sub(lambda match: chr(_overlong(match[0])), text)
        plain = text.encode("latin-1", "replace").decode("utf-8", "replace")
        yield unicodedata.normalize("NFKC", plain).encode("latin-1", "replace").decode("latin-1")
    for match in _BASE64.finditer(text):
        # A slash is a letter of base64, and in a path it stands before the key.
        for segment in match[0].split("/") if "/" in match[0] else ():
            yield from _from_base64(segment.translate(_STANDARD))
        word = match[0].translate(_STANDARD)
        # The text before it may be base64 letters too; then it begins at any of four places.
        for start in range(4):
            yield from _from_base64(word[start:])
    for match in _HEX.finditer(text):
        for start in range(2):
            part = match[0][start:]
            data = bytes.fromhex(part[: len(part) // 2 * 2])
            yield from _PRINTED.findall(data.decode("latin-1"))


def _from_base64(text: str) -> Sequence[str]:
    """Return the printable parts of a base64 text."""
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
    """Return the character of an overlong UTF-8 sequence; its last two bytes hold it."""
    return (ord(text[-2]) & 0x3F if len(text) > 2 else ord(text[-2]) & 0x1F) << 6 | ord(text[-1]) & 0x3F
