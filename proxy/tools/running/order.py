"""Which calls of a turn run together, and which one after the other."""

from collections.abc import Iterator, Sequence

from proxy.events import ToolCall
from proxy.records import ToolEffect
from proxy.tools.access.catalog import Catalog
from proxy.tools.contract.spec import ToolSpec

__all__ = ["is_read_only", "side_by_side"]


def is_read_only(spec: ToolSpec | None) -> bool:
    """Whether a call of this tool may run beside others; one of no tool does nothing."""
    return spec is None or spec.effect is ToolEffect.READ_ONLY


def side_by_side(
    alone: Sequence[int], calls: Sequence[ToolCall], catalog: Catalog
) -> Iterator[Sequence[int]]:
    """Calls with effects in their order, each alone but for neighbours that may run together."""
    group: list[int] = []
    for at in alone:
        spec = catalog.get(calls[at].name)
        if spec is not None and spec.together:
            group.append(at)
            continue
        if group:
            yield group
            group = []
        yield (at,)
    if group:
        yield group
