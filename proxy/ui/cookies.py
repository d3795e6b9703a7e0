"""Cookies of the web UI: signed contents that every process with the record can check, and their headers."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final

import orjson

MAX_COOKIE: Final = 3072
"""The longest value of a cookie; browsers keep 4,096 bytes of one with its name (RFC 6265, section 6.1)."""


def signed(key: bytes, purpose: bytes, content: Mapping[str, Any]) -> str:
    """Return content with a MAC; what is signed for one purpose is not valid for another."""
    text = encode(orjson.dumps(content))
    return f"{text}.{encode(_mac(key, purpose, text))}"


def read_signed(key: bytes, purpose: bytes, value: str) -> dict[str, Any] | None:
    """Return the content of :func:`signed`, or ``None`` if the signature is not valid."""
    if len(value) > MAX_COOKIE or not value.isascii():
        return None
    text, _, mac = value.partition(".")
    try:
        if not hmac.compare_digest(decode(mac), _mac(key, purpose, text)):
            return None
        content = orjson.loads(decode(text))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def values_of(lines: list[str], names: frozenset[str], most: int) -> list[str]:
    """Return the values of the cookies with these names in ``Cookie`` headers, at most ``most``; other pages
    on the same host may have set some of them."""
    values = []
    for line in lines:
        for part in line.split(";"):
            name, _, value = part.strip().partition("=")
            if name in names:
                values.append(value.strip('"'))
    return values[:most]


def cookie_header(
    name: str, value: str, max_age: int, *, path: str = "/ui", same_site: str = "Strict"
) -> str:
    """Return a ``Set-Cookie`` header. A name with a prefix of browsers is sent over HTTPS alone.

    Source of the prefixes: RFC 6265bis, section 4.1.3.
    """
    secure = "; Secure" if name.startswith(("__Secure-", "__Host-")) else ""
    return f"{name}={value}; Path={path}; Max-Age={max_age}; HttpOnly; SameSite={same_site}{secure}"


def encode(data: bytes) -> str:
    """Return bytes in base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the bytes of :func:`encode`; raise ValueError for other text."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _mac(key: bytes, purpose: bytes, text: str) -> bytes:
    return hashlib.blake2b(purpose + b"\0" + text.encode(), key=key, digest_size=32).digest()
