"""The policy that decides which tools may run: deny by default; each decision names its rule (rule T2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from msgspec import Struct

from proxy.base.caches import Memo
from proxy.base.events import PROXY_TOOLS
from proxy.base.globs import fits
from proxy.tools.contract.bounds import ArgumentBound, FetchBounds, find_violation
from proxy.tools.contract.spec import ToolEffect, ToolSpec

Outcome = Literal["allowed", "denied", "needs_approval"]
"""The outcome of a policy decision about a tool."""

_AND: Final = "; also "


def reasons_of(rule: str) -> frozenset[str]:
    """Return the reasons in the rule of a decision; a call may need an approval for several."""
    return frozenset(rule.split(_AND))


class Decision(Struct, frozen=True):
    """A policy's decision about one tool. ``rule`` is the line of configuration that decided, or the one to
    change for another decision."""

    outcome: Outcome
    rule: str

    @property
    def allowed(self) -> bool:
        """Whether the tool may be offered and run now."""
        return self.outcome == "allowed"


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """The tools that may run, as case-sensitive shell patterns of tool ids, and the limits of one call.

    ``approve_safety`` are patterns ``key=value`` for a tool's safety metadata. ``after_untrusted`` says what
    tools with effects or egress need after the model has read an untrusted result: ``"approve"``,
    ``"allow"``, or ``None`` if this policy does not say. If any of the combined policies says ``"approve"``,
    or none says ``"allow"``, an approval is needed.

    ``arguments`` maps patterns of tool ids to bounds by the dotted path of the argument. All bounds whose
    pattern fits a tool apply.

    ``connections`` are the names of connections that have credentials. A tool that names another one cannot
    run even if it is allowed. ``None`` means that connections are not checked.

    ``settings`` names the configuration lines of the three lists allow, approve and approve_effects;
    ``arguments_setting`` names the line of ``arguments``. Both appear in the rule of a decision.
    ``contained`` are ids of tools whose calls the proxy checks so that they send nothing to a place that the
    model made up. If they are read-only, they need no approval after an untrusted result. ``also`` are
    further policies that must agree.

    Policies compare by identity, and no part of one may change.
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
    contained: frozenset[str] = frozenset()
    also: tuple["Policy", ...] = ()
    _others: tuple["Policy", ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        others = (other for policy in self.also for other in (policy, *policy._others))
        object.__setattr__(self, "_others", tuple(others))

    def intersect(self, other: "Policy") -> "Policy":
        """Return a policy that allows what both policies allow, with the smaller of each limit."""
        return replace(
            self,
            also=(*self.also, other),
            max_argument_bytes=min(self.max_argument_bytes, other.max_argument_bytes),
            max_result_bytes=min(self.max_result_bytes, other.max_result_bytes),
            max_image_bytes=min(self.max_image_bytes, other.max_image_bytes),
        )

    def decide(self, spec: ToolSpec, *, untrusted: str = "") -> Decision:
        """Decide whether a tool is allowed, denied or needs an approval; a denial by any policy wins.

        ``untrusted`` are the sources whose untrusted results the model has read, or ``""``
        (:func:`.join_sources`). If an approval is needed, the rule has every reason for it.
        """
        own, reasons = self._own(spec), []
        for decision in (own, *(other._own(spec) for other in self._others)):
            if decision.outcome == "denied":
                return decision
            if decision.outcome == "needs_approval" and decision.rule not in reasons:
                reasons.append(decision.rule)
        if (
            untrusted
            and self.guards_after_untrusted
            and _can_do_harm(spec, untrusted)
            and not self._contains(spec)
        ):
            reasons.append(f'policy.after_untrusted = "approve": the run has read a result of {untrusted}')
        return Decision("needs_approval", _AND.join(reasons)) if reasons else own

    def refuse_arguments(
        self, name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> tuple[Decision, str] | None:
        """Return the denial of a call by an argument bound, and the reason; ``None`` if all bounds are met.

        ``schema`` is the tool's schema with its defaults, which stand for absent arguments. The reason
        repeats nothing of the arguments (rule T3).
        """
        for where, bounds in self.bounds_of(name):
            violation = find_violation(bounds, arguments, schema)
            if violation is not None:
                path, problem = violation
                decision = Decision("denied", f"{where}.{path}")
                return decision, f"policy does not allow these arguments: {path} {problem}"
        return None

    def fetch_bounds(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> FetchBounds | None:
        """Return the bounds on the URLs among a call's arguments; ``None`` if no URL has a bound."""
        by_address = []
        for name in spec.url_arguments:
            address = arguments.get(name)
            bounds = tuple(
                bound
                for _, by_path in self.bounds_of(spec.name)
                for path, bound in by_path.items()
                if path in (name, "*")
            )
            if isinstance(address, str) and bounds:
                by_address.append((address, bounds))
        return FetchBounds(tuple(by_address)) if by_address else None

    def bounds_of(self, name: str) -> Iterator[tuple[str, Mapping[str, ArgumentBound]]]:
        """Yield the argument bounds of a tool from all combined policies, after their configuration lines."""
        for policy in (self, *self._others):
            for pattern, bounds in policy.arguments.items():
                if fits(name, pattern):
                    yield f'{policy.arguments_setting}."{pattern}"', bounds

    def missing_connection(self, spec: ToolSpec) -> str:
        """Return a message about the credentials that a tool lacks; ``""`` if it lacks none."""
        known = self.connections
        if not spec.connection or known is None or spec.connection in known:
            return ""
        return f"credentials.{spec.connection} is missing"

    @property
    def guards_after_untrusted(self) -> bool:
        """Whether tools with effects or egress need an approval after an untrusted result."""
        settings = {policy.after_untrusted for policy in (self, *self._others)}
        return "approve" in settings or "allow" not in settings

    def _contains(self, spec: ToolSpec) -> bool:
        """Return whether the proxy checks that the calls of a tool send nothing out."""
        if spec.effect is not ToolEffect.READ_ONLY:
            return False
        return any(spec.name in policy.contained for policy in (self, *self._others))

    def _own(self, spec: ToolSpec) -> Decision:
        """Return the decision of this policy alone."""
        if (setting := PROXY_TOOLS.get(spec.name)) is not None:
            return Decision("allowed", setting)
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
        for trait in _safety_words(spec.safety) if self.approve_safety else ():
            asking = _first_match(trait, self.approve_safety)
            if asking is not None:
                return Decision("needs_approval", f'policy.approve_safety has "{asking}"')
        return Decision("allowed", f'{allow} has "{pattern}"')


class Intersections:
    """A cache of intersections of policies.

    Its keys compare by identity: two policies with equal content are different keys.
    """

    def __init__(self, max_bytes: int = 16 << 20) -> None:
        self._known: Memo[tuple[Policy, Policy], Policy] = Memo("policies", max_bytes, _intersection_bytes)

    def of(self, first: Policy, other: Policy) -> Policy:
        """Return ``one.intersect(other)``, the same object each time."""
        known = self._known.get((first, other))
        if known is None:
            known = self._known.put((first, other), first.intersect(other))
        return known


def _intersection_bytes(policies: tuple[Policy, Policy], _: Policy) -> int:
    """Estimate the bytes of both policies and their intersection."""
    return 16_000 + 500 * sum(len(policy.allow) + len(policy.arguments) for policy in policies)


def _first_match(name: str, patterns: Sequence[str]) -> str | None:
    """Return the first pattern that fits, or ``None``."""
    for pattern in patterns:
        if fits(name, pattern):
            return pattern
    return None


def _can_do_harm(spec: ToolSpec, untrusted: str) -> bool:
    """Return whether a tool can change something, or send data to a place that the model or a stranger chose.

    A call that stays within an MCP server can tell only this server anything. If all untrusted text came
    from the same server, no stranger's text leads the model to another place.
    """
    if spec.effect is not ToolEffect.READ_ONLY:
        return True
    stays_there = spec.origin is not None and spec.origin.stays_there and untrusted == spec.source
    return spec.egress and not stays_there


def _safety_words(safety: Mapping[str, Any]) -> Iterator[str]:
    """Yield safety metadata as ``key=value``, one for each value of a list; booleans as true and false."""
    for key, value in safety.items():
        for item in value if isinstance(value, list | tuple | set | frozenset) else (value,):
            yield f"{key}={str(item).lower() if isinstance(item, bool) else item}"
