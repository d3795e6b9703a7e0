"""Whether hidden turns were put back into a request, and why not, for people and metrics."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

from msgspec import Struct, field

MemoryOutcome = Literal[
    "put_back",
    "put_back_loosely",
    "nothing_hidden",
    "not_found",
    "no_held_turn",
    "sealed_expired",
    "sealed_unreadable",
    "sealed_elsewhere",
    "ambiguous",
    "changed",
    "unavailable",
    "off",
    "no_person",
    "too_long",
]
"""The outcome for one earlier answer, or one set of the client's own calls, that a request sends back.

:data:`MEANINGS` explains each value.
"""

MEANINGS: Final[Mapping[MemoryOutcome, str]] = {
    "put_back": "The conversation before it is the same, so the hidden turns were put back.",
    "put_back_loosely": "Older messages are gone or the question has changed a little, and only one past "
    "fits, so the hidden turns were put back.",
    "nothing_hidden": "The model answered without server tools, so there was nothing to put back.",
    "not_found": "The store has nothing for this answer: a message before it, the model or the tools have "
    "changed, it is not an answer of the proxy's, or it was deleted.",
    "no_held_turn": "The store holds no turn for these results: the model called only the client's tools, a "
    "message has changed, or the turn was deleted.",
    "sealed_expired": "The encrypted turn that the client sent back is older than store.keep_days.",
    "sealed_unreadable": "The encrypted turn that the client sent back was changed, or it was made for "
    "another caller or with a key that this proxy does not have.",
    "sealed_elsewhere": "The encrypted turn that the client sent back belongs to another conversation, or a "
    "message before it has changed.",
    "ambiguous": "The same words came about in two ways, so the client's version counts.",
    "changed": "The client sent back other calls or another text than it was shown, so its version counts.",
    "unavailable": "The store did not answer in time, so the client's version counts.",
    "off": "store.history or the header x-toolrelay-history turns this off.",
    "no_person": "Several people share the client key, and the request does not name one (auth.end_user).",
    "too_long": "The upstream found the conversation too long, so the hidden turns were removed again.",
}

PutBackKind = Literal["answer", "calls", "carried", "response"]


_MOST_NAMED: Final = 32


class PutBack(Struct, frozen=True):
    """Hidden turns of one earlier run that were put back into a request, and how many bytes they added.

    ``kind`` is ``answer`` (behind an answer), ``calls`` (a turn that waited for the client's results),
    ``carried`` (such a turn, sent by the client itself) or ``response`` (the history of a
    ``previous_response_id``). ``position`` is the position of the message in the request; the newest has
    the highest.
    """

    run_id: str
    kind: PutBackKind
    bytes: int
    loosely: bool = False
    position: int = 0


class Recall(Struct):
    """The results of the look-ups of one request.

    ``given_bytes`` is the size of the encrypted turn that the client was given to carry; 0 for none.
    """

    put_back: list[PutBack] = []
    counts: defaultdict[MemoryOutcome, int] = field(default_factory=partial(defaultdict, int))
    given_bytes: int = 0

    @property
    def continues(self) -> str:
        """The id of the run that this request continues: the newest that was put back; empty for none."""
        newest = max(self.put_back, key=lambda one: (one.kind == "response", one.position), default=None)
        return "" if newest is None else newest.run_id

    def put(self, one: PutBack) -> None:
        """Count turns that were put back."""
        self.put_back.append(one)
        self.counts["put_back_loosely" if one.loosely else "put_back"] += 1

    def miss(self, why: MemoryOutcome, count: int = 1) -> None:
        """Count answers or calls for which nothing was put back."""
        if count:
            self.counts[why] += count

    def left_out(self) -> "Recall":
        """Return the results without the hidden turns of answers, because the conversation was too long
        upstream."""
        kept = [one for one in self.put_back if one.kind != "answer"]
        removed = [one for one in self.put_back if one.kind == "answer"]
        counts = Counter(self.counts)
        for one in removed:
            counts["put_back_loosely" if one.loosely else "put_back"] -= 1
        counts["too_long"] += len(removed)
        return Recall(kept, defaultdict(int, +counts), self.given_bytes)

    def written(self) -> Mapping[str, Any] | None:
        """Return the JSON values for the record; ``None`` if nothing was looked up or given to the client.

        If there are very many earlier runs, only the newest are named.
        """
        if not (self.counts or self.given_bytes):
            return None
        named = [
            {"run": one.run_id, "kind": one.kind, "bytes": one.bytes, "loosely": one.loosely}
            for one in sorted(self.put_back, key=lambda one: one.position)[-_MOST_NAMED:]
        ]
        given = {"given_bytes": self.given_bytes} if self.given_bytes else {}
        return {"put_back": named, "counts": dict(self.counts), **given}
