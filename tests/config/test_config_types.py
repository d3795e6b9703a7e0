"""Settings about browsers and proxies: valid values, and one clear line for each invalid one."""

from pathlib import Path
from typing import Any

import pytest

from proxy.base.errors import ConfigError
from proxy.config.load import load_config


def server_of(folder: Path, setting: str, *values: str) -> Any:
    """The setting of ``[server]`` as it was read from a file with these values."""
    path = folder / "toolrelay.toml"
    path.write_text(f"[server]\n{setting} = {list(values)!r}\n", encoding="utf-8")
    return getattr(load_config(path, {"OPENAI_API_KEY": "sk-test"}).server, setting)


def fault_of(folder: Path, setting: str, *values: str) -> str:
    """The one line that says what is wrong with the values."""
    with pytest.raises(ConfigError) as caught:
        server_of(folder, setting, *values)
    line = str(caught.value)
    assert caught.value.setting.startswith(f"server.{setting}")
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    "origin",
    [
        "https://app.example.com",
        "http://localhost:5173",
        "http://127.0.0.1:3000",
        "http://[::1]:3000",
        "https://xn--bcher-kva.example",
        "chrome-extension://abcdefghijklmnop",
        "tauri://localhost",
        "app://obsidian.md",
        "https://app.example.com:8443",
    ],
)
def test_origins_are_taken_as_browsers_write_them(tmp_path: Path, origin: str) -> None:
    """An origin as a browser sends it is a valid setting and stays unchanged."""
    assert server_of(tmp_path, "cors_origins", origin) == (origin,)


@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        ("*", "wildcard"),
        ("https://*.example.com", "wildcard"),
        ("null", "sandboxed pages and files send"),
        ("https://app.example.com/", "write https://app.example.com"),
        ("https://app.example.com/chat?x=1", "write https://app.example.com"),
        ("HTTPS://App.Example.com", "write https://app.example.com"),
        ("https://app.example.com:443", "write https://app.example.com"),
        ("http://localhost:80", "write http://localhost"),
        ("http://localhost:65536", "port"),
        ("http://localhost:0", "is not an origin"),
        ("app.example.com", "https://app.example.com"),
        ("//app.example.com", "https://app.example.com"),
        ("https://u:p@app.example.com", "is not an origin"),
        ("https://bücher.example", "is not an origin"),
        ("https://", "is not an origin"),
        ("https://a b", "is not an origin"),
        ("file://x", "files"),
        ("", "is not an origin"),
    ],
)
def test_what_is_no_origin_stops_the_start(tmp_path: Path, origin: str, hint: str) -> None:
    """An entry that no browser sends as its origin is an error with a hint at what to write."""
    assert hint in fault_of(tmp_path, "cors_origins", origin)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("Proxy.Example.com", "proxy.example.com"),
        ("toolrelay", "toolrelay"),
        ("host.docker.internal", "host.docker.internal"),
        ("*.svc.cluster.local", "*.svc.cluster.local"),
        ("192.168.1.7", "192.168.1.7"),
        ("[FD00::0:2]", "fd00::2"),
    ],
)
def test_hosts_are_names_without_a_port(tmp_path: Path, name: str, read: str) -> None:
    """A host name without a port is a valid setting and is read in lower case."""
    assert server_of(tmp_path, "allowed_hosts", name) == (read,)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("*", "rebind"),
        ("proxy.example.com:8080", "without scheme and port"),
        ("https://proxy.example.com", "without scheme and port"),
        ("a.*.example.com", "is not a host name"),
        ("*example.com", "is not a host name"),
        (".example.com", "is not a host name"),
        ("example..com", "is not a host name"),
        ("", "is not a host name"),
        ("a" * 254, "is not a host name"),
    ],
)
def test_what_is_no_host_stops_the_start(tmp_path: Path, name: str, hint: str) -> None:
    """A bare wildcard, or an entry that is no plain host name, is an error with a hint."""
    assert hint in fault_of(tmp_path, "allowed_hosts", name)


def test_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    """trusted_proxies takes addresses and networks, but not the network of all addresses."""
    given = ("127.0.0.1", "10.0.0.0/8", "fd00::/8")
    assert server_of(tmp_path, "trusted_proxies", *given) == given
    assert "every address" in fault_of(tmp_path, "trusted_proxies", "0.0.0.0/0")
    assert "every address" in fault_of(tmp_path, "trusted_proxies", "::/0")
    for wrong in ("nginx", "10.0.0.1/8", "10.0.0.1:80", ""):
        assert "is not a network" in fault_of(tmp_path, "trusted_proxies", wrong)


def test_nothing_stands_there_twice(tmp_path: Path) -> None:
    """A repeated entry is an error, also if only the case differs."""
    assert "twice" in fault_of(tmp_path, "cors_origins", "https://a.example", "https://a.example")
    assert "twice" in fault_of(tmp_path, "allowed_hosts", "a.example", "A.example")
    assert "twice" in fault_of(tmp_path, "trusted_proxies", "10.0.0.1", "10.0.0.1")
