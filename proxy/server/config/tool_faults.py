"""What a configuration says of tools that does not fit the tools that are there."""

from collections.abc import Iterable, Mapping

from proxy.errors import ConfigError
from proxy.globs import fits
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.schema import may_have

__all__ = ["misplaced_bounds", "missing_connections", "unconnected"]


def missing_connections(registry: Registry, policy: Policy) -> list[ConfigError]:
    """One fault for each tool that is allowed by its very name and lacks its credentials.

    One that only a pattern allows is withheld instead: ``*`` does not mean that there is an
    account for everything.
    """
    return [
        ConfigError(
            f"credentials.{spec.connection}",
            f"is missing, and {spec.name}, which policy.allow names, needs it",
            f"Write [credentials.{spec.connection}], or take the tool out of policy.allow",
        )
        for spec in registry.tools()
        if spec.name in policy.unavailable and spec.name in policy.allow
    ]


def misplaced_bounds(
    registry: Registry, where: str, arguments: Mapping[str, Iterable[str]], *, whole: bool = True
) -> list[ConfigError]:
    """One fault for each bound of arguments that bounds nothing: a typing error there is a hole.

    ``arguments`` are the bounded paths by the pattern of their tools, ``where`` is what they are
    written under.  Where the registry is not ``whole``, a pattern that fits no tool may fit one that
    did not load.
    """
    faults = []
    for pattern, bounds in arguments.items():
        setting = f'{where}."{pattern}"'
        specs = [spec for spec in registry.tools() if fits(spec.name, pattern)]
        if not specs:
            if whole:
                faults.append(ConfigError(setting, "fits no tool that is loaded", "Correct it, or remove it"))
            continue
        faults += [
            ConfigError(f"{setting}.{path}", f"{specs[0].name} takes no such argument", "Correct it")
            for path in bounds
            if not any(may_have(spec.parameters, path) for spec in specs)
        ]
    return faults


def unconnected(registry: Registry, connections: frozenset[str] | None) -> dict[str, str]:
    """Each tool whose credentials are not configured, with what is missing."""
    if connections is None:
        return {}
    return {
        spec.name: f"credentials.{spec.connection} is missing"
        for spec in registry.tools()
        if spec.connection and spec.connection not in connections
    }
