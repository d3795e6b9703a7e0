"""Tools that a request offers without showing them: the model finds them with a search."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal

import orjson
from msgspec import Struct

from proxy.base.events import ToolDefinition, ToolDefinitions
from proxy.base.globs import fits
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.searching.index import ToolIndex
from proxy.tools.searching.listing import listing
from proxy.tools.searching.patterns import matching
from proxy.wires.typed_tools.searching import ClientSearch

SearchMode = Literal["auto", "on", "off"]

_PATTERN: Final = (
    "A regular expression that is searched in the names, descriptions and argument names of tools, such as "
    "weather or (?i)create.*issue; without lookaround and backreferences"
)

_INDEX_BYTES: Final = 3000
"""What the index takes for each tool, at most."""


class SearchRules(Struct, frozen=True):
    """The operator's settings of tool search.

    With ``"auto"`` a request searches if it offers more than ``above_tools`` server tools, if their
    definitions take more than ``above_bytes``, or if its upstream takes fewer. Tools that fit the patterns
    ``shown`` are always shown. A search finds ``finds`` tools at most.
    """

    mode: SearchMode = "off"
    above_tools: int = 40
    above_bytes: int = 65536
    shown: tuple[str, ...] = ()
    finds: int = 5

    def search(self, tools: Sequence[ToolSpec], room: int | None) -> bool:
        """Return whether a request with these server tools searches; ``room`` is for how many it has room."""
        return self.many(tools, room) if self.mode == "auto" else self.mode == "on"

    def many(self, tools: Sequence[ToolSpec], room: int | None) -> bool:
        """Return whether these are more tools than a model should be shown at once."""
        if len(tools) > self.above_tools or (room is not None and len(tools) > room):
            return True
        return sum(_bytes_of(spec.definition()) for spec in tools) > self.above_bytes


@dataclass(frozen=True, eq=False)
class Deferred:
    """The deferred tools of an offer by name.

    A search finds ``finds`` of them at most, and no more than ``room`` are shown in the end. It is by words,
    or by a regular expression (``by_pattern``). ``finder`` is the tool that searches, without their list.
    """

    tools: Mapping[str, ToolDefinition] = field(default_factory=dict)
    finds: int = 0
    room: int = 0
    by_pattern: bool = False
    finder: ToolDefinition | None = None

    @cached_property
    def _index(self) -> ToolIndex:
        return ToolIndex(self.tools.values())

    def find(self, query: str, may_show: Callable[[str], bool]) -> Sequence[ToolDefinition]:
        """Return the tools that fit best, of those whose names ``may_show`` takes.

        Raise :class:`~proxy.base.errors.ToolFailure` for a pattern that cannot be used.
        """
        if self.by_pattern:
            found = matching(query, self.tools.values())
        else:
            found = self._index.find(query, len(self.tools))
        ranked = filter(may_show, found)
        return [self.tools[name] for name in islice(ranked, self.finds)]

    def to_load(self, names: Iterable[str], loaded: Sequence[str]) -> Sequence[str]:
        """Return which of these names are to be shown, too; those in ``loaded`` are shown already."""
        fresh = [name for name in dict.fromkeys(names) if name in self.tools and name not in loaded]
        return fresh[: max(0, self.room - len(loaded))]

    def listed_in(self, added: ToolDefinitions, hidden: Collection[str]) -> ToolDefinitions:
        """Return the tools of an offer, its search with a list that leaves out the ``hidden`` names."""
        if self.finder is None or self.tools.keys().isdisjoint(hidden):
            return added
        left = [tool for name, tool in self.tools.items() if name not in hidden]
        listed = _finding(self.finder, left, by_pattern=self.by_pattern)
        return ToolDefinitions().followed_by(listed if tool.name == listed.name else tool for tool in added)

    def loosened(self) -> "Deferred":
        """Return the same tools, none of them ``strict``."""
        return replace(self, tools={name: replace(one, strict=False) for name, one in self.tools.items()})

    def less(self, names: Collection[str]) -> "Deferred":
        """Return the deferred tools without these."""
        return replace(self, tools={name: tool for name, tool in self.tools.items() if name not in names})

    @property
    def kept_bytes(self) -> int:
        """The memory that the index takes, in bytes."""
        return _INDEX_BYTES * len(self.tools)


NOTHING_DEFERRED: Final = Deferred()


class OfferedTools(Struct, frozen=True):
    """The server tools that a request adds: all, those that its model is ``shown``, and the ``deferred``."""

    specs: Sequence[ToolSpec]
    shown: ToolDefinitions
    deferred: Deferred = NOTHING_DEFERRED


def defer(
    tools: Sequence[ToolSpec],
    finder: ToolSpec | None,
    rules: SearchRules,
    room: int | None,
    forced: Collection[str],
    client: ClientSearch | None = None,
) -> OfferedTools | None:
    """Divide the tools of a request into those that are shown and those that a search finds.

    Return ``None`` if all are shown. ``finder`` is the tool that finds the others, if there is one.
    ``forced`` are the tools that the tool choice names, which are shown. ``client`` is the search that the
    client declared, with its own deferred tools.
    """
    if finder is None or rules.mode == "off":
        return None
    mine = {} if client is None else client.deferred
    hides = (client is not None and client.defers_servers) or rules.search(tools, room)
    # What the client's search finds has room before server tools that the model can find as well.
    hides = hides or (bool(mine) and room is not None and len(tools) + 1 + len(mine) > room)
    shown = [
        spec
        for spec in tools
        if not hides or spec.name in forced or any(fits(spec.name, at) for at in rules.shown)
    ]
    if mine and room is not None and len(shown) + 2 > room:
        shown = [spec for spec in shown if spec.name in forced]
    kept = {spec.name for spec in shown}
    ours = {spec.name: spec.definition() for spec in tools if spec.name not in kept}
    deferred = {**ours, **mine}
    left = len(deferred) if room is None else room - len(shown) - 1
    if not deferred or left < 1:
        return None
    by_pattern = client is not None and client.by_pattern
    searching = finder.definition()
    found = Deferred(deferred, rules.finds, min(left, len(deferred)), by_pattern, searching)
    finding = _finding(searching, tuple(deferred.values()), by_pattern=by_pattern)
    return OfferedTools(
        [*tools, finder], ToolDefinitions([*(spec.definition() for spec in shown), finding]), found
    )


def with_room_for(
    deferred: Mapping[str, ToolDefinition], room: int | None, forced: Collection[str]
) -> Sequence[ToolDefinition]:
    """Return the deferred tools of a client that a request without search shows: those for which it has
    room, in their order, and before all others the ``forced``."""
    most = len(deferred) if room is None else room
    kept = set(islice(dict.fromkeys([*(name for name in forced if name in deferred), *deferred]), most))
    return [tool for name, tool in deferred.items() if name in kept]


def _finding(finder: ToolDefinition, tools: Sequence[ToolDefinition], *, by_pattern: bool) -> ToolDefinition:
    """Return the tool that finds these tools, with their names.

    The names stand in the description of its argument, since OpenAI takes 1,024 characters for a tool's own.
    """
    schema: dict[str, Any] = orjson.loads(orjson.dumps(finder.parameters))
    for argument in schema["properties"].values():
        told = _PATTERN if by_pattern else argument["description"]
        argument["description"] = f"{told}. These tools can be found:\n{listing(tools)}"
    return replace(finder, parameters=schema)


def _bytes_of(tool: ToolDefinition) -> int:
    """Return what the definition of a tool takes in a request, in bytes."""
    if (schema := tool.written.get("schema")) is None:
        schema = tool.written["schema"] = orjson.dumps(tool.parameters)
    return len(tool.name) + len(tool.description) + len(schema)
