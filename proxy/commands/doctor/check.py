"""``toolrelay check``: reports everything that can be wrong before it causes failures."""

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from proxy.app.compose.overrides import Overrides
from proxy.app.compose.services import Services, create_services
from proxy.app.compose.tools import serving_tools
from proxy.app.open_record import open_record
from proxy.base.errors import ConfigError, Faults, StoreError
from proxy.base.events import PROXY_TOOLS
from proxy.base.globs import fits
from proxy.commands.common import console, print_table, say, say_error, say_faults
from proxy.commands.credentials.listing import login_lines
from proxy.commands.doctor.connectivity import find_unreachable, places_of
from proxy.commands.doctor.probing.dialects import SpokenDialect, find_dialects
from proxy.commands.doctor.probing.probe import ProbeResult, probe, v1_fault
from proxy.commands.doctor.schemas import schema_lines
from proxy.commands.doctor.sealing import seal_lines
from proxy.commands.doctor.withholding import how_withheld, trusted_lines, untrusted_lines
from proxy.commands.keys.keys import (
    authentication_lines,
    bound_lines,
    bounds_of_keys,
    decision_cells,
    idle_lines,
    peek_authentication,
    print_decisions,
)
from proxy.commands.mcp.host import mcp_settings
from proxy.commands.mcp.listing import api_faults, mcp_faults
from proxy.commands.mcp.looking import pins_of_record
from proxy.commands.mcp.warnings import many_lines, plain_secret_lines, unallowed_lines
from proxy.config.load import Config
from proxy.config.settings import StoreConfig
from proxy.config.text import toml_value
from proxy.relay.routing.prices import cost_text
from proxy.relay.routing.router import Route, Router
from proxy.server.auth.authenticate import Authentication
from proxy.store.factory import open_store
from proxy.tools.access.call_prices import CallPrices
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.chat.dialect import CHAT
from proxy.wires.registry.wires import built_in_wires

_OPTIONAL: Final = ("limits", "telemetry")
"""Sections with defaults that suffice to check everything else."""


async def check_composed(config: Config, *, probing: bool, known: Sequence[ConfigError] = ()) -> int:
    """Check the services as the server would compose them, without opening or creating a record.

    ``known`` are the faults of the configuration; ``config`` is its usable rest. All faults are reported,
    because one fault does not hide another. Return their number.
    """
    faults = Faults(known)
    config = _less_unreadable(config, known)
    with faults.kept():
        # This only checks the place; a start creates the file.
        if config.store.url.startswith("plugin:"):
            open_record(config)
        else:
            open_store(config.store.url, **config.store.seal_keys())
    before = len(faults)
    services = await _composed(without_record(config), faults, await _pins(config, faults))
    if services is None:
        say_faults([*map(str, faults), *await find_unreachable(places_of(config))])
        return len(faults)
    try:
        faults += _missing_libraries(config)
        faults += services.missing_connections()
        faults += services.misplaced_bounds(whole=len(faults) == before)
        messages = [str(fault) for fault in faults]
        authentication = None
        readable = all(key.secret.resolved for key in config.keys.values())
        if readable and not any(fault.setting.startswith(("auth.", "store.")) for fault in faults):
            try:
                authentication = await peek_authentication(config)
            except (ConfigError, StoreError) as error:
                messages.append(str(error))
        order = order_lines(services.router())
        messages += await _missing_logins(config)
        if config.mcp.servers and probing:
            messages += await mcp_faults(config)
        if config.openapi and probing:
            messages += await api_faults(config)
        unasked = {name for name in config.upstreams if any(map(_is_about(name), faults))}
        return await check(
            config,
            services,
            probing=probing,
            known=messages,
            authentication=authentication,
            order=order,
            unasked=unasked,
        )
    finally:
        await services.aclose()


def _missing_libraries(config: Config) -> list[ConfigError]:
    """Return a fault if MCP servers are configured, and what talks to them is not installed."""
    try:
        mcp_settings(config)
    except ConfigError as fault:
        return [fault]
    return []


async def _missing_logins(config: Config) -> list[str]:
    """Return a line for each connection that needs a login. An unreadable record is reported elsewhere."""
    try:
        return await login_lines(config)
    except (ConfigError, StoreError):
        return []


async def _pins(config: Config, faults: Faults) -> Overrides:
    """Read the pins of MCP tools from the record; an unreadable record is a fault, and counts as empty."""
    try:
        with faults.kept():
            return await pins_of_record(config)
    except StoreError as error:
        faults.append(ConfigError("store.url", str(error)))
    return Overrides()


