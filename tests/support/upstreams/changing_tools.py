"""A tool provider whose list of tools changes while the proxy runs, as that of an MCP server can."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.schemas.schema import spec_digest
from proxy.tools.contract.spec import Redaction, ToolEffect, ToolSpec

_SHOWN = Redaction(output=("*",))


class Schema(dict[str, Any]):
    """A JSON Schema that allows weak references, so that a test can see whether anything still holds it."""


def changing_tool(
    name: str,
    effect: ToolEffect = ToolEffect.READ_ONLY,
    *,
    arguments: Sequence[str] = (),
    schema: dict[str, Any] | None = None,
    redaction: Redaction | None = _SHOWN,
    **more: Any,
) -> ToolSpec:
    """Return the contract of one tool; its arguments have the given names and are strings."""
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
    """A provider that answers each call with the tool's name as soon as ``go_on`` is set.

    ``go_on`` is set from the beginning. If the test sets ``listing``, ``list_tools`` awaits it and then
    returns the tools as they were before the wait.
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
        """Return the present tools."""
        now = self.specs
        if self.listing is not None:
            await self.listing()
        return now

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Return the name of the tool as soon as the test lets calls go on."""
        self.called.append(spec.name)
        await self.go_on.wait()
        return f"this was {spec.name}"

    async def aclose(self) -> None:
        """Count how often the provider is closed."""
        self.closed += 1
