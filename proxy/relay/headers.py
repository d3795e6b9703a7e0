"""Which headers of a request an upstream is given, and which of a response the client.

Which of a client's and an upstream's headers pass at all is decided where an upstream is asked
(``proxy/http/rules.py``), since it must hold whatever asks for a request.
"""

from typing import Final

from proxy.http.headers import Columns, Headers, HeaderSection, by_names, described

__all__ = [
    "forwardable",
    "is_encoded",
    "of_any_dialect",
    "restored_header",
    "returned",
]

_OF_A_DIALECT: Final = ("anthropic-", "openai-", "x-claude-code-", "x-ratelimit-", "x-stainless-")


def forwardable(headers: Headers, *, identity: bool) -> HeaderSection:
    """The client's headers as an upstream is given them, to forward those that it lists.

    The length of the body is not among them: whoever streams one says it.  With ``identity`` neither is
    the client's wish for a compressed response, since the proxy has to read it.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_going_up_read(section.names) if identity else _going_up(section.names))


def of_any_dialect(headers: Headers) -> HeaderSection:
    """Those of a message's headers that mean the same to every dialect."""
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_of_any_dialect(section.names))


def returned(headers: Headers, *, keep_length: bool = False) -> HeaderSection:
    """The upstream's headers as the client gets them: its request id under a name of its own.

    The body's length stays only with ``keep_length``, where the body goes on as it came.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_coming_back_whole(section.names) if keep_length else _coming_back(section.names))


def is_encoded(headers: Headers) -> bool:
    """Whether a body came in a coding that `proxy.upstreams` does not decode: nobody here reads it."""
    return described(headers)[1] != ""


@by_names
def _going_up(names: tuple[str, ...]) -> Columns:
    return Columns.where(names, lambda name: name.lower() != "content-length")


@by_names
def _going_up_read(names: tuple[str, ...]) -> Columns:
    return Columns.where(names, lambda name: name.lower() not in ("accept-encoding", "content-length"))


@by_names
def _coming_back(names: tuple[str, ...]) -> Columns:
    return _renamed(Columns.where(names, lambda name: name.lower() != "content-length"))


@by_names
def _coming_back_whole(names: tuple[str, ...]) -> Columns:
    return _renamed(Columns.where(names, lambda _: True))


@by_names
def _of_any_dialect(names: tuple[str, ...]) -> Columns:
    return Columns.where(names, lambda name: not name.lower().startswith(_OF_A_DIALECT))


def _renamed(columns: Columns) -> Columns:
    """The upstream's own id of the request is not the one that clients know it by."""
    names = ["x-upstream-request-id" if name.lower() == "x-request-id" else name for name in columns.names]
    return columns._replace(names=tuple(names))


def restored_header(turns: int, size: int) -> str:
    """The value of :data:`~proxy.http.own_headers.RESTORED`; empty if no turn was put back.

    ``size`` is the number of bytes that the turns added to the request.
    """
    return f"turns={turns}, bytes={size}" if turns else ""
