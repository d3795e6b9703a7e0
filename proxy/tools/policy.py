"""Who may run what: data, denied by default, and every answer names its rule (rule T2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from proxy.tools.spec import ToolEffect, ToolSpec

__all__ = ["Decision", "Policy"]

Outcome = Literal["allowed", "denied", "needs_approval"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy says of one tool.  ``rule`` is the line of configuration that decided, or that
    would have to change."""

    outcome: Outcome
    rule: str

    @property
    def allowed(self) -> bool:
        """Whether the tool may be offered and run now."""
        return self.outcome == "allowed"


@dataclass(frozen=True, slots=True)
class Policy:
    """Patterns of tool ids, as in a shell, case-sensitive, and the bounds of one call.

    ``settings`` names the configuration lines that the three lists came from, for the rule of a
    decision: allow, approve, approve_effects.  ``also`` are the policies that must agree.
    """

    allow: Sequence[str] = ()
    approve_effects: Sequence[ToolEffect | str] = ()
    approve: Sequence[str] = ()
    max_argument_bytes: int = 8192
    max_result_bytes: int = 32768
    settings: tuple[str, str, str] = ("policy.allow", "policy.approve", "policy.approve_effects")
    also: tuple["Policy", ...] = ()

    def intersect(self, other: "Policy") -> "Policy":
        """A policy that allows what both allow, within the smaller of their bounds."""
        return replace(
            self,
            also=(*self.also, other),
            max_argument_bytes=min(self.max_argument_bytes, other.max_argument_bytes),
            max_result_bytes=min(self.max_result_bytes, other.max_result_bytes),
        )

    def decide(self, spec: ToolSpec) -> Decision:
        """Allowed, denied or in need of an approval; a denial by anyone outweighs all else."""
        own = self._own(spec)
        decisions = [own, *(policy.decide(spec) for policy in self.also)]
        for outcome in ("denied", "needs_approval"):
            for decision in decisions:
                if decision.outcome == outcome:
                    return decision
        return own

    def _own(self, spec: ToolSpec) -> Decision:
        """This policy's decision alone."""
        allow, approve, approve_effects = self.settings
        pattern = _first_match(spec.name, self.allow)
        if pattern is None:
            return Decision("denied", f'{allow} lacks "{spec.name}"')
        asking = _first_match(spec.name, self.approve)
        if asking is not None:
            return Decision("needs_approval", f'{approve} has "{asking}"')
        if spec.effect in [str(effect) for effect in self.approve_effects]:
            return Decision("needs_approval", f'{approve_effects} has "{spec.effect}"')
        return Decision("allowed", f'{allow} has "{pattern}"')


def _first_match(name: str, patterns: Sequence[str]) -> str | None:
    """The first pattern that fits a tool id."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
