"""The models, upstreams and tools that each caller sees, computed once for all callers with the same
rights."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from proxy.base.caches import Derived
from proxy.base.events import GENERATE_IMAGE
from proxy.relay.routing.router import Router
from proxy.rights.callers import Rights
from proxy.tools.access.catalog import Catalog, Registry, Selection
from proxy.tools.access.policy import Policy
from proxy.tools.agents.agent import Agent, is_agent
from proxy.tools.contract.bounds import MAX_PATTERN, ArgumentBound
from proxy.tools.contract.spec import ToolEffect
from proxy.wires.client_port import Trace

TRACES: tuple[Trace, ...] = ("silent", "reasoning", "status", "events")
"""From the least to the most that a client can see of server tools."""

_MAX_BYTES: Final = 32 * 2**20
_PERMISSIONS_BYTES: Final = 20_000
_UPSTREAM_BYTES: Final = 4000
_TOOL_BYTES: Final = 500
"""Estimated memory of one set of permissions with routes and rights, of an upstream's policy, of a tool's
decision."""


class Permissions(Struct, frozen=True):
    """The permissions of a caller.

    ``policies`` are the caller's policies by the names of the upstreams, and ``selections`` are the tools
    that are offered there. ``direct`` are the tools that are offered if no upstream takes part. ``trace`` is
    what the caller sees of tools by default, ``trace_max`` the most it may ask for. ``offers`` says whether
    any upstream has a tool for the caller, ``acts`` whether one of these tools has effects.
    """

    router: Router
    policy: Policy
    policies: Mapping[str, Policy]
    selections: Mapping[str, Selection]
    direct: Selection
    trace: Trace
    trace_max: Trace
    offers: bool
    acts: bool


def narrowed_policy(policy: Policy, rights: Rights) -> Policy:
    """Return the policy, narrowed by the tool lists and argument bounds of a caller."""
    unchanged = Policy(
        allow=("*",),
        max_argument_bytes=policy.max_argument_bytes,
        max_result_bytes=policy.max_result_bytes,
        max_image_bytes=policy.max_image_bytes,
    )
    for setting, patterns in rights.tools:
        policy = policy.intersect(replace(unchanged, allow=patterns, settings=(setting, setting, setting)))
    # Making an image asks a model, too: without one in its arguments, that of the operator.
    of_models = [{GENERATE_IMAGE: {"model": _model_bound(patterns)}} for patterns in rights.models]
    named = [*own_bounds(rights).items(), *(("the models of the key", bound) for bound in of_models)]
    for setting, arguments in named:
        policy = policy.intersect(replace(unchanged, arguments=arguments, arguments_setting=setting))
    return policy


def _model_bound(patterns: Sequence[str]) -> ArgumentBound:
    """Return the bound of an argument that is empty or a model of these patterns.

    Patterns that a bound cannot express allow nothing.
    """
    plain = [pattern for pattern in patterns if "[" not in pattern]
    allowed = "|".join(re.escape(one).replace(r"\*", ".*").replace(r"\?", ".") for one in plain)
    written = f"({allowed})?"
    return ArgumentBound(pattern=written) if len(written) <= MAX_PATTERN else ArgumentBound(enum=("",))


def own_bounds(rights: Rights) -> dict[str, dict[str, dict[str, ArgumentBound]]]:
    """Return a caller's own bounds of arguments in the form of a policy, by the names of their settings."""
    bounds_by_setting: dict[str, dict[str, dict[str, ArgumentBound]]] = {}
    for own in rights.arguments:
        bounds_by_setting.setdefault(own.setting, {}).setdefault(own.tools, {})[own.path] = own.bound
    return bounds_by_setting


class PermissionSets:
    """The permissions of all callers. Without ``tools_enabled`` no tools are offered; without ``direct`` none
    are offered if no upstream takes part."""

    def __init__(
        self,
        router: Router,
        registry: Registry,
        policy: Policy,
        *,
        tools_enabled: bool,
        traces: tuple[Trace, Trace],
        direct: bool = False,
        agents: Mapping[str, Agent] = MappingProxyType({}),
        asks: bool = False,
    ) -> None:
        """``traces`` are the default trace and the highest one. ``agents`` are by the ids of their tools.
        ``asks`` says that people can be asked about calls that need an approval."""
        self._agents = agents
        self._router = router
        self._registry = registry
        self._policy = policy
        self._tools_enabled = tools_enabled
        self._direct = direct and tools_enabled
        self._asks = asks
        self._trace = TRACES.index(traces[0])
        self._trace_max = TRACES.index(traces[1])
        self._cached: Derived[Rights, Permissions] = Derived("views", _MAX_BYTES, _permissions_bytes)

    def of(self, rights: Rights) -> Permissions:
        """Return the permissions of all callers with these rights, for the tools that are served now."""
        catalog = self._registry.current
        cached = self._cached.of(catalog)
        known = cached.get(rights)
        return cached.put(rights, self._made(rights, catalog)) if known is None else known

    def _made(self, rights: Rights, catalog: Catalog) -> Permissions:
        policy = narrowed_policy(self._policy, rights)
        most = min(self._trace_max, TRACES.index(rights.trace_max or "events"))
        narrowed = rights.models or rights.upstreams is not None
        router = self._router.narrowed(rights.upstreams, rights.models) if narrowed else self._router
        policies = {served.upstream.name: served.policy(policy) for served in router.served}
        selections = {
            name: _without_tools(catalog.select(here, asks=self._asks), self._forbidden_agents(router))
            for name, here in policies.items()
        }
        if not self._tools_enabled:
            selections = {
                name: structs.replace(parts, offered=(), withheld={}, guards=False)
                for name, parts in selections.items()
            }
        return Permissions(
            router=router,
            policy=policy,
            policies=policies,
            selections=selections,
            direct=self._direct_tools(policy, catalog),
            offers=any(selection.offered for selection in selections.values()),
            acts=any(
                spec.effect is not ToolEffect.READ_ONLY
                for selection in selections.values()
                for spec in selection.offered
            ),
            trace=TRACES[min(self._trace, most)],
            trace_max=TRACES[most],
        )

    def _forbidden_agents(self, router: Router) -> Mapping[str, str]:
        """Return the agents whose models the caller may not use, each with the rule."""
        return {
            tool: f"agents.{agent.name}.model is a model that this caller may not use"
            for tool, agent in self._agents.items()
            if agent.model and not router.serves(agent.model)
        }

    def _direct_tools(self, policy: Policy, catalog: Catalog) -> Selection:
        """Return the tools for calls without an upstream: no agents, because they need a run that asks a
        model."""
        if not self._direct:
            return Selection(catalog)
        rule = "an agent runs only inside of a request that asks a model"
        selection = catalog.select(policy)
        return _without_tools(
            selection, {spec.name: rule for spec in selection.offered if is_agent(spec.name)}
        )


def _without_tools(selection: Selection, rules: Mapping[str, str]) -> Selection:
    """Return a selection without the tools in ``rules``."""
    withheld = {spec.name: rules[spec.name] for spec in selection.offered if spec.name in rules}
    if not withheld:
        return selection
    offered = tuple(spec for spec in selection.offered if spec.name not in withheld)
    return structs.replace(selection, offered=offered, withheld={**selection.withheld, **withheld})


def _permissions_bytes(_: Rights, permissions: Permissions) -> int:
    selections = (permissions.direct, *permissions.selections.values())
    tools = sum(len(selection.offered) + len(selection.withheld) for selection in selections)
    return _PERMISSIONS_BYTES + _UPSTREAM_BYTES * len(permissions.policies) + _TOOL_BYTES * tools
