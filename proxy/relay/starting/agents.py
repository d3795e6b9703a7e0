"""Runs of agents: a model calls a tool, and another run does the task.

The run of an agent has its own model, instructions, tools and turns. It sees only the task, and returns
only its report. What it may use comes from the run that called it: the caller's rights, and the rest of
that run's budgets.

If a call of an agent needs an approval, the agent's run suspends as a client's run does. The call of the
agent then ends, and names the approvals. The run that called it asks its client. After somebody has
decided, the tool of the agent is called again. The agent's model then gets the same request, with the held
turn.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.caches import Derived
from proxy.base.errors import RequestError, ToolErrorCode, ToolFailure, ToolRelayError
from proxy.base.events import FinishReason
from proxy.hooks.placeholders import Placeholders
from proxy.http.headers import Headers
from proxy.relay.ask import Access, Ask, RequestHead, RequestOptions, UpstreamPermissions
from proxy.relay.base import ClientStream, NoClientStream, RunSettings
from proxy.relay.body import Body
from proxy.relay.memory.hidden.agent_turns import AgentCall, AgentTurn
from proxy.relay.nested import AgentUsed, Nested, RunEnd, RunWatch
from proxy.relay.offering.wanted import Wanted
from proxy.relay.routing.router import Route, Router
from proxy.relay.run.job import Job
from proxy.relay.run.parents import Parent, Parents
from proxy.relay.starting.hooking import Asker, hooked_body
from proxy.relay.starting.runs import Runs
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.agents.agent import Agent
from proxy.tools.agents.report import read_report, schema_words
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import ToolEffect
from proxy.wires.wire import Wire

AgentRunContext = Callable[[str, str, str], AbstractContextManager[None]]
"""Makes a block in which events are counted and values are drawn as an agent's run; called with its id, its
model and the name of the agent."""

_NARROWED_BYTES: Final = 16 << 20
_REPORT_SHARE: Final = 0.2
"""The share of an agent's time limit that is reserved for its report; tools run only in the rest."""
_MARGIN_S: Final = 1.0
"""An agent is stopped this many seconds before its call times out, so that its findings are not lost."""
_USER_FIELDS: Final = ("safety_identifier", "user")
"""Fields that name the end user, by which providers count abuse."""

_ASKING: Final = (
    "\n\nA person must approve each call of these tools, and nobody can be asked while you work, so you do "
    "not have them: {}. If the task needs one, do the rest of the task. Then say in your report which tool "
    "must be called, and with which arguments."
)
"""Added to the instructions of an agent, so that the model that called it can make the call instead."""

_STOPPED: Final[Mapping[str, str]] = {
    "max_turns": "it had no turns left",
    "max_calls": "it had no tool calls left",
    "max_tokens": "it had no tokens left",
    "max_cost": "its cost was used up",
    "timeout_s": "its time was over",
    "request_timeout_s": "the time of the request was over",
}


class _AgentPermissions(Struct, frozen=True):
    """The part of its caller's permissions that an agent keeps; see
    :class:`~proxy.relay.ask.UpstreamPermissions`."""

    router: Router
    policies: Mapping[str, Policy]
    selections: Mapping[str, Selection]
    acts: bool

    @property
    def asking(self) -> Sequence[str]:
        """The agent's tools that are withheld because a person would have to approve their calls."""
        return sorted({name for selection in self.selections.values() for name in selection.asking})


