"""Tools that a request offers without showing them: the model finds them with a search."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal

import orjson
from msgspec import Struct

from proxy.base.events import ToolDefinition, ToolDefinitions, ToolResult
from proxy.base.globs import fits
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.searching.index import ToolIndex
from proxy.tools.searching.listing import listing

SearchMode = Literal["auto", "on", "off"]

_INDEX_BYTES: Final = 3000
"""What the index takes for each tool, at most."""


class SearchRules(Struct, frozen=True):
    """The operator's settings of tool search.

    With ``"auto"`` a request searches if it offers more than ``above_tools`` server tools, if their
    definitions take more than ``above_bytes``, or if its upstream takes fewer.  Tools that fit the patterns
    ``shown`` are always shown.  A search finds ``finds`` tools at most.
    """

    mode: SearchMode = "off"
    above_tools: int = 40
    above_bytes: int = 65536
    shown: tuple[str, ...] = ()
    finds: int = 5

    def search(self, tools: Sequence[ToolSpec], room: int | None) -> bool:
        """Return whether a request with these server tools searches; ``room`` is for how many it has room."""
        if self.mode != "auto":
            return self.mode == "on"
        if len(tools) > self.above_tools or (room is not None and len(tools) > room):
            return True
        return sum(_bytes_of(spec.definition()) for spec in tools) > self.above_bytes


@dataclass(frozen=True, eq=False)
class Deferred:
    """The deferred tools of an offer by name.

    A search finds ``finds`` of them at most, and no more than ``room`` are shown in the end.
    """

    tools: Mapping[str, ToolDefinition] = field(default_factory=dict)
    finds: int = 0
    room: int = 0

    @cached_property
    def _index(self) -> ToolIndex:
        return ToolIndex(self.tools.values())

    def find(self, query: str, may_show: Callable[[str], bool]) -> Sequence[ToolDefinition]:
        """Return the tools that fit best, of those whose names ``may_show`` takes."""
        ranked = filter(may_show, self._index.find(query, len(self.tools)))
        return [self.tools[name] for name in islice(ranked, self.finds)]

    def to_load(self, names: Iterable[str], loaded: Sequence[str]) -> Sequence[str]:
        """Return which of these names are to be shown, too; those in ``loaded`` are shown already."""
        fresh = [name for name in dict.fromkeys(names) if name in self.tools and name not in loaded]
        return fresh[: max(0, self.room - len(loaded))]

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
) -> OfferedTools | None:
    """Divide the tools of a request into those that are shown and those that a search finds.

    Return ``None`` if all are shown.  ``finder`` is the tool that finds the others, if there is one.
    ``forced`` are the tools that the tool choice names, which are shown.
    """
    if finder is None or rules.mode == "off" or not rules.search(tools, room):
        return None
    shown = [spec for spec in tools if spec.name in forced or any(fits(spec.name, at) for at in rules.shown)]
    kept = {spec.name for spec in shown}
    deferred = {spec.name: spec.definition() for spec in tools if spec.name not in kept}
    left = len(deferred) if room is None else room - len(shown) - 1
    if not deferred or left < 1:
        return None
    found = Deferred(deferred, rules.finds, min(left, len(deferred)))
    finding = _finding(finder.definition(), tuple(deferred.values()))
    return OfferedTools(
        [*tools, finder], ToolDefinitions([*(spec.definition() for spec in shown), finding]), found
    )


def _finding(finder: ToolDefinition, tools: Sequence[ToolDefinition]) -> ToolDefinition:
    """Return the tool that finds these tools, with their names.

    The names stand in the description of its argument, since OpenAI takes 1,024 characters for a tool's own.
    """
    schema: dict[str, Any] = orjson.loads(orjson.dumps(finder.parameters))
    for argument in schema["properties"].values():
        argument["description"] = f"{argument['description']}. These tools can be found:\n{listing(tools)}"
    return replace(finder, parameters=schema)


def found_in(result: ToolResult) -> Sequence[str]:
    """Return the names in the result of a search; none if it failed."""
    try:
        said = orjson.loads(result.content) if result.ok else {}
        return [str(tool["name"]) for tool in said["tools"]]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ()


def _bytes_of(tool: ToolDefinition) -> int:
    """Return what the definition of a tool takes in a request, in bytes."""
    if (schema := tool.written.get("schema")) is None:
        schema = tool.written["schema"] = orjson.dumps(tool.parameters)
    return len(tool.name) + len(tool.description) + len(schema)
