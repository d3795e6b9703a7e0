"""One normal form of a request's target: what is decided on is what is sent."""

import re
from dataclasses import dataclass

from proxy.errors import RequestError

__all__ = ["Target", "parse_target"]

_PATH = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*\Z")
_QUERY = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@%/?\[\]]*\Z")
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
    absolute form, with dot segments, empty segments, or encoded slashes, backslashes and dots.
    """
    if len(raw) > _MAX_LENGTH:
        raise RequestError(414, f"The request target is longer than {_MAX_LENGTH} characters.")
    path, _, query = raw.partition("?")
    lower = path.lower()
    segments = path.split("/")
    if (
        not _PATH.match(path)
        or not _QUERY.match(query)
        or "//" in path
        or any(code in lower for code in ("%2f", "%5c", "%2e", "%00"))
        or any(segment in (".", "..") for segment in segments)
    ):
        raise RequestError(400, "The request target is not a normal path.", code="invalid_path")
    return Target(path, query)
