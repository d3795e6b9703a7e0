"""Find the address that a request came from, also behind proxies that the operator trusts."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from proxy.server.messages.request import EdgeRequest

_MOST_HOPS = 32
_LONGEST_ADDRESS = 64
_UNKNOWN = "unknown"


def counted_address(request: EdgeRequest) -> str:
    """Return the address or network by which limits count a request without a key; see :func:`network_of`."""
    return network_of(request.client_address or request.remote or _UNKNOWN)


def network_of(address: str) -> str:
    """Return the address by which a client is counted: its IPv4 address, or its /64 network for IPv6.

    The owner of such a network has more addresses than any limit could count.
    """
    if ":" not in address:
        return address
    parsed = _parse(address)
    if not isinstance(parsed, IPv6Address):
        return address if parsed is None else str(parsed)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"


class TrustedProxies:
    """The proxies whose ``X-Forwarded-For`` is trusted, as addresses and networks.

    >>> TrustedProxies(["10.0.0.0/8"]).client_of("10.0.0.1", ["6.6.6.6, 203.0.113.7, 10.0.0.2"])
    '203.0.113.7'
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks = tuple(ip_network(network) for network in networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, peer: str | None) -> bool:
        """Return whether the peer of a connection is a trusted proxy."""
        parsed = _parse(peer or "")
        return parsed is not None and self._has(parsed)

    def client_of(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the client's address, from the peer's address and the lines of ``X-Forwarded-For`` in order.

        Each proxy appends the address of its caller on the right. So the client's address is the right-most
        one that is not a trusted proxy's; the client itself may have written everything left of it. The
        search ends at text that is not an address, or is longer than any chain of proxies.
        """
        here = _parse(peer)
        if here is None:
            return peer
        # The text left of the last split contains commas, so it is not an address.
        for entry in reversed(",".join(forwarded).rsplit(",", _MOST_HOPS)):
            if not self._has(here):
                break
            if said := entry.strip():
                address = _parse(_without_port(said))
                if address is None:
                    break
                here = address
        return str(here)

    def _has(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _without_port(entry: str) -> str:
    """Return an address without the port that some proxies add: ``192.0.2.1:80``, ``[2001:db8::1]:80``."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address: drop a zone, and return an IPv4-mapped IPv6 address as IPv4; ``None`` for other
    text."""
    if len(text) > _LONGEST_ADDRESS:
        return None
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
