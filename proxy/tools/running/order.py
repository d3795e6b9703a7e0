"""Decide which calls of a turn run at the same time and which run one after the other."""

from collections.abc import Iterator, Sequence

from proxy.base.events import ToolCall
from proxy.records.rows import ToolEffect
from proxy.tools.access.catalog import Catalog
from proxy.tools.contract.spec import ToolSpec


def is_read_only(spec: ToolSpec | None) -> bool:
    """Return whether a call of this tool may run beside others; a call of an unknown tool does nothing."""
    return spec is None or spec.effect is ToolEffect.READ_ONLY


def groups_to_run(
    alone: Sequence[int], calls: Sequence[ToolCall], catalog: Catalog
) -> Iterator[Sequence[int]]:
    """Yield calls with effects in order, each alone; adjacent calls that may run together are one group."""
    group: list[int] = []
    for index in alone:
        spec = catalog.get(calls[index].name)
        if spec is not None and spec.together:
            group.append(index)
            continue
        if group:
            yield group
            group = []
        yield (index,)
    if group:
        yield group
