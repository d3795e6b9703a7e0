"""What became of the members of a client's request in another dialect: from the tables of both dialects."""

import re
from collections.abc import Sequence
from typing import Any

from proxy.wires.crossing.tables import FieldTable, general_path

_TOP = re.compile(r"[^.\[]+")


def members_of(client: FieldTable, upstream: FieldTable) -> dict[str, Any]:
    """Return for each member of a client's request the members ``to`` that say the same to the upstream, and
    ``why`` if there is none."""
    if client.dialect == upstream.dialect:
        return {}
    members: dict[str, dict[str, Any]] = {}
    for path, rule in client.read.items():
        name = _top(path)
        member = members.setdefault(name, {"to": [], "why": None})
        if rule.handling != "translated":
            member["why"] = rule.reason if path == name else member["why"]
            continue
        for aspect in rule.to:
            written = upstream.written.get(aspect)
            if written is None:
                continue
            if written.handling != "translated":
                member["why"] = member["why"] or written.reason
            member["to"] += [top for top in map(_top, written.to) if top not in member["to"]]
    return members


def reasons_of(client: FieldTable, left_out: Sequence[str]) -> list[dict[str, Any]]:
    """Return each field that was left out of a request, with the reason in the dialect's table."""
    rules = ((path, client.read.get(general_path(path))) for path in left_out)
    return [{"field": path, "why": rule.reason or None if rule else None} for path, rule in rules]


def _top(path: str) -> str:
    match = _TOP.match(path)
    return match[0] if match else path