class AgentRuns:
    """Runs agents, as a :class:`~proxy.tools.agents.provider.RunAgent`. The process has one instance."""

    def __init__(
        self,
        runs: Runs,
        parents: Parents,
        *,
        wire: Wire,
        others: Sequence[str],
        settings: RunSettings,
        run_ids: Callable[[], str],
        run_context: AgentRunContext,
    ) -> None:
        """``wire`` is Chat, in which the models of agents are asked. ``others`` are the names of the wires
        that these requests can be translated to. ``settings`` apply to all runs."""
        self._runs = runs
        self._parents = parents
        self._wire = wire
        self._others = tuple(others)
        self._settings = settings
        self._run_ids = run_ids
        self._run_context = run_context
        self._narrowed: Derived[tuple[Policy, str, bool], tuple[Policy, Selection]] = Derived(
            "agent_permissions", _NARROWED_BYTES, lambda _, made: 8000 + 500 * len(made[1].withheld)
        )

    async def __call__(self, agent: Agent, task: str, context: CallContext) -> Any:
        """Return the agent's report on a task; see :class:`~proxy.tools.agents.provider.RunAgent`."""
        first = self._parents.of(context.run_id, context.call_id)
        if first is None:
            raise ToolFailure("an agent runs only inside of a request that asks a model")
        watch, began = RunWatch(context), time.monotonic()
        call = first.calls.get(context.call_id)
        used = await self._begin(call)
        # The client may have left meanwhile; then another request that waits for the agent replaces it.
        parent = self._parents.of(context.run_id, context.call_id)
        if parent is None:
            raise ToolFailure("the request was cancelled", code="cancelled")
        if not parent.purse.take_turn():
            raise ToolFailure(
                "the request has no turns left, so the agent was not asked", code="budget_exhausted"
            )
        try:
            ask = await self._hooked(agent, self._ask(agent, task, context, parent, watch, used))
            end = await self._run(agent, ask, parent, watch, used)
        finally:
            if watch.end is None or not watch.end.last:
                parent.purse.give_turn_back()
        if end.untrusted:
            context.signals.untrusted, context.signals.sources = True, end.untrusted
        if end.asked and call is not None:
            used += end.used + AgentUsed(seconds=time.monotonic() - began)
            raise self._waits(ask, end, call, used)
        return _report(agent, end, stopped=watch.stopped)

    async def _begin(self, call: AgentCall | None) -> AgentUsed:
        """Return what the agent has used before, and record that it continues, if it does.

        Claims of effects are forgotten after a time, but this note is not. So an agent whose process died
        after it continued does not continue again. Raise :class:`~proxy.base.errors.ToolFailure`.
        """
        if call is None or call.goes_on is None or self._parents.turns is None:
            return AgentUsed()
        if call.goes_on.begun:
            raise ToolFailure(
                "the agent went on after the approval and nobody knows how it ended; what it was to do may "
                "have been done: find out, or ask the user"
            )
        if not await self._parents.turns.begin(call.goes_on):
            raise ToolFailure("this could not be put on record, so the agent did not go on")
        return call.goes_on.used

    def _waits(self, ask: Ask, end: RunEnd, call: AgentCall, used: AgentUsed) -> ToolFailure:
        """Store the turn of an agent that waits for approvals; return a failure that names them."""
        ids = tuple(approval.id for approval in end.asked)
        earlier = call.goes_on
        if self._parents.turns is not None:
            turn = AgentTurn(
                run_id=ask.identity.run_id,
                caller=ask.identity.caller,
                approval_ids=ids,
                body=ask.body.raw,
                parent_run=call.run_id,
                parent_turn=call.turn,
                call=call.call if earlier is None else earlier.call,
                spec_digest=call.spec_digest,
                invocation_id="" if ask.nested is None else ask.nested.parent_call,
                used=used,
                continued=0 if earlier is None else earlier.continued + 1,
                ephemeral=ask.nested is not None and not ask.nested.asking.keeps,
            )
            self._parents.turns.put(turn)
        words = f"calls of the agent wait for an approval: {', '.join(ids)}"
        return ToolFailure(words, code="approval_required")

    async def _run(self, agent: Agent, ask: Ask, parent: Parent, watch: RunWatch, used: AgentUsed) -> RunEnd:
        """Run the agent and return the outcome. The agent's run ends with its call, and with the calling
        run."""
        running = asyncio.get_running_loop().create_task(self._serve(agent, ask))
        parent.running.add(running)
        left_s = _seconds_left(agent, parent, used)
        try:
            await asyncio.wait({running}, timeout=max(left_s - _MARGIN_S, left_s / 2))
            if not running.done():
                watch.stopped = "timeout_s"
        finally:
            parent.running.discard(running)
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error
        if running.cancelled() and not watch.stopped:
            raise ToolFailure("the request was cancelled", code="cancelled")
        if watch.end is None:
            raise ToolFailure(f"the agent gave no report{_because(watch.stopped)}", code="timeout")
        return watch.end

    async def _hooked(self, agent: Agent, ask: Ask) -> Ask:
        """Return an agent's request as the hooks leave it; one that continues has been left by them before.

        Raise :class:`~proxy.base.errors.ToolFailure` if they refuse it.
        """
        hooks = self._runs.hooks
        if not hooks.requests or (ask.nested is not None and ask.nested.asking.continues):
            return ask
        identity, originals = (
            ask.identity,
            Placeholders() if ask.options.originals is None else ask.options.originals,
        )
        asker = Asker(identity.request_id, identity.caller, identity.key, agent.name)
        try:
            # The setting of the agent decides about its model.
            body = await hooked_body(hooks, self._wire.dialect, ask.body, asker, originals, keeps_model=True)
        except RequestError as error:
            raise ToolFailure(f"the agent was not asked: {error}", code="policy_denied") from None
        return replace(ask, body=body)

    async def _serve(self, agent: Agent, ask: Ask) -> None:
        """Plan and run an agent's request to its model; raise :class:`~proxy.base.errors.ToolFailure`."""
        run_id, model = ask.identity.run_id, str(ask.body.payload["model"])
        with self._run_context(run_id, model, agent.name):
            try:
                run = await self._runs.start(ask, _output)
                await run.serve(agent=agent.name)
            except ToolRelayError as error:
                raise ToolFailure(f"the agent could not be asked: {error}") from error

    def _ask(
        self,
        agent: Agent,
        task: str,
        context: CallContext,
        parent: Parent,
        watch: RunWatch,
        used: AgentUsed,
    ) -> Ask:
        """Return the request of an agent's run. If the agent continues, it is its earlier request with the
        held turn."""
        outer, purse = parent.ask, parent.purse
        call = parent.calls.get(context.call_id)
        goes_on = None if call is None else call.goes_on
        model = agent.model or parent.model
        try:
            routes = outer.access.permissions.router.routes(model, self._wire.dialect.wire, self._others)
        except RequestError as error:
            raise ToolFailure(f"the agent cannot be asked: {error}") from None
        ledger = parent.ledger.inner()
        if untrusted := parent.ledger.untrusted_before(parent.turn):
            # The task may quote what the model has read.
            ledger.mark_untrusted(untrusted)
        left_s = _seconds_left(agent, parent, used)
        identity = outer.identity
        can_ask = parent.asking.can_ask and self._parents.turns is not None and call is not None
        permissions = self._permissions(agent, outer.access.permissions, routes, can_ask=can_ask)
        asking = () if can_ask else permissions.asking
        body = _body(agent, model, task, outer.body.payload, asking) if goes_on is None else _body_of(goes_on)
        return Ask(
            replace(identity, run_id=self._run_ids()),
            self._wire,
            body,
            RequestHead(_authorization(outer.head.headers)),
            RequestOptions(
                wanted=Wanted(every=True, programs=False),
                history=False,
                originals=outer.options.originals,
            ),
            Access(permissions, routes, outer.access.meter),
            nested=Nested(
                agent=agent,
                parent_run=context.run_id,
                parent_call=context.invocation_id,
                settings=replace(
                    self._settings,
                    max_turns=max(agent.max_turns - used.turns, 1),
                    max_calls=max(agent.max_calls - used.calls, 0),
                    max_tokens=agent.max_tokens and max(agent.max_tokens - used.tokens, 1),
                    max_cost=agent.max_cost and max(agent.max_cost - used.cost, 1),
                    request_timeout_s=left_s * (1 - _REPORT_SHARE),
                    budgets=f"agents.{agent.name}",
                    calls_setting=f"agents.{agent.name}.max_calls",
                ),
                purse=purse,
                ledger=ledger,
                watch=watch,
                asking=replace(parent.asking, can_ask=can_ask, continues=goes_on is not None),
            ),
        )

    def _permissions(
        self, agent: Agent, outer: UpstreamPermissions, routes: Sequence[Route], *, can_ask: bool
    ) -> _AgentPermissions:
        """Return the part of the caller's permissions that an agent keeps, for the upstreams of ``routes``.

        With ``can_ask`` the agent also gets tools that need an approval.
        """
        policies, selections = {}, {}
        for name in {route.served.upstream.name for route in routes}:
            policies[name], selections[name] = self._narrow(
                agent, outer.policies[name], outer.selections[name], can_ask=can_ask
            )
        acts = any(
            spec.effect is not ToolEffect.READ_ONLY
            for selection in selections.values()
            for spec in selection.offered
        )
        return _AgentPermissions(outer.router, policies, selections, acts)

    def _narrow(
        self, agent: Agent, policy: Policy, selection: Selection, *, can_ask: bool
    ) -> tuple[Policy, Selection]:
        """Return the policy and the selection, limited to the agent's tools, which include no other
        agents."""
        catalog = selection.catalog
        narrowed = self._narrowed.of(catalog)
        key = (policy, agent.name, can_ask)
        if (known := narrowed.get(key)) is not None:
            return known
        setting = f"agents.{agent.name}.tools"
        own = Policy(
            allow=tuple(spec.name for spec in catalog.tools() if agent.takes(spec.name)),
            max_argument_bytes=policy.max_argument_bytes,
            max_result_bytes=policy.max_result_bytes,
            max_image_bytes=policy.max_image_bytes,
            settings=(setting, setting, setting),
        )
        both = policy.intersect(own)
        return narrowed.put(key, (both, catalog.select(both, asks=can_ask)))


