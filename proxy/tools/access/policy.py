"""Who may run what: data, denied by default, and every answer names its rule (rule T2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from proxy.caches import Memo
from proxy.globs import fits
from proxy.tools.contract.bounds import ArgumentBound, FetchBounds, find_excess
from proxy.tools.contract.spec import ToolEffect, ToolSpec

__all__ = ["Decision", "Intersections", "Outcome", "Policy", "reasons_of"]

Outcome = Literal["allowed", "denied", "needs_approval"]
"""What a policy says of a tool."""

_AND: Final = "; also "


def reasons_of(rule: str) -> frozenset[str]:
    """The reasons that the rule of a decision names; a call may need an approval for two."""
    return frozenset(rule.split(_AND))


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's decision about one tool.  ``rule`` is the line of configuration that decided, or that you
    would have to change."""

    outcome: Outcome
    rule: str

    @property
    def allowed(self) -> bool:
        """Whether the tool may be offered and run now."""
        return self.outcome == "allowed"


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Patterns of tool ids, as in a shell, case-sensitive, and the bounds of one call.

    ``approve_safety`` are patterns ``key=value`` over a tool's safety metadata.  ``after_untrusted``
    says what tools with effects or egress need once the model has read an untrusted result:
    ``"approve"``, ``"allow"``, or ``None`` for no word on it; somebody's ``"approve"`` outweighs
    all, and so does nobody's word.

    ``arguments`` bounds arguments: patterns of tool ids, each with bounds by the dotted path of the
    argument.  All that fit a tool hold together.

    ``connections`` are those that have credentials: a tool that names another cannot run here though it
    is allowed; ``None`` where none needs any.

    ``settings`` names the configuration lines that the three lists came from, for the rule of a
    decision: allow, approve, approve_effects; ``arguments_setting`` the line of ``arguments``.
    ``also`` are the policies that must agree.

    A policy is equal to itself alone, and none of its parts may change.
    """

    allow: Sequence[str] = ()
    approve_effects: Sequence[ToolEffect | str] = ()
    approve: Sequence[str] = ()
    approve_safety: Sequence[str] = ()
    after_untrusted: Literal["approve", "allow"] | None = None
    arguments: Mapping[str, Mapping[str, ArgumentBound]] = field(default_factory=dict)
    connections: frozenset[str] | None = None
    max_argument_bytes: int = 8192
    max_result_bytes: int = 32768
    max_image_bytes: int = 4 << 20
    settings: tuple[str, str, str] = ("policy.allow", "policy.approve", "policy.approve_effects")
    arguments_setting: str = "policy.arguments"
    also: tuple["Policy", ...] = ()
    _others: tuple["Policy", ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        others = (other for policy in self.also for other in (policy, *policy._others))
        object.__setattr__(self, "_others", tuple(others))

    def intersect(self, other: "Policy") -> "Policy":
        """A policy that allows what both allow, within the smaller of their bounds."""
        return replace(
            self,
            also=(*self.also, other),
            max_argument_bytes=min(self.max_argument_bytes, other.max_argument_bytes),
            max_result_bytes=min(self.max_result_bytes, other.max_result_bytes),
            max_image_bytes=min(self.max_image_bytes, other.max_image_bytes),
        )

    def decide(self, spec: ToolSpec, *, untrusted: str = "") -> Decision:
        """Allowed, denied or in need of an approval; a denial by anyone outweighs all else.

        ``untrusted`` is the tool whose untrusted result the model has read, if there is one.  The rule of a
        call that needs an approval has every reason for it.
        """
        own, reasons = self._own(spec), []
        for said in (own, *(other._own(spec) for other in self._others)):
            if said.outcome == "denied":
                return said
            if said.outcome == "needs_approval" and said.rule not in reasons:
                reasons.append(said.rule)
        if untrusted and self.guards_after_untrusted and _can_do_harm(spec):
            reasons.append(f'policy.after_untrusted = "approve": the run has read a result of {untrusted}')
        return Decision("needs_approval", _AND.join(reasons)) if reasons else own

    def refuse_arguments(
        self, name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> tuple[Decision, str] | None:
        """The denial of a call by a bound of its arguments, and why in words; ``None`` if all hold.

        ``schema`` is the tool's, with its defaults: what is left out is what the tool takes for it.
        The words repeat nothing of the arguments (rule T3).
        """
        for where, bounds in self.bounds_of(name):
            found = find_excess(bounds, arguments, schema)
            if found is not None:
                path, words = found
                decision = Decision("denied", f"{where}.{path}")
                return decision, f"policy does not allow these arguments: {path} {words}"
        return None

    def fetch_bounds(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> FetchBounds | None:
        """The bounds of a call's addresses, for what it fetches; ``None`` where none is bounded."""
        found = []
        for name in spec.url_arguments:
            address = arguments.get(name)
            bounds = tuple(
                bound
                for _, by_path in self.bounds_of(spec.name)
                for path, bound in by_path.items()
                if path in (name, "*")
            )
            if isinstance(address, str) and bounds:
                found.append((address, bounds))
        return FetchBounds(tuple(found)) if found else None

    def bounds_of(self, name: str) -> Iterator[tuple[str, Mapping[str, ArgumentBound]]]:
        """The bounds of a tool, of every policy that must agree, each beside the line that has them."""
        for policy in (self, *self._others):
            for pattern, bounds in policy.arguments.items():
                if fits(name, pattern):
                    yield f'{policy.arguments_setting}."{pattern}"', bounds

    def missing_connection(self, spec: ToolSpec) -> str:
        """Which credentials a tool lacks, in words; empty where it lacks none."""
        known = self.connections
        if not spec.connection or known is None or spec.connection in known:
            return ""
        return f"credentials.{spec.connection} is missing"

    @property
    def guards_after_untrusted(self) -> bool:
        """Whether an untrusted result changes what may run."""
        words = {policy.after_untrusted for policy in (self, *self._others)}
        return "approve" in words or "allow" not in words

    def _own(self, spec: ToolSpec) -> Decision:
        """This policy's decision alone."""
        allow, approve, approve_effects = self.settings
        pattern = _first_match(spec.name, self.allow)
        if pattern is None:
            return Decision("denied", f'{allow} lacks "{spec.name}"')
        if spec.connection and (missing := self.missing_connection(spec)):
            return Decision("denied", missing)
        if self.approve and (asking := _first_match(spec.name, self.approve)) is not None:
            return Decision("needs_approval", f'{approve} has "{asking}"')
        if spec.effect in self.approve_effects:
            return Decision("needs_approval", f'{approve_effects} has "{spec.effect}"')
        for said in _safety_words(spec.safety) if self.approve_safety else ():
            asking = _first_match(said, self.approve_safety)
            if asking is not None:
                return Decision("needs_approval", f'policy.approve_safety has "{asking}"')
        return Decision("allowed", f'{allow} has "{pattern}"')


