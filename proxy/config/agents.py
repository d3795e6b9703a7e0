"""The settings of agents, and the files that they name."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator

from proxy.base.errors import ConfigError
from proxy.base.globs import fits
from proxy.config.types import Patterns, Seconds, Section, setting_fault
from proxy.tools.agents.agent import AGENT_PREFIX, agent_takes
from proxy.tools.contract.schemas.schema import check_schema
from proxy.tools.contract.schemas.schema_library import compile_schema

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,54}[A-Za-z0-9])?")
_FILE = "file:"
_MAX_FILE_BYTES = 256 * 1024


def check_agent_names(agents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the names of agents, which follow ``agent__`` in the names of their tools."""
    for name in agents:
        if not _NAME.fullmatch(name):
            raise setting_fault(
                f"{name[:80]!r} is not a valid agent name; use 1 to 56 letters, digits, - and _, and begin "
                "and end with a letter or digit"
            )
    return agents


def _check_tools(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if pattern.startswith(AGENT_PREFIX):
            raise setting_fault(f"{pattern[:80]!r} is an agent, and agents cannot call agents; remove it")
    return patterns


def _check_output_schema(value: Any) -> Any:
    """Check the type: a table, the name of a file that holds one, or empty."""
    if value == "" or (isinstance(value, str) and value.startswith(_FILE) and len(value) > len(_FILE)):
        return value
    if not isinstance(value, dict):
        raise setting_fault('must be a JSON Schema as a table, or "file:PATH" of a JSON file')
    return value


def _check_text(text: str) -> str:
    if not text.strip():
        raise setting_fault("is empty")
    return text


_Written = str | dict[str, Any]


class AgentConfig(Section):
    """An agent: a model with instructions and tools of its own, which models call as the tool agent__NAME."""

    description: Annotated[str, AfterValidator(_check_text)] = Field(
        max_length=4096, description="What the agent does; the model that calls it sees only this text."
    )
    instructions: Annotated[str, AfterValidator(_check_text)] = Field(
        max_length=65536,
        description="Instructions for the agent's own model: a text, or file:PATH.",
    )
    model: str = Field(
        default="",
        max_length=200,
        description="The agent's model. Empty: the model of the run that calls it.",
    )
    tools: Annotated[Patterns, AfterValidator(_check_tools)] = Field(
        default=(),
        description="Tools that the agent may use, if policy and the caller's key allow them: names or "
        "patterns.",
    )
    max_turns: int = Field(
        default=6,
        ge=1,
        le=1000,
        description="Largest number of responses of the agent's model, including the report.",
    )
    max_calls: int = Field(default=16, ge=0, le=10000, description="Largest number of its tool calls.")
    max_tokens: int = Field(default=0, ge=0, description="Largest number of its tokens; 0: no limit.")
    max_cost: float = Field(
        default=0, ge=0, allow_inf_nan=False, description="Its highest cost; 0: no limit."
    )
    timeout_s: Seconds = Field(default=120, description="Seconds that the agent may take.")
    max_result_bytes: int = Field(
        default=8192, ge=256, le=1 << 26, description="Largest size of the agent's report."
    )
    output_schema: Annotated[
        str | dict[str, Any],
        PlainValidator(_check_output_schema, json_schema_input_type=_Written),
    ] = Field(
        default="",
        description="JSON Schema that the report must match: a table, or file:PATH. Empty: the report is "
        "plain text.",
    )

    def takes(self, tool: str) -> bool:
        """Return whether the agent may use the tool with that id, if policy and its caller's key allow it."""
        return agent_takes(tool, self.tools)


def read_agent_files(
    agents: Mapping[str, AgentConfig], folder: Path
) -> tuple[dict[str, AgentConfig], list[ConfigError]]:
    """Return the agents with the texts of the files that they name, and the faults. Relative paths start at
    ``folder``.

    An agent with a fault is left out.
    """
    read, faults = {}, []
    for name, agent in agents.items():
        where = f"agents.{name}"
        try:
            instructions = _content(f"{where}.instructions", agent.instructions, folder)
            if not instructions.strip():
                raise ConfigError(
                    f"{where}.instructions", "the file is empty", "Write the instructions into it"
                )
            schema = _schema(f"{where}.output_schema", agent.output_schema, folder)
        except ConfigError as fault:
            faults.append(fault)
            continue
        read[name] = agent.model_copy(update={"instructions": instructions, "output_schema": schema})
    return read, faults


def _content(where: str, text: str, folder: Path) -> str:
    """Return a text, or the content of the file that it names."""
    if not text.startswith(_FILE):
        return text
    path = folder / Path(text.removeprefix(_FILE)).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(where, f"{path} cannot be read: {error.strerror}", "Correct the path") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(where, f"{path} is larger than {_MAX_FILE_BYTES} bytes", "Shorten it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(where, f"{path} is not UTF-8 at byte {error.start}", "Save it as UTF-8") from None


def _schema(where: str, value: str | dict[str, Any], folder: Path) -> str | dict[str, Any]:
    """Return a checked schema; empty if there is none."""
    if value == "":
        return ""
    schema: Any = value
    if isinstance(value, str):
        try:
            schema = json.loads(_content(where, value, folder))
        except ValueError:
            raise ConfigError(where, f"{value.removeprefix(_FILE)} is not valid JSON", "Correct it") from None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ConfigError(where, "is not the schema of an object", 'Set its "type" to "object"')
    check_schema(schema, where)
    compile_schema(schema, where)
    return schema


def find_agent_conflicts(
    agents: Mapping[str, AgentConfig], serves: Mapping[str, "tuple[str, ...] | Mapping[str, str]"]
) -> Iterator[ConfigError]:
    """Yield the faults of agents that other settings cause; ``serves`` are the configured models of each
    upstream."""
    for name, agent in agents.items():
        if agent.model and not any(
            agent.model in models
            if isinstance(models, Mapping)
            else any(fits(agent.model, pattern) for pattern in models)
            for models in serves.values()
        ):
            yield ConfigError(
                f"agents.{name}.model",
                f"no upstream serves the model {agent.model[:100]!r}",
                "Name a model of upstreams.NAME.models, or leave model empty",
            )
