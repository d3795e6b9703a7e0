"""The hidden calls of a turn: asks for their approvals, runs them, and hands on their results."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from proxy.base.caches import Derived
from proxy.base.chance import replayable
from proxy.base.errors import ToolFailure
from proxy.base.events import RUN_PROGRAM, SEARCH_TOOLS, ToolCall, ToolProgress, ToolResult
from proxy.records.result_for_model import Hole
from proxy.records.rows import ToolEffect
from proxy.relay.base import RunEvents, RunSettings
from proxy.relay.memory.steps import NotContinued, RecordedCalls
from proxy.relay.offering.narrowing import offered_only
from proxy.relay.offering.offer import Offer, guarded_names
from proxy.relay.run.approver import Approver
from proxy.relay.run.hosted.found import note_found
from proxy.relay.run.hosted.limits import (
    bound_arguments,
    declared_tool,
    is_used_up,
    limited,
    refused_calls,
    with_arguments,
)
from proxy.relay.run.hosted.sources import image_source
from proxy.relay.run.job import Job
from proxy.relay.run.keepalive import Notifier, with_keepalive
from proxy.relay.run.parents import Parents, can_hold_turn, has_runs
from proxy.relay.run.run import AgentUse, AskApproval, CallModel, Command, RunTools
from proxy.relay.run.state import State
from proxy.relay.run_memory import RunMemory
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.runner import OnDone, OnProgress, OnStart, Runner
from proxy.tools.searching.listing import Searches
from proxy.wires.client_port import Trace
from proxy.wires.hosted.forms import CallForm
from proxy.wires.typed_tools.searching import found_in

_NARROWED_BYTES = 16 << 20


class ToolCalls:
    """Runs the hidden calls of turns. The process has one."""

    def __init__(
        self,
        runner: Runner,
        approver: Approver,
        settings: RunSettings,
        memory: RunMemory,
        watch: RunEvents,
        parents: Parents,
        searches: Searches,
    ) -> None:
        self._runner = runner
        self._searches = searches
        self._approvals = memory.approvals
        self._items = memory.items
        self._parents = parents
        self._approver = approver
        self._settings = settings
        self._idempotency = memory.idempotency
        self._threads = memory.threads
        self._watch = watch
        self._narrowed: Derived[tuple[Policy, Offer, tuple[str, ...]], Policy] = Derived(
            "narrowed_policies", _NARROWED_BYTES, lambda key, _: 8000 + key[1].kept_bytes
        )

    async def ask_approval(self, job: Job, state: State, command: AskApproval) -> Command:
        """Ask whether calls may run, and return the command that says which run, are refused, or wait.

        The client's connection is kept alive meanwhile.
        """
        if (steps := job.client.ask.options.steps) is not None and steps.replaying:
            return state.run.decided(frozenset())  # The recorded calls say which ran.
        refused = await self._check(job, state, state.run.turn.undecided or RunTools(command.calls))
        over = {result.call_id for result in refused}
        calls = [_bound(state, call) for call in command.calls if call.call_id not in over]
        if not calls:
            return state.run.decided(frozenset(), refused=refused)
        deciding = self._approver.decide(job, calls)
        approved = await with_keepalive(deciding, self._settings.keepalive_s, state.output.keep_alive)
        left = [call for call in calls if call.index not in approved]
        if not (left and job.can_ask):
            return state.run.decided(approved, refused=refused)
        nested = job.client.ask.nested
        asking = self._approvals.ask(
            left,
            state.tools.context.at_turn(state.run.turn.number),
            self._offered_only(job, state, left),
            job.identity,
            asked_in=(
                *job.continuity.approvals.asked_in,
                *(() if nested is None else nested.asking.asked_in),
            ),
            can_wait=nested is not None or can_hold_turn(job.client.request),
            agent="" if nested is None else nested.agent.name,
        )
        asked = await with_keepalive(asking, self._settings.keepalive_s, state.output.keep_alive)
        state.turn.waiting, state.turn.granted = dict(asked.waiting), dict(asked.granted)
        return state.run.decided(approved, frozenset(asked.waiting), [*asked.refused, *refused])

    @staticmethod
    async def _check(job: Job, state: State, command: RunTools) -> list[ToolResult]:
        """Return the results of calls of the provider's tools that may not run; once in each turn."""
        if state.turn.checked:
            return []
        state.turn.checked = True
        return await refused_calls(job, state, command.calls)

    async def run(self, job: Job, state: State, command: RunTools) -> Command:
        """Run the turn's calls, show them as far as the client asked for it, and keep the stream alive.

        Return the run's next command, after the run got the results.
        """
        run, output, steps = state.run, state.output, job.client.ask.options.steps
        again = None if steps is None else steps.calls_again()
        if again is not None:
            ran = {shown.index for shown in again.shown}
            left = tuple(call for call in command.calls if call.index in ran)
            command = structs.replace(command, calls=left, refused=tuple(again.refused))
        elif refused := await self._check(job, state, command):
            over = {result.call_id for result in refused}
            left = tuple(call for call in command.calls if call.call_id not in over)
            command = structs.replace(command, calls=left, refused=(*command.refused, *refused))
        calls = [_to_run(job, state, call) for call in command.calls]
        shown = _ShownCalls(state, command, partial(self._tell, job), trace=job.client.trace)
        # Before the tools run, the client gets the text and its own part of this turn.
        await output.send(output.writer.turn_ended("hidden" if not run.client_calls else "suspended"))
        for result in command.refused:
            shown.finished(call := run.call_of(result), with_arguments(state, call, result))
            await self._refuse(job, state, call, result)
        if any(call.name == RUN_PROGRAM or _has_effect(state.tools.catalog.get(call.name)) for call in calls):
            state.tools.effects = True
            self._idempotency.caused(job.continuity.repeat_key, job.tools.ledger)
        if again is not None:
            results = self._show_again(state, shown, again, calls)
        else:
            results = await self._run_calls(job, state, command, calls, shown)
        if state.tools.offer.deferred.tools:
            _show_found(job, state, calls, results)
        shown.all_finished()
        await shown.show(False)
        results = [limited(state, call, result) for call, result in zip(calls, results, strict=True)]
        noted = note_found(job, state, zip(command.calls, results, strict=True))
        return self._take_results(job, state, [*noted, *command.refused])

    async def _run_calls(
        self, job: Job, state: State, command: RunTools, calls: Sequence[ToolCall], shown: "_ShownCalls"
    ) -> list[ToolResult]:
        """Run calls and keep the stream alive; return their results in the order of the calls."""
        run, output, steps = state.run, state.output, job.client.ask.options.steps
        policy = self._offered_only(job, state, calls)
        context = state.tools.context.at_turn(run.turn.number)
        if state.tools.offer.shown.hosted:
            context = structs.replace(context, images=image_source(job, state, self._items))
        nested = job.client.ask.nested
        on_start: OnStart = shown.started if nested is None else nested.watch.call_started
        on_progress: OnProgress | None = shown.progressed if shown.shows_progress else None
        on_done: OnDone = partial(self._done, state, shown)
        if steps is not None:
            if state.tools.effects:
                # Whoever finds an effect on record must also find the turn that it belongs to.
                await with_keepalive(steps.settled(), self._settings.keepalive_s, output.keep_alive)
            notes = steps.calling(command.refused)
            on_start, on_done = notes.started(on_start), notes.done(on_done)
            on_progress = None if on_progress is None else notes.progressed(on_progress)
        work = self._runner.run_many(
            calls,
            context,
            policy=policy,
            budget_s=run.seconds_left,
            parallel=self._settings.parallel,
            on_start=on_start,
            on_progress=on_progress,
            on_done=on_done,
            approved=command.approved,
            granted=state.turn.granted,
        )
        running = with_keepalive(work, self._settings.keepalive_s, shown.show, shown.notifier)
        if has_runs(calls):
            with self._parents.waiting(job, state, calls, policy), self._searching(state):
                results = await running
            await self._hold_agents(job, state, calls, results)
        else:
            with self._searching(state):
                results = await running
        return results

    def _show_again(
        self, state: State, shown: "_ShownCalls", again: RecordedCalls, calls: Sequence[ToolCall]
    ) -> list[ToolResult]:
        """Show calls as they were shown before; return their recorded results in the order of the calls."""
        by_index = {call.index: call for call in calls}
        results: dict[int, ToolResult] = {}
        for note in again.shown:
            if (call := by_index.get(note.index)) is None:
                raise NotContinued("the recorded calls are not those of the turn")
            if note.result is not None:
                results[note.index] = note.result
                state.usage.before.cost += note.result.cost
                self._done(state, shown, call, note.result)
            elif note.progress is not None:
                shown.progressed(call, note.progress)
            else:
                shown.started(call, note.arguments)
        if len(results) < len(calls):
            raise NotContinued("a recorded call has no result")
        state.run.agents = AgentUse(*again.agents)
        return [results[call.index] for call in calls]

    def _done(self, state: State, shown: "_ShownCalls", call: ToolCall, result: ToolResult) -> None:
        """Count what a call cost, and show its result."""
        state.run.paid(result.cost)
        shown.finished(call, limited(state, call, self._approvals.marked(call.name, result)))

    def _searching(self, state: State) -> AbstractContextManager[None]:
        """Let the run search the tools that its model is not shown, if there are any."""
        if not state.tools.offer.deferred.tools:
            return nullcontext()
        return self._searches.during(state.tools.context.run_id, state.tools.find)

    async def _hold_agents(
        self, job: Job, state: State, calls: Sequence[ToolCall], results: Sequence[ToolResult]
    ) -> None:
        """Let the turn wait for those of its agents whose own calls need approvals, and for its programs that
        wait for the client."""
        for call, result in zip(calls, results, strict=True):
            paused = await self._approvals.paused_program(call.name, result, job.identity.caller)
            if paused is not None:
                state.turn.paused[call.index] = paused
                state.run.let_wait([call])
            if not job.can_ask:
                continue
            asked = await self._approvals.asked_by_agent(call.name, result, job.identity.caller)
            if asked:
                state.turn.of_agents[call.index] = asked
                state.run.let_wait([call])

    async def refuse_hidden(self, job: Job, state: State) -> None:
        """Record the hidden calls of the last turn, none of which is run."""
        for call in state.run.hidden_calls:
            await self._refuse(job, state, call, state.run.budget_failure(call))

    async def _refuse(self, job: Job, state: State, call: ToolCall, result: ToolResult) -> None:
        """Record a call that is not run, with the reason."""
        rule = _why_refused(state, call, result)
        failure = ToolFailure(result.safe_message, code=result.error_code or "execution_failed")
        context = state.tools.context.at_turn(state.run.turn.number)
        await self._runner.refuse(_to_run(job, state, call), context, failure, f"refused: {rule}")

    def _offered_only(self, job: Job, state: State, calls: Sequence[ToolCall]) -> Policy:
        """Return the caller's policy, narrowed to what this request offered.

        If a tool was left out only because it needs an approval, its call is refused with that reason (rule
        T2). Runs that share policy and offer share the result.
        """
        selection = job.tools.selection
        withheld = frozenset() if selection.asks else selection.asking
        asking = tuple(call.name for call in calls if call.name in withheld)
        key = (job.tools.policy, state.tools.offer, asking)
        if state.tools.offer.shown.hosted:
            return offered_only(*key)  # Such an offer is of one request, and holds what its client declared.
        narrowed = self._narrowed.of(state.tools.catalog)
        known = narrowed.get(key)
        return narrowed.put(key, offered_only(*key)) if known is None else known

    def _take_results(self, job: Job, state: State, results: Sequence[ToolResult]) -> Command:
        """Put the results where the next turn, or the client's next request, finds them."""
        run, editor = state.run, job.upstream.editor
        if forms := state.tools.offer.shown.forms:
            results = [_for_model(run.call_of(result).name, result, forms) for result in results]
        called = [call.name for call in run.turn.calls]
        message = state.outcome.message()
        waiting = run.turn.waiting
        holes = {call.call_id: Hole(state.turn.wait_of(call.index)) for call in waiting} if waiting else {}
        for answer in run.answers(results, holes):
            id_ = answer.call.call_id
            if holes and answer.waits_for:
                state.turn.unfilled[id_] = answer
            else:
                state.turn.results[id_] = editor.result_message(answer.call, answer.text, answer.images)
        command = run.tools_ran()
        if isinstance(command, CallModel):
            editor.append_turn(message, list(state.turn.results.values()))
            editor.relax_tool_choice(called)
            _withhold_guarded(job, state)
        if (conversation := job.client.request.conversation) and job.continuity.notes_threads:
            # The note is made now, because the upstream gets the results with the next turn, even if the run
            # fails then.
            self._threads.note([conversation], job.identity.caller, state.tools.untrusted_read())
            state.outcome.has_data_for_next_request = True
        return command

    def _tell(self, job: Job, call: ToolCall, result: ToolResult) -> None:
        """Report the outcome of a call to the observers."""
        if job.client.ask.nested is not None:
            job.client.ask.nested.watch.call_finished(call, result)
        self._watch(
            "tool_finished",
            {
                "run_id": job.identity.run_id,
                "name": call.name,
                "ok": result.ok,
                "ms": result.milliseconds,
                "arguments_redacted": result.arguments_redacted,
                "result_redacted": result.redacted,
                "error_code": result.error_code,
            },
        )


