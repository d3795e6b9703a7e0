"""What a run's record means: its status, what its client never got, and its memory."""

from collections.abc import Iterator
from typing import Any, Final, cast

from proxy.base.events import FinishReason
from proxy.base.plain_text import counted
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


_SHOWN: Final = {
    "silent": "the trace was silent, so the client saw nothing of them",
    "reasoning": "the trace showed each call in a short line, as reasoning",
    "status": "the trace showed each call in a short line, as text",
    "events": "the trace showed each call, redacted",
}


def withheld(detail: RunDetail) -> Iterator[tuple[str, str]]:
    """Yield each part that the client did not get, in the proxy's own words only, with the reason."""
    run = detail.run
    # A run without a model is one call that the client itself made, so it has the result.
    if detail.invocations and run.upstream:
        shown = _SHOWN.get(run.trace, "the record does not have its trace level")
        calls = counted(len(detail.invocations), "tool call")
        yield f"{calls}, arguments and results", f"the proxy ran these tools; {shown}"
    if len(detail.turns) > 1:
        ends = counted(len(detail.turns) - 1, "end")
        yield (
            f"{ends} of a turn: finish reason, end mark",
            "the run continued, and a client gets one response",
        )
    if run.status == "suspended" and any(row.turn == run.turns for row in detail.invocations):
        yield f"the results of turn {run.turns}", "the model gets them when the client sends its own results"


def meaning_of_run(detail: RunDetail) -> str:
    """Return the status of a run as a sentence: how it ended, or what it waits for."""
    run = detail.run
    match run.status:
        case "running":
            return "The run is going on."
        case "completed":
            spent = f", though a budget ({run.spent}) was used up" if run.spent else ""
            return f"The run came to its answer{spent}."
        case "suspended":
            return _suspended(detail)
        case "failed":
            return f"The run ended with the error {run.error_code or 'unknown'}."
        case "cancelled" if run.error_code == "client_gone":
            return "The client left before the run came to its answer."
        case "cancelled" if run.parent_run:
            return "The agent's run was cancelled before its answer, by the run that called the agent."
        case "cancelled":
            return "The run was cancelled before it came to its answer."
        case _:
            taken = f", and {detail.taken_over_by} took it over" if detail.taken_over_by else ""
            return f"The server process ended before the run did{taken}."


def _suspended(detail: RunDetail) -> str:
    if detail.continued_by:
        return f"The run ended with calls that waited, and {detail.continued_by[0].id} goes on from it."
    if parent := detail.run.parent_run:
        return f"The agent waits until a person has decided about its calls and {parent} is continued."
    if detail.run.finish_reason == FinishReason.TOOL_CALLS:
        return "The run waits for the next request of its client, which has calls to run or to decide about."
    return "The run waits until a person has decided about its calls and its client sends the next request."
