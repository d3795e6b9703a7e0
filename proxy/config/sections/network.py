"""The settings of the network that requests leave by: forward proxies, and authorities of certificates."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator

from proxy.base.errors import ConfigError
from proxy.config.secret import Secret
from proxy.config.types import Section, Strings, check_unique, setting_fault
from proxy.net.outgoing import HttpProxy, ProxyRules

DIRECT = "direct"
"""The value of a proxy's setting for requests that go through none."""


def read_proxy(value: Any) -> "str | Secret":
    """Read a proxy's address: a reference to a secret, ``direct``, or an address without credentials."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise setting_fault("expected a string")
    if value.startswith(("env:", "file:")):
        return Secret.parse(value)
    if value in ("", DIRECT):
        return value
    try:
        parsed = HttpProxy.parse(value)
    except ValueError as error:
        raise setting_fault(str(error)) from None
    if parsed.credentials:
        raise setting_fault(
            "has a password, which may not be written here; put the whole address into an environment "
            "variable or a file and write env:NAME or file:/path"
        )
    return value


ProxyAddress = Annotated[str | Secret, PlainValidator(read_proxy, json_schema_input_type=str)]


class NetworkConfig(Section):
    """How requests leave this network: for upstreams, tools and MCP servers over HTTP."""

    http_proxy: ProxyAddress = Field(
        default="",
        description="Proxy for http:// addresses: http://HOST:PORT, or env:NAME or file:/path for an address "
        "with a user name and password. Not set: the environment variable HTTP_PROXY. direct: none.",
    )
    https_proxy: ProxyAddress = Field(
        default="",
        description="Proxy for https:// addresses, written in the same way. Not set: the environment "
        "variable HTTPS_PROXY.",
    )
    no_proxy: Annotated[Strings, AfterValidator(check_unique)] = Field(
        default=(),
        description="Hosts that are reached without a proxy: names (with the names below them), .names, "
        "addresses, networks, or * for all. Not set: the environment variable NO_PROXY. This machine "
        "itself is never reached through a proxy.",
    )
    ca_file: str = Field(
        default="",
        max_length=4096,
        description="File in PEM format with authorities to trust in addition to those of the system.",
    )

    def rules(self, chosen: "str | Secret" = "", setting: str = "") -> ProxyRules:
        """Return which requests go through which proxy.

        ``chosen`` is the value of a ``setting`` that replaces the general proxies; empty for none.
        """
        if chosen:
            proxy = parsed_proxy(chosen, setting)
            return ProxyRules(proxy, proxy, self.no_proxy)
        return ProxyRules(
            parsed_proxy(self.http_proxy, "network.http_proxy"),
            parsed_proxy(self.https_proxy, "network.https_proxy"),
            self.no_proxy,
        )


def parsed_proxy(value: "str | Secret", setting: str) -> HttpProxy | None:
    """Return the proxy that a setting names, ``None`` if it names none.

    Raises :class:`~proxy.base.errors.ConfigError` for a secret that is no address.
    """
    text = value.reveal() if isinstance(value, Secret) else value
    if text in ("", DIRECT):
        return None
    where = f"{setting} ({value.reference})" if isinstance(value, Secret) else setting
    try:
        return HttpProxy.parse(text, where)
    except ValueError as error:
        raise ConfigError(setting, str(error) + (f" ({where})" if where != setting else "")) from None


Resolve = Callable[[str, Secret], Secret | None]


class ProxySettings:
    """Resolves the secrets in the addresses of proxies, and collects the faults in what they hold."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self.faults: list[ConfigError] = []

    def resolved(self, value: "str | Secret", setting: str) -> "str | Secret":
        """Return a proxy's address with its secret; empty if it has no value."""
        if not isinstance(value, Secret):
            return value
        secret = self._resolve(setting, value)
        if secret is None:
            return ""
        try:
            parsed_proxy(secret, setting)
        except ConfigError as fault:
            self.faults.append(fault)
        return secret

    def network(self, config: NetworkConfig) -> NetworkConfig:
        """Return the section with its secrets."""
        return config.model_copy(
            update={
                name: self.resolved(getattr(config, name), f"network.{name}")
                for name in ("http_proxy", "https_proxy")
            }
        )


def credentials_of(*addresses: "str | Secret") -> Iterator[str]:
    """Yield the secret parts of proxies' addresses, which nobody may see: each whole, and as it is sent."""
    for address in addresses:
        if isinstance(address, Secret) and address.resolved:
            yield address.reveal()
            proxy = HttpProxy.parse(address.reveal())
            if proxy.credentials:
                yield proxy.credentials
