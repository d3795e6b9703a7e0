"""Loads what operators add: hooks of files and modules, and plugins of installed packages.

A plugin is an entry point (https://packaging.python.org/en/latest/specifications/entry-points/) in one of the
groups ``toolrelay.tools``, ``toolrelay.hooks``, ``toolrelay.dialects`` and ``toolrelay.stores``. Only those
that the settings name are imported: an installed package does not run by itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from proxy.base.errors import ConfigError, Guard
from proxy.config.load import Config
from proxy.hooks.chain import Counted, HookChain, NamedHook
from proxy.hooks.contract import POINTS
from proxy.store.base import Store
from proxy.store.options import StoreOptions
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.providers.modules import import_failed, load_code, tools_of
from proxy.wires.dialect import Endpoint
from proxy.wires.registry.table import EndpointTable
from proxy.wires.wire import Wire

_HOOKS = "hooks.modules"


def load_plugin(kind: str, name: str, setting: str = "") -> Any:
    """Import the plugin that a ``setting`` names, by default ``plugins.<kind>``.

    Raises :class:`~proxy.base.errors.ConfigError` if there is none or several, and if it cannot be imported.
    """
    setting, group = setting or f"plugins.{kind}", f"toolrelay.{kind}"
    found = entry_points(group=group)
    named = {one.value: one for one in found if one.name == name}
    if len(named) != 1:
        raise ConfigError(
            setting, *_not_one(name, group, sorted({one.name for one in found}), [*named.values()])
        )
    return _made(setting, name, next(iter(named.values())).load)


def _made(setting: str, name: str, make: Callable[..., Any], *given: Any) -> Any:
    try:
        return make(*given)
    # The boundary to the package of somebody else, which may raise anything while it is loaded.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise import_failed(setting, name, error) from None


def _not_one(name: str, group: str, known: Sequence[str], several: Sequence[EntryPoint]) -> tuple[str, str]:
    if several:
        packages = sorted(one.dist.name for one in several if one.dist is not None)
        return f'several packages have an entry point "{name}" in {group}: {", ".join(packages)}', "Keep one"
    there = f"there are: {', '.join(known)}" if known else "no installed package has one"
    return (
        f'there is no entry point "{name}" in the group {group} ({there})',
        "Install it, or correct the name",
    )


def load_hooks(config: Config, guard: Guard, counted: Counted) -> HookChain:
    """Load the hooks of modules, and then those of plugins, each inside ``guard()``."""
    hooks: list[NamedHook] = []
    for entry in config.hooks.modules:
        with guard():
            name, module = load_code(_HOOKS, entry, base=Path.cwd())
            hooks += _hooks_in(_HOOKS, name, module)
    for name in config.plugins.hooks:
        with guard():
            hooks += _hooks_in("plugins.hooks", name, load_plugin("hooks", name))
    settings = config.hooks
    return HookChain(
        hooks, timeout_s=settings.timeout_s, refuses=settings.on_error == "refuse", counted=counted
    )


def _hooks_in(setting: str, name: str, loaded: Any) -> Iterator[NamedHook]:
    """Yield the hooks of a module, or of what an entry point names: a hook, a class of hooks, or a list."""
    given = getattr(loaded, "hooks", None) if isinstance(loaded, ModuleType) else loaded
    if isinstance(given, type):
        given = _made(setting, name, given)
    found = [*given] if isinstance(given, list | tuple) else [given]
    for hook in found:
        if not any(callable(getattr(hook, point, None)) for point in POINTS):
            raise ConfigError(
                setting,
                f'"{name}" has no hook',
                f"Give it hooks = an object, or a list of objects, with one of {', '.join(POINTS)}",
            )
        yield NamedHook(name, hook)


def plugin_tools(config: Config, capabilities: Capabilities, guard: Guard) -> Iterator[ToolProvider]:
    """Yield the providers of the plugins' tools.

    An entry point names a module with ``@tool`` functions, or a function that takes the
    :class:`~proxy.tools.contract.capabilities.Capabilities` and returns a provider.
    """
    for name in config.plugins.tools:
        with guard():
            loaded = load_plugin("tools", name)
            if isinstance(loaded, ModuleType):
                functions = tools_of("plugins.tools", name, loaded)
                provider: Any = FunctionProvider(name, functions, capabilities, guard=guard)
            else:
                provider = _made("plugins.tools", name, loaded, capabilities)
            if not all(hasattr(provider, method) for method in ("list_tools", "call_tool")):
                raise ConfigError("plugins.tools", f'"{name}" brings no tools', "Name a module with @tool")
            yield provider


def plugin_store(name: str, options: StoreOptions) -> Store:
    """Return the store of a plugin, not started yet; an entry point names a function that makes it."""
    store = _made("store.url", name, load_plugin("stores", name, "store.url"), options)
    if not all(hasattr(store, method) for method in ("start", "put_run", "aclose")):
        raise ConfigError("store.url", f'"{name}" makes no store', "Let it name a function that returns one")
    return cast("Store", store)


def with_dialects(
    config: Config, table: EndpointTable, wires: Mapping[str, Wire], guard: Guard
) -> tuple[EndpointTable, Mapping[str, Wire]]:
    """Return the endpoints and the wires with those of plugins; an entry point names a tuple of a wire and
    its endpoints."""
    for name in config.plugins.dialects:
        with guard():
            loaded = load_plugin("dialects", name)
            try:
                wire, endpoints = loaded
                fits = isinstance(wire, Wire) and all(isinstance(one, Endpoint) for one in endpoints)
            except (TypeError, ValueError):
                fits = False
            if not fits:
                raise ConfigError(
                    "plugins.dialects",
                    f'"{name}" is no dialect',
                    "Let it name a tuple of a wire and its endpoints",
                )
            try:
                table = table.extended_with(endpoints)
            except ValueError as error:
                raise ConfigError("plugins.dialects", f'"{name}" cannot be served: {error}') from None
            wires = {**wires, wire.dialect.name: wire}
    return table, wires