def _body(agent: Agent, model: str, task: str, outer: Mapping[str, Any], asking: Sequence[str]) -> Body:
    """Return the request to an agent's model: its instructions and the task, and nothing of the
    conversation.

    ``outer`` is the client's request, from which only the end user is taken. ``asking`` are tools that the
    agent does not get because their calls need an approval.
    """
    instructions = agent.instructions
    if asking:
        instructions += _ASKING.format(", ".join(asking))
    payload: dict[str, Any] = {name: outer[name] for name in _USER_FIELDS if isinstance(outer.get(name), str)}
    if agent.output_schema is not None:
        instructions += schema_words(agent.output_schema)
        written = {"name": "report", "schema": agent.output_schema}
        payload["response_format"] = {"type": "json_schema", "json_schema": written}
    payload |= {
        "model": model,
        "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": task}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Body(orjson.dumps(payload), payload)


def _body_of(turn: AgentTurn) -> Body:
    """Return the request to an agent's model again, with the message by which its held turn is found."""
    payload: dict[str, Any] = orjson.loads(turn.body)
    payload["messages"] = [*payload["messages"], {"role": "assistant", "content": turn.said}]
    return Body(orjson.dumps(payload), payload)


def _output(job: Job) -> ClientStream:
    """Return the stream of an agent's run, which sends nothing: the report comes from its ``RunWatch``.

    An agent that continues must have its held turn, with all results of that turn. Raise
    :class:`~proxy.base.errors.ToolFailure` if not.
    """
    nested, continuity = job.client.ask.nested, job.continuity
    continues = nested is not None and nested.asking.continues
    if continues and (continuity.approvals.waiting or not continuity.restored):
        raise ToolFailure("the agent's turn was not found on record, so the agent did not go on")
    return NoClientStream()


