"""Programs: whether a request offers them, and how their tool describes the tools that a program can call."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import orjson
from msgspec import Struct

from proxy.base.events import PROXY_TOOLS, RUN_PROGRAM, ToolDefinition, ToolDefinitions
from proxy.relay.offering.deferred import OfferedTools, SearchRules
from proxy.tools.access.catalog import Selection
from proxy.tools.agents.agent import is_agent
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.programs.engine import Language
from proxy.tools.programs.stubs import stubs
from proxy.wires.hosted.tools import ClientPrograms

ProgramMode = Literal["auto", "on", "off"]

_MOST_STUBS: Final = 24_000
"""The most characters of declarations that a model is shown, about 6,000 tokens."""

_FOUND: Final = (
    "\nA program can call each tool that you are shown or that a search lists, by its name with _ in place "
    "of every other sign. Search first if you do not know its arguments."
)
_JAVASCRIPT: Final = (
    "Run a JavaScript program that calls tools, several at once if you like. Only what it gives to text(...) "
    "comes back, so filter and count in the program instead of reading long results. Use it for anything "
    "that takes more than one call."
)
_JAVASCRIPT_CODE: Final = (
    "The program, with await at its top level. Call a tool as await tools.NAME({argument: value}), several "
    "at once with await Promise.all([...]). A result is the tool's JSON as a value, or a string. A call that "
    "fails throws an Error. Put out what you need with text(value), and images with image(data URL). There "
    "is no console, no network, no modules, no timers; the clock stands still"
)


class ProgramRules(Struct, frozen=True):
    """The operator's setting of programs. With ``"auto"`` a request offers them if its model would
    search for tools by the rules of ``search``, or has too many of them."""

    mode: ProgramMode = "off"
    search: SearchRules = SearchRules()

    def tool(self, selection: Selection) -> ToolSpec | None:
        """Return the tool that runs programs, ``None`` if they are off."""
        return None if self.mode == "off" else selection.catalog.get(RUN_PROGRAM)

    def offered(
        self,
        found: OfferedTools,
        left_out: dict[str, str],
        tools: Sequence[ToolSpec],
        program: ToolSpec,
        forced: Collection[str],
        client: tuple[str, ClientPrograms] | None = None,
    ) -> tuple[OfferedTools, dict[str, str]]:
        """Return what a request offers if its model may write programs, and the tools that are left out.

        ``found`` and ``left_out`` are the same without programs; see :func:`with_program`. If the client
        itself declared a tool that runs programs, ``client`` has its name and what its programs may call.
        """
        searches = bool(found.deferred.tools) or self.search.many(tools, None)
        if client is None and self.mode == "auto" and not searches:
            return found, left_out
        made = with_program(found, tools, program, forced, client)
        offered = {spec.name for spec in made.specs}
        return made, {name: why for name, why in left_out.items() if name not in offered}


def is_callable(spec: ToolSpec) -> bool:
    """Return whether a program can call a tool: not an agent, a search, or another program."""
    return spec.name not in PROXY_TOOLS and not is_agent(spec.name)


def with_program(
    found: OfferedTools,
    tools: Sequence[ToolSpec],
    program: ToolSpec,
    forced: Collection[str],
    client: tuple[str, ClientPrograms] | None = None,
) -> OfferedTools:
    """Return what a request offers if its model can write programs.

    ``tools`` are its server tools, and ``found`` is what it would offer without programs. The tools that a
    program can call are declared in the description of ``program`` and not shown besides, except those in
    ``forced``. If there are too many to declare, the model searches for them. For ``client`` see
    :meth:`ProgramRules.offered`: its functions are declared in any case, as far as there is room.
    """
    names = frozenset() if client is None else client[1].names
    called = [spec for spec in tools if is_callable(spec) and spec.name not in names]
    if not called and client is None:
        return found
    name, theirs = (program.name, ()) if client is None else (client[0], client[1].tools)
    # Under its own name, the client's declaration stands for the tool; the offer adds it.
    added = [program] if client is None else []
    language: Language = "python" if client is None else client[1].language
    declared = stubs([*(spec.definition() for spec in called), *theirs], language)
    if len(declared) > _MOST_STUBS:
        mine = stubs(theirs, language)[:_MOST_STUBS]
        more = f"{_FOUND}\nThe tools of the client:\n{mine}" if theirs else _FOUND
        shown = found.shown.followed_by([_described(program, more, name, language)])
        return OfferedTools([*found.specs, *added], shown, found.deferred)
    kept = [spec for spec in tools if not is_callable(spec) or spec.name in forced]
    shown = ToolDefinitions(spec.definition() for spec in kept)
    more = f"\nThe tools:\n{declared}" if declared else ""
    shown = shown.followed_by([_described(program, more, name, language)])
    return OfferedTools([*tools, *added], shown)


def _described(program: ToolSpec, more: str, name: str, language: Language) -> ToolDefinition:
    """Return the tool that runs programs with a longer description of its argument.

    OpenAI takes 1,024 characters for a tool's own description.
    """
    made = program.definition()
    schema: dict[str, Any] = orjson.loads(orjson.dumps(made.parameters))
    for argument in schema["properties"].values():
        said = argument["description"] if language == "python" else _JAVASCRIPT_CODE
        argument["description"] = f"{said}.{more}"
    about = made.description if language == "python" else _JAVASCRIPT
    return replace(made, name=name, description=about, parameters=schema)
