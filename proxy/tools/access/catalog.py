"""Which tools there are.  A tool is looked up by its exact id; nothing is normalised or guessed."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from proxy.errors import ConfigError, Guard
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import IdempotencyKey
from proxy.tools.contract.identifiers import check_tool_id
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.contract.spec import ToolEffect, ToolSpec

__all__ = ["Registry", "Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The tools that a policy lets a model see, sorted by id, and for each other one the rule."""

    offered: tuple[ToolSpec, ...]
    withheld: Mapping[str, str]


class Registry:
    """All tools of all providers, made once at start by :meth:`load`."""

    def __init__(
        self, tools: Mapping[str, tuple[ToolSpec, ToolProvider]], providers: Sequence[ToolProvider]
    ) -> None:
        self._tools = dict(sorted(tools.items()))
        self._providers = tuple(providers)

    @classmethod
    async def load(cls, providers: Iterable[ToolProvider], guard: Guard = nullcontext) -> "Registry":
        """Ask every provider for its tools; ``guard`` stands around each.

        Raises :class:`~proxy.errors.ConfigError` for an id that is not allowed, for one id of two
        tools (rule T5) and for a tool without a redaction rule (rule T4).
        """
        tools: dict[str, tuple[ToolSpec, ToolProvider]] = {}
        asked = list(providers)
        for provider in asked:
            for spec in await provider.list_tools():
                with guard():
                    check_tool_id(spec.name, provider.name)
                    if spec.redaction is None:
                        raise ConfigError(
                            f"tool {spec.name}",
                            "redaction_missing: a tool without a redaction rule does not load",
                        )
                    _check_repetition(spec)
                    if spec.name in tools:
                        raise ConfigError(
                            f"tool {spec.name}", "two tools have this id", "rename or remove one"
                        )
                    tools[spec.name] = (spec, provider)
        return cls(tools, asked)

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

    def select(self, policy: Policy) -> Selection:
        """What a caller under ``policy`` is offered."""
        decisions = [(spec, policy.decide(spec)) for spec in self.tools()]
        return Selection(
            offered=tuple(spec for spec, decision in decisions if decision.allowed),
            withheld={spec.name: decision.rule for spec, decision in decisions if not decision.allowed},
        )

    async def aclose(self) -> None:
        """Close every provider."""
        for provider in self._providers:
            await provider.aclose()


def _check_repetition(spec: ToolSpec) -> None:
    """Refuse a tool with effects whose result is given out again, or that may take effect twice."""
    if spec.effect is ToolEffect.READ_ONLY:
        return
    if spec.cache_ttl_s > 0:
        raise ConfigError(f"tool {spec.name}", "cache_ttl_s is for read_only tools only")
    if spec.retries > 0 and IdempotencyKey.__name__ not in spec.capabilities:
        raise ConfigError(
            f"tool {spec.name}",
            "retries would let its effect happen twice",
            "take an IdempotencyKey parameter and pass it on, or declare it read_only",
        )
