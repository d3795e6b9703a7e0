"""Define agents: models with instructions, tools and budgets, which another model calls as tools."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from proxy.base.globs import fits
from proxy.tools.contract.identifiers import tool_id
from proxy.tools.contract.schemas.schema import spec_digest
from proxy.tools.contract.spec import Redaction, ToolEffect, ToolSpec
from proxy.tools.contract.validation import SchemaValidator

PROVIDER: Final = "agent"
AGENT_PREFIX: Final = f"{PROVIDER}__"
TASK: Final = "task"
"""The name of the only argument."""

_DIGITS: Final = 32
_STRENGTH: Final = (ToolEffect.READ_ONLY, ToolEffect.STATE_CHANGE, ToolEffect.EXTERNAL_SIDE_EFFECT)
_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        TASK: {
            "type": "string",
            "minLength": 1,
            "description": "The task for the agent. It does not see this conversation: include everything it "
            "needs to know, and say what its report must contain.",
        }
    },
    "required": [TASK],
    "additionalProperties": False,
}


def is_agent(tool: str) -> bool:
    """Return whether a tool id belongs to an agent."""
    return tool.startswith(AGENT_PREFIX)


def tool_of(agent: str) -> str:
    """Return the id of the tool that calls the agent with that name."""
    return AGENT_PREFIX + agent


def agent_takes(tool: str, patterns: Iterable[str]) -> bool:
    """Return whether an agent with these patterns gets that tool. No agent can call another agent."""
    return not is_agent(tool) and any(fits(tool, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent, as the operator configured it.

    ``model`` is empty for the model of the calling run. ``tools`` are patterns of tool ids. ``max_tokens``
    and ``max_cost`` (in billionths) of 0 mean no limit of its own; the rest of the calling run's budgets
    limits it in any case. ``max_turns`` counts all responses of its model, including the report.
    ``output_schema`` is the JSON Schema of its report; ``None`` for a report in plain text. ``effect`` is
    ``None`` for the strongest effect of its tools.
    """

    name: str
    description: str
    instructions: str = field(repr=False)
    model: str = ""
    tools: tuple[str, ...] = ()
    max_turns: int = 6
    max_calls: int = 16
    max_tokens: int = 0
    max_cost: int = 0
    timeout_s: float = 120.0
    max_result_bytes: int = 8192
    output_schema: Mapping[str, Any] | None = None
    effect: ToolEffect | None = None

    @property
    def tool(self) -> str:
        """The id of the tool that calls the agent; raises :class:`~proxy.base.errors.ConfigError`."""
        return tool_id(PROVIDER, self.name)

    @property
    def version(self) -> str:
        """A digest of the whole definition: description, instructions, tools, model and budgets."""
        definition = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(definition.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]

    def takes(self, tool: str) -> bool:
        """Return whether the agent gets the tool with that id, if policy allows it."""
        return agent_takes(tool, self.tools)

    def spec(self, loaded: Iterable[ToolSpec]) -> ToolSpec:
        """Return the tool that calls the agent; ``loaded`` are the tools that the agent may choose from.

        The tool has egress if one of the agent's tools has.
        """
        own = [spec for spec in loaded if self.takes(spec.name)]
        effect = self.effect or strongest(spec.effect for spec in own)
        name = self.tool
        seen = spec_digest(name, self.description, _PARAMETERS, effect)
        return ToolSpec(
            name=name,
            description=self.description,
            parameters=_PARAMETERS,
            effect=effect,
            provider=PROVIDER,
            validate=SchemaValidator(_PARAMETERS),
            # Approvals, and turns that wait for them, hold for this version of the agent only.
            digest=hashlib.sha256(f"{seen} {self.version}".encode()).hexdigest(),
            # A report is content, which only the calling model may see.
            redaction=Redaction(),
            timeout_s=self.timeout_s,
            max_result_bytes=self.max_result_bytes,
            egress=any(spec.egress for spec in own),
            together=True,
        )


def strongest(effects: Iterable[ToolEffect]) -> ToolEffect:
    """Return the strongest of these effects; ``read_only`` if there are none."""
    ranks: Sequence[int] = [_STRENGTH.index(effect) for effect in effects]
    return _STRENGTH[max(ranks, default=0)]
