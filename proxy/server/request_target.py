"""One normal form of a request's target: what is decided on is what is sent."""

import re
from dataclasses import dataclass

from proxy.errors import RequestError

__all__ = ["Target", "parse_target"]

_PATH = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*\Z")
_QUERY = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@%/?\[\]]*\Z")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_MAX_LENGTH = 8192


@dataclass(frozen=True, slots=True)
class Target:
    """``path`` as sent (still percent-encoded), ``query`` without its question mark."""

    path: str
    query: str

    @property
    def below_v1(self) -> str | None:
        """The path below ``/v1``, or ``None`` where it is another one."""
        return self.path[3:] if self.path.startswith("/v1/") else None


def parse_target(raw: str) -> Target:
    """Read a request target.

    Raises :class:`RequestError` for every target that two readers could take for two paths: one in
    absolute form, with dot segments, empty segments, encoded slashes, backslashes and controls,
    percent signs that escape nothing, or escapes of characters that need none (RFC 3986, 6.2.2.2).
    """
    if len(raw) > _MAX_LENGTH:
        raise RequestError(414, f"The request target is longer than {_MAX_LENGTH} characters.")
    path, _, query = raw.partition("?")
    segments = path.split("/")
    if (
        not _PATH.match(path)
        or not _QUERY.match(query)
        or "//" in path
        or any(not _stands_for_itself(escape[1]) for escape in _ESCAPE.finditer(path))
        or any(segment in (".", "..") for segment in segments)
    ):
        raise RequestError(400, "The request target is not a normal path.", code="invalid_path")
    return Target(path, query)


def _stands_for_itself(digits: str | None) -> bool:
    """Whether an escape in a path can be read in one way only."""
    if digits is None:
        return False
    character = chr(int(digits, 16))
    unreserved = character.isascii() and (character.isalnum() or character in "-._~")
    return not unreserved and character >= " " and character not in "/\\\x7f"
