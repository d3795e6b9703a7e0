"""What calls agents: there an agent's run finds the request that it is part of.

That is the run that waits for its calls, or, for a call that somebody has approved, the request that
continues the turn of the call.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy.approval_records import Approval
from proxy.events import ToolCall
from proxy.relay.ask import Ask
from proxy.relay.nested import Purse
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.tools.agents.agent import AGENT_PREFIX
from proxy.tools.running.ledger import RunLedger

__all__ = ["Parent", "Parents", "calls_agent"]


def calls_agent(calls: Sequence[ToolCall]) -> bool:
    """Whether one of the calls, by the ids of their tools, is of an agent."""
    return any(call.name.startswith(AGENT_PREFIX) for call in calls)


@dataclass(eq=False, slots=True)
class Parent:
    """What calls agents, and what they may use together.

    ``ask`` is the client's request and ``model`` the one that it names.  ``ledger`` has the effects of the
    run, and ``turn`` is the turn of its calls.  ``running`` are the tasks of its agents.
    """

    ask: Ask
    model: str
    ledger: RunLedger
    turn: int
    purse: Purse
    running: set[asyncio.Task[Any]] = field(default_factory=set)


class Parents:
    """What calls agents in this process.  One for the process."""

    def __init__(self) -> None:
        self._waiting: dict[str, Parent] = {}
        self._continuing: dict[tuple[str, str], list[Parent]] = {}

    @contextmanager
    def waiting(self, job: Job, state: State) -> Iterator[None]:
        """In this block the run waits for agents.

        Agents that still run at its end are cancelled: whoever called them does not wait any more.  What
        agents have used counts against the run's budgets from then on.
        """
        run_id, client = job.identity.run_id, job.client
        parent = self._waiting[run_id] = Parent(
            client.ask, client.request.model, job.tools.ledger, state.run.turn.number, state.run.purse()
        )
        try:
            yield
        finally:
            del self._waiting[run_id]
            for task in parent.running:
                task.cancel()
            state.run.settle(parent.purse)

    @contextmanager
    def continuing(self, approval: Approval, parent: Parent) -> Iterator[None]:
        """In this block the approved call of an agent runs for the request that continues its turn.

        Only one of several such requests runs it, and which one is not known here: the first stands for all.
        """
        if not approval.tool.startswith(AGENT_PREFIX):
            yield
            return
        key = approval.run_id, approval.call_id
        self._continuing.setdefault(key, []).append(parent)
        try:
            yield
        finally:
            self._continuing[key].remove(parent)
            if not self._continuing[key]:
                del self._continuing[key]
            for task in parent.running:
                task.cancel()

    def of(self, run_id: str, call_id: str) -> Parent | None:
        """What made that call in that run."""
        continuing = self._continuing.get((run_id, call_id))
        return continuing[0] if continuing else self._waiting.get(run_id)
