"""A short list, for the model, of the tools that a search can find, and the searches of a run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolDefinition

Find = Callable[[str], Sequence[ToolDefinition]]
"""Returns the tools of a run that fit a query best, the best first."""


class Searches:
    """The runs that wait for a search. The process has one instance."""

    def __init__(self) -> None:
        self._finds: dict[str, Find] = {}

    @contextmanager
    def during(self, run_id: str, find: Find) -> Iterator[None]:
        """Let calls of this run search with ``find`` inside this block."""
        self._finds[run_id] = find
        try:
            yield
        finally:
            del self._finds[run_id]

    def find(self, run_id: str, query: str) -> Sequence[ToolDefinition]:
        """Return what fits a query; raise :class:`~proxy.base.errors.ToolFailure` outside of a run."""
        find = self._finds.get(run_id)
        if find is None:
            raise ToolFailure(
                "tools can only be searched within a model request that does not show all of them"
            )
        return find(query)


_MOST_LISTED: Final = 12_000
"""The maximum length of the list in characters, about 3,000 tokens."""
_MOST_SUMMARY: Final = 80
_JOINT: Final = "__"


def listing(tools: Sequence[ToolDefinition]) -> str:
    """Return the names of tools, with as much about each as there is room for.

    These are short descriptions; if there is no room for them, the names alone, by group; if there is none
    for all names either, the groups and how many tools each has.
    """
    described = "\n".join(f"{tool.name}: {shortened(tool.description, _MOST_SUMMARY)}" for tool in tools)
    if len(described) <= _MOST_LISTED:
        return described
    groups = _groups(tools)
    named = "\n".join(f"{group}{', '.join(names)}" for group, names in groups)
    if len(named) <= _MOST_LISTED:
        return f"(Names begin with what is before the double underscore.)\n{named}"
    counted = "\n".join(f"{group}: {len(names)} tools" for group, names in groups)
    return counted[:_MOST_LISTED]


def shortened(text: str, most: int) -> str:
    """Return the beginning of a description on one line, a whole sentence if there is one."""
    line = " ".join(text[: 4 * most].split())
    sentence, stop, _ = line.partition(". ")
    if len(sentence) < most:
        return sentence if stop else line
    return f"{line[: most - 1]}…"


def _groups(tools: Iterable[ToolDefinition]) -> Sequence[tuple[str, Sequence[str]]]:
    """Group tools by the part of their names before the last double underscore."""
    found: dict[str, list[str]] = {}
    for tool in tools:
        group, joint, name = tool.name.rpartition(_JOINT)
        found.setdefault(group + joint, []).append(name)
    return sorted(found.items())
