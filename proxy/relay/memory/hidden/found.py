"""The results of the look-ups for a request, and how they are put back into it."""

from collections.abc import Sequence

import orjson
from msgspec import Struct

from proxy.records.approvals import approval_ids_in
from proxy.records.result_for_model import holes_in
from proxy.records.rows import HiddenTurns, ResponseRecord, SuspendedTurn, join_sources
from proxy.relay.approval_outcomes import NOTHING_SETTLED, ApprovalOutcomes
from proxy.relay.memory.hidden.outcomes import PutBack, PutBackKind, Recall
from proxy.relay.memory.hidden.shown import AMBIGUOUS, asked_in_of, is_shown, loaded_of, notes_of
from proxy.relay.memory.hidden.turns import Restored
from proxy.wires.client_port import Answer, ClientRequest
from proxy.wires.upstream_port import BodyEditor


class Found(Struct, frozen=True):
    """Everything that was found for a request: the response that it continues, and turns with their
    positions.

    ``loosely`` are the positions of turns that loose keys found, ``carried`` those of turns that the client
    sent itself. ``is_local`` says that only the client's connection has the response.
    """

    response: ResponseRecord | None
    held: Sequence[tuple[int, SuspendedTurn]]
    hidden: Sequence[tuple[int, HiddenTurns]]
    loosely: frozenset[int]
    carried: frozenset[int] = frozenset()
    is_local: bool = False


def asked_about(answers: Sequence[Answer], most: int) -> Sequence[Answer]:
    """Return the last ``most`` answers that name approvals; they include notices that calls wait."""
    return [answer for answer in answers if approval_ids_in(answer.text)][-most:]


def awaited_approvals(found: Found) -> Sequence[str]:
    """Return what the found turns wait for, without duplicates."""
    return list(dict.fromkeys(one for payload in payloads_of(found) for one in holes_in(payload)))


def payloads_of(found: Found) -> Sequence[bytes]:
    """Return the JSON of everything that was found."""
    kept = [*(turn.payload for _, turn in found.held), *(turn.payload for _, turn in found.hidden)]
    return kept if found.response is None else [found.response.continuation, *kept]


def put_back(request: ClientRequest, editor: BodyEditor, found: Found, recall: Recall) -> Restored:
    """Put back the found turns that fit what the client sends."""
    turns, untrusted, upstream, bound, with_tools = 0, "", "", False, ""
    asked_in: list[str] = []
    loaded: list[tuple[float, Sequence[str]]] = []
    if found.response is not None and editor.body.chain is not None:
        editor.edit(resumed=found.response.continuation)
        kept = orjson.loads(found.response.continuation)
        untrusted, upstream = notes_of(kept)
        asked_in += asked_in_of(kept)
        with_tools = str(kept.get("with_tools", ""))
        loaded.append((-1, loaded_of(kept)))
        turns, bound = 1, True
        recall.put(PutBack(found.response.run_id, "response", len(found.response.continuation)))
    for needed, kept_turns in ((True, found.held), (False, found.hidden)):
        for position, turn in kept_turns:
            kept = orjson.loads(turn.payload)
            if not is_shown(request, position, kept):
                recall.miss("ambiguous" if kept.get("variant") == AMBIGUOUS else "changed")
                continue
            before = editor.restored[1]
            editor.restore(position, turn.payload, needed=needed)
            turns += 1
            loosely = not needed and position in found.loosely
            added = editor.restored[1] - before
            recall.put(PutBack(turn.run_id, _kind(found, position, needed), added, loosely, position))
            if not loosely:
                # A loosely found turn may belong to another conversation.
                asked_in += asked_in_of(kept)
            loaded.append((position, loaded_of(kept)))
            stranger, home = notes_of(kept)
            untrusted, upstream = join_sources(untrusted, stranger), upstream if bound else home
    asked = list(dict.fromkeys(asked_in))
    approvals = ApprovalOutcomes(asked_in=asked) if asked else NOTHING_SETTLED
    tools = list(dict.fromkeys(name for _, names in sorted(loaded) for name in names))
    return Restored(
        turns,
        untrusted,
        upstream,
        bound,
        loaded=tools,
        with_tools=with_tools,
        approvals=approvals,
        recall=recall,
    )


def _kind(found: Found, position: int, needed: bool) -> PutBackKind:
    if position in found.carried:
        return "carried"
    return "calls" if needed else "answer"
