"""Programs: a model writes code that calls tools, and gets only what the code returns or prints.

A program has a run of its own in the record, as an agent has, but no model. Its steps are the turns of that
run: in each, the calls that the program waits for go through the same runner as any other call.

Before calls that can have an effect, the program's state is on record. If the process dies, the same request
leads to the same program, which goes on from that state in the same run; the claims of effects tell which of
its calls have happened (rule R5). If calls need an approval, the program waits as an agent does: its call
ends and names the approvals, and it is called again once somebody has decided.
"""

import re
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.base.caches import Derived
from proxy.base.errors import StoreError, ToolFailure
from proxy.base.events import RUN_PROGRAM
from proxy.records.effects import REPEATS_WITHIN_S, UNANSWERED, UNMARKED_REPEAT_WITHIN_S
from proxy.records.rows import MessageRecord, RunRecord, RunStatus
from proxy.relay.memory.hidden.agent_turns import AgentCall, AgentTurn
from proxy.relay.memory.programs import ProgramState, key_of, read, written
from proxy.relay.nested import AgentUsed, RunWatch
from proxy.relay.run.parents import Parent, Parents, ProgramAccess
from proxy.relay.starting.program_steps import Steps, StepTools, Waits
from proxy.store.base import Store
from proxy.tools.contract.provider import CallContext
from proxy.tools.programs.engine import Binding, Engine, Language, ProgramFailed, Session, ValueWithImages
from proxy.tools.programs.stubs import bindings_of
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.tasks.concurrency import Slots

_MOST_VALUE: Final = 1 << 20
_MOST_PRINTED_WITH_ERROR: Final = 300
_LONG_NUMBER: Final = re.compile(r"[0-9]{19}")
"""A number that may have more than 64 bits."""
_MOST_NAMES: Final = 4 << 20
_NAME_BYTES: Final = 400
"""The bytes of the names of tools that are kept, and about how many the name of one tool takes."""
_AT_ONCE: Final = 16
_AT_ONCE_PER_CALLER: Final = 4
"""How many programs a process runs at the same time, and how many of one key, so that those of others need
not wait for his."""
_MARGIN_S: Final = 1.0
"""A program's calls end this many seconds before its own time is over."""
_NO_REQUEST: Final = "a program runs only inside of a request that asks a model"
_NO_ENGINE: Final = "programs in JavaScript are not installed here: write none"
_UNKNOWN: Final = (
    "the program was interrupted while calls with an effect were under way, and nobody knows any more how "
    "they ended; they may have taken effect: find out, or ask the user"
)


