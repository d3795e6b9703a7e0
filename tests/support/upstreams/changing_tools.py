"""A provider whose tools come and go while the proxy serves, as those of an MCP server do."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.schema import spec_digest
from proxy.tools.contract.spec import Redaction, ToolEffect, ToolSpec

__all__ = ["ChangingProvider", "Schema", "changing_tool"]

_SHOWN = Redaction(output=("*",))


class Schema(dict[str, Any]):
    """A JSON Schema that a test can hold weakly, to see whether anybody else still holds it."""


def changing_tool(
    name: str,
    effect: ToolEffect = ToolEffect.READ_ONLY,
    *,
    arguments: Sequence[str] = (),
    schema: dict[str, Any] | None = None,
    redaction: Redaction | None = _SHOWN,
    **more: Any,
) -> ToolSpec:
    """The contract of one tool, which takes texts of these names."""
    parameters = schema or {
        "type": "object",
        "properties": {argument: {"type": "string"} for argument in arguments},
        "additionalProperties": False,
    }
    return ToolSpec(
        name=name,
        description=f"Say that it is {name}.",
        parameters=Schema(parameters),
        effect=effect,
        provider=name.partition("__")[0],
        validate=lambda given: given,
        digest=spec_digest(name, "", parameters, effect),
        redaction=redaction,
        **more,
    )


class ChangingProvider:
    """Answers each call with the name of its tool, once ``go_on`` is set, as it is at first.

    ``listing`` is waited for before the tools are told, as they were when it began.
    """

    def __init__(self, name: str, *specs: ToolSpec) -> None:
        self.name = name
        self.specs: Sequence[ToolSpec] = specs
        self.called: list[str] = []
        self.closed = 0
        self.listing: Callable[[], Awaitable[object]] | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def list_tools(self) -> Sequence[ToolSpec]:
        """The tools as they are now."""
        now = self.specs
        if self.listing is not None:
            await self.listing()
        return now

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """The name of the tool, once the test lets calls go on."""
        self.called.append(spec.name)
        await self.go_on.wait()
        return f"this was {spec.name}"

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1
