"""Which tools there are.  A tool is looked up by its exact id; nothing is normalised or guessed.

The tools of one moment are a :class:`Catalog`, which never changes.  A run keeps the one that it was planned
with to its end; the :class:`Registry` has the newest.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

import structlog

from proxy.caches import Snapshot
from proxy.errors import ConfigError, Guard
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import IdempotencyKey
from proxy.tools.contract.identifiers import check_tool_id
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.contract.schema import check_schema
from proxy.tools.contract.spec import ToolEffect, ToolSpec

__all__ = ["MOST_OFFERED", "Catalog", "CatalogCheck", "Registry", "Selection", "too_many_offered"]

MOST_OFFERED: Final = 128
"""The most tools that OpenAI accepts in one request.  Source: its API reference, ``tools`` of Chat."""

_MOST_NAMES: Final = 2000
"""Ids that are remembered of tools that were served; past these none is added."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What a policy says of the tools of a catalog.

    ``offered`` are those that a model may see, sorted by id; ``withheld`` has for each other one the rule,
    ``asking`` are those that need an approval; with ``asks`` they are offered, too, since somebody can be
    asked about their calls.  ``guards`` says that an untrusted result would change what one of ``offered``
    needs.  A selection is equal to itself alone.
    """

    catalog: "Catalog"
    offered: tuple[ToolSpec, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)
    asking: frozenset[str] = frozenset()
    guards: bool = False
    asks: bool = False


class Catalog(Snapshot):
    """All tools of all providers at one moment; ``version`` counts from 1."""

    def __init__(
        self,
        tools: Iterable[tuple[ToolSpec, ToolProvider]] = (),
        version: int = 1,
        guard: Guard = nullcontext,
    ) -> None:
        """``guard`` stands around each tool.

        Raises :class:`~proxy.errors.ConfigError` for an id that is not allowed, for one id of two
        tools (rule T5), for a tool without a redaction rule (rule T4) and for a schema that a wire cannot
        take (rule T8).
        """
        super().__init__(version)
        found: dict[str, tuple[ToolSpec, ToolProvider]] = {}
        for spec, provider in tools:
            with guard():
                _check(spec, provider)
                if spec.name in found:
                    raise ConfigError(f"tool {spec.name}", "two tools have this id", "rename or remove one")
                found[spec.name] = (spec, provider)
        self._tools = dict(sorted(found.items()))

    def get(self, name: str) -> ToolSpec | None:
        """The tool of exactly this id."""
        found = self._tools.get(name)
        return found[0] if found else None

    def provider(self, name: str) -> ToolProvider:
        """Who runs the tool of this id; ``KeyError`` if there is none.  For the runner only."""
        return self._tools[name][1]

    def tools(self) -> Sequence[ToolSpec]:
        """Every tool, sorted by id, so that what is offered is the same every time (rule T7)."""
        return tuple(spec for spec, _ in self._tools.values())

    def select(self, policy: Policy, *, asks: bool = False) -> Selection:
        """What a caller under ``policy`` is offered; with ``asks`` also what needs an approval."""
        decisions = [(spec, policy.decide(spec)) for spec in self.tools()]
        asking = frozenset(spec.name for spec, said in decisions if said.outcome == "needs_approval")
        allowed = [spec for spec, decision in decisions if decision.allowed]
        offered = tuple(
            spec for spec, decision in decisions if decision.allowed or (asks and spec.name in asking)
        )
        taken = {spec.name for spec in offered}
        return Selection(
            catalog=self,
            offered=offered,
            withheld={spec.name: said.rule for spec, said in decisions if spec.name not in taken},
            asking=asking,
            guards=policy.guards_after_untrusted
            and any(not policy.decide(spec, untrusted="x").allowed for spec in allowed),
            asks=asks,
        )


def too_many_offered(catalog: Catalog, policy: Policy) -> int:
    """How many tools a request is offered that chooses none, if some provider refuses so many; else 0."""
    offered = len(catalog.select(policy).offered)
    return offered if offered > MOST_OFFERED else 0


CatalogCheck = Callable[[Catalog], None]
"""Raises :class:`~proxy.errors.ConfigError` for tools that do not fit the configuration."""


class Registry:
    """The newest catalog, of providers that are the same for the life of the process.

    Another may take its place at any time (:meth:`refresh`, :meth:`replace`).  Requests that come afterwards
    are planned with it.  Runs under way go on with theirs, and call also what is gone from the new one; when
    the last of them has ended, nothing is left of the old one.  Belongs to one event loop.
    """

    def __init__(self, current: Catalog, providers: Iterable[ToolProvider] = ()) -> None:
        self.current = current
        self._providers = tuple(providers)
        self._served = frozenset(spec.name for spec in current.tools())
        self._check: CatalogCheck = lambda catalog: None
        self._refreshing = asyncio.Lock()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    @classmethod
    async def load(cls, providers: Iterable[ToolProvider], guard: Guard = nullcontext) -> "Registry":
        """Ask every provider for its tools; ``guard`` and what is raised are as for :class:`Catalog`."""
        asked = tuple(providers)
        return cls(Catalog(await _listed(asked), guard=guard), asked)

    def __contains__(self, name: object) -> bool:
        """Whether a tool of this id is served or was, as far as that is remembered."""
        return name in self._served

    def hold_to(self, check: CatalogCheck) -> None:
        """Have every catalog to come pass ``check``, too."""
        self._check = check

    async def refresh(self, *, quiet: bool = False) -> Catalog:
        """Ask every provider for its tools again, and serve what they say; ``quiet``: log nothing of it.

        Whoever calls this while it runs is answered with what the providers say after the call.  Raises what
        a provider raises, and as :meth:`replace`; the catalog stays the old one then.
        """
        async with self._refreshing:
            return self.replace(await _listed(self._providers), quiet=quiet)

    def replace(self, tools: Iterable[tuple[ToolSpec, ToolProvider]], *, quiet: bool = False) -> Catalog:
        """Serve these tools in place of all that are served now, each run by the provider beside it.

        Raises :class:`~proxy.errors.ConfigError` for what would have stopped the start (see :class:`Catalog`
        and :meth:`hold_to`); the catalog stays the old one then.
        """
        old = self.current
        new = Catalog(tools, old.version + 1)
        self._check(new)
        names = frozenset(spec.name for spec in new.tools())
        if len(known := self._served | names) <= _MOST_NAMES:
            self._served = known
        self.current = new
        old.retire()
        if quiet:
            return new
        before = {spec.name: spec.digest for spec in old.tools()}
        self._log.info(
            "tools_replaced",
            version=new.version,
            tools=len(names),
            added=len(names - before.keys()),
            removed=len(before.keys() - names),
            changed=sum(before.get(spec.name, spec.digest) != spec.digest for spec in new.tools()),
        )
        return new

    async def aclose(self) -> None:
        """Close every provider."""
        for provider in self._providers:
            await provider.aclose()


async def _listed(providers: Iterable[ToolProvider]) -> list[tuple[ToolSpec, ToolProvider]]:
    return [(spec, provider) for provider in providers for spec in await provider.list_tools()]


def _check(spec: ToolSpec, provider: ToolProvider) -> None:
    """Refuse a tool that cannot be served, whatever others there are."""
    where = f"tool {spec.name}"
    check_tool_id(spec.name, provider.name)
    if spec.redaction is None:
        raise ConfigError(where, "redaction_missing: a tool without a redaction rule does not load")
    check_schema(spec.parameters, where)
    # A tool with effects whose result is given out again, or that may take effect twice.
    if spec.effect is ToolEffect.READ_ONLY:
        return
    if spec.cache_ttl_s > 0:
        raise ConfigError(where, "cache_ttl_s is for read_only tools only")
    if spec.retries > 0 and IdempotencyKey.__name__ not in spec.capabilities:
        raise ConfigError(
            where,
            "retries would let its effect happen twice",
            "take an IdempotencyKey parameter and pass it on, or declare it read_only",
        )
