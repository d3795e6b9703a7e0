"""The memory of a run as plain JSON values: what was restored into its request, and why not more."""

from typing import Any, cast

from proxy.relay.memory.hidden.outcomes import MEANINGS, MemoryOutcome
from proxy.store.base import RunDetail

_PUT_BACK = ("put_back", "put_back_loosely")
_UNKNOWN = "A later version of the proxy wrote this outcome."


def memory_to_json(detail: RunDetail) -> dict[str, Any] | None:
    """Return the "Memory" section of a run; ``None`` if nothing was looked up and no run continues from it.

    ``put_back`` has an entry for each earlier run whose hidden turns were restored into the request.
    ``outcomes`` has a number and a sentence for each outcome. ``given_bytes`` is the size of the encrypted
    turn that the client was given to carry, 0 for none. ``continues`` is the id of the run that this one
    continues from, or ``None``. ``continued_by`` are the runs that continue from this one.
    """
    run = detail.run
    if run.memory is None and not run.continues and not detail.continued_by:
        return None
    counts = (run.memory or {}).get("counts", {})
    return {
        "put_back": list((run.memory or {}).get("put_back", ())),
        "outcomes": [
            {
                "outcome": outcome,
                "count": count,
                "put_back": outcome in _PUT_BACK,
                "meaning": MEANINGS.get(cast(MemoryOutcome, outcome), _UNKNOWN),
            }
            for outcome, count in counts.items()
        ],
        "given_bytes": (run.memory or {}).get("given_bytes", 0),
        "continues": run.continues or None,
        "continued_by": [
            {"run": each.id, "status": each.status, "started_at": each.started_at}
            for each in detail.continued_by
        ],
    }
