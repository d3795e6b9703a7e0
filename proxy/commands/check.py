"""``toolrelay check``: everything that can be wrong, said before it matters."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rich.table import Table

from proxy.commands.common import console, say, say_error, text
from proxy.commands.server import find_unreachable
from proxy.errors import ConfigError
from proxy.server.config import Config
from proxy.server.probe import ProbeResult, probe
from proxy.tools.policy import Policy
from proxy.tools.registry import Registry
from proxy.tools.spec import ToolSpec
from proxy.upstreams.base import Upstream

__all__ = [
    "CheckedServices",
    "allow_line",
    "check",
    "check_composed",
    "report_faults",
    "tool_table",
    "withheld_lines",
]


class CheckedServices(Protocol):
    """What of the composed services a check looks at."""

    @property
    def registry(self) -> Registry: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def upstreams(self) -> Mapping[str, Upstream]: ...


def report_faults(faults: Iterable[ConfigError]) -> int:
    """One line on standard error for each fault; returns how many there were."""
    count = 0
    for fault in faults:
        say_error(str(fault))
        count += 1
    return count


async def check_composed(config: Config, *, probing: bool) -> int:
    """:func:`check` over the services as the server would make them."""
    from proxy.server.app import create_services

    services = await create_services(config)
    try:
        return await check(config, services, probing=probing)
    finally:
        await services.aclose()


async def check(config: Config, services: CheckedServices, *, probing: bool) -> int:
    """Print upstreams and tools; returns the number of faults, each printed as one line."""
    out = console()
    upstreams = Table(box=None, pad_edge=False)
    for title in ("upstream", "address", "key", "wires", "models"):
        upstreams.add_column(title)
    for name, upstream in config.upstreams.items():
        upstreams.add_row(
            text(name),
            text(upstream.base_url),
            text(upstream.api_key.reference if upstream.api_key else "none"),
            text(", ".join(upstream.wires)),
            text(_models(upstream.models)),
        )
    out.print(upstreams)
    out.print()
    out.print(tool_table(services.registry.tools(), services.policy))
    for line in withheld_lines(config, services):
        say(line)
    faults = await find_unreachable({name: upstream.base_url for name, upstream in config.upstreams.items()})
    if probing:
        faults.extend(await _probe_all(config, services))
    for fault in dict.fromkeys(faults):
        say_error(fault)
    if not faults:
        say("No faults found.")
    return len(faults)


def tool_table(tools: Sequence[ToolSpec], policy: Policy) -> Table:
    """Each tool with its effect, the policy's decision and the rule that made it."""
    table = Table(box=None, pad_edge=False)
    for title in ("tool", "effect", "decision", "rule"):
        table.add_column(title)
    for spec in tools:
        decision = policy.decide(spec)
        table.add_row(
            text(spec.name),
            text(spec.effect),
            text(decision.outcome.replace("_", " "), "green" if decision.allowed else "yellow"),
            text(decision.rule),
        )
    return table


def withheld_lines(config: Config, services: CheckedServices) -> list[str]:
    """For each tool that is not allowed, the line of configuration that would allow it."""
    if not config.tools.enabled:
        return ["tools.enabled = false: no tool is offered, everything is passed through"]
    return [
        f"withheld {spec.name}: {allow_line(config, spec.name)}"
        for spec in services.registry.tools()
        if services.policy.decide(spec).outcome == "denied"
    ]


def allow_line(config: Config, tool: str) -> str:
    """The exact line that allows one tool more."""
    patterns = ", ".join(f'"{pattern}"' for pattern in (*config.policy.allow, tool))
    return f"policy.allow = [{patterns}]"


async def _probe_all(config: Config, services: CheckedServices) -> list[str]:
    """Ask every upstream, one after the other; print a table, return the faults."""
    table = Table(box=None, pad_edge=False)
    for title in ("upstream", "reachable", "models", "asked", "streams", "takes tools", "usage", "[DONE]"):
        table.add_column(title)
    faults: list[str] = []
    for name, upstream in services.upstreams.items():
        result = await probe(upstream, _probe_model(config, name))
        table.add_row(text(name), *_cells(result))
        if result.problem:
            faults.append(f"upstreams.{name}: {result.problem}")
    out = console()
    out.print()
    out.print(table)
    return faults


def _cells(result: ProbeResult) -> list[str]:
    flags = [result.streams, result.tools, result.usage, result.end_mark]
    listed = "-" if result.models is None else str(len(result.models))
    return [
        _yes(result.reachable),
        listed,
        str(text(result.model or "-")),
        *(_yes(flag) for flag in flags),
    ]


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _probe_model(config: Config, name: str) -> str | None:
    """The model to ask: the first that the configuration names without a pattern."""
    models = config.upstreams[name].models if name in config.upstreams else ()
    if isinstance(models, dict):
        return next(iter(models.values()))
    return next((model for model in models if not set(model) & set("*?[")), None)


def _models(models: tuple[str, ...] | Mapping[str, str]) -> str:
    if isinstance(models, Mapping):
        return ", ".join(f"{name} = {target}" for name, target in models.items())
    return ", ".join(models)
