"""The catalog of tools. A tool is found by its exact id; the id is never normalised or guessed.

A :class:`Catalog` has the tools of one moment and never changes. A run keeps the catalog that it was planned
with until it ends; the :class:`Registry` has the newest one.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final

import structlog
from msgspec import Struct, field

from proxy.base.caches import Snapshot
from proxy.base.errors import ConfigError, Guard
from proxy.base.events import PROXY_TOOLS
from proxy.json.in_thread import in_thread
from proxy.tools.access.call_prices import CallPrices
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import IdempotencyKey
from proxy.tools.contract.identifiers import check_tool_id
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.contract.schemas.schema import check_schema
from proxy.tools.contract.spec import ToolEffect, ToolSpec

MOST_OFFERED: Final = 128
"""The most tools that OpenAI accepts in one request. Source: its API reference, ``tools`` of Chat."""

_MOST_NAMES: Final = 2000
"""The most ids of served tools that are remembered; above this number none is added."""


class Selection(Struct, frozen=True, eq=False):
    """The decisions of a policy about the tools of a catalog.

    ``offered`` are the tools that a model may see, sorted by id; ``withheld`` has the rule for each other
    tool. ``asking`` are the ids of the tools that need an approval. With ``asks`` those tools are offered
    too, since their calls can wait for an approval. ``guards`` says that after an untrusted result some
    allowed tool would need an approval. Selections compare by identity.
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
        *,
        checked: "Catalog | None" = None,
    ) -> None:
        """Check each tool inside ``guard()``, except the very objects that ``checked`` has.

        Raises :class:`ConfigError` for an invalid id, for two tools with the same id (rule T5),
        for a tool without a redaction rule (rule T4) and for a schema that a wire cannot carry (rule T8).
        """
        super().__init__(version)
        by_name: dict[str, tuple[ToolSpec, ToolProvider]] = {}
        for spec, provider in tools:
            with guard():
                if checked is None or checked.get(spec.name) is not spec:
                    _check(spec, provider)
                if spec.name in by_name:
                    raise ConfigError(f"tool {spec.name}", "two tools have this id", "rename or remove one")
                by_name[spec.name] = (spec, provider)
        self._tools = dict(sorted(by_name.items()))

    def without(self, names: Container[str]) -> "Catalog":
        """Return a catalog of the same version that lacks these tools."""
        kept = (entry for name, entry in self._tools.items() if name not in names)
        return Catalog(kept, self.version, checked=self)

    def get(self, name: str) -> ToolSpec | None:
        """Return the tool with exactly this id, or ``None``."""
        entry = self._tools.get(name)
        return entry[0] if entry else None

    def provider(self, name: str) -> ToolProvider:
        """Return the provider of the tool with this id; raise ``KeyError`` if none. For the runner only."""
        return self._tools[name][1]

    def tools(self) -> Sequence[ToolSpec]:
        """Return every tool, sorted by id, so that the offer is the same every time (rule T7)."""
        return tuple(spec for spec, _ in self._tools.values())

    def select(self, policy: Policy, *, asks: bool = False) -> Selection:
        """Select the tools that ``policy`` offers, with ``asks`` also those that need an approval.

        The tools that find tools and run programs are not among them: a request offers them only where they
        have something to find or to call.
        """
        tools = (spec for spec in self.tools() if spec.name not in PROXY_TOOLS)
        decisions = [(spec, policy.decide(spec)) for spec in tools]
        asking = frozenset(spec.name for spec, made in decisions if made.outcome == "needs_approval")
        allowed = [spec for spec, decision in decisions if decision.allowed]
        offered = tuple(
            spec for spec, decision in decisions if decision.allowed or (asks and spec.name in asking)
        )
        taken = {spec.name for spec in offered}
        return Selection(
            catalog=self,
            offered=offered,
            withheld={spec.name: made.rule for spec, made in decisions if spec.name not in taken},
            asking=asking,
            guards=policy.guards_after_untrusted
            and any(not policy.decide(spec, untrusted="x").allowed for spec in allowed),
            asks=asks,
        )


