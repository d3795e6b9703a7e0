"""The forward proxies through which a network lets requests out, and the hosts that are reached without one.

The rules are those of Go's ``golang.org/x/net/http/httpproxy``, which most programs follow: a proxy for each
scheme, a list of exceptions (``NO_PROXY``), and never a proxy for this machine itself.
"""

import base64
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

_PORTS: Final = {"http": 80, "https": 443}
_ENTRY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:]+)(?::(\d{1,5}))?")
_SEPARATORS: Final = re.compile(r"[,\s]+")


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """A forward proxy that is reached by plain HTTP.

    ``credentials`` are those of HTTP Basic in base64, empty if there are none. ``setting`` names the setting
    that names the proxy, for messages.
    """

    host: str
    port: int
    credentials: str = field(default="", repr=False)
    setting: str = ""

    @classmethod
    def parse(cls, text: str, setting: str = "") -> "HttpProxy":
        """Read ``http://USER:PASSWORD@HOST:PORT``; the scheme may be missing, the port is then 80.

        Raises ``ValueError`` with what is wrong, without the text itself.
        """
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme.lower() != "http":
            raise ValueError(
                "is not the address of a proxy that is reached by plain HTTP; write http://HOST:PORT "
                "(proxies with https:// or socks5:// are not supported)"
            )
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("is not the address of a proxy; write http://HOST:PORT")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""
        return cls(host, port or 80, credentials, setting)

    @property
    def url(self) -> str:
        """The address without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """Which proxy a request goes through, by its scheme and host.

    ``direct`` are the hosts without a proxy, as ``NO_PROXY`` lists them: ``*`` for all, a name for itself and
    the names below it, ``.name`` for those below it only, an address, a network, each with a port or
    without.
    """

    http: HttpProxy | None = None
    https: HttpProxy | None = None
    direct: tuple[str, ...] = ()

    def proxy_for(self, scheme: str, host: str, port: int | None = None) -> HttpProxy | None:
        """Return the proxy for requests to a host; ``None`` if they go there directly.

        ``port`` of ``None`` means that of the scheme.
        """
        chosen = {"http": self.http, "https": self.https}.get(scheme)
        if chosen is None or is_this_machine(host) or self._is_direct(host, port or _PORTS[scheme]):
            return None
        return chosen

    def _is_direct(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        return any(_covers(entry.lower(), name, port) for entry in self.direct)

    def __bool__(self) -> bool:
        return self.http is not None or self.https is not None

    def written(self) -> dict[str, Any]:
        """Return the rules as JSON values, credentials included."""
        return asdict(self)

    @classmethod
    def read(cls, written: dict[str, Any]) -> "ProxyRules":
        """Read what :meth:`written` wrote."""
        http, https = (
            HttpProxy(**written[scheme]) if written[scheme] else None for scheme in ("http", "https")
        )
        return cls(http, https, tuple(written["direct"]))


NO_PROXIES: Final = ProxyRules()


def split_hosts(text: str) -> tuple[str, ...]:
    """Return the entries of a ``NO_PROXY``, each once."""
    return tuple(dict.fromkeys(entry for entry in _SEPARATORS.split(text.strip()) if entry))


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine itself: ``localhost``, or a loopback address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _covers(entry: str, name: str, port: int) -> bool:
    """Return whether an entry of ``NO_PROXY`` covers a host; both are in lower case."""
    if entry == "*":
        return True
    address = _address(name)
    if "/" in entry:
        return address is not None and address in _network(entry)
    if (own := _address(entry)) is not None:
        return address == own
    match = _ENTRY.fullmatch(entry)
    if match is None or (match[2] is not None and int(match[2]) != port):
        return False
    entry = match[1].strip("[]").removeprefix("*")
    if address is not None or _address(entry) is not None:
        return address is not None and address == _address(entry)
    return name.endswith(entry) if entry.startswith(".") else name == entry or name.endswith(f".{entry}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; one of IPv4 that is written as IPv6 is that of IPv4, as in Go."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(text: str) -> Sequence[Any] | ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return the network that an entry is; an empty one if it is none."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return ()
