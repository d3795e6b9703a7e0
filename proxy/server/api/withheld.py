"""What of a run its client never got, and why: for the terminal and as JSON alike."""

from collections.abc import Iterator
from typing import Final

from proxy.plain_text import counted
from proxy.store.base import RunDetail

__all__ = ["withheld"]

_SHOWN: Final = {
    "silent": "the trace was silent and showed nothing of them",
    "reasoning": "the trace showed a short line of each as reasoning",
    "status": "the trace showed a short line of each as text",
    "events": "the trace showed each of them, redacted",
}


def withheld(detail: RunDetail) -> Iterator[tuple[str, str]]:
    """Each part that stayed here, in words of ours alone, with the reason."""
    run = detail.run
    if detail.invocations:
        shown = _SHOWN.get(run.trace, "what the trace showed of them is not on record")
        calls = counted(len(detail.invocations), "tool call")
        yield f"{calls}, arguments and results", f"server tools run here; {shown}"
    if len(detail.turns) > 1:
        ends = counted(len(detail.turns) - 1, "end")
        yield f"{ends} of a turn: finish reason, end mark", "the run went on, and a client has one response"
    if run.status == "suspended" and any(row.turn == run.turns for row in detail.invocations):
        yield f"the results of turn {run.turns}", "they go to the model when the client brings its own"