async def _composed(config: Config, faults: Faults, given: Overrides) -> Services | None:
    """Compose the services without the faulty parts; return ``None`` if that is impossible.

    Sections in :data:`_OPTIONAL` that are faulty are replaced with their defaults.
    """
    lacking: list[ConfigError] = []
    while True:
        own_faults = Faults()
        try:
            services = await create_services(config, overrides=given, guard=own_faults.kept)
        except ConfigError as fault:
            section = fault.setting.partition(".")[0]
            if section in _OPTIONAL and section not in {lack.setting.partition(".")[0] for lack in lacking}:
                lacking.append(fault)
                config = config.model_copy(update={section: type(getattr(config, section))()})
                continue
            lacking.append(fault)
            services = None
        faults += [*lacking, *own_faults]
        return services


def _less_unreadable(config: Config, known: Sequence[ConfigError]) -> Config:
    """Remove upstreams with a fault other than in their key: a default could name another server."""
    kept = {
        name: upstream
        for name, upstream in config.upstreams.items()
        if all(fault.setting.endswith(".api_key") for fault in filter(_is_about(name), known))
    }
    return config.model_copy(update={"upstreams": kept})


def _is_about(upstream: str) -> Callable[[ConfigError], bool]:
    return lambda fault: (
        fault.setting == "upstreams" or f"{fault.setting}.".startswith(f"upstreams.{upstream}.")
    )


def without_record(config: Config) -> Config:
    """Return the configuration with a record in memory, so that a check of its tools leaves no trace."""
    return config.model_copy(update={"store": StoreConfig(url="memory:")})


async def check(
    config: Config,
    services: Services,
    *,
    probing: bool,
    known: Sequence[str] = (),
    authentication: Authentication | None = None,
    order: Sequence[str] = (),
    unasked: Collection[str] = (),
) -> int:
    """Print upstreams and tools; return the number of faults, each printed as one line.

    ``known`` are faults that were found before; ``order`` are lines of :func:`order_lines`. The upstreams in
    ``unasked`` are not probed, because their faults are known.
    """
    for line in known:  # First, because much of what follows may be their consequence.
        say_error(line)
    upstreams = [
        (
            name,
            upstream.base_url,
            upstream.api_key.reference if upstream.api_key else "none",
            ", ".join(upstream.wires),
            _models(upstream.models),
        )
        for name, upstream in config.upstreams.items()
    ]
    print_table(("upstream", "address", "key", "wires", "models"), upstreams)
    for line in order:
        say(line)
    console().print()
    print_tools(services.catalog.tools(), services.policy, services.registry.prices)
    for line in (
        *token_lines(config),
        *seal_lines(config),
        *bound_lines(services.catalog, services.policy),
        *agent_lines(config, services),
        *hosted_lines(config, services),
        *upstream_lines(config, services),
        *trusted_lines(config),
        *untrusted_lines(config, services.catalog, services.policy),
        *withheld_lines(config, services),
        *unallowed_lines(config, services.catalog),
        *plain_secret_lines(config),
        *services.idle_bounds(),
        *many_lines(config, services.catalog, services.policy),
        *schema_lines(services.catalog, services.policy),
        *_served_lines(config),
    ):
        say(line)
    _say_authentication(config, services, authentication)
    places = places_of(config)
    probed = await _probe_all(config, services, unasked) if probing else []
    if probing:
        places = {"limits.storage": places["limits.storage"]}
    later = [*probed, *await find_unreachable(places)]
    say_faults(later, before=known)
    if not known and not later:
        say("No faults found.")
    return len(known) + len(later)


def _say_authentication(config: Config, services: Services, authentication: Authentication | None) -> None:
    """Print the authentication mode, the keys, and the tools that each key may run."""
    if authentication is None:
        return
    bounds, warnings = bounds_of_keys(authentication, services.catalog)
    for line in (*authentication_lines(config, authentication), *bounds, *warnings):
        say(line)
    print_decisions(authentication, services.catalog, services.policy)


def order_lines(router: Router) -> list[str]:
    """Return, for each model or pattern with several upstreams, the order in which they are asked."""
    return [
        f"{model}: {', then '.join(_place(route, router) for route in routes)}"
        for model, routes in router.order()
    ]


def _place(route: Route, router: Router) -> str:
    """Format an upstream: its name, its name for the model, and its wires if other upstreams have more."""
    served = route.served
    wires = (
        ""
        if all(other.wires <= served.wires for other in router.served)
        else " and ".join(sorted(served.wires))
    )
    notes = [f"as {route.model}" if route.renamed else "", f"{wires} only" if wires else ""]
    noted = ", ".join(note for note in notes if note)
    return f"{served.upstream.name} ({noted})" if noted else served.upstream.name