class _ShownCalls:
    """Shows the client one turn's calls while they run, and reports the outcome of each to ``tell``."""

    def __init__(
        self, state: State, command: RunTools, tell: Callable[[ToolCall, ToolResult], None], *, trace: Trace
    ) -> None:
        self._output = state.output
        self._forms = state.tools.offer.shown.forms
        self._traced = trace == "events"
        self._tell = tell
        self._calls = {call.call_id: call for call in (*command.calls, *state.run.hidden_calls)}
        self._started: set[str] = set()
        self._pending: list[bytes] = []
        self._results: dict[str, tuple[ToolCall, ToolResult]] = {}
        self._order: list[str] = []
        self.notifier = Notifier()

    @property
    def shows_progress(self) -> bool:
        """Whether the client may see how far some call has come."""
        return self._traced or bool(self._forms)

    def started(self, call: ToolCall, arguments_redacted: Any) -> None:
        """Show that a call is about to run, if it has not been shown yet."""
        if call.call_id not in self._started:
            self._started.add(call.call_id)
            shown = self._calls.get(call.call_id, call)
            self._put(self._output.writer.tool_started(shown, arguments_redacted))

    def progressed(self, call: ToolCall, progress: ToolProgress) -> None:
        """Show how far a call has come, if the client asked for traces or the call has a form of its own."""
        if not self._traced and self._calls.get(call.call_id, call).name not in self._forms:
            return
        self._put(self._output.writer.tool_progressed(self._calls.get(call.call_id, call), progress))

    def finished(self, call: ToolCall, result: ToolResult) -> None:
        """Show the result of a call. A replay shows results in the order of the original run."""
        self.started(call, result.arguments_redacted)  # A refused call has not been shown yet.
        self._results[call.call_id] = (call, result)
        self._order.append(replayable("finished", lambda: call.call_id))
        while self._order and self._order[0] in self._results:
            self._finish(*self._results.pop(self._order.pop(0)))

    def all_finished(self) -> None:
        """Show the results that still wait for an earlier one: no more results will come."""
        for call, result in self._results.values():
            self._finish(call, result)
        self._results.clear()

    def _finish(self, call: ToolCall, result: ToolResult) -> None:
        self._put(self._output.writer.tool_finished(self._calls.get(result.call_id, call), result))
        self._tell(call, result)

    def _put(self, data: bytes) -> None:
        if data:  # Most calls are not shown, and then no task needs to wake.
            self._pending.append(data)
            self.notifier.notify()

    async def show(self, silent: bool) -> None:
        """Send what there is to show; see :data:`~proxy.relay.run.keepalive.OnTick`."""
        data = b"".join(self._pending)
        self._pending.clear()
        await (self._output.send(data) if data else self._output.keep_alive(silent))


