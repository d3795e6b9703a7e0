"""Which headers cross the proxy.

Credentials, cookies and hop-by-hop headers are the upstream room's to drop, since they must not pass
whatever asks for a request.  Here stands what the proxy itself adds or means something else by.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from proxy.upstreams.base import Headers

__all__ = ["forwardable", "returned"]

_NOT_FORWARDED = frozenset({"forwarded", "origin", "referer", "via", "x-real-ip", "x-request-id"})
_NOT_RETURNED = frozenset(
    {
        "alt-svc",
        "clear-site-data",
        "cross-origin-resource-policy",
        "date",
        "openai-organization",
        "openai-project",
        "server",
        "strict-transport-security",
        "timing-allow-origin",
    }
)
"""What a server says of itself alone, which browsers would take for ours, and whose account our key is of."""


def forwardable(headers: Iterable[tuple[str, str]], *, identity: bool) -> list[tuple[str, str]]:
    """The client's headers that an upstream may see; addresses of clients and pages stay here.

    With ``identity`` the client's wish for a compressed response does too, since the proxy has
    to read it.
    """
    goes = _goes_up_read if identity else _goes_up
    return [pair for pair in headers if goes(pair[0])]


def returned(headers: Headers, *, keep_length: bool = False) -> list[tuple[str, str]]:
    """The upstream's headers that the client may see; its request id under a name of its own."""
    found = []
    for pair in headers:
        fate = _fate(pair[0])
        if fate == "kept" or (fate == "length" and keep_length):
            found.append(pair)
        elif fate == "id":
            found.append(("x-upstream-request-id", pair[1]))
    return found


# The same few names come with every request, so what is made of each is kept.


@lru_cache(maxsize=1024)
def _goes_up(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_FORWARDED and not lower.startswith(("x-toolrelay-", "x-forwarded-", "sec-"))


@lru_cache(maxsize=1024)
def _goes_up_read(name: str) -> bool:
    return _goes_up(name) and name.lower() != "accept-encoding"


@lru_cache(maxsize=1024)
def _fate(name: str) -> Literal["kept", "dropped", "length", "id"]:
    lower = name.lower()
    if lower == "x-request-id":
        return "id"
    if lower == "content-length":
        return "length"
    dropped = lower in _NOT_RETURNED or lower.startswith(("access-control-", "x-toolrelay-"))
    return "dropped" if dropped else "kept"
