"""Plan a call of a model: the result is a call that may run, or the reason why it may not.

Planning has no side effect: it does no I/O, counts nothing and stores nothing. A plan never changes, and
only the runner runs it (rule T1).
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import Struct

from proxy.base.errors import ToolErrorCode, ToolFailure
from proxy.base.events import ToolCall
from proxy.tools.access.policy import Policy
from proxy.tools.contract.arguments import (
    ArgumentsMalformed,
    canonical_arguments,
    parse_arguments,
    utf8_length,
)
from proxy.tools.contract.bounds import FetchBounds
from proxy.tools.contract.capabilities import IdempotencyKey
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.redaction import mask_arguments, private_values, redact_arguments
from proxy.tools.contract.spec import Redaction, ToolEffect, ToolSpec
from proxy.tools.contract.validation import validate_canonically
from proxy.tools.running.granted import GrantedCall

UNKNOWN_END: Final = (
    "an earlier attempt of this request began the same call, and nobody knows how it ended; it may have "
    "taken effect, so the proxy did not run it again: find out whether it did, or ask the user"
)
"""What a model reads about a call that an earlier attempt began, and whose end is not on record."""


class ApprovedCall(Struct, frozen=True):
    """The call that a person approved: this definition of a tool with these arguments, and nothing else.

    ``id`` is the id of the approval, ``by`` the person. ``spec_digest`` is the digest of the definition,
    ``arguments_digest`` the digest of :attr:`PlannedCall.arguments` (see :func:`digest_of`).
    """

    id: str
    by: str
    spec_digest: str
    arguments_digest: str

    @property
    def consumed_approval(self) -> str:
        """The id of the approval that the call uses up when it begins; empty for none."""
        return self.id

    @property
    def decision(self) -> str:
        """The reason, for the row, why the call may run."""
        return f"approved by {self.by} ({self.id})"

    def mismatch(self, planned: "PlannedCall") -> str:
        """Return why a call is not the approved one; ``""`` if it is."""
        if planned.spec.digest != self.spec_digest:
            return "the definition of the tool has changed since the call was approved, so it was not made"
        if digest_of(planned.arguments) != self.arguments_digest:
            return "the arguments are not those that were approved, so the call was not made"
        return ""


class ContinuedCall(Struct, frozen=True):
    """A call that continues an earlier call of the same tool, once.

    ``id`` is the execution of the earlier call, ``spec_digest`` the tool's definition at that time.
    """

    id: str
    spec_digest: str

    @property
    def consumed_approval(self) -> str:
        """Empty: the earlier call has used up its approval, or needed none."""
        return ""

    @property
    def decision(self) -> str:
        """The reason, for the row, why the call may run."""
        return f"continues {self.id}"

    def mismatch(self, planned: "PlannedCall") -> str:
        """Return why the tool is not the one that was called; ``""`` if it is."""
        if planned.spec.digest != self.spec_digest:
            return "the definition of the tool has changed since it was called, so it did not go on"
        return ""


Approved = bool | ApprovedCall | ContinuedCall | GrantedCall
"""Whether a person approved a call, or exactly what the person approved."""


def digest_of(arguments: bytes) -> str:
    """Return the SHA-256 of canonical arguments, in hex."""
    return hashlib.sha256(arguments).hexdigest()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that does not run.

    ``failure`` is for the model, ``decision`` for the row. ``arguments_redacted`` is ``None`` if the
    arguments could not be read. ``cause`` is what the tool's own validator raised, for its author; its text
    may contain arguments.
    """

    failure: ToolFailure
    decision: str
    arguments_redacted: Any = None
    cause: BaseException | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call of a tool that exists and that policy allows. Its arguments have not been read yet."""

    call: ToolCall = field(repr=False)
    spec: ToolSpec
    redaction: Redaction
    policy: Policy
    decision: str

    def refused(self, message: str, code: ToolErrorCode = "execution_failed") -> Refusal:
        """Return the refusal of this call for a reason in its arguments or its tool."""
        return Refusal(ToolFailure(message, code=code), self.decision)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call with everything that its execution needs.

    ``call`` has the id and the name that the model gave. ``value`` is the validated value that the tool
    takes. ``arguments`` are the same in canonical JSON, equal for all calls that mean the same (see
    :func:`~proxy.tools.contract.validation.validate_canonically`). They include the defaults of absent
    arguments, except those that the tool can tell from a given value. Logs and rows contain only
    ``arguments_redacted``; no failure may repeat a value in ``private``. A tool with effects has an
    ``idempotency_key``, and so has a tool that takes one. ``fetches`` are the bounds on the URLs among the
    arguments.
    """

    call: ToolCall = field(repr=False)
    spec: ToolSpec
    caller: str
    decision: str
    value: Any = field(repr=False)
    arguments: bytes = field(repr=False)
    arguments_redacted: Any
    private: tuple[str, ...] = field(repr=False)
    idempotency_key: IdempotencyKey | None
    fetches: FetchBounds | None = None

    @property
    def arguments_masked(self) -> Any:
        """All arguments that would run, defaults included, with the tool's private fields masked."""
        return mask_arguments(json.loads(self.arguments), self.spec.redaction or Redaction())

    @property
    def connection(self) -> str:
        """The connection whose credentials the tool uses; empty for none."""
        return self.spec.connection

    @property
    def read_only(self) -> bool:
        """Whether a cancellation may stop the call."""
        return self.spec.effect is ToolEffect.READ_ONLY

    @property
    def equality(self) -> str:
        """The key that equal calls share."""
        return f"{self.spec.name}\0{self.arguments.decode('ascii')}"

    def refused(self, failure: ToolFailure) -> Refusal:
        """Return the refusal of this call."""
        return Refusal(failure, self.decision, self.arguments_redacted)

    def unconnected(self, failure: ToolFailure) -> Refusal:
        """Return the refusal of this call because its connection has no credentials."""
        return Refusal(failure, f"refused: credentials.{self.connection}", self.arguments_redacted)

    def fresh_value(self) -> Any:
        """Return a new copy of the value for a retry, because a tool may change its arguments."""
        return self.spec.validate(json.loads(self.arguments))


