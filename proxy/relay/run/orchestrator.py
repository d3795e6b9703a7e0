"""The loop of a run: it carries out the commands of a :class:`~proxy.relay.run.run.Run`.

Bytes flow ``upstream → reader → run and writer → client``. The run decides. The writer decides what the
client sees, and the editor what the upstream gets. Nothing here knows a wire.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from proxy.base.errors import NotOnRecord, UpstreamError, WireError
from proxy.base.events import ToolCall
from proxy.http.own_headers import LEFT_OUT, RESTORED
from proxy.records.rows import RunStatus
from proxy.relay.base import ClientStream, OnBroken, RunSettings, ignore_broken
from proxy.relay.headers import restored_header
from proxy.relay.nested import AgentUsed, RunEnd
from proxy.relay.passing.stopping import message_of, stopped
from proxy.relay.routing.fallback import NextUpstream
from proxy.relay.run.approver import Approver
from proxy.relay.run.asking import show_agent_approvals, show_turn_approvals
from proxy.relay.run.ending import RunEnding
from proxy.relay.run.failing import tell_failure
from proxy.relay.run.hosted.found import note_earlier
from proxy.relay.run.hosted.pausing import show_paused_again
from proxy.relay.run.job import Job
from proxy.relay.run.journal import Journal
from proxy.relay.run.keepalive import with_keepalive
from proxy.relay.run.parents import Parents
from proxy.relay.run.run import AskApproval, CallModel, Finish, Run, RunTools, Suspend
from proxy.relay.run.state import ClientOutput, RunClock, State, ToolState
from proxy.relay.run.tool_calls import ToolCalls
from proxy.relay.run.turn.model_turn import ModelTurns
from proxy.relay.run.turn.rejection import TurnRejected
from proxy.relay.run.usage import RunUsage
from proxy.relay.run_memory import RunMemory
from proxy.tools.contract.redaction import bounded
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner
from proxy.tools.searching.listing import Searches
from proxy.wires.client_port import ApprovedCallResult, ClientView, EndedProgram, StreamWriter
from proxy.wires.repairing import RepairHabit
from proxy.wires.stream.plain import PlainTurn


class Orchestrator:
    """Runs jobs. The process has one; each job has its own state."""

    def __init__(
        self,
        *,
        runner: Runner,
        journal: Journal,
        settings: RunSettings,
        memory: RunMemory,
        approver: Approver,
        broken: OnBroken = ignore_broken,
        parents: Parents | None = None,
        searches: Searches | None = None,
    ) -> None:
        """``parents`` are the runs that wait for agents that they called, ``searches`` those that search."""
        self._idempotency = memory.idempotency
        self._settings = settings
        self._turns = ModelTurns(settings, memory.refusals, broken)
        self._tools = ToolCalls(
            runner, approver, settings, memory, journal.watch, parents or Parents(), searches or Searches()
        )
        self._approvals = memory.approvals
        self._ending = RunEnding(memory, settings)
        self._commits = memory.commits
        self._journal = journal

    async def run(self, job: Job, client: ClientStream) -> None:
        """Serve one request to its end.

        In every case the client gets a whole answer or an error that it can read. The run is always closed
        in the record, even if the client has gone (rule E4).
        """
        tape = self._journal.tape(job, client)
        if tape is None:
            return await self._serve(job, client)
        try:
            await self._serve(job, tape.client)
        finally:
            tape.finish()

    async def _serve(self, job: Job, client: ClientStream) -> None:
        state = self._begin(job, client, self._journal.now())
        status: RunStatus = "failed"
        error: str | None = "internal_error"
        try:
            while True:
                try:
                    status, error = await self._loop(job, state)
                    break
                except NextUpstream:
                    pass  # Its traceback must not stay with what the next upstream raises.
                job = await job.fallback.next_job()
                # The next upstream may get another conversation than the upstream before it.
                client.set_header(RESTORED, restored_header(*job.upstream.editor.restored))
                state = self._begin(job, client, state.clock.started_at)
        except (UpstreamError, WireError, TurnRejected) as fault:
            error = fault.code
            self._journal.turn_ended(job, state, error)
            await tell_failure(job, state, fault)
        except NotOnRecord as fault:
            error = fault.code
            await tell_failure(job, state, fault)
        except ConnectionError:
            # The client has gone, so there is no one to tell.
            status, error = "cancelled", "client_gone"
        except asyncio.CancelledError:
            if not client.stopped_by_server:
                status, error = "cancelled", _cancelled(job)
                raise
            end = stopped()
            error = end.code
            if state.outcome.turns_told < state.run.turn.number:
                self._journal.turn_ended(job, state, error)
            await tell_failure(job, state, end)
        finally:
            _tell_usage(job, state)
            self._journal.ended(job, state, status, error)
            repeat_key, ledger = job.continuity.repeat_key, job.tools.ledger
            if status in ("completed", "suspended"):
                self._idempotency.answered(repeat_key, ledger)
            self._idempotency.ended(repeat_key, ledger)
            if job.client.ask.nested is not None:
                job.client.ask.nested.watch.ended(_end_of(state, status, error))

    def _begin(self, job: Job, client: ClientStream, started_at: float) -> State:
        """Create the state of a run, and prepare the headers and the body that are known before the first
        turn."""
        client.blank_out(job.upstream.route.served.secrets)
        usage = RunUsage(job.accounting.meter)
        adds_usage = self._adds_usage(job, usage)
        state = self._state(job, client, started_at, usage, usage_was_added=adds_usage)
        if job.continuity.restored:
            client.set_header(RESTORED, restored_header(*job.upstream.editor.restored))
        if not job.continuity.approvals.stops and job.upstream.left_out:
            client.set_header(LEFT_OUT, ", ".join(job.upstream.left_out))
        _prepare(job, adds_usage=adds_usage)
        self._journal.began(job, state)
        return state

    def _adds_usage(self, job: Job, usage: RunUsage) -> bool:
        """Return whether the proxy asks the upstream for usage, even if the client may not have asked."""
        # Clients of other dialects may always get usage.
        is_needed = (
            self._settings.max_tokens > 0
            or job.accounting.price is not None
            or usage.is_limited
            or job.upstream.crossed
        )
        return job.client.request.stream and (job.upstream.route.served.force_usage or is_needed)

    def _state(
        self, job: Job, client: ClientStream, started_at: float, usage: RunUsage, *, usage_was_added: bool
    ) -> State:
        identity, request, tools = job.identity, job.client.request, job.tools
        context = RunContext(
            identity.run_id,
            0,
            identity.caller,
            identity.request_id,
            tools.ledger,
            job.accounting.meter,
            identity.key,
            tools.selection.catalog,
            job.keeps,
            originals=job.client.ask.options.originals,
            person=identity.person,
        )
        now = ToolState(tools, context, self._journal.sealed, tools.offer)
        nested, detached = job.client.ask.nested, job.client.ask.options.detached
        settings = self._settings.within(request.max_calls) if nested is None else nested.settings
        if detached is not None:
            settings = replace(settings, request_timeout_s=detached.time_s)
        run = Run(
            settings,
            is_hidden=now.is_hidden,
            needs_approval=now.needs_approval,
            clock=time.monotonic,
            price=job.accounting.price,
            # A client of another dialect does not know that a turn can pause.
            continues_pauses=bool(job.upstream.route.wire),
            purse=None if nested is None else nested.purse,
            had_turns_before=nested is not None and nested.asking.continues,
        )
        if job.continuity.approvals.purse is not None:
            run.settle(job.continuity.approvals.purse)
        for _, result in job.continuity.approvals.ran:
            run.paid(result.cost)
        output = ClientOutput(
            client,
            partial(_writer, job, now.is_hidden, usage_was_added=usage_was_added),
            typed=job.client.typed,
            plain=_plain_turn(job, usage_was_added=usage_was_added),
        )
        return State(run, output, now, RunClock(started_at), usage)

    async def _loop(self, job: Job, state: State) -> tuple[RunStatus, str | None]:
        """Carry out commands until the run ends; return its status and error code."""
        if job.continuity.approvals.asked:
            await _before_end(job)
            await show_agent_approvals(job, state, self._approvals)
            await self._ending.ask(job, state)
            return "suspended", None
        if job.continuity.approvals.waiting:
            await _before_end(job)
            await self._ending.ask_again(
                job, state, self._approvals.notice(job.continuity.approvals.waiting, again=True)
            )
            return "suspended", None
        if job.continuity.approvals.programs.paused:
            await _before_end(job)
            await show_paused_again(job, state)
            await self._ending.wait(job, state)
            return "suspended", None
        await note_earlier(job)
        command = state.run.start()
        while True:
            if self._commits.crowded:
                await self._wait_for_room(state)
            match command:
                case CallModel():
                    command = await self._turns.call(job, state, command)
                    self._journal.turn_ended(job, state)
                    _tell_usage(job, state)
                case AskApproval():
                    command = await self._tools.ask_approval(job, state, command)
                case RunTools():
                    command = await self._tools.run(job, state, command)
                case Suspend():
                    await _before_end(job)
                    if state.turn.approvals:
                        await show_turn_approvals(job, state, self._approvals)
                    for_client = command.calls or state.turn.paused
                    await (self._ending.suspend if for_client else self._ending.ask)(job, state)
                    return "suspended", None
                case Finish():
                    await _before_end(job)
                    return await self._finish(job, state, command)

    async def _wait_for_room(self, state: State) -> None:
        """Wait while the record cannot keep up: each step of a run adds to what it must write."""
        room = self._commits.wait_for_room()
        if state.output.client.started:
            await with_keepalive(room, self._settings.keepalive_s, state.output.keep_alive)
        else:  # The head is not known: the run may still fail.
            await room

    async def _finish(self, job: Job, state: State, command: Finish) -> tuple[RunStatus, str | None]:
        """Carry out a :class:`Finish`; return the run's status and error code."""
        error = command.error
        code = str(error.get("code") or error.get("type") or "upstream_error")[:64] if error else None
        if error is not None:
            state.outcome.failure = message_of(error)
        # A composing writer leaves out what is the upstream's own; any other has sent the error, or holds it.
        is_told = command.in_stream and not state.output.writer.composing
        if error is not None and not is_told and not command.answered:
            await tell_failure(job, state, TurnRejected(502, message_of(error), code))
        elif not command.answered:
            if command.note:
                await self._tools.refuse_hidden(job, state)
                output = state.output
                await output.send(output.writer.turn_ended("final") + output.writer.note(command.note))
            await self._ending.finish(job, state, command.reason)
        return ("failed", code) if error is not None else ("completed", None)


