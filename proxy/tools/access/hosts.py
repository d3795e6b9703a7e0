"""What a tool may reach and say over HTTP: for the real client, and for the one that authors test with."""

from collections.abc import Iterable, Sequence

from yarl import URL

from proxy.globs import fits

__all__ = ["check_headers", "host_entry", "may_call"]

_NOT_THE_TOOLS = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Request headers that belong to the client: credentials, cookies, framing."""


def may_call(url: URL, hosts: Sequence[str]) -> bool:
    """Whether a URL is of one of these hosts, in lower case: ``a.example.com``, ``*.example.com``, ``*``.

    An entry without a port means the scheme's own.  Raises ``ValueError`` for a URL whose host or port
    cannot be read.
    """
    host = (url.host or "").lower()
    name = host if url.is_default_port() else f"{host}:{url.port}"
    return bool(host) and any(pattern == "*" or fits(name, pattern) for pattern in hosts)


def host_entry(url: str) -> str:
    """The entry of a tool's host list that fits a URL: its host, with the port if it is not the usual."""
    parsed = URL(url)
    host = parsed.host or ""
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"


def check_headers(names: Iterable[str]) -> None:
    """Raise ``ValueError`` for headers that a tool may not set."""
    refused = {name.lower() for name in names} & _NOT_THE_TOOLS
    if refused:
        raise ValueError(f"headers that a tool may not set: {', '.join(sorted(refused))}")