def _seconds_left(agent: Agent, parent: Parent, used: AgentUsed) -> float:
    """Return the time that an agent has left, in seconds; the time that people take to decide does not
    count."""
    least_s = min(_MARGIN_S, agent.timeout_s)
    return min(max(agent.timeout_s - used.seconds, least_s), parent.purse.seconds_left())


def _authorization(headers: Headers) -> Headers:
    """Return the client's key, for upstreams that accept clients' own keys, and no other header of the
    client."""
    return tuple(pair for pair in headers if pair[0].lower() == "authorization")


def _report(agent: Agent, end: RunEnd, *, stopped: str) -> Any:
    """Return what the model that called an agent gets; raise :class:`~proxy.base.errors.ToolFailure`."""
    text = end.text.strip()
    why = stopped or end.spent.rpartition(".")[2]
    if end.status == "failed":
        raise ToolFailure(f"the agent's run failed ({end.error_code or 'unknown'}); it gave no report")
    if end.finish_reason is FinishReason.CONTENT_FILTER:
        raise ToolFailure("the agent's model was stopped by a content filter; it gave no report")
    if not text:
        code: ToolErrorCode = "timeout" if stopped else "execution_failed"
        raise ToolFailure(f"the agent gave no report{_because(why)}", code=code)
    if agent.output_schema is not None:
        try:
            return read_report(agent.output_schema, text)
        except ValueError as fault:
            raise ToolFailure(f"the agent's report {fault}{_because(why)}") from None
    if end.finish_reason is FinishReason.LENGTH:
        return f"[{agent.name}: the report was cut off by its model's limit]\n{text}"
    return f"[{agent.name} was stopped{_because(why)}; its report may be incomplete]\n{text}" if why else text


def _because(why: str) -> str:
    return f": {_STOPPED.get(why, 'a budget was used up')}" if why else ""
