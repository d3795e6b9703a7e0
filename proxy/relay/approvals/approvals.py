"""Ask for approvals, and run approved calls.

For each call that needs an approval, a row (:class:`~proxy.records.approvals.Approval`) is committed before
the client learns about it. The turn is held, with holes in place of the results. The client's next request
fills each hole with a result. An approved call runs now, once, with the arguments of the row; a refused
call gives an error.

A turn can also wait for an agent whose own calls need approvals. Once these are decided, the agent
continues: its tool is called again, at a place of its own, so that this happens once.
"""

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import filterfalse
from typing import Final

import msgspec
import structlog
from msgspec import Struct, structs

from proxy.base.chance import replayable
from proxy.base.errors import RequestError, StoreError, ToolErrorCode, ToolFailure
from proxy.base.events import RUN_PROGRAM, ToolCall, ToolResult
from proxy.hooks.placeholders import Placeholders
from proxy.records.approvals import (
    MOST_REASON,
    Approval,
    ApprovalEvent,
    ApprovalLog,
    ApprovalStatus,
    Decided,
    approval_ids_in,
)
from proxy.records.grants import Grant
from proxy.records.result_for_model import Hole, failure_text
from proxy.records.rows import Meter, join_sources, recorded_call_id
from proxy.relay.approval_outcomes import ApprovalOutcomes, PausedProgram
from proxy.relay.approvals.decisions import Decisions, Verdict
from proxy.relay.approvals.grants import OnApproval, ignore_event
from proxy.relay.approvals.notice import notice, verdict_of
from proxy.relay.approvals.rules import MOST_ASKED, MOST_WAITING, ApprovalRules, rule_of_agent
from proxy.relay.ask import Identity
from proxy.relay.memory.hidden.agent_turns import AgentCall, AgentTurn, AgentTurns, is_wait, wait_of
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.agents.agent import is_agent
from proxy.tools.running.granted import GrantedCall
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.plan import (
    UNKNOWN_END,
    ApprovedCall,
    ContinuedCall,
    PlannedCall,
    Refusal,
    digest_of,
)
from proxy.tools.running.runner import Runner

_MOST_TRIES: Final = 8
"""How often a turn tries to add its approvals while other requests of its caller add theirs."""

_MOST_ATTEMPTS: Final = 8
"""How often a program continues from the same turn if its process dies each time."""

_CLIENT_CALL: Final = re.compile(r"\b\w+_p?[0-9a-f]{24}\b")

_MOST_STEPS: Final = 64
"""How often one request lets an agent continue that asks again for approvals which are already decided."""

_GONE: Final = "The approval of this call is no longer on record, so the call did not run."
_AGENT_GONE: Final = "The turn of the agent is no longer on record, so the agent did not go on."

_LOG: Final[structlog.typing.FilteringBoundLogger] = structlog.get_logger("proxy.approvals")


class Asked(Struct, frozen=True):
    """The calls of a turn that now wait for approval.

    ``waiting`` has the approvals of these calls by ``ToolCall.index``. ``granted`` has the grants of calls
    that run without a question. ``refused`` has error results of calls that could not run even if approved.
    The policy refuses all other calls that need an approval.
    """

    waiting: Mapping[int, Approval] = msgspec.field(default_factory=dict)
    refused: Sequence[ToolResult] = ()
    granted: Mapping[int, GrantedCall] = msgspec.field(default_factory=dict)


def _anywhere(agent: AgentCall) -> AbstractContextManager[None]:
    return nullcontext()


def _brings_nothing(turn: AgentTurn) -> bool:
    return False


def _whole(tool: str, result: ToolResult) -> ToolResult:
    return result


class Resuming(Struct, frozen=True):
    """The request that continues a held turn, and for which approved calls run, with its limits.

    Each call of an agent runs in a block of ``within``. ``brings`` returns whether the request brings the
    results of the client that a program waits for. ``limit`` returns as much of a tool's result as the
    request allows. ``originals`` are the placeholders of the request.
    """

    identity: Identity
    policy: Policy
    catalog: Catalog
    meter: Meter | None = None
    within: Callable[[AgentCall], AbstractContextManager[None]] = _anywhere
    brings: Callable[[AgentTurn], bool] = _brings_nothing
    limit: Callable[[str, ToolResult], ToolResult] = _whole
    originals: Placeholders | None = None