class ProgramRuns:
    """Runs programs, as a :data:`~proxy.tools.programs.programs.RunProgram`. The process has one."""

    def __init__(
        self,
        tools: StepTools,
        parents: Parents,
        store: Store,
        engine: Engine,
        javascript: Engine | None = None,
        *,
        timeout_s: float,
        run_ids: Callable[[], str],
    ) -> None:
        self._tools = tools
        self._parents = parents
        self._store = store
        self._engine = engine
        self._javascript = javascript
        self._timeout_s = timeout_s
        self._run_ids = run_ids
        self._names: Derived[Hashable, Mapping[str, Binding]] = Derived(
            "program_names", _MOST_NAMES, lambda _, names: _NAME_BYTES * len(names)
        )
        self._places = Slots(_AT_ONCE, _AT_ONCE_PER_CALLER)

    async def __call__(self, code: str, context: CallContext) -> Any:
        """Return what the model gets of a program."""
        parent = self._parents.of(context.run_id, context.call_id)
        if parent is None or parent.access is None:
            raise ToolFailure(_NO_REQUEST)
        call = parent.calls.get(context.call_id)
        state = await self._begin(code, context, parent, call)
        if state.done and state.result is not None:
            return _told_again(state, context)
        run = _ProgramRun(self, code, context, parent, call, state)
        status: RunStatus = "failed"
        try:
            value = await run.serve()
            status = "completed"
            return value
        except Waits as waits:
            status = "suspended"
            raise run.waits(waits) from None
        except ToolFailure:
            raise
        except BaseException:  # A cancellation.
            status = "cancelled"
            raise
        finally:
            run.ended(status)

    async def _begin(
        self, code: str, context: CallContext, parent: Parent, call: AgentCall | None
    ) -> ProgramState:
        """Return the state from which a program begins or goes on."""
        ledger = parent.ledger
        request = "" if ledger.request is None else ledger.request.key.digest
        try:
            if call is not None and call.goes_on is not None:
                return await self._continued(read(call.goes_on.body), context.caller)
            key = key_of(context.caller, f"{request or context.run_id}{_nth(parent, call)}", code)
            is_repeat = ledger.request is not None and ledger.request.is_repeat
            earlier = await self._tools.states.find(key, context.caller) if request else None
            if earlier is not None and await self._goes_on(earlier, is_repeat=is_repeat):
                return replace(earlier, parent_run=context.run_id, parent_call=context.invocation_id)
        except StoreError:
            raise ToolFailure("the record could not be read, so the program did not begin") from None
        if earlier is not None and not earlier.done:
            key = key_of(context.caller, context.invocation_id, code)
        access = parent.access
        names = self.names(access)
        return ProgramState(
            key=key,
            run_id=self._run_ids(),
            parent_run=context.run_id,
            parent_call=context.invocation_id,
            started_at=time.time(),
            tools={name: bound.tool for name, bound in names.items()},
            theirs=frozenset() if access is None else access.theirs,
            language="python" if access is None else access.language,
        )

    def names(self, access: ProgramAccess | None) -> Mapping[str, Binding]:
        """Return the tools of a program by the names that it calls them; callers with the same rights share
        them."""
        if access is None:
            return {}
        if access.theirs:
            return bindings_of(access.tools)
        known, key = self._names.of(access.catalog), tuple([tool.name for tool in access.tools])
        names = known.get(key)
        return known.put(key, bindings_of(access.tools)) if names is None else names

    def session(self, language: Language) -> Session:
        """Return a session for a program; raise :class:`~proxy.base.errors.ToolFailure` without engine."""
        engine = self._engine if language == "python" else self._javascript
        if engine is None:
            raise ToolFailure(_NO_ENGINE)
        return engine.session()

    async def _goes_on(self, earlier: ProgramState, *, is_repeat: bool) -> bool:
        """Return whether a program goes on from a state: it was interrupted, and not long ago."""
        within_s = REPEATS_WITHIN_S if is_repeat else UNMARKED_REPEAT_WITHIN_S
        if self._tools.states.age_s(earlier) > within_s or (earlier.done and earlier.result is None):
            return False
        # A program that has ended is told again if the answer with its result has not reached the client.
        detail = await self._store.get_run(earlier.parent_run if earlier.done else earlier.run_id)
        return detail is not None and detail.run.status in UNANSWERED

    async def _continued(self, waited: ProgramState, caller: str) -> ProgramState:
        """Return the newest state of a program that waited for approvals.

        It may have gone on before, and been interrupted. Claims of effects are forgotten after a time; then
        nobody can tell which of its last calls have happened.
        """
        latest = await self._tools.states.find(waited.key, caller)
        if latest is None or latest.step <= waited.step:
            return waited
        if latest.done or self._tools.states.age_s(latest) > REPEATS_WITHIN_S:
            raise ToolFailure(_UNKNOWN)
        return latest