def print_tools(tools: Sequence[ToolSpec], policy: Policy, prices: CallPrices) -> None:
    """Print a table of tools with their effect, the policy's decision and the rule that made it.

    If any of them has a price, there is a column with the price of a call.
    """
    costs = [prices.of(spec.name) for spec in tools]
    priced = any(cost is not None for cost in costs)
    rows = [
        decision_cells(spec, policy.decide(spec), spec.effect, *([cost_text(cost)] if priced else []))
        for spec, cost in zip(tools, costs, strict=True)
    ]
    print_table(("tool", "effect", *(["price"] if priced else []), "decision", "rule"), rows)


def token_lines(config: Config) -> list[str]:
    """Return what an unencrypted record means for OAuth 2 connections; nothing if the record is encrypted."""
    names = [
        f"credentials.{name}" for name, connection in config.credentials.items() if connection.token is None
    ]
    if not names or config.store.seals:
        return []
    return [
        f"{', '.join(names)}: the record encrypts nothing, so refreshed tokens stay in this process's memory "
        "and are lost when it ends. Set store.seal_key to keep them encrypted in the store"
    ]


def _served_lines(config: Config) -> list[str]:
    """Return which rules do not apply if clients call tools themselves."""
    if not config.mcp.serve or config.policy.after_untrusted == "allow":
        return []
    return [
        "mcp.serve: policy.after_untrusted does not apply at /mcp, because only the client has the "
        "conversation"
    ]


def upstream_lines(config: Config, services: Services) -> list[str]:
    """Return, for each upstream that restricts the tools, the allowed ones withheld from its models."""
    lines = []
    for name, upstream in config.upstreams.items():
        patterns = upstream.tool_patterns
        if patterns is None or not config.tools.enabled:
            continue
        withheld = [
            spec.name
            for spec in services.catalog.tools()
            if spec.name not in PROXY_TOOLS  # Offered where a model has something to search for or to call.
            and services.policy.decide(spec).allowed
            and not any(fits(spec.name, pattern) for pattern in patterns)
        ]
        if withheld:
            lines.append(
                f"upstream {name}: its models are not offered {', '.join(withheld)} (upstreams.{name}.tools)"
            )
    return lines


def agent_lines(config: Config, services: Services) -> list[str]:
    """Return, for each agent, its model and the tools that policy lets it use."""
    allowed = [
        spec.name for spec in services.catalog.tools() if services.policy.decide(spec).outcome != "denied"
    ]
    lines = []
    for name, agent in config.agents.items():
        tools = [tool for tool in allowed if agent.takes(tool)]
        model = f"model {agent.model}" if agent.model else "the model of the run that calls it"
        lines.append(f"agent {name}: {model}; tools: {', '.join(tools) or 'none'}")
    return lines


def hosted_lines(config: Config, services: Services) -> list[str]:
    """Return, for each tool of providers, the server tool that runs it, unless this is not loaded."""
    names = {spec.name for spec in services.catalog.tools()}
    return [
        f"clients that declare their provider's {kind} get {target}, unless the upstream runs it itself "
        "(upstreams.*.native)"
        for kind, target in serving_tools(config).items()
        if target in names
    ]


def withheld_lines(config: Config, services: Services) -> list[str]:
    """Return, for each tool that is not offered, the line that would allow it, or the rule against it."""
    if not config.tools.enabled:
        return ["tools.enabled = false: the proxy offers no tools and passes every request through"]
    lines: list[str] = []
    for spec in services.catalog.tools():
        decision = services.policy.decide(spec)
        if decision.rule == services.policy.missing_connection(spec):
            lines.append(f"not offered: {spec.name}: {decision.rule}")
        elif decision.outcome == "denied":
            lines.append(f"not offered: {spec.name}: to allow it, set {allow_line(config, spec.name)}")
        elif not decision.allowed:
            lines.append(f"{how_withheld(config)}: {spec.name}: {decision.rule}")
    return lines + _idle_patterns(config, services) + _idle_aliases(config, services)


def _idle_patterns(config: Config, services: Services) -> list[str]:
    """Return the patterns of ``policy.allow``, upstreams and agents that match no tool: a typing error, or a
    tool that is not loaded."""
    lines = idle_lines("policy.allow", config.policy.allow, services.catalog)
    for name, upstream in config.upstreams.items():
        patterns = upstream.tool_patterns or ()
        lines += idle_lines(f"upstreams.{name}.tools", patterns, services.catalog)
    for name, agent in config.agents.items():
        lines += idle_lines(f"agents.{name}.tools", agent.tools, services.catalog)
    return lines


