"""The provider of the tools that call agents. It gets a function that runs an agent and knows no model."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from proxy.base.errors import ToolFailure
from proxy.tools.access.policy import Policy
from proxy.tools.agents.agent import PROVIDER, TASK, Agent
from proxy.tools.contract.provider import CallContext, ToolProvider
from proxy.tools.contract.spec import ToolSpec

RunAgent = Callable[[Agent, str, CallContext], Coroutine[Any, Any, Any]]
"""Runs an agent with a task for one tool call. Returns its report: a string, or JSON values if the agent has
an output schema. Raises :class:`~proxy.base.errors.ToolFailure` if there is no report."""


class AgentProvider:
    """The tools that call agents.

    ``others`` are the providers whose tools agents may use, except those that ``policy`` denies. Every call
    fails until :meth:`bind` is called: commands that only list tools do not need it.
    """

    name = PROVIDER

    def __init__(self, agents: Sequence[Agent], others: Sequence[ToolProvider], policy: Policy) -> None:
        self._agents: Mapping[str, Agent] = {agent.tool: agent for agent in agents}
        self._others = tuple(others)
        self._policy = policy
        self._run: RunAgent | None = None

    @property
    def agents(self) -> Mapping[str, Agent]:
        """All agents, by the ids of the tools that call them."""
        return self._agents

    def bind(self, run: RunAgent) -> None:
        """Run agents with ``run`` from now on."""
        self._run = run

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return one tool per agent."""
        loaded = [spec for provider in self._others for spec in await provider.list_tools()]
        allowed = [spec for spec in loaded if self._policy.decide(spec).outcome != "denied"]
        return [agent.spec(allowed) for agent in self._agents.values()]

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Run an agent; see :class:`RunAgent`."""
        if self._run is None:
            raise ToolFailure("an agent can only run within a model request")
        return await self._run(self._agents[spec.name], arguments[TASK], context)

    async def aclose(self) -> None:
        """Do nothing: the other providers are closed by their owners."""
