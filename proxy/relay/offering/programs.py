"""Programs: whether a request offers them, and how their tool describes the tools that a program can call."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import orjson
from msgspec import Struct

from proxy.base.events import PROXY_TOOLS, ToolDefinition, ToolDefinitions
from proxy.relay.offering.deferred import OfferedTools, SearchRules
from proxy.tools.agents.agent import is_agent
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.programs.stubs import stubs

ProgramMode = Literal["auto", "on", "off"]

_MOST_STUBS: Final = 24_000
"""The most characters of declarations that a model is shown, about 6,000 tokens."""

_FOUND: Final = (
    "\nA program can call each tool that you are shown or that a search lists, by its name with _ in place "
    "of every other sign. Search first if you do not know its arguments."
)


class ProgramRules(Struct, frozen=True):
    """The operator's setting of programs.  With ``"auto"`` a request offers them if its model would
    search for tools by the rules of ``search``, or has too many of them."""

    mode: ProgramMode = "off"
    search: SearchRules = SearchRules()

    def offered(
        self,
        found: OfferedTools,
        tools: Sequence[ToolSpec],
        program: ToolSpec | None,
        forced: Collection[str],
    ) -> OfferedTools:
        """Return what a request offers if its model may write programs; see :func:`with_program`.

        ``program`` is the tool that runs them, if there is one.
        """
        searches = bool(found.deferred.tools) or self.search.many(tools, None)
        if program is None or (self.mode == "auto" and not searches):
            return found
        return with_program(found, tools, program, forced)


def less(left_out: Mapping[str, str], specs: Sequence[ToolSpec]) -> dict[str, str]:
    """Return why tools are left out, without those that are offered after all."""
    offered = {spec.name for spec in specs}
    return {name: why for name, why in left_out.items() if name not in offered}


def is_callable(spec: ToolSpec) -> bool:
    """Return whether a program can call a tool: not an agent, a search, or another program."""
    return spec.name not in PROXY_TOOLS and not is_agent(spec.name)


def with_program(
    found: OfferedTools, tools: Sequence[ToolSpec], program: ToolSpec, forced: Collection[str]
) -> OfferedTools:
    """Return what a request offers if its model can write programs.

    ``tools`` are its server tools, and ``found`` is what it would offer without programs.  The tools that a
    program can call are declared in the description of ``program`` and not shown besides, except those in
    ``forced``.  If there are too many to declare, the model searches for them.
    """
    called = [spec for spec in tools if is_callable(spec)]
    if not called:
        return found
    declared = stubs([spec.definition() for spec in called])
    if len(declared) > _MOST_STUBS:
        shown = found.shown.followed_by([_described(program, _FOUND)])
        return OfferedTools([*found.specs, program], shown, found.deferred)
    kept = [spec for spec in tools if not is_callable(spec) or spec.name in forced]
    shown = ToolDefinitions(spec.definition() for spec in kept)
    shown = shown.followed_by([_described(program, f"\nThe tools:\n{declared}")])
    return OfferedTools([*tools, program], shown)


def _described(program: ToolSpec, more: str) -> ToolDefinition:
    """Return the tool that runs programs with a longer description of its argument.

    OpenAI takes 1,024 characters for a tool's own description.
    """
    made = program.definition()
    schema: dict[str, Any] = orjson.loads(orjson.dumps(made.parameters))
    for argument in schema["properties"].values():
        argument["description"] = f"{argument['description']}.{more}"
    return replace(made, parameters=schema)
