"""Where tools come from: the port that built-in tools, a user's module and MCP servers share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.errors import ToolRelayError
from proxy.tools.spec import ToolSpec

__all__ = ["ArgumentsInvalid", "CallContext", "ToolProvider"]


class ArgumentsInvalid(ToolRelayError):
    """Arguments do not fit the schema.

    ``problems`` names each field and its fault; no message repeats a value the model sent
    (rule T3).
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class CallContext:
    """Who is calling, for a tool that needs to know.  Carries no key and no token."""

    run_id: str
    invocation_id: str
    caller: str
    call_id: str


class ToolProvider(Protocol):
    """A source of tools.  Only the runner calls ``call_tool`` (rule T1)."""

    @property
    def name(self) -> str:
        """The part of a tool id before the double underscore."""
        ...

    async def list_tools(self) -> Sequence[ToolSpec]: ...

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Run one tool with arguments that ``spec.validate`` returned.

        Returns anything JSON can say (or a pydantic model).  Raises
        :class:`~proxy.errors.ToolFailure` for a failure the model should read about.
        """
        ...

    async def aclose(self) -> None: ...