def _idle_aliases(config: Config, services: Services) -> list[str]:
    """Return the aliases that name no tool, so that the function remains the client's."""
    names = [spec.name for spec in services.catalog.tools()]
    lines: list[str] = []
    tables: dict[str, Mapping[str, str]] = {
        "aliases": config.tools.aliases,
        "hosted": serving_tools(config),
    }
    for setting, table in tables.items():
        for alias, target in table.items():
            if target not in names:
                near = get_close_matches(target, names, n=1, cutoff=0.75)
                remedy = f'. Did you mean "{near[0]}"?' if near else ""
                lines.append(f'tools.{setting}.{alias}: no tool "{target}" is loaded{remedy}')
    return lines


def allow_line(config: Config, tool: str) -> str:
    """Return the exact line that also allows this tool."""
    patterns = ", ".join(f'"{pattern}"' for pattern in (*config.policy.allow, tool))
    return f"policy.allow = [{patterns}]"


async def _probe_all(config: Config, services: Services, unasked: Collection[str]) -> list[str]:
    """Probe every upstream, one after the other; print a table, and return the faults."""
    rows: list[Sequence[object]] = []
    faults: list[str] = []
    spoken: dict[str, list[SpokenDialect]] = {}
    settings = config.key_settings()
    for name, upstream in services.upstreams.items():
        if name in unasked:
            continue
        wires = _wires(config, name)
        result = await probe(upstream, _probe_model(config, name), wires=wires)
        if result.model is not None and not result.lacks_v1 and name in config.upstreams:
            spoken[name] = await find_dialects(upstream, built_in_wires(), result.model)
        rows.append((name, *_cells(result)))
        if result.lacks_v1:
            faults.append(v1_fault(name, config.upstreams[name].base_url))
        elif result.refuses_key and name in settings:
            faults.append(f"upstreams.{name}: {result.problem}. Correct {settings[name]}")
        elif result.problem:
            faults.append(f"upstreams.{name}: {result.problem}")
        elif name in spoken and not any(
            dialect.spoken is not False for dialect in spoken[name] if dialect.name in wires
        ):
            faults.append(
                f"upstreams.{name}: the upstream answers in none of its configured dialects "
                f"({', '.join(wires)}). Correct upstreams.{name}.wires"
            )
    console().print()
    titles = ("upstream", "reachable", "models", "asked", "streams", "takes tools", "usage")
    print_table((*titles, CHAT.framing.end_text.decode()), rows)
    for name, dialects in spoken.items():
        for line in _wires_lines(name, _wires(config, name), dialects):
            say(line)
    return faults


def _wires_lines(name: str, wires: Sequence[str], dialects: Sequence[SpokenDialect]) -> list[str]:
    """Return the lines to write if an upstream speaks other dialects than its ``wires``.

    The result is empty if the probe is inconclusive for any dialect, or none is spoken.
    """
    spoken = [dialect.name for dialect in dialects if dialect.spoken]
    if not spoken or set(spoken) == set(wires) or any(dialect.spoken is None for dialect in dialects):
        return []
    heading = f"upstreams.{name} answers in these dialects: {', '.join(spoken)}. Write into toolrelay.toml:"
    return [heading, f"[upstreams.{name}]", f"wires = {toml_value(spoken)}"]


def _cells(result: ProbeResult) -> list[str]:
    flags = [result.streams, result.tools, result.usage, result.end_mark]
    listed = "-" if result.models is None else str(len(result.models))
    return [_yes(result.reachable), listed, result.model or "-", *map(_yes, flags)]


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _wires(config: Config, name: str) -> Sequence[str]:
    """Return the dialects of an upstream; Chat if the configuration lacks the upstream."""
    return config.upstreams[name].wires if name in config.upstreams else (CHAT.name,)


def _probe_model(config: Config, name: str) -> str | None:
    """Return the model to ask: the first that the configuration names without a pattern."""
    models = config.upstreams[name].models if name in config.upstreams else ()
    if isinstance(models, dict):
        return next(iter(models.values()))
    return next((model for model in models if not set(model) & set("*?[")), None)


def _models(models: tuple[str, ...] | Mapping[str, str]) -> str:
    if isinstance(models, Mapping):
        return ", ".join(f"{name} = {target}" for name, target in models.items())
    return ", ".join(models)