async def _before_end(job: Job) -> None:
    """Make sure that a run without a client may end its response.

    Raises :class:`~proxy.base.errors.NotOnRecord` if it may not.
    """
    if (detached := job.client.ask.options.detached) is not None:
        await detached.before_end()


def _approved(job: Job) -> Sequence[ApprovedCallResult]:
    """Return the calls that people approved and that have run, as the client may see them."""
    names = {tool: name for name, tool in job.tools.offer.names.items()}
    found = []
    for approval, result in job.continuity.approvals.ran:
        shown = result.arguments_redacted
        if shown is None:
            shown = bounded(approval.arguments_shown)
        call = ToolCall(approval.call_id, names.get(approval.tool, approval.tool), "", approval.seq)
        found.append(ApprovedCallResult(approval.id, call, replace(result, arguments_redacted=shown)))
    return found


def _cancelled(job: Job) -> str:
    """Return why a run was cancelled: its client left, or a run without a client was told to end."""
    ask = job.client.ask
    return "client_gone" if ask.nested is None and ask.options.detached is None else "cancelled"


def _end_of(state: State, status: RunStatus, error: str | None) -> RunEnd:
    run, reader = state.run, state.outcome.reader
    return RunEnd(
        status=status,
        error_code=error,
        text=reader.text if reader is not None else "",
        finish_reason=run.turn.reason,
        spent=run.spent,
        untrusted=state.tools.untrusted_read(),
        last=run.turn.last,
        used=AgentUsed(run.turn.number, run.calls_run, run.total_tokens, run.cost or 0),
        asked=state.turn.approvals if status == "suspended" else (),
    )


