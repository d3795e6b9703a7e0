"""What a configuration that parses may still not be: unbuilt, at odds with itself, out of reach."""

import socket
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from proxy.errors import ConfigError
from proxy.server.secret import Secret
from proxy.server.settings import DEFAULT_KEY, Config, UpstreamConfig

__all__ = ["find_conflicts", "find_unbuilt", "is_loopback", "resolve_paths", "resolve_secrets"]

_WILDCARDS = frozenset({"0.0.0.0", "::"})
_SQLITE = "sqlite:///"


class _Unbuilt(NamedTuple):
    """A setting whose feature this version does not have, when it is asked for, and what to do."""

    setting: str
    asked: Callable[[Config], bool]
    remedy: str


_UNBUILT: tuple[_Unbuilt, ...] = (
    _Unbuilt("keys", lambda c: bool(c.keys), 'Remove [keys.*]; with no client keys use auth.mode = "open"'),
    _Unbuilt("auth.mode", lambda c: c.auth.mode in ("keys", "forward"), 'Use "auto" or "open"'),
    _Unbuilt("prices", lambda c: bool(c.prices), "Remove [prices.*]"),
    _Unbuilt("server.cors_origins", lambda c: bool(c.server.cors_origins), "Use []"),
    _Unbuilt("server.trusted_proxies", lambda c: bool(c.server.trusted_proxies), "Use []"),
    _Unbuilt("limits.tokens", lambda c: bool(c.limits.tokens), "Use []"),
    _Unbuilt("limits.cost", lambda c: bool(c.limits.cost), "Use []"),
    _Unbuilt("limits.storage", lambda c: c.limits.storage != "memory://", 'Use "memory://"'),
    _Unbuilt("tools.max_cost", lambda c: c.tools.max_cost > 0, "Use 0"),
    _Unbuilt("telemetry.otlp_endpoint", lambda c: bool(c.telemetry.otlp_endpoint), 'Use ""'),
)
"""One row per feature to come: building the feature deletes its row, nothing else."""

_BUILT_WIRES = ("chat", "responses")


def find_unbuilt(config: Config) -> Iterator[ConfigError]:
    """Every setting that asks for a feature this version does not have."""
    # A store that each process has for itself would be the operator's mistake even with workers built.
    if config.server.workers > 1 and config.store.url == "memory:":
        yield ConfigError(
            "server.workers",
            'more than one worker cannot share store.url = "memory:"',
            "Use server.workers = 1, or a store in a file",
        )
    elif config.server.workers > 1:
        yield _unbuilt("server.workers", "Use 1")
    for row in _UNBUILT:
        if row.asked(config):
            yield _unbuilt(row.setting, row.remedy)
    for name, upstream in config.upstreams.items():
        for wire in upstream.wires:
            if wire not in _BUILT_WIRES:
                yield _unbuilt(f"upstreams.{name}.wires", 'Use "chat" and "responses"', f'"{wire}" ')


def _unbuilt(setting: str, remedy: str, what: str = "") -> ConfigError:
    return ConfigError(setting, f"{what}is not built in this version", remedy)


def find_conflicts(config: Config) -> Iterator[ConfigError]:
    """Settings that each are fine and together are not."""
    if config.auth.mode == "auto" and not config.keys and not is_loopback(config.server.host):
        yield ConfigError(
            "auth.mode",
            f"server.host = {config.server.host!r} lets other machines in and there are no client keys",
            'Set auth.mode = "open" (TOOLRELAY_AUTH__MODE=open) to let everybody in, '
            'or server.host = "127.0.0.1"',
        )
    for name, upstream in config.upstreams.items():
        if _is_own_address(config, upstream):
            yield ConfigError(
                f"upstreams.{name}.base_url",
                f"{upstream.base_url} is this proxy's own address (server.host and server.port)",
                "Name the model server's address there, or choose another --port",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address that a server listens on."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_own_address(config: Config, upstream: UpstreamConfig) -> bool:
    """Whether requests to the upstream would come back to this server.

    Port 0 is chosen by the system, so nothing can name it beforehand.
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
    """This machine's own address as others see it, without sending anything; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: connecting a datagram socket sends nothing.
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def resolve_paths(config: Config, folder: Path) -> Config:
    """The same configuration with every path absolute, relative ones starting at ``folder``."""

    def absolute(text: str) -> str:
        return str((folder / Path(text).expanduser()).absolute())

    store = config.store
    if store.url.startswith(_SQLITE):
        store = store.model_copy(update={"url": _SQLITE + absolute(store.url.removeprefix(_SQLITE))})
    modules = tuple(absolute(name) if _is_path(name) else name for name in config.tools.modules)
    upstreams = {}
    for name, upstream in config.upstreams.items():
        replay = upstream.base_url.removeprefix("replay:")
        if upstream.base_url.startswith("replay:") and replay:
            upstream = upstream.model_copy(update={"base_url": f"replay:{absolute(replay)}"})
        upstreams[name] = upstream
    tools = config.tools.model_copy(update={"modules": modules})
    return config.model_copy(update={"store": store, "tools": tools, "upstreams": upstreams})


def _is_path(module: str) -> bool:
    """Whether an entry of ``tools.modules`` names a file rather than an importable module."""
    return module.endswith(".py") or "/" in module or "\\" in module


def resolve_secrets(
    config: Config, env: Mapping[str, str], folder: Path, *, need: bool
) -> tuple[Config | None, list[ConfigError]]:
    """The configuration with every secret's value, or the faults of those that have none."""
    faults: list[ConfigError] = []

    def resolve(setting: str, secret: Secret) -> Secret | None:
        try:
            return secret.resolve(setting, env, folder)
        except ConfigError as error:
            if need:
                faults.append(_with_ways_out(error, secret))
            return None

    upstreams = {}
    for name, upstream in config.upstreams.items():
        where = f"upstreams.{name}"
        key = resolve(f"{where}.api_key", upstream.api_key) if upstream.api_key else None
        headers: dict[str, str | Secret] = {}
        for header, value in upstream.headers.items():
            resolved = resolve(f"{where}.headers.{header}", value) if isinstance(value, Secret) else value
            if resolved is not None:
                headers[header] = resolved
        upstreams[name] = upstream.model_copy(update={"api_key": key, "headers": headers})
    credentials = {}
    for name, connection in config.credentials.items():
        secrets = {
            key: resolve(f"credentials.{name}.{key}", value)
            for key, value in connection
            if isinstance(value, Secret)
        }
        # One that lacks a secret is none: a tool then says so instead of calling with half of it.
        if None not in secrets.values():
            credentials[name] = connection.model_copy(update=secrets)
    store = config.store
    if store.seal_key is not None:
        # Always needed: without it a command would write unsealed what the others seal.
        try:
            seal_key = store.seal_key.resolve("store.seal_key", env, folder)
            store = store.model_copy(update={"seal_key": seal_key})
        except ConfigError as error:
            faults.append(error)
    if faults:
        return None, faults
    update = {"upstreams": upstreams, "credentials": credentials, "store": store}
    return config.model_copy(update=update), []


def _with_ways_out(error: ConfigError, secret: Secret) -> ConfigError:
    if secret.reference != DEFAULT_KEY:
        return error
    return ConfigError(
        error.setting,
        error.problem,
        "Set OPENAI_API_KEY, name another server with --upstream URL, or try: toolrelay demo",
    )
