"""Finds the request that an agent's or a program's run is part of.

That is the run that waits for the agent's call. If the call was approved later, it is the request that
continues the turn of the call.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from proxy.base.events import RUN_PROGRAM, ToolCall, ToolDefinition
from proxy.relay.ask import Ask
from proxy.relay.memory.hidden.agent_turns import AgentCall, AgentTurns
from proxy.relay.nested import AgentAsking, Purse
from proxy.relay.offering.hosted import program_of
from proxy.relay.offering.programs import is_callable
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.agents.agent import is_agent
from proxy.tools.programs.engine import Language
from proxy.tools.running.ledger import RunLedger
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.tools import ClientPrograms


def has_run(tool: str) -> bool:
    """Return whether calls of the tool with this id have runs of their own: those of agents and programs."""
    return tool == RUN_PROGRAM or is_agent(tool)


def has_runs(calls: Sequence[ToolCall]) -> bool:
    """Return whether one of the calls, whose names are tool ids, has a run of its own."""
    return any(has_run(call.name) for call in calls)


def can_hold_turn(request: ClientRequest) -> bool:
    """Return whether a turn of this request can be held for a person, and its client told so in text."""
    # A conversation that the upstream keeps cannot take later results; a JSON answer cannot hold a notice.
    return not (request.conversation or request.wants_json or request.choices > 1)


class ProgramAccess(Struct, frozen=True):
    """What programs may use: ``tools`` are those that a new program can call, those of the client, whose
    names are ``theirs``, among them."""

    policy: Policy
    catalog: Catalog
    tools: Sequence[ToolDefinition] = ()
    theirs: frozenset[str] = frozenset()
    language: Language = "python"


class ClientPause(Struct, frozen=True):
    """How programs of a request wait for its client, which knows their calls.

    ``part_id`` returns the id of the part that shows a program's call. ``container`` returns the name by
    which the client refers to what waits. ``call_id`` returns the id of a new call. ``results`` are what the
    request brings, by the ids of calls.
    """

    part_id: Callable[[str], str]
    container: Callable[[], str]
    call_id: Callable[[], str]
    results: Mapping[str, str] = {}


@dataclass(eq=False, slots=True)
class Parent:
    """The caller of agents, and what those agents may use together.

    ``ask`` is the client's request, and ``model`` the model that it names. ``ledger`` has the effects of the
    run. ``turn`` is the number of the turn with the calls, and ``calls`` maps their ids to the calls of
    agents. ``asking`` says what these calls may do about approvals. ``running`` are the tasks of the
    agents. ``access`` is what programs may use, and ``pause`` how they wait for the client; ``None`` if they
    cannot.
    """

    ask: Ask
    model: str
    ledger: RunLedger
    turn: int
    purse: Purse
    calls: dict[str, AgentCall] = field(default_factory=dict)
    asking: AgentAsking = field(default_factory=AgentAsking)
    running: set[asyncio.Task[Any]] = field(default_factory=set)
    access: ProgramAccess | None = None
    pause: ClientPause | None = None


def continued_by(
    ask: Ask,
    request: ClientRequest,
    ledger: RunLedger,
    purse: Purse,
    access: ProgramAccess,
    pause: ClientPause | None,
    *,
    asks: bool,
) -> Parent:
    """Return the parent of calls that go on for a request before its model is asked.

    ``asks`` says that its caller can be asked about approvals.
    """
    asking = AgentAsking(asks and can_hold_turn(request), keeps=request.may_store)
    return Parent(ask, request.model, ledger, 1, purse, asking=asking, access=access, pause=pause)


class Parents:
    """The callers of agents in this process. The process has one instance."""

    def __init__(self, turns: AgentTurns | None = None) -> None:
        """``turns`` stores turns of agents that wait for approvals; without it no agent can ask for one."""
        self.turns = turns
        self._waiting: dict[str, Parent] = {}
        self._continuing: dict[tuple[str, str], list[Parent]] = {}

    @contextmanager
    def waiting(self, job: Job, state: State, calls: Sequence[ToolCall], policy: Policy) -> Iterator[None]:
        """Let the run wait for agents and programs inside this block; ``policy`` is for its calls.

        At its end, agents that still run are cancelled, because their caller no longer waits. Then the use
        of the agents counts against the run's budgets.
        """
        run_id, client = job.identity.run_id, job.client
        number, catalog = state.run.turn.number, state.tools.catalog
        agents = {call.call_id: call for call in calls if has_run(call.name)}
        specs = {id_: spec for id_, call in agents.items() if (spec := catalog.get(call.name)) is not None}
        parent = self._waiting[run_id] = Parent(
            client.ask,
            client.request.model,
            job.tools.ledger,
            number,
            state.run.purse(),
            {id_: AgentCall(run_id, number, agents[id_], spec.digest) for id_, spec in specs.items()},
            AgentAsking(
                job.can_ask and can_hold_turn(client.request),
                keeps=job.keeps,
                asked_in=job.continuity.approvals.asked_in,
            ),
            access=_access(state, policy),
            pause=_pause(job, state),
        )
        try:
            yield
        finally:
            del self._waiting[run_id]
            for task in parent.running:
                task.cancel()
            state.run.settle(parent.purse)

    @contextmanager
    def continuing(self, agent: AgentCall, parent: Parent) -> Iterator[None]:
        """Let a call of an agent run inside this block for a request that continues its turn.

        Several requests may continue the same turn, and only one of them runs the call. It is not known here
        which one, so the first represents all. If its client leaves, the agent continues for the next one.
        """
        own = replace(parent, calls={agent.call.call_id: agent}, running=set())
        key = agent.run_id, agent.call.call_id
        self._continuing.setdefault(key, []).append(own)
        try:
            yield
        finally:
            others = self._continuing[key]
            others.remove(own)
            if others:
                others[0].running |= own.running
            else:
                del self._continuing[key]
                for task in own.running:
                    task.cancel()

    def of(self, run_id: str, call_id: str) -> Parent | None:
        """Return the parent of a call in a run, ``None`` if no one waits for it."""
        continuing = self._continuing.get((run_id, call_id))
        return continuing[0] if continuing else self._waiting.get(run_id)


def _access(state: State, policy: Policy) -> ProgramAccess:
    """Return what the programs of a run may use.

    Server tools that run a provider's tools are not among it: their limits hold for calls of the model alone.
    """
    tools, names = state.tools, state.tools.offer.names
    declared = program_of(tools.offer.shown.hosted)
    programs = ClientPrograms() if declared is None else declared[1]
    limited = {names.get(name) for name in tools.offer.shown.hosted}
    found = (
        tools.catalog.get(tool) for tool in sorted(set(names.values()).difference(limited, programs.names))
    )
    mine = [spec.definition() for spec in found if spec is not None and is_callable(spec)]
    return ProgramAccess(policy, tools.catalog, [*mine, *programs.tools], programs.names, programs.language)


def _pause(job: Job, state: State) -> ClientPause | None:
    """Return how the programs of a run wait for its client; ``None`` if nobody could find them again."""
    declared = program_of(state.tools.offer.shown.hosted)
    if declared is None or not job.continuity.is_person or job.client.request.wants_json:
        return None
    form, writer = state.tools.offer.shown.forms[declared[0]], state.output.writer
    return ClientPause(form.part_id, lambda: writer.container, form.call_id)
