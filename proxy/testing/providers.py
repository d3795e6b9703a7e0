"""The real providers that a recording asks, with the keys that its clients send."""

from collections.abc import Mapping
from typing import Final

from yarl import URL

from proxy.base.errors import ConfigError
from proxy.http.headers import Headers
from proxy.http.rules import first
from proxy.testing.addresses import PROVIDERS
from proxy.upstreams.base import UpstreamRequest, UpstreamResponse
from proxy.upstreams.http1.upstream import Http1Upstream
from proxy.upstreams.origin import checked_base_url
from proxy.wires.dialect import Dialect
from proxy.wires.registry.table import SERVED

_OLLAMA_PORT: Final = 11434
_MOST: Final = 16
"""Connections are kept for at most so many pairs of a provider and a key."""


class Providers:
    """An :class:`~proxy.upstreams.base.Upstream` that asks, for each dialect, the provider of its clients."""

    name = "provider"
    """The name in messages, and in the names of recorded folders."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """``environment`` may say where the providers are, as it says to their clients.

        Raises :class:`~proxy.base.errors.ConfigError` for an address that cannot be used.
        """
        self._bases = {name: base_url(name, environment) for name in PROVIDERS}
        self._opened: dict[tuple[str, str], Http1Upstream] = {}

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Ask the provider; see :meth:`proxy.upstreams.base.Upstream.open`."""
        dialect = SERVED.find(request.method, request.path).dialect
        provider = dialect.wire if dialect.wire in PROVIDERS else "openai"
        return await self._upstream(provider, dialect, _key(dialect, request.headers)).open(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for upstream in self._opened.values():
            await upstream.aclose()

    def _upstream(self, provider: str, dialect: Dialect, key: str) -> Http1Upstream:
        known = self._opened.get((provider, key))
        if known is None:
            if len(self._opened) >= _MOST:
                self._opened.pop(next(iter(self._opened)))
            known = Http1Upstream(provider, self._bases[provider], key, wires=(dialect.wire,))
            self._opened[provider, key] = known
        return known


def base_url(name: str, environment: Mapping[str, str]) -> str:
    """Return the base URL of a provider, as an upstream needs it, from what its clients are told.

    Raises :class:`~proxy.base.errors.ConfigError`, which names the variable.
    """
    provider = PROVIDERS[name]
    try:
        return checked_base_url(name, _base_url(name, environment))
    except (ConfigError, ValueError) as error:
        problem = error.problem if isinstance(error, ConfigError) else "is not a URL"
        raise ConfigError(provider.variable, problem, f"Write it like {provider.usual}") from None


def _base_url(name: str, environment: Mapping[str, str]) -> str:
    provider = PROVIDERS[name]
    address = (environment.get(provider.variable) or provider.usual).rstrip("/")
    if name == "openai":
        return address
    if name == "anthropic":
        return f"{address}/v1"
    # Ollama's clients take a port alone for one of this machine.
    address = f"127.0.0.1{address}" if address.startswith(":") else address
    url = URL(address if "://" in address else f"http://{address}")
    return str(url if url.explicit_port is not None or url.scheme == "https" else url.with_port(_OLLAMA_PORT))


def _key(dialect: Dialect, headers: Headers) -> str:
    for credential in dialect.credentials:
        value = first(headers, credential.header.lower())
        if value and value.lower().startswith(credential.scheme.lower()):
            return value[len(credential.scheme) :].strip()
    return ""
