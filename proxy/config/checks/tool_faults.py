"""Finds settings about tools that do not fit the loaded tools."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from proxy.base.errors import ConfigError
from proxy.base.globs import fits
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.schemas.schema import may_have


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


class BoundFault(Struct, frozen=True):
    """A bound that limits no argument.

    ``tools`` are those that its pattern matches. It is ``passing`` if only tools of configured MCP servers
    or APIs can match: an operator allows and denies them, and they change, while the configuration stays.
    """

    error: ConfigError
    pattern: str
    tools: tuple[str, ...] = ()
    passing: bool = False


def misplaced_bounds(
    catalog: Catalog,
    where: str,
    arguments: Mapping[str, Iterable[str]],
    *,
    whole: bool = True,
    pinned: Iterable[str] = (),
) -> list[BoundFault]:
    """Return one fault for each bound that limits no argument, because a typing error there would be a
    security hole.

    ``arguments`` are the bounded paths by tool pattern, ``where`` is the name of their setting. If the
    catalog is not ``whole``, a pattern that matches no tool may match one that did not load. ``pinned`` are
    the patterns of tools that an operator allows one by one.
    """
    heads = [each.rstrip("*") for each in pinned]
    faults = []
    for pattern, bounds in arguments.items():
        setting = f'{where}."{pattern}"'
        specs = [spec for spec in catalog.tools() if fits(spec.name, pattern)]
        start = pattern.partition("*")[0]
        foreign = any(start.startswith(head) or head.startswith(start) for head in heads)
        passing = foreign and all(spec.origin is not None for spec in specs)
        if not specs and passing:
            problem = "matches no tool that is allowed now, so this limit has no effect yet"
            error = ConfigError(setting, problem, f"To allow it: toolrelay tools allow '{pattern}'")
            faults.append(BoundFault(error, pattern, passing=True))
        elif not specs and whole:
            error = ConfigError(setting, "matches no loaded tool", "Correct the name, or remove it")
            faults.append(BoundFault(error, pattern))
        names = tuple(spec.name for spec in specs)
        faults += [
            BoundFault(
                ConfigError(f"{setting}.{path}", f"{names[0]} has no such argument", "Correct it"),
                pattern,
                names,
                passing,
            )
            for path in bounds
            if specs and not any(may_have(spec.parameters, path) for spec in specs)
        ]
    return faults
