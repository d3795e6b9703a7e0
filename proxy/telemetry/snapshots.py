"""Read and merge the snapshots of metrics that processes exchange."""

from collections.abc import Iterable
from typing import Any

import orjson

from proxy.telemetry.metric_families import FAMILIES, Family, Labels

METRICS = "metrics"
"""The name under which processes exchange snapshots."""


def merge(running: Iterable[bytes], ended: Iterable[bytes] = ()) -> bytes:
    """Merge the snapshots of several processes into one.

    From processes that have ``ended``, only counters and histograms count: a sum must not fall when a process
    is replaced, but nothing is open there any more. Raises ``ValueError`` for bytes that are not a snapshot.
    """
    values: dict[str, dict[Labels, Any]] = {}
    families = {family.name: family for family in FAMILIES}
    for alive, snapshots in ((True, running), (False, ended)):
        for snapshot in snapshots:
            for name, entries in read_snapshot(snapshot).items():
                family = families.get(name)
                if family is None or (family.kind == "gauge" and not alive):
                    continue
                into = values.setdefault(name, {})
                for labels, value in entries:
                    key = tuple(labels)
                    into[key] = _joined(family, into[key], value) if key in into else value
    return orjson.dumps({name: list(cells.items()) for name, cells in values.items()})


def read_snapshot(snapshot: bytes) -> dict[str, list[tuple[list[str], Any]]]:
    """Return the labels and values of a snapshot, by family. Raises ``ValueError`` for other bytes."""
    try:
        content = orjson.loads(snapshot)
    except orjson.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        raise ValueError("the data is not a snapshot of metrics")  # noqa: TRY004
    return content


def _joined(family: Family, first: Any, other: Any) -> Any:
    if family.kind == "histogram":
        if len(first) != len(other):
            raise ValueError(f"{family.name}: the snapshots have different buckets")
        return [left + right for left, right in zip(first, other, strict=True)]
    if family.summed == "sum":
        return first + other
    return min(first, other) if family.summed == "min" else max(first, other)
