"""The meaning of a run's status, as one sentence for people."""

from proxy.base.events import FinishReason
from proxy.store.base import RunDetail


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
