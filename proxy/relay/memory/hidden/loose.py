"""Find answers again after a part of the conversation before them has changed.

The exact key of an answer covers the whole conversation before it. What it finds always counts. Each answer
is also noted under two loose keys, which are looked up for answers without an exact match only. Both cover
the caller, the model, its system messages, its tools and the answer; one of them also covers the question.
Answers with nothing hidden behind them are noted, too: if the same words arose in two ways, neither is put
back. What a loose key finds must also fit the evidence of where the answer stood.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import orjson

from proxy.records.rows import HiddenTurns
from proxy.relay.memory.hidden.outcomes import MemoryOutcome, Recall
from proxy.store.base import Store
from proxy.wires.client_port import Answer, ClientRequest
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Evidence, Place, chained, fits_window, was_asked
from proxy.wires.turn.digest import conversation_digests, encoded

PLAIN: Final = "plain"
"""The variant of an answer with nothing hidden behind it."""

_Pointer = tuple[str, str]
"""The place of hidden turns: their key and their variant."""


def loose_keys(words: Sequence[str], shape: str, text: str, evidence: Evidence) -> tuple[str, str]:
    """Return the two loose keys of an answer: one with the question, one without.

    ``words`` are those of :meth:`~proxy.wires.client_port.ClientRequest.identity_words`.
    """
    asked = encoded(text.strip()), b"asked", evidence.question.encode(), evidence.system
    alone = encoded(text.strip()), b"alone", evidence.system
    first, second = conversation_digests(("loose answer", *words, shape), (asked, alone))
    return first, second


def evidence_of(evidence: Evidence, to: _Pointer) -> bytes:
    """Return the JSON to store under a loose key: the place of the hidden turns, and where their answer
    stood."""
    return orjson.dumps(
        {"to": to, "chain": evidence.chain, "question": evidence.question, "text": evidence.text}
    )


async def find_loosely(
    store: Store,
    request: ClientRequest,
    caller: str,
    shape: str,
    answers: Sequence[Answer],
    *,
    here: Set[str],
    rule: SystemRule,
    recall: Recall,
) -> Mapping[int, HiddenTurns]:
    """Return, by position, the hidden turns behind answers that have no exact match.

    ``here`` are the exact keys that were found in this conversation. What they lead to belongs to other
    positions: it neither makes an answer ambiguous nor is put back behind it. Count in ``recall`` why
    nothing was found. Raise :class:`~proxy.base.errors.StoreError`.
    """
    words = request.identity_words(caller)
    placed: list[tuple[Answer, Place]] = []
    for answer, place in zip(answers, request.places([one.position for one in answers], rule), strict=False):
        if place is None:
            continue
        if not place.whole:
            break  # Of this answer and of later ones, older messages could differ unseen.
        placed.append((answer, place))
    alone_keys = conversation_digests(
        ("loose answer", *words, shape),
        [(encoded(answer.text.strip()), b"alone", place.system) for answer, place in placed],
    )
    known = {**await store.find_hidden(alone_keys, caller, loosely=True)} if alone_keys else {}
    # An answer is noted under both keys. Evidence takes time, so it is made only for what one key finds.
    noted = [answer for (answer, _), key in zip(placed, alone_keys, strict=True) if known[key]]
    recall.miss("not_found", len(answers) - len(noted))
    shown = [(one, request.evidence(one.position, rule)) for one in noted]
    stands = [(one, place, loose_keys(words, shape, one.text, place)) for one, place in shown if place]
    if not stands:
        return {}
    known |= await store.find_hidden([asked for _, _, (asked, _) in stands], caller, loosely=True)
    pointers: dict[_Pointer, int] = {}
    for answer, evidence, keys in stands:
        asked, alone = ([one for one in known[key] if _exact_key(one) not in here] for key in keys)
        found = _found(asked, alone, caller, evidence)
        if isinstance(found, str):
            recall.miss(found)
            continue
        # One past has one position: the last one, where the most messages before it are the same.
        recall.miss("ambiguous", found in pointers)
        pointers[found] = answer.position
    return await _pointed(store, pointers, caller, recall)


def _exact_key(found: HiddenTurns) -> str:
    key: str = orjson.loads(found.payload)["to"][0]
    return key


def _found(
    asked: Sequence[HiddenTurns], alone: Sequence[HiddenTurns], caller: str, shown: Evidence
) -> _Pointer | MemoryOutcome:
    """Return the only past that fits what the client shows, or why there is none.

    ``asked`` are equal answers to the same question. One of another variant is enough to be in doubt: a
    conversation that lost its oldest messages can look like the whole of another one. ``alone`` are equal
    answers to any question, whose evidence must fit.
    """
    found = asked or alone
    if len(found) != 1:
        return "ambiguous" if found else "not_found"
    only = found[0]
    if only.variant == PLAIN:
        return "nothing_hidden"
    kept = orjson.loads(only.payload)
    if only.caller != caller or not _fits(kept, shown):
        return "not_found"
    if any(one.variant != only.variant and _fits(orjson.loads(one.payload), shown) for one in alone):
        return "ambiguous"
    key, variant = kept["to"]
    return key, variant


def _fits(kept: Mapping[str, Any], shown: Evidence) -> bool:
    """Return whether an answer has the position of the kept one, apart from what programs leave out later."""
    same = kept["question"] == shown.question or was_asked(kept["text"], shown.text)
    return same and fits_window([chained(one) for one in kept["chain"]], shown.chain)


async def _pointed(
    store: Store, pointers: Mapping[_Pointer, int], caller: str, recall: Recall
) -> Mapping[int, HiddenTurns]:
    """Return the hidden turns that loose keys point to, if they exist and their key has no others."""
    if not pointers:
        return {}
    known = await store.find_hidden([key for key, _ in pointers], caller)
    found = {
        position: known[key][0]
        for (key, variant), position in pointers.items()
        if len(known[key]) == 1 and known[key][0].variant == variant and known[key][0].caller == caller
    }
    recall.miss("ambiguous", len(pointers) - len(found))
    return found
