"""Checks an upstream's address and configured headers, and builds its credentials."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from yarl import URL

from proxy.base.errors import ConfigError
from proxy.http.bodies import shapes_of_secrets
from proxy.http.secrets import Secrets
from proxy.wires.dialect import Dialect
from proxy.wires.registry.table import SERVED, EndpointTable

_SECRET_NAMES = ("authorization", "key", "token", "secret")
"""A configured header with one of these in its name carries a credential."""

_PREFIXES = tuple(sorted({endpoint.dialect.prefix for endpoint in SERVED.endpoints}))

_LONG = 20
"""Bytes. A shorter secret may be a placeholder ("ollama"), which also occurs in ordinary answers."""


def checked_base_url(name: str, base_url: str) -> str:
    """Return the URL without a trailing slash; raise ConfigError if it cannot be used."""
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


def root_of(base_url: str) -> str:
    """Return the base URL without its ``/v1`` or ``/api``.

    Dialects that have whole paths of their own begin there. People paste base URLs with such a prefix, and
    without.
    """
    for prefix in _PREFIXES:
        if base_url.endswith(prefix):
            return base_url.removesuffix(prefix).rstrip("/")
    return base_url


def checked_headers(name: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the configured headers; raise ConfigError that names one that no HTTP head can hold."""
    for header, value in headers.items():
        if any(ord(c) < 32 or ord(c) == 127 for c in header + value) or not header.isascii() or not header:
            raise ConfigError(f"upstreams.{name}.headers", f"{header!r} cannot be sent as a header")
    return dict(headers)


def long_secrets(api_key: str, headers: Mapping[str, str]) -> Secrets | None:
    """Return those of :func:`secret_shapes` that occur in no answer by chance; ``None`` if there are none."""
    shapes = [shape for shape in secret_shapes(api_key, headers) if len(shape) >= _LONG]
    return Secrets(shapes) if shapes else None


def secret_shapes(api_key: str, headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the forms that the key, or a credential among the configured headers, may have in a response."""
    credentials = [
        value.removeprefix("Bearer ")
        for header, value in headers.items()
        if any(word in header.lower() for word in _SECRET_NAMES)
    ]
    return shapes_of_secrets([api_key, *credentials])


class UpstreamCredentials(NamedTuple):
    """What an upstream gets with each request: its key, and headers that a client may have left out."""

    key: tuple[str, str]
    headers: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, dialect: Dialect, api_key: str) -> "UpstreamCredentials":
        """Build the credentials in the form of a dialect."""
        first = dialect.credentials[0]
        return cls((first.header, f"{first.scheme} {api_key}".lstrip()), dialect.headers)


def credentials_by_path(
    api_key: str, wires: Sequence[str], endpoints: EndpointTable
) -> tuple[UpstreamCredentials, dict[str, UpstreamCredentials]]:
    """Return the usual credentials of an upstream, and those of the paths that need other ones.

    The usual ones have the form of the first of its dialects; paths of its other dialects may need another
    form.
    """
    known_dialects = {known.dialect.name: known.dialect for known in endpoints.endpoints}
    spoken = [known_dialects[wire] for wire in wires if wire in known_dialects] or [endpoints.other.dialect]
    usual = UpstreamCredentials.of(spoken[0], api_key)
    by_path = {
        known.path: UpstreamCredentials.of(known.dialect, api_key)
        for known in endpoints.endpoints
        if known.dialect in spoken
    }
    return usual, {path: credentials for path, credentials in by_path.items() if credentials != usual}
