"""Check calls against a grant: later calls of a tool, within argument limits, for the shown reasons."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from proxy.tools.access.policy import reasons_of
from proxy.tools.contract.argument_paths import ABSENT, values_at
from proxy.tools.contract.bounds import ArgumentBound, bounds_from_json, bounds_to_json, find_violation
from proxy.tools.contract.schemas.schema import may_have
from proxy.tools.contract.spec import ToolSpec


class ArgumentLimits(Struct, frozen=True):
    """Bounds of arguments by path, as in ``policy.arguments``; without bounds everything is allowed."""

    bounds: Mapping[str, ArgumentBound] = msgspec.field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> "ArgumentLimits":
        """Read what :meth:`to_json` wrote; raise ``ValueError`` for anything else."""
        return cls(bounds_from_json(text))

    def to_json(self) -> str:
        """Return the limits as JSON text."""
        return bounds_to_json(self.bounds)

    def unused(self, arguments: Mapping[str, Any]) -> str:
        """Return the first path that has no value in these arguments; ``""`` if all have one.

        A misspelt path would limit nothing. Paths of ``forbidden`` arguments are skipped.
        """
        for path, bound in self.bounds.items():
            values = values_at(arguments, path, {})
            if not bound.forbidden and all(value is ABSENT for value, _ in values):
                return path
        return ""

    def violation(self, arguments: Mapping[str, Any], spec: ToolSpec | None = None) -> str:
        """Return which argument breaks the limits and why; ``""`` if none does.

        ``spec`` is the tool's contract, if known: a limit on an argument that the tool does not have is then
        broken.
        """
        for path in self.bounds if spec is not None else ():
            if spec is not None and not may_have(spec.parameters, path):
                return f"{path} is no argument of the tool"
        violation = find_violation(self.bounds, arguments, {} if spec is None else spec.schema_with_defaults)
        return "" if violation is None else f"{violation[0]} {violation[1]}"


@dataclass(frozen=True, slots=True)
class GrantedCall:
    """The grant by which a call runs without a new question. A person gave it with an earlier approval.

    ``id`` is the id of the grant, ``by`` the person. ``spec_digest`` is the tool's definition at that time,
    ``reasons`` are the reasons that the person read (see :func:`~proxy.tools.access.policy.reasons_of`), and
    ``limits`` bound the arguments. Right before the call runs, ``use`` returns whether the grant still
    holds; it raises :class:`~proxy.base.errors.StoreError` if the record cannot tell.
    """

    id: str
    by: str
    spec_digest: str
    reasons: frozenset[str]
    limits: ArgumentLimits = field(repr=False)
    use: Callable[[], Awaitable[bool]] = field(repr=False, compare=False)

    def covers(self, rule: str) -> bool:
        """Return whether the person has read every reason that a decision's rule names."""
        return reasons_of(rule) <= self.reasons

    def mismatch(self, spec: ToolSpec, arguments: bytes) -> str:
        """Return why the grant does not cover a call; ``""`` if it does. ``arguments`` are canonical."""
        if spec.digest != self.spec_digest:
            return "the definition of the tool has changed since the grant was given"
        violation = self.limits.violation(json.loads(arguments), spec)
        return f"the grant does not cover these arguments: {violation}" if violation else ""
