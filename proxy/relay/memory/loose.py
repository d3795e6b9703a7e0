"""Find answers again after a part of the conversation before them has changed.

The exact key of an answer covers the whole conversation before it.  Each answer is also noted under two
loose keys.  Both cover the caller, the model, its system messages, its tools and the answer; one of them
also covers the question.  Answers with nothing hidden behind them are noted, too: if the same words arose in
two ways, neither is put back.  What a loose key finds must also fit the evidence of where the answer stood.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import orjson

from proxy.records import HiddenTurns
from proxy.relay.memory.outcomes import MemoryOutcome
from proxy.wires.past.evidence import Evidence, fits_window, was_asked
from proxy.wires.turn.digest import conversation_digest

__all__ = [
    "PLAIN",
    "Pointer",
    "evidence_of",
    "fits_evidence",
    "has_other",
    "loose_keys",
    "pointer_of",
    "stand_here",
    "why_not_found",
]

PLAIN: Final = "plain"
"""The variant of an answer with nothing hidden behind it."""

Pointer = tuple[str, str]
"""The place of hidden turns: their key and their variant."""


def loose_keys(words: Sequence[str], shape: str, text: str, evidence: Evidence) -> Sequence[str]:
    """Return the two loose keys of an answer: one with the question, one without.

    ``words`` are those of :meth:`~proxy.wires.client_port.ClientRequest.identity_words`.
    """
    of = ("loose answer", *words, shape, text.strip())
    return [
        conversation_digest((*of, "asked", evidence.question), evidence.system),
        conversation_digest((*of, "alone"), evidence.system),
    ]


def evidence_of(evidence: Evidence, to: Pointer) -> bytes:
    """Return the JSON to store under a loose key: the place of the hidden turns, and where their answer
    stood."""
    return orjson.dumps(
        {"to": to, "chain": evidence.chain, "question": evidence.question, "text": evidence.text}
    )


def pointer_of(
    found: Sequence[HiddenTurns], caller: str, shown: Evidence, elsewhere: Set[str]
) -> Pointer | None:
    """Return the place of a loose key's hidden turns; ``None`` unless it has exactly one entry, which fits.

    ``elsewhere`` are the variants that exact keys found in this conversation: each belongs to one position.
    """
    if len(found) != 1 or found[0].caller != caller or found[0].variant in {PLAIN, *elsewhere}:
        return None
    kept = orjson.loads(found[0].payload)
    if not fits_evidence(kept, shown):
        return None
    key, variant = kept["to"]
    return key, variant


def has_other(
    asked: Sequence[HiddenTurns], alone: Sequence[HiddenTurns], variant: str, shown: Evidence
) -> bool:
    """Return whether this answer may have arisen in another way.

    ``asked`` are equal answers to the same question.  One of another variant is enough: a conversation that
    lost its oldest messages can look like the whole of another one.  ``alone`` are equal answers to any
    question, whose evidence must fit.
    """
    return any(one.variant != variant for one in asked) or any(
        one.variant != variant and fits_evidence(orjson.loads(one.payload), shown) for one in alone
    )


def fits_evidence(kept: Mapping[str, Any], shown: Evidence) -> bool:
    """Return whether an answer has the position of the kept one, apart from what programs leave out later."""
    same = kept["question"] == shown.question or was_asked(kept["text"], shown.text)
    return same and fits_window(kept["chain"], shown.chain, whole=shown.whole)


def stand_here(
    exact: Sequence[str], loose: Sequence[Sequence[str]], known: Mapping[str, Sequence[HiddenTurns]]
) -> Mapping[str, set[str]]:
    """Return, by first loose key, the variants that exact keys found somewhere in this conversation.

    They belong to their own positions: they neither make other ones ambiguous nor are put back there.
    """
    found: dict[str, set[str]] = {}
    for key, keys in zip(exact, loose, strict=True):
        if keys and len(known[key]) == 1:
            found.setdefault(keys[0], set()).add(known[key][0].variant)
    return found


def why_not_found(found: Sequence[HiddenTurns]) -> MemoryOutcome:
    """Return the outcome to count for what a loose key found, if it is not put back."""
    if not found:
        return "not_found"
    if len(found) > 1:
        return "ambiguous"
    return "nothing_hidden" if found[0].variant == PLAIN else "not_found"
