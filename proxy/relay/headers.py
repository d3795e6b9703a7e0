"""Which headers cross the proxy.

Credentials, cookies and hop-by-hop headers are the upstream room's to drop, since they must not pass
whatever asks for a request.  Here stands what the proxy itself adds or means something else by.
"""

from typing import Final

from proxy.upstreams.base import Headers
from proxy.upstreams.header_section import Columns, HeaderSection, by_names, described

__all__ = ["RESTORED", "forwardable", "is_coded", "restored_words", "returned"]

RESTORED: Final = "x-toolrelay-restored"


_NOT_FORWARDED = frozenset(
    {
        "cf-connecting-ip",
        "content-length",
        "forwarded",
        "origin",
        "referer",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-real-ip",
        "x-request-id",
    }
)
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


def forwardable(headers: Headers, *, identity: bool) -> HeaderSection:
    """The client's headers that an upstream may see; addresses of clients and pages stay here.

    The length of the body is not among them: whoever streams one says it.
    With ``identity`` the client's wish for a compressed response does too, since the proxy has
    to read it.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_going_up_read(section.names) if identity else _going_up(section.names))


def returned(headers: Headers, *, keep_length: bool = False) -> HeaderSection:
    """The upstream's headers that the client may see; its request id under a name of its own."""
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_coming_back_whole(section.names) if keep_length else _coming_back(section.names))


def is_coded(headers: Headers) -> bool:
    """Whether a body came in a coding that the upstream room does not take off: nobody here reads it."""
    return described(headers)[1] != ""


@by_names
def _going_up(names: tuple[str, ...]) -> Columns:
    return Columns.where(names, _goes_up)


@by_names
def _going_up_read(names: tuple[str, ...]) -> Columns:
    return Columns.where(names, lambda name: _goes_up(name) and name.lower() != "accept-encoding")


@by_names
def _coming_back(names: tuple[str, ...]) -> Columns:
    return _renamed(Columns.where(names, lambda name: _comes_back(name) and name.lower() != "content-length"))


@by_names
def _coming_back_whole(names: tuple[str, ...]) -> Columns:
    return _renamed(Columns.where(names, _comes_back))


def _goes_up(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_FORWARDED and not lower.startswith(("x-toolrelay-", "x-forwarded-", "sec-"))


def _comes_back(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_RETURNED and not lower.startswith(("access-control-", "x-toolrelay-"))


def _renamed(columns: Columns) -> Columns:
    """The upstream's own id of the request is not the one that clients know it by."""
    names = ["x-upstream-request-id" if name.lower() == "x-request-id" else name for name in columns.names]
    return columns._replace(names=tuple(names))


def restored_words(turns: int, size: int) -> str:
    """What :data:`RESTORED` says of turns that were put back, and the bytes they add; empty for none."""
    return f"turns={turns}, bytes={size}" if turns else ""
