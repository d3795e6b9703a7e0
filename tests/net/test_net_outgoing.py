"""Which requests go through which forward proxy."""

import base64

import pytest

from proxy.net.outgoing import HttpProxy, ProxyRules, split_hosts

PLAIN, TLS = HttpProxy("plain.test", 3128), HttpProxy("tls.test", 3129)


@pytest.mark.parametrize(
    ("text", "host", "port", "credentials"),
    [
        ("http://proxy.corp:3128", "proxy.corp", 3128, ""),
        ("http://proxy.corp:3128/", "proxy.corp", 3128, ""),
        ("proxy.corp:3128", "proxy.corp", 3128, ""),
        ("http://proxy.corp", "proxy.corp", 80, ""),
        ("HTTP://Proxy.Corp:1", "proxy.corp", 1, ""),
        ("http://[fd00::1]:3128", "fd00::1", 3128, ""),
        ("http://anna:s%40fe%3A@proxy.corp:3128", "proxy.corp", 3128, "anna:s@fe:"),
        ("http://anna@proxy.corp", "proxy.corp", 80, "anna:"),
    ],
)
def test_the_address_of_a_proxy_is_read(text: str, host: str, port: int, credentials: str) -> None:
    """Addresses are read as programs write them; credentials are decoded and encoded as HTTP Basic."""
    proxy = HttpProxy.parse(text)
    assert (proxy.host, proxy.port) == (host, port)
    assert base64.b64decode(proxy.credentials).decode() == credentials
    assert "s@fe" not in repr(proxy)
    assert proxy.credentials == "" or proxy.credentials not in repr(proxy)


@pytest.mark.parametrize(
    "text",
    [
        *("https://proxy.corp:443", "socks5://proxy.corp:1080", "http://", "http://:3128"),
        *(
            "http://proxy.corp:0",
            "http://proxy.corp:99999",
            "http://proxy.corp/path",
            "http://p.corp?a=hunter2",
        ),
    ],
)
def test_no_other_address_is_taken(text: str) -> None:
    """What cannot be a proxy is refused, without its text, which may hold a password."""
    with pytest.raises(ValueError, match="write http://HOST:PORT") as caught:
        HttpProxy.parse(text)
    assert "hunter2" not in str(caught.value)


def test_each_scheme_has_its_own_proxy() -> None:
    """The scheme of the address decides, not that of the proxy."""
    rules = ProxyRules(http=PLAIN, https=TLS)
    assert rules.proxy_for("http", "a.test", 80) is PLAIN
    assert rules.proxy_for("https", "a.test") is TLS
    assert ProxyRules(http=PLAIN).proxy_for("https", "a.test", 443) is None
    assert not ProxyRules()
    assert rules.proxy_for("replay", "", 0) is None


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_machine_is_never_behind_a_proxy(host: str) -> None:
    """Requests to this machine itself stay here, as in Go's programs."""
    assert ProxyRules(http=PLAIN, https=TLS).proxy_for("https", host, 443) is None


@pytest.mark.parametrize(
    ("entry", "direct", "proxied"),
    [
        ("*", ["a.test", "10.0.0.1"], []),
        ("corp.test", ["corp.test", "a.corp.test", "CORP.test."], ["acorp.test", "corp.test.evil"]),
        (".corp.test", ["a.corp.test"], ["corp.test", "acorp.test"]),
        ("*.corp.test", ["a.corp.test"], ["corp.test"]),
        ("corp.test:443", ["corp.test"], []),
        ("corp.test:8443", [], ["corp.test"]),
        ("10.0.0.0/8", ["10.1.2.3"], ["11.0.0.1", "10.corp.test"]),
        ("10.1.2.3", ["10.1.2.3", "::ffff:10.1.2.3"], ["10.1.2.4", "a.10.1.2.3", "::ffff:10.1.2.4"]),
        ("::ffff:10.1.2.3", ["10.1.2.3"], ["10.1.2.4"]),
        ("10.1.2.3:443", ["10.1.2.3"], []),
        ("fd00::/8", ["fd00::1"], ["fe00::1"]),
        ("[fd00::1]:443", ["fd00::1"], ["fd00::2"]),
        ("<local>", [], ["corp.test"]),
        ("10.0.0.0/99", [], ["10.0.0.1"]),
    ],
)
def test_exceptions_are_those_of_go(entry: str, direct: list[str], proxied: list[str]) -> None:
    """The entries of NO_PROXY mean what Go's ``httpproxy`` says; one that means nothing covers nothing."""
    rules = ProxyRules(https=TLS, direct=(entry,))
    assert [host for host in direct if rules.proxy_for("https", host, 443) is not None] == []
    assert [host for host in proxied if rules.proxy_for("https", host, 443) is None] == []


def test_rules_survive_being_written() -> None:
    """The process that talks to MCP servers gets the same rules."""
    rules = ProxyRules(HttpProxy.parse("http://a:b@c:1", "network.http_proxy"), None, ("x", "y"))
    assert ProxyRules.read(rules.written()) == rules


def test_a_list_of_exceptions_is_split() -> None:
    """Commas and spaces separate entries; each is kept once."""
    assert split_hosts(" a.test, b.test c.test,,a.test ") == ("a.test", "b.test", "c.test")
