"""What each caller sees of models, upstreams and tools: worked out once for all who may the same."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from proxy.caches import CacheSize, declare
from proxy.relay.routing.router import Router
from proxy.server.callers import Rights
from proxy.tools.access.catalog import Registry, Selection
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound
from proxy.tools.contract.spec import ToolEffect
from proxy.wires.base import Trace

__all__ = ["TRACES", "PermissionSets", "Permissions", "narrowed_policy", "own_bounds"]

TRACES: tuple[Trace, ...] = ("silent", "reasoning", "status", "events")
"""From the least to the most that a client can see of server tools."""

_MOST: Final = 1024
_MAX_BYTES: Final = 32 * 2**20
_VIEW_BYTES: Final = 20_000
_UPSTREAM_BYTES: Final = 4000
_TOOL_BYTES: Final = 500
"""What a view takes, its routes and rights too; of each upstream a policy; of each tool its decision."""
"""Views that are held: keys are few, but each minted token may be narrowed in its own way."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """What somebody may use.

    ``policies`` is what of their policy holds at each upstream, by its name, ``selections`` are the
    tools that are offered there.  ``trace`` is what
    they see of tools unasked, ``trace_max`` the most they may ask for.  ``offers`` says whether any
    upstream has a tool for them, ``acts`` whether one of those has effects.
    """

    router: Router
    policy: Policy
    policies: Mapping[str, Policy]
    selections: Mapping[str, Selection]
    trace: Trace
    trace_max: Trace
    offers: bool
    acts: bool


def narrowed_policy(policy: Policy, rights: Rights) -> Policy:
    """The policy, and what of it somebody's lists of tools and bounds of arguments leave."""
    unchanged = Policy(
        allow=("*",),
        max_argument_bytes=policy.max_argument_bytes,
        max_result_bytes=policy.max_result_bytes,
        max_image_bytes=policy.max_image_bytes,
    )
    for setting, patterns in rights.tools:
        policy = policy.intersect(replace(unchanged, allow=patterns, settings=(setting, setting, setting)))
    for setting, arguments in own_bounds(rights).items():
        policy = policy.intersect(replace(unchanged, arguments=arguments, arguments_setting=setting))
    return policy


def own_bounds(rights: Rights) -> dict[str, dict[str, dict[str, ArgumentBound]]]:
    """Somebody's own bounds of arguments, as a policy has them, by what they are written under."""
    found: dict[str, dict[str, dict[str, ArgumentBound]]] = {}
    for own in rights.arguments:
        found.setdefault(own.setting, {}).setdefault(own.tools, {})[own.path] = own.bound
    return found


class PermissionSets:
    """Without ``tools_enabled`` nobody is offered any."""

    def __init__(
        self,
        router: Router,
        registry: Registry,
        policy: Policy,
        *,
        tools_enabled: bool,
        trace: Trace,
        trace_max: Trace,
    ) -> None:
        self._router = router
        self._registry = registry
        self._policy = policy
        self._tools_enabled = tools_enabled
        self._trace = TRACES.index(trace)
        self._trace_max = TRACES.index(trace_max)
        self._views: OrderedDict[Rights, Permissions] = OrderedDict()
        self._last: dict[int, tuple[Rights, Permissions]] = {}
        self._bytes = 0
        declare("views", self._cache_size)

    def of(self, rights: Rights) -> Permissions:
        """The view of everybody who has these rights."""
        # By identity: a key's rights are one object, and to compare two costs more than all that follows.
        known = self._last.get(id(rights))
        if known is None:
            if len(self._last) >= _MOST:
                self._last.clear()
            # What is held here stays what it is.
            known = self._last[id(rights)] = (rights, self._shared(rights))
        return known[1]

    def _shared(self, rights: Rights) -> Permissions:
        found = self._views.get(rights)
        if found is None:
            found = self._views[rights] = self._made(rights)
            self._bytes += _view_bytes(found)
            while self._bytes > _MAX_BYTES or len(self._views) > _MOST:
                _, gone = self._views.popitem(last=False)
                self._bytes -= _view_bytes(gone)
                self._last.clear()
        return found

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes + 200 * len(self._last), _MAX_BYTES + 200 * _MOST)

    def _made(self, rights: Rights) -> Permissions:
        policy = narrowed_policy(self._policy, rights)
        most = min(self._trace_max, TRACES.index(rights.trace_max or "events"))
        narrowed = rights.models or rights.upstreams is not None
        router = self._router.narrowed(rights.upstreams, rights.models) if narrowed else self._router
        policies = {served.upstream.name: served.policy(policy) for served in router.served}
        selections = {
            name: self._registry.select(here) if self._tools_enabled else Selection((), {})
            for name, here in policies.items()
        }
        return Permissions(
            router=router,
            policy=policy,
            policies=policies,
            selections=selections,
            offers=any(selection.offered for selection in selections.values()),
            acts=any(
                spec.effect is not ToolEffect.READ_ONLY
                for selection in selections.values()
                for spec in selection.offered
            ),
            trace=TRACES[min(self._trace, most)],
            trace_max=TRACES[most],
        )


def _view_bytes(view: Permissions) -> int:
    tools = sum(len(selection.offered) + len(selection.withheld) for selection in view.selections.values())
    return _VIEW_BYTES + _UPSTREAM_BYTES * len(view.policies) + _TOOL_BYTES * tools
