"""Removes secrets from what becomes a fixture: known ones, what looks like one, and what its user names.

The forms of tokens are those that their services document: OpenAI, Anthropic, GitHub, GitLab, Slack, AWS,
Google, Hugging Face, JSON Web Tokens (RFC 7519) and PEM (RFC 7468).
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.base.errors import ConfigError
from proxy.http.bodies import REDACTED, shapes_of_secrets
from proxy.http.headers import Headers
from proxy.http.secret_spellings import SecretSpellings

_TOKEN: Final = re.compile(
    rb"(?<![\w-])(?:(?:sk|pk|rk)-[\w-]{16,}+|gh[opsur]_\w{20,}+|github_pat_\w{20,}+|glpat-[\w-]{16,}+"
    rb"|xox[abeprs]-[\w-]{10,}+|(?:AKIA|ASIA)[0-9A-Z]{16}(?!\w)|AIza[\w-]{30,}+|hf_\w{20,}+"
    rb"|eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+)"
)
_PEM: Final = re.compile(
    rb"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:(?!-----END)[^\"]){0,20000}"
    rb"(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
_BEARER: Final = re.compile(rb"(?i)(\b(?:bearer|basic) )(?=[\w.~+/-]{0,200}[0-9=])[\w.~+/=-]{8,}+")
"""A word with a digit: "basic understanding" is none."""
_IN_ADDRESS: Final = re.compile(rb"(://)[^/@:\s\"\\]{0,200}+:[^/@\s\"\\]{1,200}+(?=@)")
_NAMES: Final = (
    rb"(?:[\w-]{0,40}[_-])?(?:pass(?:word|wd|phrase)|secret|api[_-]?key|apikey|authorization"
    rb"|(?:access|auth|refresh|bearer|session|id)[_-]?token|(?:client|access|private)[_-]?(?:secret|key)|cookie)"
)
_IN_QUERY: Final = re.compile(
    rb"(?i)([?&;](?:%b|key|token|sig|signature|auth)=)[^&\s\"'\\#<>)]{4,}+" % _NAMES
)
_MEMBER: Final = re.compile(
    rb"(?i)((\\{0,7})\"%b\2\"\s{0,20}:\s{0,20}\2\")"
    rb"(?>(?:[^\"\\]|\2\2\\\\|\2\2\\\"|\\(?!\\{0,99}+\")){1,4000})(?=\2\")" % _NAMES
)
"""A member of an object with the name of a secret; JSON within JSON has backslashes before its quotes.

With k backslashes before each quote, a backslash in the value is written as 2k + 2 of them, and a quote as
2k + 1 and the quote.
"""

_CREDENTIALS: Final = frozenset(
    {"authorization", "api-key", "x-api-key", "x-goog-api-key", "proxy-authorization", "cookie"}
)
_PLACEHOLDERS: Final = frozenset(
    {"unused", "ollama", "lm-studio", "not-needed", "no-key-required", "dummy", "empty", "placeholder"}
)
"""Texts that stand for a key where none is needed. To remove them would change what people ask."""
_SHORTEST: Final = 4
_SCHEME: Final = re.compile(r"(?i)^(?:bearer|basic) +")


class Scrubbing:
    """Replaces secrets by ``[redacted]``. It finds the same ones in a recording and in a replay."""

    def __init__(self, secrets: Iterable[str] = (), scrub: Sequence[str] = ()) -> None:
        """``secrets`` are known texts. ``scrub`` are texts in which one ``*`` stands for any characters up to
        the next space, quote or backslash.

        Raises :class:`~proxy.base.errors.ConfigError` for an entry of ``scrub`` that would match too much.
        """
        self._shapes = shapes_of_secrets(secrets)
        self._patterns = [_pattern(text) for text in scrub]

    def clean(self, data: bytes) -> bytes:
        """Return a body without secrets; JSON stays JSON."""
        data = _without(data, self._shapes)
        for pattern in self._patterns:
            data = pattern.sub(REDACTED, data)
        data = _MEMBER.sub(rb"\1" + REDACTED, data)
        data = _PEM.sub(REDACTED, data)
        data = _IN_QUERY.sub(rb"\1" + REDACTED, data)
        data = _IN_ADDRESS.sub(rb"\1" + REDACTED, data)
        data = _BEARER.sub(rb"\1" + REDACTED, data)
        return _TOKEN.sub(REDACTED, data)

    def clean_of(self, headers: Headers, data: bytes) -> bytes:
        """Return a body without secrets, and without the keys in the headers of its request."""
        keys = [_SCHEME.sub("", value) for name, value in headers if name.lower() in _CREDENTIALS]
        secrets = [key for key in keys if key.lower() not in _PLACEHOLDERS]
        return self.clean(_without(data, shapes_of_secrets(secrets)))


def _without(data: bytes, shapes: Sequence[bytes]) -> bytes:
    for shape in shapes:
        data = data.replace(shape, REDACTED)
    return SecretSpellings(shapes).replaced(data, lambda _: REDACTED) if shapes else data


def _pattern(text: str) -> re.Pattern[bytes]:
    before, star, after = text.partition("*")
    if len(before + after) < _SHORTEST or "*" in after:
        raise ConfigError(
            "scrub",
            f"{text[:40]!r} would match too much",
            f"Write at least {_SHORTEST} characters, and at most one * for any others",
        )
    left, right = (re.escape(part.encode()) for part in (before, after))
    run = rb"[^\s\"\\]{0,500}" + (b"?" if after else b"+")
    return re.compile(left + (run if star else b"") + right)