def _to_run(job: Job, state: State, call: ToolCall) -> ToolCall:
    """Return a call in the runner's form: with the id of its tool, and as the model wrote it if that is
    recorded."""
    return _bound(state, call, _native(job, state, call))


def _bound(state: State, call: ToolCall, native: str = "") -> ToolCall:
    """Return a call with the id of its tool, and with the arguments that the client's declaration sets."""
    made = call.to_run(state.tools.id_of(call.name), native)
    tool, spec = declared_tool(state, call), state.tools.catalog.get(made.name)
    return (
        made if tool is None or spec is None else replace(made, arguments=bound_arguments(tool, call, spec))
    )


def _for_model(name: str, result: ToolResult, forms: Mapping[str, CallForm]) -> ToolResult:
    return result if (form := forms.get(name)) is None else form.for_model(result)


def _native(job: Job, state: State, call: ToolCall) -> str:
    """Return a call as the model wrote it, in the form that may be stored (rule R3).

    It is empty for a call inside a wrapper call, which has no payload of its own, and if the client asked
    that nothing be stored.
    """
    reader = state.outcome.reader
    if not job.keeps or reader is None:
        return ""
    if call.call_id not in [hidden.call_id for hidden in state.run.hidden_calls]:
        return ""
    return reader.native(call, state.tools.mask)