def too_many_offered(catalog: Catalog, policy: Policy) -> int:
    """Return the number of tools offered by default if it is above :data:`MOST_OFFERED`, else 0."""
    offered = len(catalog.select(policy).offered)
    return offered if offered > MOST_OFFERED else 0


CatalogCheck = Callable[[Catalog], Mapping[str, str]]
"""Return the tools that do not fit the configuration, each with the reason."""


class Registry:
    """The newest catalog; its providers and ``prices`` stay the same for the life of the process.

    A new catalog may replace it at any time (:meth:`refresh`, :meth:`replace`); later requests are planned
    with the new one. Runs in progress keep theirs and can still call tools that the new one lacks. When the
    last of these runs has ended, the old catalog is released. Belongs to one event loop.
    """

    def __init__(
        self,
        current: Catalog,
        providers: Iterable[ToolProvider] = (),
        prices: CallPrices | None = None,
    ) -> None:
        self.current = current
        self.prices = prices or CallPrices()
        self._providers = tuple(providers)
        self._served = frozenset(spec.name for spec in current.tools())
        self.left_out: Mapping[str, str] = {}
        self._check: CatalogCheck = lambda catalog: {}
        self._refreshing = asyncio.Lock()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    @classmethod
    async def load(
        cls,
        providers: Iterable[ToolProvider],
        guard: Guard = nullcontext,
        prices: CallPrices | None = None,
    ) -> "Registry":
        """Ask every provider for its tools; ``guard`` and the errors raised are as for :class:`Catalog`."""
        asked = tuple(providers)
        return cls(Catalog(await _listed(asked), guard=guard), asked, prices)

    def __contains__(self, name: object) -> bool:
        """Return whether a tool with this id is or was served, as far as remembered."""
        return name in self._served

    def set_check(self, check: CatalogCheck) -> None:
        """Leave out of every later catalog what ``check`` finds, in place of the check set before.

        ``left_out`` has the tools that the newest catalog lacks therefore, with the reasons.
        """
        self._check = check

    async def refresh(self, *, quiet: bool = False) -> Catalog:
        """Ask every provider for its tools again and serve them; with ``quiet`` log nothing.

        Calls run one after the other, so each returns what the providers list after the call. Raises what a
        provider or :meth:`replace` raises; the catalog then stays the old one.
        """
        async with self._refreshing:
            tools = await _listed(self._providers)
            # Run in a thread: the check of many schemas takes seconds.
            new = await in_thread(Catalog, tools, self.current.version + 1, checked=self.current)
            return self._serve(new, quiet=quiet)

    def replace(self, tools: Iterable[tuple[ToolSpec, ToolProvider]], *, quiet: bool = False) -> Catalog:
        """Serve these tools, each with its provider, in place of all current ones.

        Raises :class:`ConfigError` as :class:`Catalog` does; the catalog then stays the old
        one.
        """
        return self._serve(Catalog(tools, self.current.version + 1, checked=self.current), quiet=quiet)

    def _serve(self, new: Catalog, *, quiet: bool) -> Catalog:
        """Serve a new catalog, less the tools that do not fit the configuration."""
        old, before_out = self.current, self.left_out
        self.left_out = dict(self._check(new))
        if self.left_out:
            new = new.without(self.left_out)
        for name, reason in self.left_out.items():
            if before_out.get(name) != reason:
                self._log.warning("tool_left_out", tool=name, reason=reason)
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
    """Raise ``ConfigError`` for a tool that cannot be served, whatever the other tools are."""
    where = f"tool {spec.name}"
    check_tool_id(spec.name, provider.name)
    if spec.redaction is None:
        raise ConfigError(where, "redaction_missing: a tool without a redaction rule does not load")
    check_schema(spec.parameters, where)
    # Refuse a tool with effects whose result would be reused, or whose effect could happen twice.
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
