"""The steps of a program: it waits for calls, these run like the calls of a model's turn, and it goes on."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import StoreError, ToolFailure
from proxy.base.events import ToolCall, ToolResult
from proxy.records.rows import ToolEffect
from proxy.relay.approvals.approvals import Approvals, Asked, Resuming
from proxy.relay.memory.programs import MOST_STATE, ProgramState, ProgramStates
from proxy.relay.nested import RunWatch
from proxy.relay.run.parents import Parent
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.programs.engine import ProgramCall, ProgramFailed, Session, Step
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner

PROGRAM: Final = "a program"
"""What asks, in the reason of an approval."""

_MOST_PRINTED: Final = 1 << 18
_MOST_ARGUMENTS: Final = 1 << 20
_NO_OBJECT: Final = f"the arguments must be an object of at most {_MOST_ARGUMENTS >> 20} MiB"
_NO_CLIENT: Final = (
    "this request cannot wait for its client: its answer must be JSON, or its key belongs to several people"
)
_NO_CALLS: Final = "not run: this request can make no more tool calls"
_MOST_REFUSED: Final = 100
_STUBBORN: Final = "the program was stopped, because it went on with calls that were refused"
_NOT_KEPT: Final = (
    "the state of the program could not be put on record, so its calls with an effect were not made"
)


class Waits(Exception):
    """Calls of a program wait for the approvals ``ids``, or for the client's results of its calls
    ``client_calls``; ``state`` is the program as it waits."""

    def __init__(
        self, state: ProgramState, ids: Sequence[str] = (), client_calls: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.state = state
        self.ids = tuple(ids)
        self.client_calls = tuple(client_calls)


class StepTools(Struct, frozen=True):
    """What runs the calls of programs. ``parallel`` is as in the settings of a run."""

    runner: Runner
    approvals: Approvals
    states: ProgramStates
    parallel: bool = True


class Steps:
    """The steps of one program."""

    def __init__(
        self,
        tools: StepTools,
        parent: Parent,
        state: ProgramState,
        context: RunContext,
        watch: RunWatch,
        outer_call: str,
        deadline: float,
    ) -> None:
        """``context`` is that of the program's run. ``outer_call`` is the id of the call that runs it, and
        ``deadline`` the monotonic time at which it has to be over."""
        access = parent.access
        if access is None:
            raise RuntimeError("a program has no tools")
        self._tools = tools
        self._parent = parent
        self._policy: Policy = access.policy
        self._catalog: Catalog = access.catalog
        self._context = context
        self._watch = watch
        self._outer_call = outer_call
        self._deadline = deadline
        self._allowed = frozenset(state.tools.values()) - state.theirs
        self.state = state
        self.cost = 0
        self.images: Sequence[str] = ()
        self._refused = 0

    async def finish(self, session: Session, step: Step) -> str:
        """Run a program to its end and return its value as JSON text.

        Raise :class:`Waits` if calls wait for a person, and :class:`~proxy.base.errors.ToolFailure` if it
        fails.
        """
        while True:
            self._print(step.printed)
            if step.result is not None:
                self.images = step.images
                return step.result
            step = await session.resume(await self._next(session, step.calls))

    async def go_on(self, session: Session) -> Step:
        """Go on from the state: with the results that it has, and those of the calls that had waited."""
        state = self.state
        results = dict(state.results)
        if state.asked and self._parent.pause is not None:
            brought = self._parent.pause.results
            results |= {id_: brought[asked] for id_, asked in state.asked.items() if asked in brought}
        if state.waiting:
            results |= await self._decided(state)
        self.state = replace(state, results=results, waiting={})
        return await session.resume(await self._results(session))

    def _print(self, text: str) -> None:
        kept = (self.state.printed + text)[:_MOST_PRINTED]
        self.state = replace(self.state, printed=kept)

    async def _next(self, session: Session, calls: Sequence[ProgramCall]) -> Mapping[int, str]:
        """Run the calls of the next step."""
        state = self.state
        made = state.made + len(calls)
        self.state = replace(
            state, step=state.step + 1, calls=tuple(calls), made=made, results={}, waiting={}, asked={}
        )
        return await self._results(session)

    async def _results(self, session: Session) -> Mapping[int, str]:
        """Run those calls of the present step that have no result yet, and return the results of all."""
        theirs = self._client_calls()
        state = self.state
        left = [call for call in state.calls if call.id not in state.results and call.id not in theirs]
        made = self._as_calls(left)
        if not (made or theirs):
            return state.results
        # The client is asked first; who approves a call then sees no program that waits for another reason.
        asked = Asked() if theirs else await self._ask(made)
        if theirs:
            made = {id_: call for id_, call in made.items() if not self._needs_approval(call)}
        by_index = {call.index: id_ for id_, call in made.items()}
        waiting = {by_index[index]: approval.id for index, approval in asked.waiting.items()}
        refused = {result.call_id: result for result in asked.refused}
        now = {id_: call for id_, call in made.items() if id_ not in waiting and call.call_id not in refused}
        acts = any(self._has_effect(call) for call in now.values())
        if waiting or acts or theirs:
            await self._keep(session, state)
        over = {id_: _text(refused[call.call_id]) for id_, call in made.items() if call.call_id in refused}
        results = {**state.results, **over, **await self._ran(now, asked.granted)}
        # The results are part of the state, so the program has read them wherever it goes on.
        untrusted = self._context.ledger.untrusted_before(state.step + 1)
        self.state = replace(self.state, results=results, waiting=waiting, untrusted=untrusted)
        if acts:
            # A process that dies now must not leave it open how these calls ended.
            await self._put()
        if theirs:
            raise Waits(self.state, client_calls=list(theirs.values()))
        if waiting:
            raise Waits(self.state, list(waiting.values()))
        return results

    def _client_calls(self) -> Mapping[int, str]:
        """Return the calls of the step whose results the client has to bring, each with its id there.

        Those that it cannot be asked for have a result then, which says so.
        """
        state, pause = self.state, self._parent.pause
        asked, refused = dict(state.asked), {}
        for call in state.calls:
            if call.tool not in state.theirs or call.id in state.results or call.id in asked:
                continue
            if pause is None:
                refused[call.id] = _failure("client_call_required", _NO_CLIENT)
            elif not _is_object(call.arguments):
                refused[call.id] = _failure("invalid_arguments", _NO_OBJECT)
            elif not self._parent.purse.take_call():
                self._count_refusal()
                refused[call.id] = _failure("budget_exhausted", _NO_CALLS)
            else:
                asked[call.id] = pause.call_id()
        self.state = replace(state, asked=asked, results={**state.results, **refused})
        return {id_: asked[id_] for id_ in asked if id_ not in state.results}

    def _as_calls(self, calls: Sequence[ProgramCall]) -> dict[int, ToolCall]:
        """Return the calls of the present step by id, each with its place in the step."""
        places = {call.id: index for index, call in enumerate(self.state.calls)}
        # An id that the run has used is never used again, also if a program goes on later.
        return {
            call.id: ToolCall(f"{self._outer_call}.{call.id}", call.tool, call.arguments, places[call.id])
            for call in calls
        }

    async def _ask(self, calls: Mapping[int, ToolCall]) -> Asked:
        """Ask for the approvals that calls of the step need, if somebody can be asked."""
        parent = self._parent
        if not parent.asking.can_ask:
            return Asked()
        asking = [call for call in calls.values() if self._needs_approval(call)]
        if not asking:
            return Asked()
        return await self._tools.approvals.ask(
            asking,
            self._context.at_turn(self.state.step),
            self._policy,
            parent.ask.identity,
            asked_in=parent.asking.asked_in,
            agent=PROGRAM,
        )

    def _needs_approval(self, call: ToolCall) -> bool:
        untrusted = self._context.ledger.untrusted_before(self.state.step)
        spec = self._catalog.get(call.name) if call.name in self._allowed else None
        return spec is not None and self._policy.decide(spec, untrusted=untrusted).outcome == "needs_approval"

    def _has_effect(self, call: ToolCall) -> bool:
        spec = self._catalog.get(call.name)
        return spec is not None and spec.effect is not ToolEffect.READ_ONLY

    async def _keep(self, session: Session, state: ProgramState) -> None:
        """Put the state on record before a call can have an effect.

        A step whose calls only read is not worth a write: after a crash they run again.
        """
        dump = await session.dump()
        if len(dump) > MOST_STATE:
            raise ToolFailure(
                f"the program holds more than {MOST_STATE >> 20} MiB, so its state cannot be kept before a "
                "call with an effect: keep less in variables"
            )
        untrusted = self._context.ledger.untrusted_before(state.step)
        self.state = replace(state, dump=dump, untrusted=untrusted)
        if not await self._put():
            raise ToolFailure(_NOT_KEPT)

    async def _put(self) -> bool:
        """Write the state; return whether it is on record."""
        states = self._tools.states
        states.put(self.state, self._context.caller, ephemeral=not self._parent.asking.keeps)
        return await states.commit()

    async def _ran(self, calls: Mapping[int, ToolCall], granted: Mapping[int, Any]) -> dict[int, str]:
        """Run calls and return their results for the program, by id."""
        results: dict[int, str] = {}
        wanted: dict[int, ToolCall] = {}
        context = self._context.at_turn(self.state.step)
        for id_, call in calls.items():
            refusal = self._refusal(call)
            if refusal is None:
                wanted[id_] = call
                continue
            self._count_refusal()
            failure, decision = refusal
            await self._tools.runner.refuse(call, context, failure, f"refused: {decision}")
            results[id_] = _failure(failure.code, failure.message)
        ran = await self._tools.runner.run_many(
            list(wanted.values()),
            context,
            policy=self._policy,
            budget_s=max(self._deadline - time.monotonic(), 0.0),
            parallel=self._tools.parallel,
            on_start=self._watch.call_started,
            on_done=self._done,
            granted=granted,
        )
        return results | {id_: _text(result) for id_, result in zip(wanted, ran, strict=True)}

    def _count_refusal(self) -> None:
        """Raise :class:`.ProgramFailed` if a program goes on although its calls are refused.

        Each refusal is a row of the record.
        """
        self._refused += 1
        if self._refused > _MOST_REFUSED:
            raise ProgramFailed(_STUBBORN)

    def _done(self, call: ToolCall, result: ToolResult) -> None:
        self._paid(result.cost)
        self._watch.call_finished(call, result)

    def _paid(self, cost: int) -> None:
        """Count what a call cost, in billionths, for the run that waits for the program and for limits."""
        if cost:
            self.cost += cost
            self._parent.purse.spend(0, cost)
            if (meter := self._parent.ask.access.meter) is not None:
                meter.spend(0, cost)

    def _refusal(self, call: ToolCall) -> tuple[ToolFailure, str] | None:
        """Return why a call does not run, for the program and for its row."""
        if call.name not in self._allowed:
            failure = ToolFailure("there is no tool of this name", code="unknown_tool")
            return failure, "this request does not offer the tool to programs"
        if not self._parent.purse.take_call():
            return ToolFailure(_NO_CALLS, code="budget_exhausted"), "tools.max_calls"
        if self._parent.purse.spent == "tools.max_cost":
            reason = "not run: this request has used up its cost"
            return ToolFailure(reason, code="budget_exhausted"), "tools.max_cost"
        return None

    async def _decided(self, state: ProgramState) -> dict[int, str]:
        """Return the results of calls that waited for approvals; those that were approved run now, once."""
        parent, context = self._parent, self._context
        resuming = Resuming(parent.ask.identity, self._policy, self._catalog, parent.ask.access.meter)
        try:
            outcomes = await self._tools.approvals.settle(list(state.waiting.values()), resuming)
        except StoreError:
            raise ToolFailure("the approvals could not be read, so the program did not go on") from None
        if outcomes.waiting:
            raise Waits(state, list(state.waiting.values()))
        for _ in outcomes.ran:
            # They are decided, so they run in any case; but what they used is not left for others.
            parent.purse.take_call()
        if outcomes.untrusted:
            context.ledger.mark_untrusted(outcomes.untrusted, state.step)
        ran = {approval.id: (approval, result) for approval, result in outcomes.ran}
        results = {}
        for id_, name in state.waiting.items():
            if name in ran:
                approval, result = ran[name]
                self._paid(result.cost)
                results[id_] = _text(result)
                if approval.edited:
                    self._print(f"[A person changed the arguments of a call of {approval.tool}]\n")
            else:
                refused = orjson.loads(str(outcomes.results[name]))
                results[id_] = _failure(str(refused["error_code"]), str(refused["message"]))
        return results


def _is_object(text: str) -> bool:
    """Return whether the arguments of a call of the client are an object of a bounded size; a program can
    write anything."""
    try:
        return len(text) <= _MOST_ARGUMENTS and isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _text(result: ToolResult) -> str:
    """Return the result of a call as the program's side of the engine reads it."""
    if not result.ok:
        return _failure(result.error_code or "execution_failed", result.safe_message)
    try:
        orjson.loads(result.content)
        return f'{{"ok":true,"value":{result.content}}}'
    except orjson.JSONDecodeError:
        return orjson.dumps({"ok": True, "value": result.content}).decode()


def _failure(code: str, message: str) -> str:
    return orjson.dumps({"ok": False, "message": f"{code}: {message}"}).decode()
