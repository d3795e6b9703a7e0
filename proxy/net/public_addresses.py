"""Decides which addresses tools may reach: public ones, and networks that the operator allowed."""

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052; its local-use sibling is refused as a whole.
INNER_NAMES: Final = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
"""The ends of host names that no public server has."""

# ``is_global`` accepts these, in some versions of Python or in all: Azure's metadata server, IETF protocol
# assignments (Oracle's metadata server is one), 6to4 relays, local-use NAT64 and site-local addresses.
_REFUSED = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "64:ff9b:1::/48",
        "fec0::/10",
    )
)


def is_public_address(text: str, allowed: Sequence[_IPNetwork] = ()) -> bool:
    """Return whether tools may connect to an IP address.

    Private, loopback, link-local, carrier-grade NAT, multicast, reserved and metadata addresses are refused.
    So is an IPv6 address that stands for such an IPv4 address (mapped, compatible, NAT64, 6to4, Teredo).
    ``allowed`` are networks that the operator allowed.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if any(address.version == network.version and address in network for network in allowed):
        return True
    return all(_is_plainly_public(part) for part in (address, *_embedded(address)))


def _is_plainly_public(address: _IPAddress) -> bool:
    """Return whether an address itself, without embedded ones, is a public unicast address."""
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not any(address in network for network in _REFUSED if network.version == address.version)
    ) or address in _NAT64


def _embedded(address: _IPAddress) -> list[_IPAddress]:
    """Return the IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    inner: list[_IPAddress] = [part for part in (address.ipv4_mapped, address.sixtofour) if part is not None]
    if address.teredo is not None:
        inner.extend(address.teredo)
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64 or int(address) >> 32 == 0:
        inner.append(last)
    return inner


def is_literal(host: str) -> bool:
    """Return whether a URL's host is an IP address in its canonical form; aiohttp refuses other forms."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_inner_name(host: str) -> bool:
    """Return whether a host name is one that only an inner network resolves: it has no dot or an inner end.

    A name that ends in a number counts too, since resolvers read it as an address. A literal address in its
    usual form is no name.
    """
    name = host.lower().rstrip(".")
    numeric = name.rpartition(".")[2][:1].isdigit()
    return not is_literal(name) and ("." not in name or numeric or name.endswith(INNER_NAMES))


def is_public_url(url: str) -> bool:
    """Return whether a URL is http or https and its host is a public name or a public literal address.

    A URL that two parsers could read differently is refused, since it is for somebody else's. Names are not
    resolved.
    """
    if url[:4].lower() != "http" or any(mark < " " or mark in "\\\x7f" for mark in url):
        return False
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or set("@% ") & set(parts.netloc) or not host.isascii():
        return False
    if is_literal(host):
        return is_public_address(host)
    # A host whose last label starts with a digit is an IP address in a spelling that resolvers accept.
    return "." in host and not (host.endswith(INNER_NAMES) or host.rpartition(".")[2][:1].isdigit())


def may_carry_secrets(url: str) -> bool:
    """Return whether secrets may be sent to a URL.

    It must use TLS, or plain HTTP to this machine or to a literal address of a private network. A URL that
    two parsers could read differently is refused.
    """
    if not url.isascii() or not url.isprintable() or any(mark in url for mark in ' \\"<>^`{|}'):
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc:
        return False
    if parts.scheme == "https":
        return True
    inside = host == "localhost" or (is_literal(host) and not is_public_address(host))
    return parts.scheme == "http" and inside
