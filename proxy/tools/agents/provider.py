"""The provider of the agents' tools.  Who runs an agent is given to it: it knows no model."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from proxy.errors import ToolFailure
from proxy.tools.access.policy import Policy
from proxy.tools.agents.agent import PROVIDER, TASK, Agent
from proxy.tools.contract.provider import CallContext, ToolProvider
from proxy.tools.contract.spec import ToolSpec

__all__ = ["AgentProvider", "RunAgent"]


class RunAgent(Protocol):
    """Runs an agent inside of a call of a run."""

    async def __call__(self, agent: Agent, task: str, context: CallContext) -> Any:
        """The agent's report: a text, or what JSON can say for an agent with an output schema.

        Raises :class:`~proxy.errors.ToolFailure` for a report that there is not.
        """
        ...


class AgentProvider:
    """The tools that call agents.

    ``others`` are the providers whose tools agents may have, as far as ``policy`` does not deny them.
    Until :meth:`bind` says who runs agents, no call of one succeeds: a command that only lists tools runs
    none.
    """

    name = PROVIDER

    def __init__(self, agents: Sequence[Agent], others: Sequence[ToolProvider], policy: Policy) -> None:
        self._agents: Mapping[str, Agent] = {agent.tool: agent for agent in agents}
        self._others = tuple(others)
        self._policy = policy
        self._run: RunAgent | None = None

    @property
    def agents(self) -> Mapping[str, Agent]:
        """All agents by the ids of their tools."""
        return self._agents

    def bind(self, run: RunAgent) -> None:
        """Have calls run by ``run`` from now on."""
        self._run = run

    async def list_tools(self) -> Sequence[ToolSpec]:
        """A tool for each agent."""
        loaded = [spec for provider in self._others for spec in await provider.list_tools()]
        allowed = [spec for spec in loaded if self._policy.decide(spec).outcome != "denied"]
        return [agent.spec(allowed) for agent in self._agents.values()]

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Have an agent do a task; see :class:`RunAgent`."""
        if self._run is None:
            raise ToolFailure("agents run only inside of a request that asks a model")
        return await self._run(self._agents[spec.name], arguments[TASK], context)

    async def aclose(self) -> None:
        """Nothing to close: the other providers close themselves."""
