"""Which parts of a run its client never got, and why: the same for the terminal and as JSON."""

from collections.abc import Iterator
from typing import Final

from proxy.base.plain_text import counted
from proxy.store.base import RunDetail

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
