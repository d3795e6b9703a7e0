"""The address of a client when reverse proxies stand in front of the server."""

import pytest
from edge_requests import edge_request

from proxy.server.connections.client_address import TrustedProxies, counted_address

PROXIES = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", ["6.6.6.6", "203.0.113.7", "10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["203.0.113.7:4711"], "203.0.113.7"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", ["2001:DB8::1"], "2001:db8::1"),
        ("fd00::1", ["2001:db8::1, fd00::2"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["::ffff:203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", [" , 203.0.113.7 , "], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, evil, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["203.0.113.7, 10.0.0.2:1:2"], "10.0.0.1"),
        ("203.0.113.9", ["203.0.113.7"], "203.0.113.9"),
        ("203.0.113.9", ["10.0.0.1"], "203.0.113.9"),
        ("", ["203.0.113.7"], ""),
    ],
)
def test_the_client_is_the_right_most_who_is_not_trusted(
    peer: str, forwarded: list[str], client: str
) -> None:
    """The client is the right-most untrusted address, as anybody may have written what is left of it."""
    assert PROXIES.client_of(peer, forwarded) == client


def test_a_long_chain_ends_the_search() -> None:
    """The proxy reads a bounded part of a long header, and a client cannot choose its address with it."""
    for flood in ("6.6.6.6, " * 100_000, "6" * 1_000_000 + ", ", ", " * 500_000):
        assert PROXIES.client_of("10.0.0.1", [flood + "203.0.113.7"]) == "203.0.113.7"
    cut = "203.0.113.7, " + "10.0.0.2, " * 500
    assert PROXIES.client_of("10.0.0.1", [cut]) == "10.0.0.2"
    assert PROXIES.client_of("10.0.0.1", ["203.0.113.7, " + "10.0.0.2, " * 31]) == "203.0.113.7"
    assert PROXIES.client_of("10.0.0.1", ["203.0.113.7%" + "x" * 5000]) == "10.0.0.1"


def test_nobody_is_trusted_unless_named() -> None:
    """Without a list the server trusts no proxy; with one, it trusts only the proxies in it."""
    assert not TrustedProxies()
    assert TrustedProxies().client_of("127.0.0.1", ["203.0.113.7"]) == "127.0.0.1"
    assert PROXIES
    assert [PROXIES.trusts(peer) for peer in ("127.0.0.1", "127.0.0.2", None, "no address")] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:bbbb::2", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_limits_count_networks_of_ipv6(address: str, counted: str) -> None:
    """Limits count an IPv6 network of 64 bits as one address, as one person may have all of it."""
    request = edge_request()
    request.client_address = address
    assert counted_address(request) == counted


def test_who_has_no_address_is_counted_together() -> None:
    """Limits count connections without an address, such as over a socket file, under one name."""
    request = edge_request()
    request.protocol.peername = ""
    assert counted_address(request) == "unknown"