def admit(
    call: ToolCall,
    spec: ToolSpec | None,
    policy: Policy,
    *,
    untrusted: str,
    approved: Approved = False,
) -> AdmittedCall | Refusal:
    """Check that the tool exists and that policy allows the call.

    ``untrusted`` are the sources whose untrusted results the model had read when it made the call.
    ``approved`` says whether a person approved the call, if policy requires that, or exactly what the person
    approved. A grant counts only if it covers every reason for the approval.
    """
    if spec is None and isinstance(approved, ApprovedCall | ContinuedCall):
        reason = (
            "this tool has changed or was removed since the call was approved, so the call was not made; the "
            "tool is off until its operator allows it again"
        )
        return Refusal(ToolFailure(reason, code="policy_denied"), "refused: the tool is no longer served")
    if spec is None:
        return Refusal(ToolFailure("there is no tool of this name", code="unknown_tool"), "unknown tool")
    decided = policy.decide(spec, untrusted=untrusted)
    decision = f"{decided.outcome}: {decided.rule}"
    if decided.outcome == "denied":
        return Refusal(ToolFailure("this tool is not allowed here", code="policy_denied"), decision)
    if isinstance(approved, ApprovedCall | ContinuedCall):
        decision = f"{approved.decision}: {decided.rule}"
    elif decided.outcome == "needs_approval" and isinstance(approved, GrantedCall):
        if not approved.covers(decided.rule):
            reason = "this tool needs an approval, and the grant does not cover the reason for it"
            return Refusal(ToolFailure(reason, code="approval_required"), decision)
        decision = f"granted by {approved.by} ({approved.id}): {decided.rule}"
    elif decided.outcome == "needs_approval" and approved:
        decision = f"approved: {decided.rule}"
    elif decided.outcome == "needs_approval":
        reason = "this tool needs an approval, and none can be given here"
        return Refusal(ToolFailure(reason, code="approval_required"), decision)
    if spec.redaction is None:
        reason = "this tool is not set up to be run"
        return Refusal(ToolFailure(reason, code="redaction_missing"), decision)
    return AdmittedCall(call, spec, spec.redaction, policy, decision)


def plan(admitted: AdmittedCall, *, caller: str, key: str) -> PlannedCall | Refusal:
    """Parse and validate the arguments and check them against the policy bounds.

    ``key`` is the idempotency key of this call.
    """
    spec, policy, redaction = admitted.spec, admitted.policy, admitted.redaction
    written = admitted.call.arguments
    if utf8_length(written) > policy.max_argument_bytes:
        reason = f"the arguments are larger than {policy.max_argument_bytes} bytes"
        return admitted.refused(reason, "invalid_arguments")
    try:
        arguments = parse_arguments(written)
        value, canonical = validate_canonically(spec.validate, arguments)
    except ArgumentsMalformed as error:
        return admitted.refused(str(error), "invalid_json")
    except ArgumentsInvalid as error:
        return admitted.refused(str(error), "invalid_arguments")
    # Validators are code of the tool's author; a SystemExit from there would end the process.
    except BaseException as error:  # noqa: BLE001
        return replace(admitted.refused("the tool could not check its arguments"), cause=error)
    shown = redact_arguments(arguments, redaction)
    violation = policy.refuse_arguments(spec.name, arguments, spec.schema_with_defaults)
    if violation is not None:
        decided, reason = violation
        failure = ToolFailure(reason, code="policy_denied")
        return Refusal(failure, f"{decided.outcome}: {decided.rule}", shown)
    takes_key = spec.effect is not ToolEffect.READ_ONLY or IdempotencyKey.__name__ in spec.capabilities
    return PlannedCall(
        call=admitted.call,
        spec=spec,
        caller=caller,
        decision=admitted.decision,
        value=value,
        arguments=canonical_arguments({**spec.defaults, **canonical}),
        arguments_redacted=shown,
        private=private_values(redaction, arguments, canonical),
        idempotency_key=IdempotencyKey(key) if takes_key else None,
        fetches=policy.fetch_bounds(spec, {**spec.defaults, **canonical}) if spec.url_arguments else None,
    )
