"""Who may run what: data, denied by default, and every answer names its rule (rule T2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from proxy.caches import Memo
from proxy.globs import fits
from proxy.tools.contract.bounds import ArgumentBound, FetchBounds, find_excess
from proxy.tools.contract.spec import ToolEffect, ToolSpec

__all__ = ["Decision", "Intersections", "Policy"]

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

    ``approve_safety`` are patterns ``key=value`` over a tool's safety metadata.  ``after_untrusted``
    says what tools with effects or egress need once the model has read an untrusted result:
    ``"approve"``, ``"allow"``, or ``None`` for no word on it; somebody's ``"approve"`` outweighs
    all, and so does nobody's word.

    ``arguments`` bounds arguments: patterns of tool ids, each with bounds by the dotted path of the
    argument.  All that fit a tool hold together.

    ``unavailable`` are tools that cannot run here though they are allowed, with the reason.

    ``settings`` names the configuration lines that the three lists came from, for the rule of a
    decision: allow, approve, approve_effects; ``arguments_setting`` the line of ``arguments``.
    ``also`` are the policies that must agree.

    What a policy says of a tool is worked out once, so none of its parts may change.
    """

    allow: Sequence[str] = ()
    approve_effects: Sequence[ToolEffect | str] = ()
    approve: Sequence[str] = ()
    approve_safety: Sequence[str] = ()
    after_untrusted: Literal["approve", "allow"] | None = None
    arguments: Mapping[str, Mapping[str, ArgumentBound]] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    max_argument_bytes: int = 8192
    max_result_bytes: int = 32768
    max_image_bytes: int = 4 << 20
    settings: tuple[str, str, str] = ("policy.allow", "policy.approve", "policy.approve_effects")
    arguments_setting: str = "policy.arguments"
    also: tuple["Policy", ...] = ()
    _decided: dict[str, tuple[ToolSpec, Decision]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _bounds: dict[str, tuple[tuple[str, Mapping[str, ArgumentBound]], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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

        ``untrusted`` is the tool whose untrusted result the model has read, if there is one.
        """
        if untrusted:
            return self._decide(spec, untrusted)
        # By identity: another tool of the same id is another tool (rule T9).
        known = self._decided.get(spec.name)
        if known is None or known[0] is not spec:
            known = self._decided[spec.name] = (spec, self._decide(spec, ""))
        return known[1]

    def _decide(self, spec: ToolSpec, untrusted: str) -> Decision:
        own = self._own(spec)
        decisions = [own, *(policy.decide(spec) for policy in self.also)]
        for outcome in ("denied", "needs_approval"):
            for decision in decisions:
                if decision.outcome == outcome:
                    return decision
        if untrusted and self.guards_after_untrusted and _can_do_harm(spec):
            return Decision(
                "needs_approval",
                f'policy.after_untrusted = "approve": the run has read what {untrusted} gave',
            )
        return own

    def refuse_arguments(
        self, name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> tuple[Decision, str] | None:
        """The denial of a call by a bound of its arguments, and why in words; ``None`` if all hold.

        ``schema`` is the tool's, with its defaults: what is left out is what the tool takes for it.
        The words repeat nothing of the arguments (rule T3).
        """
        known = self._bounds.get(name)
        if known is None:
            known = self._bounds[name] = tuple(self.bounds_of(name))
        for where, bounds in known:
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
        for policy in self._all():
            for pattern, bounds in policy.arguments.items():
                if fits(name, pattern):
                    yield f'{policy.arguments_setting}."{pattern}"', bounds

    @property
    def guards_after_untrusted(self) -> bool:
        """Whether an untrusted result changes what may run."""
        words = {policy.after_untrusted for policy in self._all()}
        return "approve" in words or "allow" not in words

    def _all(self) -> Iterator["Policy"]:
        """This policy and all that must agree with it."""
        yield self
        for policy in self.also:
            yield from policy._all()

    def _own(self, spec: ToolSpec) -> Decision:
        """This policy's decision alone."""
        allow, approve, approve_effects = self.settings
        pattern = _first_match(spec.name, self.allow)
        if pattern is None:
            return Decision("denied", f'{allow} lacks "{spec.name}"')
        if spec.name in self.unavailable:
            return Decision("denied", self.unavailable[spec.name])
        asking = _first_match(spec.name, self.approve)
        if asking is not None:
            return Decision("needs_approval", f'{approve} has "{asking}"')
        if spec.effect in [str(effect) for effect in self.approve_effects]:
            return Decision("needs_approval", f'{approve_effects} has "{spec.effect}"')
        for said in _safety_words(spec.safety):
            asking = _first_match(said, self.approve_safety)
            if asking is not None:
                return Decision("needs_approval", f'policy.approve_safety has "{asking}"')
        return Decision("allowed", f'{allow} has "{pattern}"')


class Intersections:
    """Intersections of policies, each worked out once.

    Policies are told apart by identity, and held, so that no other gets the identity of one.
    """

    def __init__(self, max_bytes: int = 16 << 20) -> None:
        self._known: Memo[tuple[int, int], tuple[Policy, Policy, Policy]] = Memo(
            "policies", max_bytes, _intersection_bytes
        )

    def of(self, one: Policy, other: Policy) -> Policy:
        """``one.intersect(other)``, the same object each time."""
        key = (id(one), id(other))
        known = self._known.get(key)
        if known is None:
            known = self._known.put(key, (one, other, one.intersect(other)))
        return known[2]


def _intersection_bytes(known: tuple[Policy, Policy, Policy]) -> int:
    """Of the policies, and of what they decide of the tools that they name or allow by a pattern."""
    return 16_000 + 500 * sum(len(policy.allow) + len(policy.arguments) for policy in known[:2])


def _first_match(name: str, patterns: Sequence[str]) -> str | None:
    """The first pattern that fits."""
    return next((pattern for pattern in patterns if fits(name, pattern)), None)


def _can_do_harm(spec: ToolSpec) -> bool:
    """Whether a tool can change something, or carry words to a place of the model's choosing."""
    return spec.effect is not ToolEffect.READ_ONLY or spec.egress


def _safety_words(safety: Mapping[str, Any]) -> Iterator[str]:
    """Safety metadata as ``key=value``, one for each value of a list; booleans as true and false."""
    for key, value in safety.items():
        for one in value if isinstance(value, list | tuple | set | frozenset) else (value,):
            yield f"{key}={str(one).lower() if isinstance(one, bool) else one}"