class Approvals(Decisions):
    """Asks for approvals, decides about them, and runs approved calls. The process has one instance."""

    def __init__(
        self,
        log: ApprovalLog | None,
        runner: Runner,
        rules: ApprovalRules,
        *,
        told: OnApproval = ignore_event,
        now: Callable[[], float] = time.time,
        agents: AgentTurns | None = None,
    ) -> None:
        """``log`` is ``None`` if the record keeps no approvals; then nobody is asked. ``agents`` has the
        held turns of agents; with ``None`` no agent can wait."""
        super().__init__(log, rules, told=told, now=now)
        self._runner = runner
        self.agents = agents

    # Asking.

    async def ask(
        self,
        calls: Sequence[ToolCall],
        context: RunContext,
        policy: Policy,
        identity: Identity,
        *,
        asked_in: Sequence[str] = (),
        can_wait: bool = True,
        agent: str = "",
    ) -> Asked:
        """Ask for approval of the calls of a turn that would run if approved, and that no grant covers.

        ``asked_in`` are the earlier runs of this conversation that asked. Without ``can_wait`` nobody is
        asked. ``agent`` is the name of the agent whose calls these are, empty for no agent. The rows are
        committed on return. If they cannot be committed, nobody is asked.
        """
        if self._log is None or not self.rules.enabled:
            return Asked()
        grants = await self._grants_of(context)
        if not (can_wait or grants):
            return Asked()
        refused: list[ToolResult] = []
        planned: list[tuple[ToolCall, PlannedCall]] = []
        for call in calls:
            checked = await self._runner.checks.check(call, context, policy=policy)
            if isinstance(checked, Refusal):
                refused.append(_failed(call, checked.failure))
            else:
                planned.append((call, checked))
        granted = self.grants.covering(grants, planned, identity, asked_in)
        if not can_wait:
            return Asked(granted=granted)
        planned = [(call, checked) for call, checked in planned if call.index not in granted]
        try:
            waiting = await self._put(planned, context, identity, agent)
        except StoreError as error:
            _LOG.error("approval_unrecorded", reason=str(error), correlation_id=context.run_id)
            return Asked(refused=refused, granted=granted)
        for approval in {approval.id: approval for approval in waiting.values()}.values():
            self._tell("approval_requested", approval)
        return Asked(waiting, refused, granted)

    async def _grants_of(self, context: RunContext) -> Sequence[Grant]:
        """Return the active grants of a caller; none if the record cannot be read, so that a person is
        asked."""
        try:
            return await self.grants.active(context.caller)
        except StoreError as error:
            _LOG.error("approval_grants_unread", reason=str(error), correlation_id=context.run_id)
            return ()

    async def _put(
        self,
        planned: Sequence[tuple[ToolCall, PlannedCall]],
        context: RunContext,
        identity: Identity,
        agent: str,
    ) -> Mapping[int, Approval]:
        """Record an approval for each of the calls, as far as there is room; equal calls share one.

        Raise :class:`~proxy.base.errors.StoreError`.
        """
        if self._log is None or not planned:
            return {}
        for _ in range(_MOST_TRIES):
            now = self._now()
            room = min(MOST_WAITING - await self._log.count_waiting(identity.caller, now), MOST_ASKED)
            made: dict[str, Approval] = {}
            waiting: dict[int, Approval] = {}
            for call, checked in planned:
                approval = made.get(checked.equality)
                if approval is None and len(made) < room:
                    approval = self._approval(call, checked, context, identity, now)
                    rule = rule_of_agent(agent, approval.rule)
                    approval = made[checked.equality] = replace(approval, rule=rule)
                if approval is not None:
                    waiting[call.index] = approval
            # Other requests of the caller may have asked since the count; the record counts again.
            if await self._log.put_approvals(list(made.values()), MOST_WAITING):
                return waiting
        return {}

    def _approval(
        self, call: ToolCall, planned: PlannedCall, context: RunContext, identity: Identity, now: float
    ) -> Approval:
        return Approval(
            id=replayable("approval_id", lambda: f"appr_{uuid.uuid4().hex}"),
            run_id=context.run_id,
            turn=context.turn,
            seq=call.index,
            call_id=recorded_call_id(call.call_id),
            caller=identity.caller,
            key=identity.key,
            tool=planned.spec.name,
            effect=planned.spec.effect,
            spec_digest=planned.spec.digest,
            arguments_digest=digest_of(planned.arguments),
            arguments=planned.arguments.decode("ascii"),
            arguments_shown=planned.arguments_masked,
            rule=planned.decision.partition(": ")[2],
            created_at=now,
            expires_at=now + self.rules.expires_s,
        )

    def notice(self, approvals: Sequence[Approval], *, again: bool = False) -> str:
        """Return the text that a client gets while these approvals wait."""
        by_caller = all(self.rules.by_caller(approval.tool) for approval in approvals)
        return notice(approvals, url=self.rules.url, by_caller=by_caller, again=again)

    def _edited(self, approval: Approval, verdict: Verdict) -> str:
        """Return the canonical arguments that replace the model's; empty for none."""
        if verdict.arguments is None or not self.rules.edit:
            return super()._edited(approval, verdict)
        checked = self._runner.checks.check_arguments(approval.tool, json.dumps(verdict.arguments))
        if isinstance(checked, Refusal):
            raise RequestError(
                400,
                f"{approval.tool} cannot run with these arguments: {checked.failure.message}.",
                param="arguments",
            )
        if checked.spec.digest != approval.spec_digest:
            raise RequestError(
                409,
                f"The definition of {approval.tool} has changed since {approval.id} was requested. Deny "
                "it, and let the model call the tool again.",
                code="approval_decided",
            )
        edited = checked.arguments.decode("ascii")
        return "" if edited == approval.arguments else edited

    # Continuing.

    async def settle(self, names: Sequence[str], resuming: Resuming) -> ApprovalOutcomes:
        """Run the approved calls, each once, let agents continue, and return the outcomes of ``names``.

        A name is the id of an approval of the caller, or the name under which a turn waits for an agent (see
        :func:`wait_of`). Raise :class:`StoreError` if the approvals cannot be read.
        """
        outcomes = ApprovalOutcomes()
        found = {one.id: one for one in await self._found([*filterfalse(is_wait, names)])}
        agents = {name: name for name in names if is_wait(name)}
        for name in filterfalse(is_wait, names):
            approval = found.get(name)
            if approval is None or approval.caller != resuming.identity.caller:
                outcomes.results[name] = failure_text("approval_denied", _GONE)
            elif approval.status is ApprovalStatus.PENDING:
                outcomes.waiting.append(approval)
            elif approval.status not in (ApprovalStatus.APPROVED, ApprovalStatus.USED):
                outcomes.results[name] = failure_text("approval_denied", verdict_of(approval))
            else:
                result = await self._run(approval, resuming, outcomes)
                if asked := _asked_by(approval.tool, result) or client_calls_of(approval.tool, result):
                    agents[name] = wait_of(asked)
                else:
                    outcomes.add_run(name, approval, result)
        going_on = (self._go_on(name, turn, resuming, outcomes) for name, turn in agents.items())
        for failure in await asyncio.gather(*going_on, return_exceptions=True):
            if failure is not None:
                raise failure
        return outcomes

    @staticmethod
    def marked(tool: str, result: ToolResult) -> ToolResult:
        """Return the result of a call, with a mark if the agent waits for approvals."""
        return structs.replace(result, awaits_approval=True) if _asked_by(tool, result) else result

    async def paused_program(self, tool: str, result: ToolResult, caller: str) -> AgentTurn | None:
        """Return the turn of a program that waits for calls of the client, from the result of its call."""
        ids = client_calls_of(tool, result)
        try:
            return await self._agent_turn(wait_of(ids), caller) if ids else None
        except StoreError as error:
            _LOG.error("program_unread", reason=str(error))
            return None

    async def asked_by_agent(self, tool: str, result: ToolResult, caller: str) -> Sequence[Approval]:
        """Return the approvals that a call of an agent waits for, read from its result; none for any other
        call."""
        ids = _asked_by(tool, result)
        if self._log is None or not ids:
            return ()
        try:
            found = {one.id: one for one in await self._log.find_approvals(ids) if one.caller == caller}
        except StoreError as error:
            _LOG.error("approvals_unread", reason=str(error))
            return ()
        return [found[one] for one in ids if one in found]

    async def _go_on(self, waits: str, name: str, resuming: Resuming, outcomes: ApprovalOutcomes) -> None:
        """Let an agent continue if all its approvals are decided.

        ``waits`` is the name in the held turn, and ``name`` that of the agent's turn. An agent that asks
        again is waited for under another name. Raise :class:`~proxy.base.errors.StoreError`.
        """
        for _ in range(_MOST_STEPS):
            turn = await self._agent_turn(name, resuming.identity.caller)
            if turn is None:
                break
            if turn.client_calls and not resuming.brings(turn):
                paused = PausedProgram(turn.part_id, turn.body, turn.client_calls)
                outcomes.programs.paused.append(paused)
                if name != waits:
                    outcomes.results[waits] = Hole(name)
                return
            asked = await self._found(turn.approval_ids)
            if pending := [one for one in asked if one.status is ApprovalStatus.PENDING]:
                pending.sort(key=lambda one: turn.approval_ids.index(one.id))
                outcomes.waiting += pending
                if name != waits:
                    outcomes.results[waits] = Hole(name)
                    outcomes.asked += pending
                return
            result = await self._continue(turn, resuming, outcomes)
            if again := _asked_by(turn.call.name, result) or client_calls_of(turn.call.name, result):
                name = wait_of(again)
                continue
            call = turn.call
            # The client sees the agent as the call that ran. Nobody edited the arguments of that call.
            place = replace(asked[0], call_id=call.call_id, seq=call.index) if asked else None
            shown = place and replace(place, tool=call.name, arguments_shown=None, edited="")
            outcomes.add_run(waits, shown, result)
            if turn.part_id:
                outcomes.programs.ended[turn.part_id] = result
            return
        outcomes.results[waits] = failure_text("approval_denied", _AGENT_GONE)

    async def _found(self, ids: Sequence[str]) -> Sequence[Approval]:
        """Return approvals as they are now; raise :class:`~proxy.base.errors.StoreError`."""
        if self._log is None or not ids:
            return ()
        now = self._now()
        return [one.at(now) for one in await self._log.find_approvals(ids)]

    async def _agent_turn(self, name: str, caller: str) -> AgentTurn | None:
        return None if self.agents is None else (await self.agents.find([name], caller)).get(name)

    async def _continue(self, turn: AgentTurn, resuming: Resuming, outcomes: ApprovalOutcomes) -> ToolResult:
        """Let an agent continue from a turn, or return the result that this already has.

        A program whose process died meanwhile continues again: each of its own calls is made once anyway.
        """
        approved = ContinuedCall(turn.invocation_id, turn.spec_digest)
        attempt = 0
        while True:
            call = turn.next_call(attempt)
            agent = AgentCall(turn.parent_run, turn.parent_turn, call, turn.spec_digest, turn)
            result = await self._run_once(agent, approved, resuming, outcomes)
            attempt += 1
            is_over = call.name != RUN_PROGRAM or result.safe_message != UNKNOWN_END
            if is_over or attempt == _MOST_ATTEMPTS:
                return result

    async def _run(self, approval: Approval, resuming: Resuming, outcomes: ApprovalOutcomes) -> ToolResult:
        """Run an approved call as part of the run that asked, or return the result that it already has."""
        arguments = approval.effective_arguments
        approved = ApprovedCall(
            approval.id,
            approval.decided_by,
            approval.spec_digest,
            digest_of(arguments.encode("ascii")) if approval.edited else approval.arguments_digest,
        )
        call = ToolCall(approval.call_id, approval.tool, arguments, approval.seq)
        place = AgentCall(approval.run_id, approval.turn, call, approval.spec_digest)
        result = await self._run_once(place, approved, resuming, outcomes)
        if approval.status is ApprovalStatus.APPROVED:
            await self._used(approval, result)
        return resuming.limit(approval.tool, result)

    async def _run_once(
        self,
        place: AgentCall,
        approved: ApprovedCall | ContinuedCall,
        resuming: Resuming,
        outcomes: ApprovalOutcomes,
    ) -> ToolResult:
        """Run a call at its place in the run that made it."""
        identity, ledger = resuming.identity, RunLedger()
        context = RunContext(
            place.run_id,
            place.turn,
            identity.caller,
            identity.request_id,
            ledger,
            resuming.meter,
            identity.key,
            resuming.catalog,
            originals=resuming.originals,
            person=identity.person,
        )
        with resuming.within(place) if _has_run(place.call.name) else nullcontext():
            result = await self._runner.run(place.call, context, policy=resuming.policy, approved=approved)
        outcomes.untrusted = join_sources(outcomes.untrusted, ledger.untrusted_before(sys.maxsize))
        return result

    async def _used(self, approval: Approval, result: ToolResult) -> None:
        """Report that an approval was used. If its call could not run, ensure that it never runs later."""
        if self._log is None:
            return
        found = await self._log.find_approvals([approval.id])
        if found and found[0].status is ApprovalStatus.APPROVED:
            gone = Decided(
                ApprovalEvent.SUPERSEDE,
                approval.decided_by,
                approval.decided_via,
                result.safe_message[:MOST_REASON],
            )
            found = [await self._log.decide_approval(found[0], gone, self._now())]
        if found:
            self._tell("approval_used", found[0])


def _has_run(tool: str) -> bool:
    """Return whether a tool makes calls of its own: an agent, or the tool that runs programs."""
    return tool == RUN_PROGRAM or is_agent(tool)


def _asked_by(tool: str, result: ToolResult) -> Sequence[str]:
    """Return the approvals that an agent waits for, as the proxy wrote them into the result of its call."""
    is_asking = _has_run(tool) and result.error_code == "approval_required"
    return approval_ids_in(result.safe_message) if is_asking else ()


def client_calls_of(tool: str, result: ToolResult) -> Sequence[str]:
    """Return the ids of the client's calls that a program waits for, from the result of its own call."""
    waits = tool == RUN_PROGRAM and result.error_code == "client_call_required"
    return _CLIENT_CALL.findall(result.safe_message) if waits else ()


def _failed(call: ToolCall, failure: ToolFailure) -> ToolResult:
    code: ToolErrorCode = failure.code
    return ToolResult(call.call_id, False, failure_text(code, failure.message), code, failure.message)