def _writer(job: Job, is_hidden: Callable[[str], bool], *, usage_was_added: bool) -> StreamWriter:
    """Return the writer of the client's stream, which repairs that of a defective upstream."""
    request = job.client.request
    writer = job.client.port.writer(
        request,
        ClientView(
            request.model,
            is_hidden,
            trace=job.client.trace,
            usage_was_added=usage_was_added,
            caller=job.identity.caller,
            shown=job.tools.offer.shown,
            approved=_approved(job) if job.continuity.approvals.ran else (),
            ended=[EndedProgram(*one) for one in job.continuity.approvals.programs.ended.items()],
        ),
    )
    habit = _repair_habit(job)
    if habit != "off":
        writer.repair(always=habit == "always")
    return writer


def _repair_habit(job: Job) -> RepairHabit:
    """Return which defects of the upstream's stream are repaired."""
    # A stream of another dialect is rewritten anyway. With several choices only one would be left.
    if job.upstream.crossed or job.client.request.choices != 1:
        return "off"
    return job.upstream.route.served.repair


def _plain_turn(job: Job, *, usage_was_added: bool) -> PlainTurn | None:
    """Return what can read the first turn as long as it is plain text, which reaches the client unchanged."""
    port, opens = job.client.port, bool(job.continuity.approvals.programs.ended)
    if (
        opens
        or job.upstream.port is not port
        or job.client.typed is not None
        or _repair_habit(job) == "always"
    ):
        return None
    return port.plain_turn(job.client.request, usage_was_added=usage_was_added)


def _prepare(job: Job, *, adds_usage: bool) -> None:
    """Change the client's body for the upstream: the model's name, the offered tools, and usage."""
    editor, route, offer = job.upstream.editor, job.upstream.route, job.tools.offer
    model = route.model if route.renamed else ""
    editor.offer(offer.added, offer.replaced, model=model, withheld=offer.guarded, asks_usage=adds_usage)


def _tell_usage(job: Job, state: State) -> None:
    answered = bool(state.turn.first_chunk_at or state.run.turn.ended)
    state.usage.report(state.run, job.upstream.editor.render, state.turn.events, answered=answered)
