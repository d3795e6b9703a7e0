"""Which headers cross the proxy.

Credentials, cookies and hop-by-hop headers are the upstream room's to drop, since they must not pass
whatever asks for a request.  Here stands what the proxy itself adds or means something else by.
"""

from collections.abc import Iterable

from proxy.upstreams.base import Headers

__all__ = ["forwardable", "returned"]

_NOT_FORWARDED = frozenset({"forwarded", "origin", "referer", "via", "x-real-ip", "x-request-id"})
_NOT_RETURNED = frozenset({"date", "server", "strict-transport-security", "alt-svc"})


def forwardable(headers: Iterable[tuple[str, str]], *, identity: bool) -> list[tuple[str, str]]:
    """The client's headers that an upstream may see; addresses of clients and pages stay here.

    With ``identity`` the client's wish for a compressed response does too, since the proxy has
    to read it.
    """
    return [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in _NOT_FORWARDED
        and not (identity and lower == "accept-encoding")
        and not lower.startswith(("x-toolrelay-", "x-forwarded-", "sec-"))
    ]


def returned(headers: Headers, *, keep_length: bool = False) -> list[tuple[str, str]]:
    """The upstream's headers that the client may see; its request id under a name of its own."""
    found = []
    for name, value in headers:
        lower = name.lower()
        if lower == "x-request-id":
            found.append(("x-upstream-request-id", value))
        elif lower == "content-length":
            found += [(name, value)] if keep_length else []
        elif lower not in _NOT_RETURNED and not lower.startswith(("access-control-", "x-toolrelay-")):
            found.append((name, value))
    return found
