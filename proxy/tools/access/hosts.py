"""Check the host, the domain and the headers of a tool's request, for the real client and that of tests."""

from collections.abc import Iterable, Sequence

from yarl import URL

from proxy.base.globs import fits

_CLIENT_HEADERS = frozenset(
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
"""Request headers that only the client may set: credentials, cookies, framing."""


def may_call(url: URL, hosts: Sequence[str]) -> bool:
    """Return whether a URL's host fits one of ``hosts``: ``a.example.com``, ``*.example.com`` or ``*``.

    The entries are in lower case; one without a port means the default port of the scheme. Raises
    ``ValueError`` if the URL's host or port cannot be parsed.
    """
    host = (url.host or "").lower()
    name = host if url.is_default_port() else f"{host}:{url.port}"
    return bool(host) and any(pattern == "*" or fits(name, pattern) for pattern in hosts)


def fits_domain(url: URL, domain: str) -> bool:
    """Return whether a page is of a domain or one of its subdomains. ``example.com/blog`` is a part."""
    host, _, path = domain.removeprefix("*.").strip("/").partition("/")
    # The form of the DNS, which the domains have, too: xn--bcher-kva.de is written bücher.de elsewhere.
    host, name = host.lower(), (url.raw_host or "").lower().rstrip(".")
    if name != host and not name.endswith(f".{host}"):
        return False
    return not path or f"{url.path.strip('/')}/".startswith(f"{path}/")


def host_entry(url: str) -> str:
    """Return the entry of a tool's host list for a URL: its host, and its port unless it is the default."""
    parsed = URL(url)
    host = parsed.host or ""
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"


def check_headers(names: Iterable[str]) -> None:
    """Raise ``ValueError`` for headers that a tool may not set."""
    refused = {name.lower() for name in names} & _CLIENT_HEADERS
    if refused:
        raise ValueError(f"headers that a tool may not set: {', '.join(sorted(refused))}")
