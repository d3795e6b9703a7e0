"""Connects the search tool to the run that called it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolDefinition

Find = Callable[[str], Sequence[ToolDefinition]]
"""Returns the tools of a run that fit a query best, the best first."""


class Searches:
    """The runs that wait for a search.  The process has one instance."""

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
