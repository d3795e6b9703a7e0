"""Answers found again though a part of the conversation before them is another one.

Beside its key, which holds the whole conversation, each answer is noted under two loose keys: of who asked
whom, what the model was told, its tools and the answer, one of them also of the question.  An answer with
nothing hidden behind it is noted, too: the same words that came about in two ways have no way back.  What a
loose key finds has to fit the evidence of where it stood.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.records import HiddenTurns
from proxy.wires.past.evidence import Evidence, fits_window, was_asked
from proxy.wires.turn.digest import conversation_digest

__all__ = ["PLAIN", "Pointer", "evidence_of", "fits_evidence", "has_other", "loose_keys", "pointer_of"]

PLAIN: Final = "plain"
"""The variant of an answer with nothing hidden behind it."""

Pointer = tuple[str, str]
"""Where hidden turns are kept: their key and their variant."""


def loose_keys(words: Sequence[str], shape: str, text: str, evidence: Evidence) -> Sequence[str]:
    """The two keys that hold no conversation: one with the question, one with the answer alone.

    ``words`` are those of :meth:`~proxy.wires.client_port.ClientRequest.loose_words`.
    """
    of = ("loose answer", *words, shape, text.strip())
    return [
        conversation_digest((*of, "asked", evidence.question), evidence.told),
        conversation_digest((*of, "alone"), evidence.told),
    ]


def evidence_of(evidence: Evidence, to: Pointer) -> bytes:
    """What is kept under a loose key, as JSON: where the hidden turns are, and where their answer stood."""
    return orjson.dumps(
        {"to": to, "chain": evidence.chain, "question": evidence.question, "text": evidence.text}
    )


def pointer_of(found: Sequence[HiddenTurns], caller: str, shown: Evidence) -> Pointer | None:
    """Where the hidden turns are that a loose key found; ``None`` unless there is one way, and it fits."""
    if len(found) != 1 or found[0].variant == PLAIN or found[0].caller != caller:
        return None
    kept = orjson.loads(found[0].payload)
    if not fits_evidence(kept, shown):
        return None
    key, variant = kept["to"]
    return key, variant


def has_other(
    asked: Sequence[HiddenTurns], alone: Sequence[HiddenTurns], variant: str, shown: Evidence
) -> bool:
    """Whether the same answer came about in another way, and may stand here.

    A conversation that lost its oldest messages may be all of another one: so the same answer to the same
    question, which ``asked`` are, is enough.  Of the same answers to other questions, ``alone``, where they
    stood has to fit.
    """
    return any(one.variant != variant for one in asked) or any(
        one.variant != variant and fits_evidence(orjson.loads(one.payload), shown) for one in alone
    )


def fits_evidence(kept: Mapping[str, Any], shown: Evidence) -> bool:
    """Whether an answer stands where the kept one stood, less what programs leave out of later requests."""
    same = kept["question"] == shown.question or was_asked(kept["text"], shown.text)
    return same and fits_window(kept["chain"], shown.chain, whole=shown.whole)