class _ProgramRun:
    """One program, from its first or a later step to its end."""

    def __init__(
        self,
        owner: ProgramRuns,
        code: str,
        context: CallContext,
        parent: Parent,
        call: AgentCall | None,
        state: ProgramState,
    ) -> None:
        self._owner = owner
        self._code = code
        self._context = context
        self._parent = parent
        self._call = call
        self._began = time.monotonic()
        self._result: str | None = None
        self._goes_on = bool(state.dump)
        ledger = parent.ledger.inner()
        for sources in filter(None, (parent.ledger.untrusted_before(parent.turn), state.untrusted)):
            # The code may quote what the model has read.
            ledger.mark_untrusted(sources)
        ask, access = parent.ask, parent.access
        self._ledger = ledger
        self._run = RunContext(
            state.run_id,
            0,
            ask.identity.caller,
            ask.identity.request_id,
            ledger,
            ask.access.meter,
            ask.identity.key,
            None if access is None else access.catalog,
            parent.asking.keeps,
            originals=ask.options.originals,
            person=ask.identity.person,
        )
        left_s = min(owner._timeout_s, parent.purse.seconds_left())
        deadline = self._began + max(left_s - _MARGIN_S, left_s / 2)
        outer = context.call_id if call is None or call.goes_on is None else call.goes_on.call.call_id
        self._steps = Steps(owner._tools, parent, state, self._run, RunWatch(context), outer, deadline)
        self._put(state, "running")

    async def serve(self) -> Any:
        """Run the program and return what the model gets."""
        if self._goes_on:
            await self._note_known()
        try:
            text = await self._served()
        except ProgramFailed as failure:
            printed = (self._steps.state.printed + failure.printed)[-_MOST_PRINTED_WITH_ERROR:]
            said = f"{failure.message}\nPrinted before: {printed}" if printed else failure.message
            raise ToolFailure(said, untrusted=self._untrusted()) from None
        self._context.signals.untrusted = bool(untrusted := self._untrusted())
        self._context.signals.sources = untrusted
        if len(text) > _MOST_VALUE:
            raise ToolFailure("the program's value is larger than 1 MiB: return less", untrusted=untrusted)
        self._result = text
        value, printed = _value(text), self._steps.state.printed
        self._note("output", text if not printed else f"{printed}\n{text}")
        if self._steps.images:
            return ValueWithImages(str(value), tuple(self._steps.images))
        return {"printed": printed, "value": value} if printed else value

    async def _served(self) -> str:
        parent, state = self._parent, self._steps.state
        names = self._owner.names(parent.access)
        if not self._goes_on:
            self._note("program", self._code)
        async with self._owner._places.take(self._run.key or self._run.caller):
            session = self._owner.session(state.language)
            try:
                step = await session.start(self._code, names, state.dump)
                if self._goes_on:
                    step = await self._steps.go_on(session)
                return await self._steps.finish(session, step)
            finally:
                await session.close()

    async def _note_known(self) -> None:
        """Note the effects whose results the program has: its next call of such a tool is another effect."""
        state = self._steps.state
        try:
            detail = await self._owner._store.get_run(state.run_id)
        except StoreError:
            raise ToolFailure("the record could not be read, so the program did not go on") from None
        places = {(state.step, at) for at, call in enumerate(state.calls) if call.id in state.results}
        for row in detail.invocations if detail is not None else ():
            if row.turn < state.step or (row.turn, row.seq) in places:
                self._ledger.answer_for(row.id)

    def waits(self, waits: Waits) -> ToolFailure:
        """Store a program that waits for approvals or its client; return a failure that names these."""
        self._steps.state = waits.state
        earlier = None if self._call is None else self._call.goes_on
        turns, call, pause = self._owner._parents.turns, self._call, self._parent.pause
        if turns is not None and call is not None:
            took = AgentUsed(calls=waits.state.made, seconds=time.monotonic() - self._began)
            turn = AgentTurn(
                run_id=waits.state.run_id,
                caller=self._run.caller,
                approval_ids=waits.ids,
                body=written(waits.state),
                parent_run=call.run_id,
                parent_turn=call.turn,
                call=call.call if earlier is None else earlier.call,
                spec_digest=call.spec_digest,
                invocation_id=self._context.invocation_id,
                used=took,
                continued=0 if earlier is None else earlier.continued + 1,
                ephemeral=not self._parent.asking.keeps,
                client_calls=waits.client_calls,
                container="" if pause is None else pause.container(),
                part_id=self._part_id(),
            )
            turns.put(turn)
        if waits.client_calls:
            words = f"the program waits for calls of the client: {', '.join(waits.client_calls)}"
            return ToolFailure(words, code="client_call_required")
        words = f"calls of the program wait for an approval: {', '.join(waits.ids)}"
        return ToolFailure(words, code="approval_required")

    def _part_id(self) -> str:
        """Return the part that shows the program to the client."""
        earlier, pause = self._call.goes_on if self._call is not None else None, self._parent.pause
        if earlier is not None:
            return earlier.part_id
        return "" if pause is None else pause.part_id(self._context.call_id)

    def ended(self, status: RunStatus) -> None:
        """Close the program's run in the record."""
        state = self._steps.state
        self._put(state, status)
        if state.dump and status not in ("suspended", "cancelled"):
            kept = self._result if status == "completed" else None
            told = {"printed": state.printed if kept is not None else "", "result": kept}
            untrusted = self._untrusted()
            over = replace(state, done=True, dump=b"", results={}, calls=(), untrusted=untrusted, **told)
            keeps = self._parent.asking.keeps
            self._owner._tools.states.put(over, self._run.caller, ephemeral=not keeps)

    def _untrusted(self) -> str:
        return self._ledger.untrusted_before(sys.maxsize)

    def _note(self, role: str, text: str) -> None:
        """Keep the program, or what came of it. It may contain private arguments, so it is only kept
        encrypted (rule R3)."""
        store, state = self._owner._store, self._steps.state
        if store.sealed and self._parent.asking.keeps:
            at = 0 if role == "program" else state.step + 1
            store.put_messages([MessageRecord(state.run_id, at, 0, role, content=text)])

    def _put(self, state: ProgramState, status: RunStatus) -> None:
        ask = self._parent.ask
        record = RunRecord(
            id=state.run_id,
            request_id=ask.identity.request_id,
            caller=ask.identity.caller,
            wire=ask.wire.dialect.name,
            model="",
            upstream="",
            stream=False,
            status=status,
            started_at=state.started_at,
            ended_at=None if status == "running" else state.started_at + self._seconds(state),
            error_code="program_failed" if status == "failed" else None,
            turns=state.step,
            tool_calls=state.made,
            cost=self._steps.cost or None,
            offered=tuple(sorted(state.tools.values())),
            agent=RUN_PROGRAM,
            parent_run=state.parent_run,
            parent_call=state.parent_call,
        )
        self._owner._store.put_run(record)

    def _seconds(self, state: ProgramState) -> float:
        return max(time.time() - state.started_at, time.monotonic() - self._began)


def _told_again(state: ProgramState, context: CallContext) -> Any:
    """Return what the model gets of a program that had ended before its process died."""
    context.signals.untrusted, context.signals.sources = bool(state.untrusted), state.untrusted
    value = _value(state.result or "null")
    return {"printed": state.printed, "value": value} if state.printed else value


def _value(text: str) -> Any:
    """Return what a program hands out as a JSON value, or the text itself if that would change it.

    A program may hand out ``NaN``, whole numbers of more than 64 bits, and, if it replaces the function that
    hands out its value, any text.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if not isinstance(value, str) and _LONG_NUMBER.search(text) else value


def _nth(parent: Parent, call: AgentCall | None) -> str:
    """Return which of the equal calls of a turn this is; empty for the first. Each has its own state."""
    if call is None:
        return ""
    equal = [id_ for id_, one in parent.calls.items() if one.call.arguments == call.call.arguments]
    number = equal.index(call.call.call_id)
    return f"#{number}" if number else ""