class Intersections:
    """Intersections of policies, each worked out once.

    Two policies that are alike now are two.
    """

    def __init__(self, max_bytes: int = 16 << 20) -> None:
        self._known: Memo[tuple[Policy, Policy], Policy] = Memo("policies", max_bytes, _intersection_bytes)

    def of(self, one: Policy, other: Policy) -> Policy:
        """``one.intersect(other)``, the same object each time."""
        known = self._known.get((one, other))
        if known is None:
            known = self._known.put((one, other), one.intersect(other))
        return known


def _intersection_bytes(policies: tuple[Policy, Policy], _: Policy) -> int:
    """Of both and their intersection."""
    return 16_000 + 500 * sum(len(policy.allow) + len(policy.arguments) for policy in policies)


def _first_match(name: str, patterns: Sequence[str]) -> str | None:
    """The first pattern that fits."""
    for pattern in patterns:
        if fits(name, pattern):
            return pattern
    return None


def _can_do_harm(spec: ToolSpec) -> bool:
    """Whether a tool can change something, or carry words to a place of the model's choosing."""
    return spec.effect is not ToolEffect.READ_ONLY or spec.egress


def _safety_words(safety: Mapping[str, Any]) -> Iterator[str]:
    """Safety metadata as ``key=value``, one for each value of a list; booleans as true and false."""
    for key, value in safety.items():
        for one in value if isinstance(value, list | tuple | set | frozenset) else (value,):
            yield f"{key}={str(one).lower() if isinstance(one, bool) else one}"
