"""Checks a configuration beyond its types: conflicts between settings, paths, and secrets."""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

from pydantic_core import PydanticCustomError

from proxy.base.errors import ConfigError
from proxy.config.addresses import check_storage_url
from proxy.config.agents import find_agent_conflicts
from proxy.config.credentials import CredentialConfig, find_credential_conflicts
from proxy.config.mcp.servers import find_mcp_conflicts, resolve_mcp, resolve_mcp_paths
from proxy.config.openapi import find_api_conflicts, resolve_api_paths, resolve_apis
from proxy.config.secret import Secret
from proxy.config.sections.access import ApprovalsConfig, KeyConfig
from proxy.config.sections.identity import find_identity_conflicts
from proxy.config.sections.network import ProxySettings
from proxy.config.sections.operation import UiConfig
from proxy.config.settings import DEFAULT_KEY, Config, UpstreamConfig
from proxy.relay.routing.price_list import BUNDLED, CURRENCY, read_price_file

_SHORTEST_KEY = 32
_FEWEST_CHARACTERS = 8
_WILDCARDS = frozenset({"0.0.0.0", "::"})
_SQLITE = "sqlite:///"
_TLS_FILES = ("ca_file", "client_cert", "client_key")


def find_conflicts(config: Config) -> Iterator[ConfigError]:
    """Yield the faults of settings that are valid alone but not together."""
    if config.auth.mode == "forward" and len({upstream.origin for upstream in config.upstreams.values()}) > 1:
        yield ConfigError(
            "auth.mode",
            'with "forward", a client\'s key for one provider would also be sent to the others',
            "Configure upstreams of one address only, or use client keys",
        )
    if config.auth.mode == "forward" and config.mcp.serve:
        yield ConfigError(
            "mcp.serve",
            'no provider checks keys at /mcp, so auth.mode = "forward" would let everybody in',
            "Use client keys, or set mcp.serve = false",
        )
    if config.server.workers > 1:
        yield from _not_shared(config)
    yield from _wrong_webhook(config)
    yield from _wrong_images(config)
    yield from find_mcp_conflicts(config.mcp)
    yield from find_api_conflicts(config.openapi, config.credentials, config.mcp)
    yield from find_identity_conflicts(config.auth.mode, config.auth.jwt, config.ui.login)
    serves = {name: upstream.models for name, upstream in config.upstreams.items()}
    yield from find_agent_conflicts(config.agents, serves)
    yield from find_credential_conflicts(
        config.credentials,
        config.mcp,
        seals=config.store.seals,
        public_url=config.server.public_url,
        used_by_apis={api.connection for api in config.openapi.values()},
    )
    if config.store.seal_key is not None and not config.store.seal:
        yield ConfigError(
            "store.seal",
            "is false, but store.seal_key is set",
            "Remove store.seal, or move the key to store.old_seal_keys so that older content stays readable",
        )
    for name, key in config.keys.items():
        for unknown in [wanted for wanted in key.upstreams if wanted not in config.upstreams]:
            yield ConfigError(
                f"keys.{name}.upstreams",
                f"there is no upstream {unknown[:80]!r}",
                f"Choose one of: {', '.join(config.upstreams)}",
            )
    yield from _costs_without_prices(config)
    for name, upstream in config.upstreams.items():
        if _is_own_address(config, upstream):
            yield ConfigError(
                f"upstreams.{name}.base_url",
                f"{upstream.base_url} is this proxy's own address (server.host and server.port)",
                "Write the model server's address, or choose another --port",
            )


def _wrong_images(config: Config) -> Iterator[ConfigError]:
    """Yield a fault for images that no upstream can make."""
    if (images := config.tools.images_at) is None:
        return
    if images[0] not in config.upstreams:
        yield ConfigError(
            "tools.hosted.image_generation",
            f"there is no upstream {images[0][:80]!r}",
            f'Write "upstream:NAME" with one of: {", ".join(config.upstreams)}',
        )
    elif config.auth.mode == "forward":
        yield ConfigError(
            "tools.hosted.image_generation",
            'names an upstream, which would get no key, because auth.mode = "forward" passes on only those '
            "of clients",
            "Use client keys, or remove it",
        )


