"""Store and read the findings of ``toolrelay doctor`` about an upstream.

``doctor`` is a separate command, which may run while no server does. It opens the record of the same
configuration and stores its newest findings there; every server on that record shows them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

_MOST_FINDINGS: Final = 64
_MOST_WORDS: Final = 400
_MOST_NAME: Final = 200
_OUTCOMES: Final = ("ok", "no", "quirk", "open")


class KeptFinding(Struct, frozen=True):
    """One finding: the check, its outcome (``ok``, ``no``, ``quirk``, ``open``), and a short note."""

    check: str
    outcome: str
    note: str = ""


def encode_diagnosis(address: str, model: str, at: float, findings: Iterable[KeptFinding]) -> str:
    """Return findings as JSON for the record, cut to its limits.

    ``address`` is the upstream's address as pages show it, ``at`` is in epoch seconds.
    """
    rows = [
        {
            "check": finding.check[:_MOST_NAME],
            "outcome": finding.outcome,
            "note": finding.note[:_MOST_WORDS] or None,
        }
        for finding in list(findings)[:_MOST_FINDINGS]
    ]
    content = {"address": address[:2048], "model": model[:_MOST_NAME], "at": at, "findings": rows}
    return orjson.dumps(content).decode()


def read_diagnosis(text: str, address: str | None) -> dict[str, Any] | None:
    """Return the findings for a page; ``None`` if they are for another address or malformed."""
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if (
        not isinstance(content, dict)
        or content.get("address") != address
        or not isinstance(content.get("findings"), list)
    ):
        return None
    seconds, model = content.get("at"), content.get("model")
    if not isinstance(seconds, int | float) or not isinstance(model, str):
        return None
    findings = [row for stored in content["findings"][:_MOST_FINDINGS] if (row := _row(stored)) is not None]
    return {"at": seconds, "model": model, "findings": findings}


def _row(row: Any) -> Mapping[str, Any] | None:
    if (
        not isinstance(row, dict)
        or row.get("outcome") not in _OUTCOMES
        or not isinstance(row.get("check"), str)
    ):
        return None
    note = row.get("note")
    return {
        "check": row["check"],
        "outcome": row["outcome"],
        "note": note if isinstance(note, str) else None,
    }
