"""Store and read the findings of ``toolrelay doctor`` about an upstream.

``doctor`` is a separate command, which may run while no server does.  It opens the record of the same
configuration and stores its newest findings there; every server on that record shows them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

__all__ = ["KeptFinding", "encode_diagnosis", "read_diagnosis"]

_MOST_FINDINGS: Final = 64
_MOST_WORDS: Final = 400
_MOST_NAME: Final = 200
_OUTCOMES: Final = ("ok", "no", "quirk", "open")


@dataclass(frozen=True, slots=True)
class KeptFinding:
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
            "check": one.check[:_MOST_NAME],
            "outcome": one.outcome,
            "note": one.note[:_MOST_WORDS] or None,
        }
        for one in list(findings)[:_MOST_FINDINGS]
    ]
    told = {"address": address[:2048], "model": model[:_MOST_NAME], "at": at, "findings": rows}
    return orjson.dumps(told).decode()


def read_diagnosis(text: str, address: str | None) -> dict[str, Any] | None:
    """Return the findings for a page; ``None`` if they are for another address or malformed."""
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if (
        not isinstance(told, dict)
        or told.get("address") != address
        or not isinstance(told.get("findings"), list)
    ):
        return None
    at, model = told.get("at"), told.get("model")
    if not isinstance(at, int | float) or not isinstance(model, str):
        return None
    findings = [row for one in told["findings"][:_MOST_FINDINGS] if (row := _row(one)) is not None]
    return {"at": at, "model": model, "findings": findings}


def _row(one: Any) -> Mapping[str, Any] | None:
    if (
        not isinstance(one, dict)
        or one.get("outcome") not in _OUTCOMES
        or not isinstance(one.get("check"), str)
    ):
        return None
    note = one.get("note")
    return {
        "check": one["check"],
        "outcome": one["outcome"],
        "note": note if isinstance(note, str) else None,
    }