def _show_found(job: Job, state: State, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
    """Show the model, from its next turn on, the tools that the calls found or that they called unseen."""
    found: list[str] = []
    for call, result in zip(calls, results, strict=True):
        found += found_in(result) if call.name == SEARCH_TOOLS else [call.name]
    tools = state.tools
    found += [tools.id_of(call.name) for call in state.run.turn.waiting]
    tools.offer = offer = tools.offer.with_loaded([name for name in found if not tools.is_withheld(name)])
    job.upstream.editor.offer(offer.added, offer.replaced)


def _withhold_guarded(job: Job, state: State) -> None:
    """Withhold from later turns the tools that need an approval after an untrusted result."""
    tools, offer = state.tools, state.tools.offer
    untrusted = job.tools.ledger.untrusted_before(state.run.turn.number)
    asks = job.tools.selection.asks
    rules = guarded_names(offer, tools.catalog.get, job.tools.policy, untrusted, asks=asks)
    job.upstream.editor.edit(withheld=frozenset(rules))
    withheld = {offer.names[name]: rule for name, rule in rules.items() if name not in offer.guarded}
    if withheld != tools.withheld and (listed := offer.listing_without(rules)) is not offer:
        tools.offer = listed
        job.upstream.editor.offer(listed.added, listed.replaced)
    tools.withheld = withheld


def _why_refused(state: State, call: ToolCall, result: ToolResult) -> str:
    """Return why a call is not run, in the words of its row in the record."""
    if result.error_code == "budget_exhausted":
        return "max_uses of the request" if is_used_up(state, call) else state.run.spent
    if result.error_code in ("url_not_in_prior_context", "url_not_allowed"):
        return f"{result.error_code} (tools.hosted.web_fetch)"
    if state.tools.is_hidden(call.name):
        return f"{result.error_code}, before anybody was asked for an approval"
    return "the function is the client's"


def _has_effect(spec: ToolSpec | None) -> bool:
    return spec is not None and spec.effect is not ToolEffect.READ_ONLY
