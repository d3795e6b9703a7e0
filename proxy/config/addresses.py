"""Checks settings that are addresses: URLs, hosts, networks and origins.

Every fault has a message for the operator, which never contains a value that may be secret.
"""

import re
from ipaddress import ip_address, ip_network
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from proxy.config.secret import Secret
from proxy.config.types import check_unique, each_fits, setting_fault

_HOST = re.compile(r"[A-Za-z0-9*?_.-]{1,253}(:[0-9*]{1,5})?\Z")
_NAMED_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?\Z")


def check_base_url(value: str) -> str:
    """Check an address that a key may be sent to; return it without its trailing slash. Errors never repeat
    it."""
    if any(character.isspace() or not character.isprintable() for character in value):
        raise setting_fault("must not contain spaces or control characters")
    if value.startswith("replay:"):
        return value
    parts = urlsplit(value)
    if parts.scheme.lower() not in ("http", "https"):
        raise setting_fault("must start with http://, https:// or replay:")
    if parts.username is not None or parts.password is not None:
        raise setting_fault("must not contain a user name or password; use api_key or headers")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise setting_fault("must not contain a query or a fragment; use headers")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise setting_fault("has an invalid port; write a number from 1 to 65535")
    if not parts.hostname:
        raise setting_fault("has no host name")
    return value.rstrip("/")


def check_service_url(value: str) -> str:
    """Check the base address of a tool's service over HTTP."""
    if not value.lower().startswith(("http://", "https://")):
        raise setting_fault("must start with http:// or https://")
    return check_base_url(value)


def check_collector_url(value: str) -> str:
    """Check the address of a collector of traces, or of none."""
    return check_service_url(value) if value else value


def check_public_url(value: str) -> str:
    """Check the address of this proxy for browsers, and return it without a ``/`` at the end.

    It has no path of its own: cookies would be for all paths. It must use TLS, except on this machine.
    """
    if not value:
        return value
    parts = urlsplit(check_service_url(value))
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise setting_fault("must have no path; write one like https://ai.example.com")
    if parts.scheme.lower() != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise setting_fault("must start with https://")
    return value.rstrip("/")


def check_token_url(value: str) -> str:
    """Check a token endpoint. It must use TLS, because it gets refresh tokens and client secrets."""
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme.lower() != "https" and parts.hostname not in ("127.0.0.1", "::1"):
        raise setting_fault("must start with https://")
    return check_service_url(value)


def check_networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ip_network(value)
        except ValueError:
            raise setting_fault(
                f"{value[:80]!r} is not a network; write one like 10.0.0.0/8 or fd00::/8"
            ) from None
    return check_unique(values)


check_hosts = each_fits(_HOST, "not a host; write one like docs.example.com or *.example.com")


def check_allowed_hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return names in lower case, and addresses as the ``ipaddress`` module writes them."""
    return check_unique(tuple(_allowed_host(value.lower()) for value in values))


def _allowed_host(value: str) -> str:
    try:
        return str(ip_address(value.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if value == "*":
        raise setting_fault(
            '"*" would let any web page call the proxy through DNS rebinding; list the host names'
        )
    if len(value) > 253 or not _NAMED_HOST.match(value):
        raise setting_fault(
            f"{value[:80]!r} is not a host name; write one like proxy.example.com, without scheme and port"
        )
    return value


def check_origins(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check that origins are written exactly as browsers write them, because they are compared as text."""
    for value in values:
        _check_origin(value)
    return check_unique(values)


def _check_origin(value: str) -> None:
    shown = repr(value[:80])
    if "*" in value:
        raise setting_fault(f"{shown} contains a wildcard; write each origin, like https://app.example.com")
    if value == "null":
        raise setting_fault(
            f"{shown} is the origin that sandboxed pages and files send, so any page could use it; list real "
            "origins"
        )
    match = _ORIGIN.match(value)
    if match is None:
        written = _ORIGIN.match("/".join(value.lower().split("/")[:3]))
        what = f"; write {written[0]}" if written else "; write one like https://app.example.com"
        raise setting_fault(f"{shown} is not an origin as browsers write it{what}")
    scheme, port = match[1], match[3]
    if scheme == "file":
        raise setting_fault(f"{shown} is not an origin: browsers send none for files")
    if port is not None and (int(port) > 65535 or {"http": "80", "https": "443"}.get(scheme) == port):
        raise setting_fault(
            f"{shown} contains the default port, which browsers leave out; write {value[: -len(port) - 1]}"
        )


def check_proxies(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in check_networks(values):
        if ip_network(value).prefixlen == 0:
            raise setting_fault(f"{value!r} would trust every address; write the addresses of your proxies")
    return values


def check_store_url(value: str) -> str:
    if value.startswith(("postgresql://", "postgres://")):
        try:
            parts = urlsplit(value)
            _ = parts.port, parts.password
        except ValueError:
            raise setting_fault(
                "is not a valid address; write postgresql://USER@HOST:5432/DATABASE"
            ) from None
        return value
    if value == "memory:" or (value.startswith("plugin:") and value[len("plugin:") :].isidentifier()):
        return value
    if value.startswith("sqlite:///") and value[len("sqlite:///") :] not in ("", "/", ":memory:"):
        return value
    raise setting_fault("must be memory:, sqlite:///FILE, postgresql://… or plugin:NAME")


def passwords_in(url: str) -> list[str]:
    """Return the passwords in a server's address, as written and decoded, so that they are never shown."""
    if not url.startswith(("postgres", "redis", "valkey")):
        return []
    parts = urlsplit(url)
    passwords = [parts.password or "", *parse_qs(parts.query).get("password", ())]
    return sorted({word for each in passwords if each for word in (each, unquote(each))})


_STORAGE: Final = re.compile(r"(?:redis|valkey)s?(\+sentinel|\+cluster)?://")
_STORAGE_PATHS: Final = {"": r"/?\d{0,5}", "+sentinel": r"/[\w.-]{1,100}", "+cluster": r"/?"}
"""What may follow the hosts: a database's number, the name of the group that Sentinels watch, or nothing."""


def check_storage_url(value: str) -> str:
    """Check the address of the counters. Errors never repeat it."""
    if value == "memory://":
        return value
    fault = setting_fault(
        "must be memory://, redis://HOST:6379/0, redis+sentinel://HOST:26379,HOST:26379/NAME or "
        "redis+cluster://HOST:6379,HOST:6379; rediss for TLS, valkey and valkeys for Valkey"
    )
    match = _STORAGE.match(value)
    if match is None or not value.isprintable() or " " in value:
        raise fault
    kind = match[1] or ""
    try:
        parts = urlsplit(value)
        _ = parts.password
        places = [urlsplit(f"//{place}") for place in parts.netloc.rpartition("@")[2].split(",")]
        usable = all(place.hostname and place.port != 0 for place in places)
        # Those that are several have each a port, and nothing else in their address.
        whole = all(place.port for place in places) and not parts.query if kind else len(places) == 1
    except ValueError:
        raise fault from None
    if not (usable and whole) or parts.fragment or not re.fullmatch(_STORAGE_PATHS[kind], parts.path):
        raise fault
    return value


def read_storage(value: Any) -> "str | Secret":
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise setting_fault("expected a string")
    return Secret.parse(value) if value.startswith(("env:", "file:")) else check_storage_url(value)
