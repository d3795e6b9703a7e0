"""Opens the upstreams, and gives the router its data about each, with the prices of its models."""

import ssl
from pathlib import Path

import msgspec

from proxy.app.compose.overrides import Overrides
from proxy.base.errors import ConfigError, Guard
from proxy.config.load import Config
from proxy.config.sections.access import PriceConfig
from proxy.config.sections.network import NetworkConfig, parsed_proxy
from proxy.config.settings import UpstreamConfig
from proxy.net.authorities import client_context
from proxy.net.outgoing import HttpProxy
from proxy.net.resolver import Resolver
from proxy.relay.routing.breaker import Breaker
from proxy.relay.routing.deadlines import Deadlines
from proxy.relay.routing.price_list import (
    BUNDLED,
    CURRENCY,
    ListedPrices,
    PriceFile,
    listed_prices,
    read_price_file,
)
from proxy.relay.routing.prices import Price, Prices, to_nanos
from proxy.relay.routing.router import ServedUpstream
from proxy.telemetry.instruments import Instruments
from proxy.tools.access.policy import Policy
from proxy.upstreams.base import Upstream
from proxy.upstreams.http1.upstream import Http1Upstream
from proxy.upstreams.origin import long_secrets
from proxy.upstreams.recorded.replay import ReplayUpstream, packaged_fixtures
from proxy.wires.providers import MAKERS, UpstreamProfiles, provider_at
from proxy.wires.registry.table import EndpointTable
from proxy.wires.text_calls.rules import ModelTextCalls, TextCalls, ToolMode
from proxy.wires.typed_tools.functions import EVERY_TYPE


def open_upstreams(
    config: Config, given: Overrides, instruments: Instruments, guard: Guard, made: dict[str, Upstream]
) -> dict[str, Upstream]:
    """Open the upstreams, put them into ``made``, and return it."""
    wrap = given.wrap_upstream or (lambda upstream: upstream)
    names = Resolver("upstreams")
    forwards = config.auth.mode == "forward"
    for name, upstream in config.upstreams.items():
        with guard():
            opened = wrap(
                _upstream(name, upstream, names, given.endpoints, config.network, forwards=forwards)
            )
            made[name] = instruments.hooks.upstream(opened)
    return made


def _upstream(
    name: str,
    config: UpstreamConfig,
    resolver: Resolver,
    endpoints: EndpointTable,
    network: NetworkConfig,
    *,
    forwards: bool,
) -> Upstream:
    if config.base_url.startswith("replay:"):
        folder = config.base_url.removeprefix("replay:")
        return ReplayUpstream([Path(folder) if folder else packaged_fixtures()], name)
    return Http1Upstream(
        name,
        config.base_url,
        config.api_key.reveal() if config.api_key and not forwards else "",
        headers=dict(config.header_pairs()),
        forward_headers=config.forward_headers,
        forward_response_headers=config.forward_response_headers,
        connect_timeout_s=config.connect_timeout_s,
        first_byte_timeout_s=config.first_byte_timeout_s,
        idle_timeout_s=config.idle_timeout_s,
        retries=config.retries,
        forward_authorization=forwards,
        ssl_context=_tls(name, config, network.ca_file),
        resolver=resolver,
        proxy=proxy_of(name, config, network),
        wires=config.wires,
        endpoints=endpoints,
    )


def proxy_of(name: str, config: UpstreamConfig, network: NetworkConfig) -> HttpProxy | None:
    """Return the proxy through which an upstream is reached: its own, or that of the network for its
    address."""
    if config.proxy:
        return parsed_proxy(config.proxy, f"upstreams.{name}.proxy")
    return network.rules().proxy_for(*config.origin)


def own_authorities(network: NetworkConfig) -> ssl.SSLContext | None:
    """Return the context of clients that trust ``network.ca_file``, too; ``None`` if it is not set."""
    return client_context((("network.ca_file", network.ca_file),)) if network.ca_file else None


def _tls(name: str, config: UpstreamConfig, general: str) -> ssl.SSLContext | None:
    """Return how an upstream is known and knows this client; ``None`` if nothing is set for it."""
    where = f"upstreams.{name}"
    named = (("network.ca_file", general), (f"{where}.ca_file", config.ca_file))
    authorities = tuple((setting, path) for setting, path in named if path)
    certificate = None
    if config.client_cert:
        certificate = (f"{where}.client_cert", config.client_cert, config.client_key)
    if config.origin[0] != "https" or not (authorities or certificate):
        return None
    context = client_context(authorities, certificate)
    context.set_alpn_protocols(["http/1.1"])
    return context


