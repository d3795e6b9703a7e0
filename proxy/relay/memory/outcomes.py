"""Whether the hidden turns behind a request's answers were put back, and why not: for people and metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = ["OUTCOMES", "MemoryOutcome", "PutBack", "Recall"]

MemoryOutcome = Literal[
    "put_back",
    "put_back_loosely",
    "nothing_hidden",
    "not_found",
    "ambiguous",
    "changed",
    "unavailable",
    "off",
    "no_person",
    "too_long",
]
"""``put_back``: the whole conversation before the answer is the same.  ``put_back_loosely``: older messages
were cut off, or the question had more text before; all evidence fits.  ``nothing_hidden``: the answer had no
hidden turn.  ``not_found``: the record does not have this answer after this conversation.  ``ambiguous``: the
same words came about in two ways.  ``changed``: the client sends back other calls or texts than it was shown.
``unavailable``: the record did not answer.  ``off``: ``store.history`` or ``x-toolrelay-history`` turns this
off.  ``no_person``: several people share the key, and the request does not name one.  ``too_long``: it was
put back and removed again, because the upstream found the conversation too long."""

OUTCOMES: Final[Sequence[MemoryOutcome]] = (
    *("put_back", "put_back_loosely", "nothing_hidden", "not_found", "ambiguous", "changed"),
    *("unavailable", "off", "no_person", "too_long"),
)

_MOST_NAMED: Final = 32


@dataclass(frozen=True, slots=True)
class PutBack:
    """Hidden turns of one earlier run that were put back into a request, and how many bytes they added.

    ``kind`` is ``answer`` (behind an answer), ``calls`` (a turn that waited for the client's results) or
    ``response`` (what a ``previous_response_id`` stands for).
    """

    run_id: str
    kind: Literal["answer", "calls", "response"]
    bytes: int
    loosely: bool = False


@dataclass(slots=True)
class Recall:
    """What the look-ups of one request found."""

    put_back: list[PutBack] = field(default_factory=list)
    counts: Counter[MemoryOutcome] = field(default_factory=Counter)

    def put(self, one: PutBack) -> None:
        """Count what was put back."""
        self.put_back.append(one)
        self.counts["put_back_loosely" if one.loosely else "put_back"] += 1

    def miss(self, why: MemoryOutcome, count: int = 1) -> None:
        """Count answers or calls that nothing was put back for."""
        if count:
            self.counts[why] += count

    def written(self) -> Mapping[str, Any] | None:
        """The JSON values for the record; ``None`` if nothing was looked up."""
        if not self.counts:
            return None
        named = [
            {"run": one.run_id, "kind": one.kind, "bytes": one.bytes, "loosely": one.loosely}
            for one in self.put_back[:_MOST_NAMED]
        ]
        return {"put_back": named, "counts": dict(self.counts)}
