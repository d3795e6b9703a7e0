"""``toolrelay check``: everything that can be wrong, said before it matters."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.table import Table
from rich.text import Text

from proxy.commands.common import console, say, say_error, text
from proxy.commands.server import find_unreachable
from proxy.server.app import create_services
from proxy.server.config import Config
from proxy.server.probe import ProbeResult, probe
from proxy.server.settings import StoreConfig
from proxy.store.factory import open_store
from proxy.tools.policy import Policy
from proxy.tools.registry import Registry
from proxy.tools.spec import ToolSpec
from proxy.upstreams.base import Upstream

__all__ = [
    "CheckedServices",
    "allow_line",
    "check",
    "check_composed",
    "tool_table",
    "withheld_lines",
    "without_record",
]


class CheckedServices(Protocol):
    """What of the composed services a check looks at."""

    @property
    def registry(self) -> Registry: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def upstreams(self) -> Mapping[str, Upstream]: ...


async def check_composed(config: Config, *, probing: bool) -> int:
    """:func:`check` over the services as the server would make them, with no record opened or made.

    Raises ConfigError for a record that could not be opened, and for tools that do not load.
    """
    seal_key = config.store.seal_key.reveal() if config.store.seal_key else ""
    open_store(config.store.url, seal_key=seal_key)  # A look at its place; the start makes the file.
    services = await create_services(without_record(config))
    try:
        missing = [str(fault) for fault in services.missing_connections()]
        return await check(config, services, probing=probing, known=missing)
    finally:
        await services.aclose()


def without_record(config: Config) -> Config:
    """The same configuration for a look at its tools that leaves no trace."""
    return config.model_copy(update={"store": StoreConfig(url="memory:")})


async def check(
    config: Config, services: CheckedServices, *, probing: bool, known: Sequence[str] = ()
) -> int:
    """Print upstreams and tools; returns the number of faults, each printed as one line.

    ``known`` are faults that were found already.
    """
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
    if probing:
        faults = await _probe_all(config, services)
    else:
        faults = await find_unreachable(
            {name: upstream.base_url for name, upstream in config.upstreams.items()}
        )
    faults = [*known, *faults]
    for fault in faults:
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
    """For each tool that is not offered, the line that would allow it, or the rule that forbids it."""
    if not config.tools.enabled:
        return ["tools.enabled = false: no tool is offered, everything is passed through"]
    lines: list[str] = []
    for spec in services.registry.tools():
        decision = services.policy.decide(spec)
        if decision.rule == services.policy.unavailable.get(spec.name):
            lines.append(f"withheld {spec.name}: {decision.rule}")
        elif decision.outcome == "denied":
            lines.append(f"withheld {spec.name}: to allow it, set {allow_line(config, spec.name)}")
        elif not decision.allowed:
            lines.append(f"withheld {spec.name}: {decision.rule}, and this version can ask for no approval")
    return lines


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


def _cells(result: ProbeResult) -> list[Text]:
    flags = [result.streams, result.tools, result.usage, result.end_mark]
    listed = "-" if result.models is None else str(len(result.models))
    cells = [_yes(result.reachable), listed, result.model or "-", *(_yes(flag) for flag in flags)]
    return [text(cell) for cell in cells]


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
