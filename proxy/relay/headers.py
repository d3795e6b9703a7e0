"""Select the request headers that an upstream gets, and the response headers that the client gets.

Which headers may pass at all is decided where an upstream is called (``proxy/http/rules.py``), because it
must hold for every kind of request.
"""

from typing import Final

from proxy.http.headers import Columns, Headers, HeaderSection, by_names

_DIALECT_PREFIXES: Final = ("anthropic-", "openai-", "x-claude-code-", "x-ratelimit-", "x-stainless-")


def forwardable(headers: Headers, *, identity: bool) -> HeaderSection:
    """Return the client's headers from which the upstream forwards those that it lists.

    ``Content-Length`` is left out, because the code that streams a body sets it. With ``identity``,
    ``Accept-Encoding`` is left out too, because the proxy must read the response.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_going_up_read(section.names) if identity else _going_up(section.names))


def of_any_dialect(headers: Headers) -> HeaderSection:
    """Return the headers of a message that mean the same in every dialect."""
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_of_any_dialect(section.names))


def returned(headers: Headers, *, keep_length: bool = False) -> HeaderSection:
    """Return the upstream's headers for the client; its request id gets a name of its own.

    ``Content-Length`` stays only with ``keep_length``, which is for a body that is sent on unchanged.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    return section.only(_coming_back_whole(section.names) if keep_length else _coming_back(section.names))


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
    return Columns.where(names, lambda name: not name.lower().startswith(_DIALECT_PREFIXES))


def _renamed(columns: Columns) -> Columns:
    """Rename the upstream's request id, because the client knows the request by the proxy's own id."""
    names = ["x-upstream-request-id" if name.lower() == "x-request-id" else name for name in columns.names]
    return columns._replace(names=tuple(names))


def restored_header(turns: int, size: int) -> str:
    """Return the value of :data:`~proxy.http.own_headers.RESTORED`; empty if no turn was restored.

    ``size`` is the number of bytes that the turns added to the request.
    """
    return f"turns={turns}, bytes={size}" if turns else ""
