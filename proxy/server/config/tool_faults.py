"""Finds settings about tools that do not fit the loaded tools."""

from collections.abc import Iterable, Mapping

from proxy.errors import ConfigError
from proxy.globs import fits
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.schema import may_have

__all__ = ["misplaced_bounds", "missing_connections"]


def missing_connections(catalog: Catalog, policy: Policy) -> list[ConfigError]:
    """Return one fault for each tool that ``policy.allow`` names in full and that lacks its credentials.

    A tool that only a pattern allows is withheld instead: ``*`` does not mean that there is an account for
    everything.
    """
    return [
        ConfigError(
            f"credentials.{spec.connection}",
            f"is missing; the tool {spec.name}, which policy.allow names, needs it",
            f"Write [credentials.{spec.connection}], or remove the tool from policy.allow",
        )
        for spec in catalog.tools()
        if policy.missing_connection(spec) and spec.name in policy.allow
    ]


def misplaced_bounds(
    catalog: Catalog, where: str, arguments: Mapping[str, Iterable[str]], *, whole: bool = True
) -> list[ConfigError]:
    """Return one fault for each bound that limits no argument, because a typing error there would be a
    security hole.

    ``arguments`` are the bounded paths by tool pattern, ``where`` is the name of their setting. If the
    catalog is not ``whole``, a pattern that matches no tool may match one that did not load.
    """
    faults = []
    for pattern, bounds in arguments.items():
        setting = f'{where}."{pattern}"'
        specs = [spec for spec in catalog.tools() if fits(spec.name, pattern)]
        if not specs:
            if whole:
                faults.append(
                    ConfigError(setting, "matches no loaded tool", "Correct the name, or remove it")
                )
            continue
        faults += [
            ConfigError(f"{setting}.{path}", f"{specs[0].name} has no such argument", "Correct it")
            for path in bounds
            if not any(may_have(spec.parameters, path) for spec in specs)
        ]
    return faults
