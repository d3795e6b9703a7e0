"""Where an upstream is and what is sent to it every time, checked."""

from collections.abc import Mapping

from yarl import URL

from proxy.errors import ConfigError
from proxy.http.bodies import shapes_of_secrets
from proxy.http.secrets import Secrets

__all__ = ["checked_base_url", "checked_headers", "long_secrets", "secret_shapes"]

_SECRET_NAMES = ("authorization", "key", "token", "secret")
"""A configured header with one of these in its name carries a credential."""

_LONG = 20
"""Bytes.  A shorter secret may be a placeholder ("ollama"), which stands in ordinary answers."""


def checked_base_url(name: str, base_url: str) -> str:
    """The URL without a trailing slash, or ConfigError."""
    setting = f"upstreams.{name}.base_url"
    try:
        url = URL(base_url, encoded=True)
        port_fits = url.port is not None and 0 < url.port < 65536
    except ValueError:
        raise ConfigError(setting, "is not a URL", "Write it like https://api.openai.com/v1") from None
    if url.scheme not in ("http", "https") or not url.host or not port_fits:
        raise ConfigError(setting, "is not an http or https URL", "Write it like https://api.openai.com/v1")
    if url.user is not None or url.password is not None:
        raise ConfigError(setting, "holds credentials", 'Put them into api_key, as "env:NAME"')
    if url.raw_query_string or url.raw_fragment:
        raise ConfigError(setting, "has a query or a fragment", "Leave off everything from ? or # on")
    return base_url.rstrip("/")


def checked_headers(name: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The configured headers, or ConfigError naming the one that no HTTP head can hold."""
    for header, value in headers.items():
        if any(ord(c) < 32 or ord(c) == 127 for c in header + value) or not header.isascii() or not header:
            raise ConfigError(f"upstreams.{name}.headers", f"{header!r} cannot be sent as a header")
    return dict(headers)


def long_secrets(api_key: str, headers: Mapping[str, str]) -> Secrets | None:
    """Those of :func:`secret_shapes` that stand in no answer by chance, if there are any."""
    shapes = [shape for shape in secret_shapes(api_key, headers) if len(shape) >= _LONG]
    return Secrets(shapes) if shapes else None


def secret_shapes(api_key: str, headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """The forms in which the key, or a credential among the configured headers, may stand in a response."""
    credentials = [
        value.removeprefix("Bearer ")
        for header, value in headers.items()
        if any(word in header.lower() for word in _SECRET_NAMES)
    ]
    return shapes_of_secrets([api_key, *credentials])
