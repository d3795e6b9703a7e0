"""The only place where the loop turns: it carries out what a :class:`~proxy.relay.run.run.Run` commands.

Bytes flow ``upstream → reader → run and writer → client``.  The run decides, the writer owns what
the client sees, the editor owns what the upstream gets; nothing here knows a wire.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from proxy.caches import Memo
from proxy.errors import NotOnRecord, ToolFailure, UpstreamError, WireError
from proxy.events import ToolCall, ToolResult
from proxy.records import RunStatus, ToolEffect
from proxy.relay.base import ClientStream, OnBroken, RunEvents, RunSettings, ignore_broken, no_events
from proxy.relay.headers import RESTORED, restored_words
from proxy.relay.memory.history import History
from proxy.relay.memory.idempotency import Idempotency
from proxy.relay.memory.threads import Threads, threads_of
from proxy.relay.offer import Offer, guarded_names, offered_only
from proxy.relay.routing.fallback import NextUpstream
from proxy.relay.routing.prices import estimated_usage
from proxy.relay.run.failing import tell_failure
from proxy.relay.run.job import Job, Offered, State
from proxy.relay.run.journal import Journal
from proxy.relay.run.keepalive import Keepalive, keeping_alive
from proxy.relay.run.model_turn import ModelTurns, ToolMemory, TurnRejected
from proxy.relay.run.parallel_tool_use import is_wrapper, mask_parts
from proxy.relay.run.run import CallModel, Command, Finish, Run, RunTools, Suspend
from proxy.relay.run.settling import Settling
from proxy.relay.stopping import said_of, stopped
from proxy.store.base import Store
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.redaction import mask_written, redact_written
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner
from proxy.wires.base import HeldTurn, Mask

__all__ = ["Orchestrator"]

_NARROWED_BYTES = 16 << 20


class Orchestrator:
    """Runs jobs.  One for the process; everything of one job is in its own state."""

    def __init__(
        self,
        *,
        registry: Registry,
        runner: Runner,
        store: Store,
        history: History,
        settings: RunSettings,
        memory: ToolMemory,
        repeats: Idempotency,
        settling: Settling,
        watch: RunEvents = no_events,
        broken: OnBroken = ignore_broken,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._runner = runner
        self._store = store
        self._history = history
        self._threads = Threads(store)
        self._repeats = repeats
        self._settling = settling
        self._settings = settings
        self._turns = ModelTurns(settings, memory, broken)
        self._journal = Journal(store, watch)
        self._watch = watch
        self._narrowed: Memo[tuple[int, int, tuple[str, ...]], tuple[Policy, Offer, Policy]] = Memo(
            "narrowed_policies", _NARROWED_BYTES, lambda known: 8000 + known[1].kept_bytes
        )
        self._now = now
        self._clock = clock

    async def run(self, job: Job, client: ClientStream) -> None:
        """Serve one request to its end.

        Whatever happens, the client gets a whole answer or an error that it can read, and the run
        is closed on record, also when the client has gone (rule E4).
        """
        state = self._begin(job, client)
        status: RunStatus = "failed"
        error: str | None = "internal_error"
        try:
            while True:
                try:
                    status, error = await self._loop(job, state)
                    break
                except NextUpstream:
                    if job.elsewhere is None:
                        raise
                job = await job.elsewhere()
                state = self._begin(job, client, state.started_at)
        except (UpstreamError, WireError, TurnRejected) as fault:
            error = getattr(fault, "code", "upstream_malformed")
            self._journal.turn_ended(job, state, error)
            await tell_failure(job, state, fault)
        except NotOnRecord as fault:
            error = fault.code
            await tell_failure(job, state, fault)
        except ConnectionError:
            # The client has gone; there is nobody left to tell.
            status, error = "cancelled", "client_gone"
        except asyncio.CancelledError:
            if not client.cut_off:
                status, error = "cancelled", "client_gone"
                raise
            end = stopped()
            error = end.code
            if state.told < state.run.turn.number:
                self._journal.turn_ended(job, state, error)
            await tell_failure(job, state, end)
        finally:
            self._settle(job, state)
            self._journal.ended(job, state, status, error, self._mask(state))
            if status in ("completed", "suspended"):
                self._repeats.answered(job.repeat, job.ledger)
            self._repeats.ended(job.repeat, job.ledger)

    def _begin(self, job: Job, client: ClientStream, started_at: float | None = None) -> State:
        request, served = job.request, job.route.served
        client.keep_back(served.secrets)
        metered = job.meter is not None and job.meter.counts_usage
        offered = Offered(job.offer)
        asks_usage = request.stream and (
            served.force_usage or self._settings.max_tokens > 0 or job.price is not None or metered
        )
        state = State(
            run=Run(
                self._settings.within(request.max_calls),
                is_hidden=offered.is_hidden,
                clock=self._clock,
                price=job.price,
            ),
            writer=job.wire.writer(
                request,
                is_hidden=offered.is_hidden,
                trace=job.trace,
                model=request.model,
                usage_was_added=asks_usage,
                caller=job.caller,
            ),
            offered=offered,
            context=RunContext(
                job.run_id, 0, job.caller, job.request_id, job.ledger, limiter=job.meter, key=job.key
            ),
            client=client,
            started_at=self._now() if started_at is None else started_at,
            metered=metered,
        )
        if job.route.renamed:
            job.editor.rename_model(job.route.model)
        job.editor.offer(job.offer.added, job.offer.replaced)
        job.editor.withhold(job.offer.guarded)
        if job.put_back or started_at is not None:
            # Another upstream may get another conversation than the one that was asked first.
            client.tell(RESTORED, restored_words(*job.editor.put_back))
        if asks_usage:
            job.editor.ask_usage()
        self._journal.began(job, state)
        return state

    async def _loop(self, job: Job, state: State) -> tuple[RunStatus, str | None]:
        """Turn until the run has an end; its status and error code."""
        command = state.run.start()
        while True:
            match command:
                case CallModel():
                    command = await self._turns.call(job, state, command)
                    self._journal.turn_ended(job, state)
                    self._settle(job, state)
                case RunTools():
                    results = await self._run_tools(job, state, command)
                    command = self._tools_ran(job, state, results)
                case Suspend():
                    await state.send(state.writer.turn_ended("suspended"))
                    await self._end(job, state, "tool_calls", suspends=True)
                    return "suspended", None
                case Finish():
                    return await self._finish(job, state, command)

    @staticmethod
    def _settle(job: Job, state: State) -> None:
        """Tell the meter what has been used since it was told last, also of a turn that broke."""
        run = state.run
        run.count_usage()
        if state.metered and (state.first_chunk_at or run.turn.ended):
            run.estimate_usage(lambda: estimated_usage(job.editor.render(), state.events))
        used = (run.spent_tokens, run.spent_cost)
        if job.meter is not None and used != state.settled:
            job.meter.spend(used[0] - state.settled[0], used[1] - state.settled[1])
            state.settled = used

    # Tools.

    async def _run_tools(self, job: Job, state: State, command: RunTools) -> list[ToolResult]:
        """Run the turn's calls, show them as far as the client asked, keep the stream alive."""
        run, writer = state.run, state.writer
        calls = [
            call.to_run(state.offer.names.get(call.name, call.name), self._native(job, state, call))
            for call in command.calls
        ]
        shown = {call.call_id: call for call in (*command.calls, *run.hidden_calls)}
        pending: list[bytes] = []
        begun: set[str] = set()
        bell = Keepalive()

        def say(data: bytes) -> None:
            if data:  # Of most calls the client is shown nothing, and nobody need wake for that.
                pending.append(data)
                bell.ring()

        def started(call: ToolCall, arguments_redacted: Any) -> None:
            if call.call_id not in begun:
                begun.add(call.call_id)
                say(writer.tool_started(shown.get(call.call_id, call), arguments_redacted))

        def done(call: ToolCall, result: ToolResult) -> None:
            started(call, result.arguments_redacted)  # A call that was refused has not been shown yet.
            say(writer.tool_finished(shown.get(result.call_id, call), result))
            self._tell(job, call, result)

        async def show(silent: bool) -> None:
            data = b"".join(pending)
            pending.clear()
            await (state.send(data) if data else state.keep_alive(silent))

        # What is let through before the tools run: the text and the client's part of this turn.
        await state.send(writer.turn_ended("hidden" if not run.client_calls else "suspended"))
        for result in command.refused:
            done(call := run.call_of(result), result)
            await self._refuse(job, state, call, result)
        if any(self._has_effect(call.name) for call in calls):
            state.effects = True
            self._repeats.caused(job.repeat, job.ledger)
        work = self._runner.run_many(
            calls,
            state.context.at_turn(run.turn.number),
            policy=self._offered_only(job, state, calls),
            budget_s=run.seconds_left,
            parallel=self._settings.parallel,
            on_start=started,
            on_done=done,
        )
        results = await keeping_alive(work, self._settings.keepalive_s, show, bell)
        await show(False)
        return [*results, *command.refused]

    async def _refuse(self, job: Job, state: State, call: ToolCall, result: ToolResult) -> None:
        """Put a call on record that is not made, with the budget that is spent."""
        rule = state.run.spent if result.error_code == "budget_exhausted" else "the function is the client's"
        called = call.to_run(state.offer.names.get(call.name, call.name), self._native(job, state, call))
        failure = ToolFailure(result.safe_message, code=result.error_code or "execution_failed")
        context = state.context.at_turn(state.run.turn.number)
        await self._runner.refuse(called, context, failure, f"refused: {rule}")

    def _native(self, job: Job, state: State, call: ToolCall) -> str:
        """A call as it came, as it may be kept (rule R3); none of what a wrapper call holds, which has no
        payload of its own, and none where the client asked that nothing be kept."""
        if not job.request.keeps or state.reader is None:
            return ""
        if call.call_id not in [hidden.call_id for hidden in state.run.hidden_calls]:
            return ""
        return state.reader.native(call, self._mask(state))

    def _offered_only(self, job: Job, state: State, calls: Sequence[ToolCall]) -> Policy:
        """The caller's policy, and of what it allows only what this request offered.

        What needs an approval was not offered for that alone, and is refused in these words (rule T2).
        Worked out once for all runs that share both; they are held, so that no others get their identity.
        """
        called = [spec for call in calls if (spec := self._registry.get(call.name)) is not None]
        asking = tuple(spec.name for spec in called if job.policy.decide(spec).outcome == "needs_approval")
        key = (id(job.policy), id(state.offer), asking)
        known = self._narrowed.get(key)
        if known is None:
            narrowed = offered_only(job.policy, state.offer, asking)
            known = self._narrowed.put(key, (job.policy, state.offer, narrowed))
        return known[2]

    def _has_effect(self, name: str) -> bool:
        spec = self._registry.get(name)
        return spec is not None and spec.effect is not ToolEffect.READ_ONLY

    def _tools_ran(self, job: Job, state: State, results: Sequence[ToolResult]) -> Command:
        """Put the results where the next turn, or the client's return, finds them."""
        run = state.run
        called = [call.name for call in run.turn.calls]
        message = state.message()
        state.answers = {
            call.call_id: job.editor.result_message(call, content, images)
            for call, content, images in run.answers(results)
        }
        command = run.tools_ran()
        if isinstance(command, CallModel):
            job.editor.append_turn(message, list(state.answers.values()))
            job.editor.relax_tool_choice(called)
            self._narrow(job, state)
        if (conversation := job.request.conversation) and job.notes_threads:
            # Now: the upstream has it as soon as the next turn is asked, whatever becomes of the run.
            self._threads.note([conversation], job.caller, self._read_from_strangers(job))
            state.to_find = True
        return command

    def _narrow(self, job: Job, state: State) -> None:
        """Leave out of the turns to come what needs an approval after what the model will have read."""
        offer = state.offer
        untrusted = job.ledger.untrusted_before(state.run.turn.number)
        rules = guarded_names(offer, self._registry.get, job.policy, untrusted)
        job.editor.withhold(rules)
        state.withheld = {
            offer.names[name]: rule for name, rule in rules.items() if name not in offer.guarded
        }

    def _held_calls(self, state: State) -> list[HeldTurn]:
        ids = state.writer.client_ids()
        return [
            HeldTurn(call.call_id, ids.get(call.call_id), state.answers.get(call.call_id))
            for call in state.run.turn.calls
        ]

    def _keep(self, job: Job, state: State) -> None:
        """Keep a response that has an id of its own and that only we know whole."""
        writer = state.writer
        if not (writer.composing or job.put_back) or not job.request.keeps or state.reader is None:
            return
        if (resource := writer.result()) is not None:
            state.to_find |= self._history.keep(
                job.editor,
                resource,
                run_id=job.run_id,
                caller=job.caller,
                message=state.message(),
                calls=self._held_calls(state),
                mask=self._mask(state),
                untrusted=self._read_from_strangers(job),
                upstream=job.route.served.upstream.name,
            )

    def _note_threads(self, job: Job, state: State) -> None:
        """Note what the model has read in what the upstream keeps of this run."""
        if not job.notes_threads:
            return
        kept = threads_of(state.writer.result()) if job.request.keeps else []
        ids = [one for one in (job.request.conversation, *kept) if one]
        self._threads.note(ids, job.caller, self._read_from_strangers(job))
        state.to_find |= bool(ids)

    def _remember(self, job: Job, state: State) -> None:
        """Keep the hidden turns behind an answer that leaves the client nothing to do."""
        run = state.run
        if job.shape is not None and run.turns_hidden and not run.turn.calls and state.reader is not None:
            state.to_find |= self._history.remember(
                job.request,
                job.editor,
                state.writer.visible,
                run_id=job.run_id,
                caller=job.caller,
                wire=job.wire.dialect.name,
                shape=job.shape,
                message=state.message(),
                mask=self._mask(state),
                untrusted=self._read_from_strangers(job),
                upstream=job.route.served.upstream.name,
            )

    async def _hold(self, job: Job, state: State) -> bool:
        """Keep what the client does not see of this turn until it returns, if one person is who asks;
        whether the record has something to be found."""
        if not job.named:
            return state.to_find
        state.to_find |= await self._history.hold(
            job.request,
            job.editor,
            state.writer.visible,
            run_id=job.run_id,
            caller=job.caller,
            wire=job.wire.dialect.name,
            message=state.message(),
            calls=self._held_calls(state),
            shown=state.run.client_calls,
            mask=self._mask(state),
            untrusted=self._read_from_strangers(job),
            upstream=job.route.served.upstream.name,
        )
        return state.to_find

    @staticmethod
    def _read_from_strangers(job: Job) -> str:
        """A tool whose untrusted result the model has read by the end of this run; empty if none."""
        return job.ledger.untrusted_before(sys.maxsize)

    def _mask(self, state: State) -> Mask:
        """Hides the private fields of arguments from what is written in the clear (rule R3)."""
        return partial(self._masked, state)

    def _masked(self, state: State, name: str, arguments: str) -> str:
        if self._store.sealed:
            return arguments
        known = state.masked.get((name, arguments))
        if known is None:
            if is_wrapper(name) and name not in state.offer.names:
                known = mask_parts(arguments, self._mask(state))
            else:
                spec = self._registry.get(state.offer.names.get(name, name))
                if spec is not None:
                    known = redact_written(arguments, spec)
                else:
                    # Of a tool that nobody knows nothing says which arguments are private.
                    known = mask_written(arguments) if state.offer.is_hidden(name) else arguments
            state.masked[name, arguments] = known
        return known

    def _tell(self, job: Job, call: ToolCall, result: ToolResult) -> None:
        self._watch(
            "tool_finished",
            {
                "run_id": job.run_id,
                "name": call.name,
                "ok": result.ok,
                "ms": result.milliseconds,
                "arguments_redacted": result.arguments_redacted,
                "result_redacted": result.redacted,
                "error_code": result.error_code,
            },
        )

    # The end.

    async def _finish(self, job: Job, state: State, command: Finish) -> tuple[RunStatus, str | None]:
        """Carry out a :class:`Finish`; the run's status and error code."""
        error = command.error
        code = str(error.get("code") or error.get("type") or "upstream_error")[:64] if error else None
        if error is not None and not command.shown and not command.answered:
            await tell_failure(job, state, TurnRejected(502, said_of(error), code))
        elif not command.answered:
            if command.note:
                for call in state.run.hidden_calls:
                    await self._refuse(job, state, call, state.run.budget_failure(call))
                await state.send(state.writer.turn_ended("final") + state.writer.note(command.note))
            await self._end(job, state, command.reason)
        return ("failed", code) if error is not None else ("completed", None)

    async def _end(self, job: Job, state: State, reason: str | None, *, suspends: bool = False) -> None:
        """Let go what is held back, and end the client's response.

        Raises :class:`~proxy.errors.NotOnRecord` for a turn that waits for the client and is nowhere kept.
        """
        writer, client = state.writer, state.client
        state.finish_reason = reason or state.run.turn.reason
        data = writer.turn_ended("final") + writer.finish(reason)
        self._keep(job, state)
        self._remember(job, state)
        self._note_threads(job, state)
        if suspends:
            client.flush()
            held = self._settling.held(lambda: self._hold(job, state))
            await keeping_alive(held, self._settings.keepalive_s, state.keep_alive)
        elif state.to_find:
            # The client goes on as soon as it has this end, and may reach another process.
            client.flush()
            await self._settling.answered()
        if not job.request.stream:
            client.start(200, [*state.answer, ("Content-Length", str(len(data)))])
        await state.send(data, last=True)
        client.finish()