def _wrong_webhook(config: Config) -> Iterator[ConfigError]:
    approvals = config.approvals
    if approvals.webhook and approvals.webhook_secret is None:
        yield ConfigError(
            "approvals.webhook",
            "has no secret that signs its messages",
            'Write approvals.webhook_secret = "env:WEBHOOK_SECRET"',
        )
    if approvals.webhook and not approvals.webhook.startswith("https://") and not approvals.webhook_networks:
        yield ConfigError(
            "approvals.webhook",
            "must start with https://",
            "Use https, or name the service's private network in approvals.webhook_networks",
        )


def _not_shared(config: Config) -> Iterator[ConfigError]:
    """Yield the faults of settings that several processes must share, but each would have for itself."""
    several = f"server.workers = {config.server.workers}"
    if config.store.url.startswith("memory:"):
        yield ConfigError(
            "store.url",
            f"is memory:, which each process has for itself, and {several}",
            "Name a file or PostgreSQL, or set server.workers = 1",
        )
    if isinstance(config.limits.storage, str):
        yield from _not_counted_together(config, config.limits.storage)


def _not_counted_together(config: Config, storage: str) -> Iterator[ConfigError]:
    """Yield a fault for limits that each of several processes would count for itself."""
    limits, several = config.limits, f"server.workers = {config.server.workers}"
    if config.server.workers == 1 or not storage.startswith("memory:"):
        return
    kinds = ("requests", "tool_calls", "tokens", "cost")
    general = [f"limits.{kind}" for kind in kinds if getattr(limits, kind)]
    # The general number of open streams is meant for each process; a key's own is not.
    keys = [f"keys.{name}.limits" for name, key in config.keys.items() if any(key.limits.values())]
    if general or keys:
        ways = [f"set {' and '.join(general)} to []"] if general else []
        ways += [f"remove {' and '.join(keys)}"] if keys else []
        yield ConfigError(
            "limits.storage",
            f"is memory://, so each of {several} would allow the full amount of "
            f"{' and '.join(general + keys)}",
            f"Name a Redis server, {' and '.join(ways)}, or set server.workers = 1",
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address that a server listens on."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _costs_without_prices(config: Config) -> Iterator[ConfigError]:
    """Yield a fault for each limit of cost if there can be no cost."""
    limits = (
        ("limits.cost", config.limits.cost),
        ("tools.max_cost", config.tools.max_cost),
        *((f"agents.{name}.max_cost", agent.max_cost) for name, agent in config.agents.items()),
        *((f"keys.{name}.limits", key.limits.get("cost")) for name, key in config.keys.items()),
    )
    asked = [
        setting
        for setting, limit in limits
        if limit and not (setting.endswith("max_cost") and config.tools.prices)
    ]
    # The list of prices is read only if it matters, and once: there may be thousands of keys.
    if asked and not _may_have_prices(config):
        for setting in asked:
            yield ConfigError(
                setting,
                "there are no prices, so the proxy cannot compute costs",
                'Write [prices."MODEL"] with input and output, or free = true at an upstream that costs '
                "nothing",
            )


def _may_have_prices(config: Config) -> bool:
    """Return whether a model may have a price: a configured one, none to pay, or one in a list."""
    if config.prices or any(upstream.free for upstream in config.upstreams.values()):
        return True
    if config.billing.price_list != "bundled":
        return config.billing.price_list != "off"
    if config.billing.currency != CURRENCY:
        return False
    addresses = [provider.address for provider in read_price_file(BUNDLED).providers]
    return any(
        re.match(address, upstream.base_url[:500])
        for upstream in config.upstreams.values()
        for address in addresses
    )


def _is_own_address(config: Config, upstream: UpstreamConfig) -> bool:
    """Return whether requests to the upstream would come back to this server.

    The system chooses port 0, so no address can name it in advance.
    """
    scheme, host, port = upstream.origin
    if scheme not in ("http", "https") or port != config.server.port:
        return False
    own = config.server.host.lower()
    here = is_loopback(host) or host in _WILDCARDS
    if own in _WILDCARDS:
        return here or host in (socket.gethostname().lower(), _outer_address())
    return host == own or (here and is_loopback(own))


def _outer_address() -> str:
    """Return this machine's own address as others see it, without sending anything; empty if there is
    none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: connecting a datagram socket sends nothing.
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def resolve_paths(config: Config, folder: Path) -> Config:
    """Return the configuration with every path absolute; relative ones start at ``folder``."""

    def absolute(text: str) -> str:
        return str((folder / Path(text).expanduser()).absolute())

    store = config.store
    if store.url.startswith(_SQLITE):
        store = store.model_copy(update={"url": _SQLITE + absolute(store.url.removeprefix(_SQLITE))})
    tools, hooks = (
        section.model_copy(
            update={"modules": tuple(absolute(name) if _is_path(name) else name for name in section.modules)}
        )
        for section in (config.tools, config.hooks)
    )
    upstreams = {}
    for name, upstream in config.upstreams.items():
        replay = upstream.base_url.removeprefix("replay:")
        if upstream.base_url.startswith("replay:") and replay:
            upstream = upstream.model_copy(update={"base_url": f"replay:{absolute(replay)}"})
        files = {key: absolute(getattr(upstream, key)) for key in _TLS_FILES if getattr(upstream, key)}
        upstream = upstream.model_copy(update=files)
        upstreams[name] = upstream
    mcp = resolve_mcp_paths(config.mcp, folder)
    openapi = resolve_api_paths(config.openapi, folder)
    billing = config.billing
    if billing.price_list not in ("bundled", "off"):
        billing = billing.model_copy(update={"price_list": absolute(billing.price_list)})
    ca_file = absolute(config.network.ca_file) if config.network.ca_file else ""
    network = config.network.model_copy(update={"ca_file": ca_file})
    changed = {
        "store": store,
        "tools": tools,
        "hooks": hooks,
        "upstreams": upstreams,
        "mcp": mcp,
        "openapi": openapi,
        "network": network,
        "billing": billing,
    }
    return config.model_copy(update=changed)


def _is_path(module: str) -> bool:
    """Return whether an entry of ``modules`` names a file and not an importable module."""
    return module.endswith(".py") or "/" in module or "\\" in module


def resolve_secrets(
    config: Config, env: Mapping[str, str], folder: Path, *, need: bool | str
) -> tuple[Config | None, list[ConfigError]]:
    """Return the configuration with every secret's value, or the faults of the needed secrets without one.

    ``need`` as a text means that only secrets of settings that begin with it are needed.
    """
    faults: list[ConfigError] = []

    def resolve(setting: str, secret: Secret) -> Secret | None:
        try:
            return secret.resolve(setting, env, folder)
        except ConfigError as error:
            if need is True or (isinstance(need, str) and setting.startswith(need)):
                faults.append(_with_ways_out(error, secret))
            return None

    proxies = ProxySettings(resolve)
    upstreams = _resolved_upstreams(config, resolve, proxies)
    credentials = _resolved_credentials(config, resolve)
    faults += _weak_keys(keys := _resolved_keys(config, resolve), upstreams)
    store = config.store
    try:
        # Always needed: without them a command would write unsealed what other processes seal, or not start.
        seal_key = store.seal_key and store.seal_key.resolve("store.seal_key", env, folder)
        old_keys = [key.resolve("store.old_seal_keys", env, folder) for key in store.old_seal_keys]
        store = store.model_copy(update={"seal_key": seal_key, "old_seal_keys": tuple(old_keys)})
    except ConfigError as error:
        faults.append(error)
    limits = config.limits
    if isinstance(limits.storage, Secret):
        storage = resolve("limits.storage", limits.storage)
        if storage is not None:
            faults += _wrong_storage(config, storage)
        # A command that needs no secrets counts nothing either.
        limits = limits.model_copy(update={"storage": storage or "memory://"})
    mcp = resolve_mcp(config.mcp, resolve)
    openapi = resolve_apis(config.openapi, resolve)
    approvals = _resolved_webhook(config.approvals, resolve)
    ui = _resolved_ui(config.ui, resolve)
    network = proxies.network(config.network)
    tools = config.tools.model_copy(update={"proxy": proxies.resolved(config.tools.proxy, "tools.proxy")})
    mcp = mcp.model_copy(update={"proxy": proxies.resolved(mcp.proxy, "mcp.proxy")})
    faults += proxies.faults
    if faults:
        return None, faults
    plain = {
        "mcp": mcp,
        "openapi": openapi,
        "upstreams": upstreams,
        "credentials": credentials,
        "keys": keys,
        "approvals": approvals,
        "network": network,
        "tools": tools,
        "ui": ui,
    }
    return config.model_copy(update={**plain, "store": store, "limits": limits}), []


def _resolved_upstreams(
    config: Config, resolve: Callable[[str, Secret], Secret | None], proxies: ProxySettings
) -> dict[str, UpstreamConfig]:
    """Return the upstreams with their secrets."""
    upstreams = {}
    forwards = config.auth.mode == "forward"
    for name, upstream in config.upstreams.items():
        where = f"upstreams.{name}"
        # If clients send their own key, the operator's must not replace it.
        key = resolve(f"{where}.api_key", upstream.api_key) if upstream.api_key and not forwards else None
        headers: dict[str, str | Secret] = {}
        for header, value in upstream.headers.items():
            resolved = resolve(f"{where}.headers.{header}", value) if isinstance(value, Secret) else value
            if resolved is not None:
                headers[header] = resolved
        proxy = proxies.resolved(upstream.proxy, f"{where}.proxy")
        upstreams[name] = upstream.model_copy(update={"api_key": key, "headers": headers, "proxy": proxy})
    return upstreams


def _resolved_credentials(
    config: Config, resolve: Callable[[str, Secret], Secret | None]
) -> dict[str, CredentialConfig]:
    """Return the connections with their secrets."""
    resolved = {}
    for name, connection in config.credentials.items():
        secrets = {
            key: resolve(f"credentials.{name}.{key}", value)
            for key, value in connection
            if isinstance(value, Secret)
        }
        # A connection that lacks a secret is left out: a tool then reports it and does not call without it.
        if None not in secrets.values():
            resolved[name] = connection.model_copy(update=secrets)
    return resolved


def _resolved_webhook(
    approvals: ApprovalsConfig, resolve: Callable[[str, Secret], Secret | None]
) -> ApprovalsConfig:
    if approvals.webhook_secret is None:
        return approvals
    secret = resolve("approvals.webhook_secret", approvals.webhook_secret)
    return approvals.model_copy(update={"webhook_secret": secret})


def _resolved_ui(ui: UiConfig, resolve: Callable[[str, Secret], Secret | None]) -> UiConfig:
    if ui.login.client_secret is None:
        return ui
    secret = resolve("ui.login.client_secret", ui.login.client_secret)
    return ui.model_copy(update={"login": ui.login.model_copy(update={"client_secret": secret})})


def _wrong_storage(config: Config, storage: Secret) -> Iterator[ConfigError]:
    """Yield the fault in the address of the counters, once its secret is resolved."""
    try:
        check_storage_url(storage.reveal())
    except PydanticCustomError as error:
        yield ConfigError("limits.storage", f"{error} ({storage.reference})", "Correct it")
    else:
        yield from _not_counted_together(config, storage.reveal())


def _resolved_keys(config: Config, resolve: Callable[[str, Secret], Secret | None]) -> dict[str, KeyConfig]:
    """Return client keys with their secrets; a key without one stays, for commands that need only its
    name."""
    resolved = {}
    for name, key in config.keys.items():
        secret = resolve(f"keys.{name}.secret", key.secret)
        resolved[name] = key.model_copy(update={"secret": secret}) if secret is not None else key
    return resolved


def _weak_keys(
    keys: Mapping[str, KeyConfig], upstreams: Mapping[str, UpstreamConfig]
) -> Iterator[ConfigError]:
    """Yield the faults of client keys that can be guessed or that equal another secret."""
    known: dict[str, str] = {
        upstream.api_key.reveal(): f"upstreams.{name}.api_key"
        for name, upstream in upstreams.items()
        if upstream.api_key is not None
    }
    for name, key in keys.items():
        if not key.secret.resolved:
            continue
        where, value = f"keys.{name}.secret", key.secret.reveal()
        if len(value) < _SHORTEST_KEY or len(set(value)) < _FEWEST_CHARACTERS:
            yield ConfigError(
                where,
                f"{key.secret.reference} is too short to be safe: write at least {_SHORTEST_KEY} characters, "
                f"{_FEWEST_CHARACTERS} of them different",
                "Make one with: openssl rand -base64 32",
            )
        elif value.startswith("trt_"):
            yield ConfigError(
                where, "starts with trt_, which only tokens may", "Make one with: openssl rand -base64 32"
            )
        elif value in known:
            yield ConfigError(where, f"is the same as {known[value]}", "Use a different secret for each")
        known.setdefault(value, where)


def _with_ways_out(error: ConfigError, secret: Secret) -> ConfigError:
    if secret.reference != DEFAULT_KEY:
        return error
    return ConfigError(
        error.setting,
        error.problem,
        "Set OPENAI_API_KEY, name another server with --upstream URL, or try: toolrelay demo",
    )
