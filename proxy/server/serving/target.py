"""One normal form of a request's target: what is decided on is what is sent."""

import re
from dataclasses import dataclass
from functools import lru_cache

from proxy.caches import declare_lru
from proxy.errors import RequestError
from proxy.server.serving.azure_paths import below_openai, without_slashes
from proxy.server.serving.head import Head
from proxy.server.telemetry.hooks import endpoint_class

__all__ = ["MAX_TARGET", "Target", "read_target", "target_of"]

_PATH = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*\Z")
_QUERY = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@%/?\[\]]*\Z")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
MAX_TARGET = 8192
"""In characters; a longer target is refused unread."""
_NOT_NORMAL = (
    "The request target is not a normal path: send one without dot segments, '//' and encoded slashes."
)
_SHORT = 64


@dataclass(frozen=True, slots=True)
class Target:
    """``path`` as sent (still percent-encoded), ``query`` without its question mark.

    ``below_v1`` is the path below ``/v1``, or ``None`` where it is another one; ``endpoint`` its class
    for those who count.  ``deployment`` is the model that a path of Azure's names, else empty.
    """

    path: str
    query: str
    below_v1: str | None
    endpoint: str
    deployment: str = ""


def target_of(head: Head) -> Target:
    """:func:`read_target`, remembered for the few short targets that nearly all requests have."""
    raw = head.message.path
    return _remembered(raw) if len(raw) <= _SHORT else read_target(raw)


@lru_cache(maxsize=256)
def _remembered(raw: str) -> Target:
    return read_target(raw)


declare_lru("targets", _remembered, 1000 + 12 * _SHORT)


def read_target(raw: str) -> Target:
    """Read a request target.

    Raises :class:`RequestError` for every target that two readers could take for two paths: one in
    absolute form, with dot segments (``..;x`` too, which Java servers take for one), empty segments,
    encoded slashes, backslashes and controls, percent signs that escape nothing, or escapes of
    characters that need none (RFC 3986, 6.2.2.2).
    """
    if len(raw) > MAX_TARGET:
        raise RequestError(414, f"The request target is longer than {MAX_TARGET} characters.")
    path, _, query = raw.partition("?")
    decisive = without_slashes(path)
    segments = decisive.split("/")
    if (
        not _PATH.match(path)
        or not _QUERY.match(query)
        or "//" in path
        or any(not _stands_for_itself(escape[1]) for escape in _ESCAPE.finditer(decisive))
        or any(segment.partition(";")[0] in (".", "..") for segment in segments)
    ):
        raise RequestError(400, _NOT_NORMAL, code="invalid_path")
    below, deployment = (path[3:], "") if path.startswith("/v1/") else below_openai(path)
    return Target(path, query, below, endpoint_class(path, below), deployment)


def _stands_for_itself(digits: str | None) -> bool:
    """Whether an escape in a path can be read in one way only."""
    if digits is None:
        return False
    character = chr(int(digits, 16))
    unreserved = character.isascii() and (character.isalnum() or character in "-._~")
    return not unreserved and character >= " " and character not in "/\\\x7f"
