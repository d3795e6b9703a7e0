"""The runs that wait for agents which they called: there an agent's run finds the run that called it."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy.events import ToolCall
from proxy.relay.nested import Purse
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.tools.agents.agent import AGENT_PREFIX

__all__ = ["Parent", "Parents", "calls_agent"]


def calls_agent(calls: Sequence[ToolCall]) -> bool:
    """Whether one of the calls, by the ids of their tools, is of an agent."""
    return any(call.name.startswith(AGENT_PREFIX) for call in calls)


@dataclass(eq=False, slots=True)
class Parent:
    """A run that waits for the calls of its turn ``turn``, and what its agents may use together.

    ``running`` are the tasks of its agents.
    """

    job: Job
    turn: int
    purse: Purse
    running: set[asyncio.Task[Any]] = field(default_factory=set)


class Parents:
    """The runs of this process that wait for agents, by their ids.  One for the process."""

    def __init__(self) -> None:
        self._waiting: dict[str, Parent] = {}

    @contextmanager
    def waiting(self, job: Job, state: State) -> Iterator[None]:
        """In this block the run waits for agents.

        Agents that still run at its end are cancelled: whoever called them does not wait any more.  What
        agents have used counts against the run's budgets from then on.
        """
        run_id = job.identity.run_id
        parent = self._waiting[run_id] = Parent(job, state.run.turn.number, state.run.purse())
        try:
            yield
        finally:
            del self._waiting[run_id]
            for task in parent.running:
                task.cancel()
            state.run.settle(parent.purse)

    def of(self, run_id: str) -> Parent | None:
        """The run of that id, if it waits for agents."""
        return self._waiting.get(run_id)