def served(
    settings: Config, name: str, upstream: Upstream, price_list: PriceFile | None = None
) -> ServedUpstream:
    """Return the router's data about the upstream of that name, with its prices in a list."""
    config = settings.upstreams[name]
    renamed = config.models if isinstance(config.models, dict) else None
    return ServedUpstream(
        upstream=upstream,
        wires=frozenset(config.wires),
        models=() if isinstance(config.models, dict) else config.models,
        renamed=renamed,
        tools=config.tools is not False,
        narrowing=_narrowing(name, settings),
        force_usage=config.force_usage,
        strict_bridge=config.strict_bridge,
        profiles=_profiles(config),
        repair=config.repair,
        max_tokens=tuple(config.max_tokens.items()),
        text_calls=_text_calls(config),
        retries=config.retries,
        responses_state=config.responses_state,
        native=native_types(config),
        total=Deadlines(config.total_timeout_s),
        secrets=long_secrets(config.api_key.reveal() if config.api_key else "", dict(config.header_pairs())),
        query_names=frozenset(config.forward_query),
        breaker=Breaker(config.breaker_failures, config.breaker_open_s),
        free=config.free,
        listed=prices_at(price_list, config),
    )


def _profiles(config: UpstreamConfig) -> UpstreamProfiles:
    """Return what the models of an upstream take: the table of providers, changed by the settings."""
    provider = config.profile.provider or provider_at(config.base_url)
    per_model = [(pattern, settings.profile.facts()) for pattern, settings in config.per_model.items()]
    return UpstreamProfiles(provider, config.profile.facts(), per_model)


def native_types(config: UpstreamConfig) -> tuple[str, ...]:
    """Return the types of tools that an upstream itself understands: what is set, or what is known."""
    if config.native != ("auto",):
        return config.native
    provider = config.profile.provider or provider_at(config.base_url)
    return (EVERY_TYPE,) if provider in MAKERS else ()


def _narrowing(name: str, config: Config) -> Policy | None:
    """Return a policy of the tool patterns of an upstream, to narrow another policy; its other limits are the
    configured ones."""
    upstream = config.upstreams[name]
    patterns = upstream.tool_patterns
    if patterns is None or upstream.tools is False:
        return None
    setting = f"upstreams.{name}.tools"
    return Policy(
        allow=patterns,
        max_argument_bytes=config.policy.max_argument_bytes,
        max_result_bytes=config.policy.max_result_bytes,
        max_image_bytes=config.policy.max_image_bytes,
        settings=(setting, setting, setting),
    )


def _text_calls(config: UpstreamConfig) -> TextCalls | None:
    """Return how the models of an upstream write calls into their text; ``None`` if none does."""
    entries = [
        ModelTextCalls(pattern, settings.text_calls, settings.text_calls_repair, settings.tools)
        for pattern, settings in config.per_model.items()
    ]
    mode: ToolMode = "prompt" if config.tools == "prompt" else "native"
    entries.append(ModelTextCalls("*", config.text_calls, config.text_calls_repair, mode))
    return TextCalls(entries) or None


def model_prices(config: Config) -> Prices:
    """Return the configured prices of models."""
    return Prices({model: _price(price) for model, price in config.prices.items()})


def _price(price: PriceConfig) -> Price:
    def of(amount: float | None) -> int | None:
        return None if amount is None else to_nanos(amount)

    return Price(
        input=to_nanos(price.input),
        cached_input=to_nanos(price.input if price.cached_input is None else price.cached_input),
        cache_write=to_nanos(price.input if price.cache_write is None else price.cache_write),
        output=to_nanos(price.output),
        reasoning=of(price.reasoning),
        image_input=of(price.image_input),
        request=to_nanos(price.request),
    )


def open_price_list(config: Config) -> PriceFile | None:
    """Return the list of prices that applies, or ``None``; raises :class:`ConfigError` for a bad file.

    The bundled list is in US dollars, so it does not apply to another currency. It is not read if no upstream
    could have a price in it.
    """
    wanted = config.billing.price_list
    if wanted == "off" or (wanted == "bundled" and config.billing.currency != CURRENCY):
        return None
    if all(upstream.free or _is_local(upstream) for upstream in config.upstreams.values()):
        return None
    try:
        return read_price_file(BUNDLED if wanted == "bundled" else Path(wanted))
    except (OSError, ValueError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no list of prices"
        raise ConfigError(
            "billing.price_list",
            f"{wanted} cannot be read: {reason}",
            f"Make it with: toolrelay prices update --out {wanted}",
        ) from error


def prices_at(file: PriceFile | None, config: UpstreamConfig) -> ListedPrices | None:
    """Return the list prices of the provider at an upstream's address, or ``None``."""
    if file is None or config.free or _is_local(config):
        return None
    return listed_prices(file, config.base_url)


def _is_local(config: UpstreamConfig) -> bool:
    """Return whether an address can be no provider's: a fixture's folder, an IP address, a local name."""
    _, host, _ = config.origin
    return not host or "." not in host.strip("[]") or host.replace(".", "").isdigit() or ":" in host
