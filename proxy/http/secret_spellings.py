"""Finds secrets in JSON text, in which any character may be escaped."""

import re
from collections.abc import Callable, Sequence
from typing import Final

_ESCAPE: Final = 6
"""The bytes of the longest spelling of one character, ``\\u0073``."""
_BACKSLASH: Final = ord("\\")
_SHORT: Final = {ord("/"): rb"\/", ord('"'): rb"\"", ord("\\"): rb"\\"}


class SecretSpellings:
    """Finds secrets of printable ASCII in pieces of JSON, even if some of their characters are escaped."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        characters = sorted(set(b"".join(secrets)))
        digits = b"|".join(_hex(character) for character in characters)
        self._doubtful = re.compile(rb"\\u00(?:%b)%b" % (digits, rb"|\\/" if ord("/") in characters else b""))
        self._whole = re.compile(b"|".join(b"".join(map(_spelling, secret)) for secret in secrets))
        self._secrets = secrets
        self._longest = _ESCAPE * max(map(len, secrets))
        first = b"".join(b"\\x%02x" % secret[0] for secret in secrets)
        self._starts = re.compile(b"[\\\\%b]" % first)

    def replaced(self, data: bytes, by: Callable[[bytes], bytes]) -> bytes:
        """Replace each spelling by ``by`` of it; nearly free if the data has no escape that could belong to
        one."""
        if b"\\" not in data or self._doubtful.search(data) is None:
            return data
        return self._whole.sub(lambda match: by(match[0]), data)

    def begun(self, data: bytes) -> int:
        """Return how many of the last bytes may begin a secret that continues in the next piece."""
        for match in self._starts.finditer(data, max(0, len(data) - self._longest + 1)):
            if any(_is_begun(data, match.start(), secret) for secret in self._secrets):
                return len(data) - match.start()
        return 0


def _is_begun(data: bytes, at: int, secret: bytes) -> bool:
    """Return whether ``data`` from ``at`` to its end may begin a secret, without being the whole secret."""
    size = len(data)
    for character in secret:
        if at == size:
            return True
        if data[at] != _BACKSLASH:
            if data[at] != character:
                return False
            at += 1
            continue
        escape = data[at : at + _ESCAPE]
        if escape[1:2] == b"u":
            whole = b"\\u00%02x" % character
            if not whole.startswith(escape.lower()):
                return False
            at += _ESCAPE
        elif len(escape) == 1:
            return True
        elif escape[1] != character:
            return False
        else:
            at += 2
        if at > size:
            return True
    return False


def _hex(character: int) -> bytes:
    """Build a pattern for a character's two hexadecimal digits, in either case."""
    return b"".join(
        b"[%b%b]" % (digit.lower(), digit.upper()) if digit.isalpha() else digit
        for digit in (b"%x" % (character >> 4), b"%x" % (character & 15))
    )


def _spelling(character: int) -> bytes:
    """Build a pattern for all spellings of a character in JSON."""
    ways = [re.escape(bytes([character])), rb"\\u00" + _hex(character)]
    if character in _SHORT:
        ways.append(re.escape(_SHORT[character]))
    return b"(?:%b)" % b"|".join(ways)
