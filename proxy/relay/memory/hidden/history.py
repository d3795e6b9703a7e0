"""Put hidden turns back, which the client has not seen and so cannot send.

A client can continue a run with hidden turns in three ways:

- It sends the results of its own calls. The rest of that turn is found by a digest of the caller, the
  visible conversation and the exact set of call ids. An id alone is not enough: upstreams reuse ids.
  :mod:`proxy.relay.memory.hidden.sealed_turns` has those that the client carries itself.
- It sends an answer of the proxy among its messages. The turns behind the answer are found by a digest of
  the caller, the model, the tools, the conversation before it and its text, if only one past fits (rule R4).
  If older messages are gone, :mod:`proxy.relay.memory.hidden.loose` finds them.
- It names a response of the proxy by its id.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import structlog
from msgspec import structs

from proxy.base.errors import StoreError
from proxy.base.events import ToolCall
from proxy.records.result_for_model import ResultForModel, failure_text, fill_holes, holes_in
from proxy.records.rows import HiddenTurns, ResponseRecord, SuspendedTurn
from proxy.relay.approval_outcomes import ApprovalOutcomes
from proxy.relay.memory.hidden.found import Found, asked_about, awaited_approvals, payloads_of, put_back
from proxy.relay.memory.hidden.loose import PLAIN, evidence_of, find_loosely, loose_keys
from proxy.relay.memory.hidden.old_marks import with_holes
from proxy.relay.memory.hidden.outcomes import MemoryOutcome, Recall
from proxy.relay.memory.hidden.parts import find_by_parts, leading_to_response, leading_to_turns
from proxy.relay.memory.hidden.sealed_turns import NOTHING_CARRIED, Carried, SealedTurns, hidden_turns
from proxy.relay.memory.hidden.shown import (
    AMBIGUOUS,
    digest_of,
    digest_of_calls,
    untrusted_in,
    with_notes,
    with_sources,
)
from proxy.relay.memory.hidden.turns import LastTurn, Restored, SettleApprovals, unchanged
from proxy.relay.memory.local import LocalResponses
from proxy.store.base import Store
from proxy.wires.client_port import Answer, ClientRequest, ReturnedCalls
from proxy.wires.past.clock import SystemRule
from proxy.wires.registry.variants import variant_of
from proxy.wires.upstream_port import NO_TURN, BodyEditor

__all__ = ["History", "LastTurn", "Restored", "SettleApprovals"]

_MOST_LOOKUPS = 256
_ASKED: Final = "approval"
"""Replaces the tools' fingerprint in the keys of turns that wait for approvals."""


class History:
    """Stores the hidden turns of conversations, and puts them back."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], float] = time.time,
        system_rule: SystemRule = "clock",
        sealed: SealedTurns | None = None,
    ) -> None:
        """``system_rule`` says how system messages are compared. ``sealed`` encrypts turns that clients
        carry; with ``None`` no client gets any."""
        self._store = store
        self._sealed = sealed
        self._now = now
        self._system_rule: SystemRule = system_rule
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")

    async def restore(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        caller: str,
        offer_fingerprint: str | None = None,
        *,
        is_person: bool = True,
        local: LocalResponses | None = None,
        settle: SettleApprovals | None = None,
        skip_reason: MemoryOutcome | None = None,
        verified: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
    ) -> "Restored":
        """Put back every hidden turn that fits.

        ``offer_fingerprint`` stands for the offered tools; with ``None`` answers are not looked up. Without
        ``is_person`` the caller may be several people, and no held turn is put back. ``local`` are further
        responses that the request can continue, which only the client's connection has. ``settle`` returns
        the outcomes of the approvals that a turn waits for; with ``None`` nobody decides, and these calls
        did not run.
        ``skip_reason`` is recorded as the reason why answers are not looked up; ``None`` records none.
        ``verified`` returns those of some ids of parts that this caller was shown.

        Nothing is used up: a client may continue from the same place again. Raise what ``settle`` raises.
        """
        recall = Recall()
        if skip_reason is not None:
            calls = 0 if is_person else len(request.returned_calls())
            recall.miss(skip_reason, len(request.answers()) + calls)
        returned = request.returned_calls() if is_person else ()
        asks = is_person and settle is not None
        every = request.answers() if asks or offer_fingerprint is not None else ()
        answers = every if offer_fingerprint is not None else ()
        asked = asked_about(every, _MOST_LOOKUPS) if asks else ()
        if not (returned or answers or asked or request.continues is not None):
            return Restored(recall=recall)
        try:
            found = await self._look_up(
                request, caller, offer_fingerprint or "", returned, answers, asked, local, recall, verified
            )
        except StoreError as error:
            # Without the record the client's version counts: a failing record must not stop a stream.
            self._tell_unavailable(error)
            recall = Recall()
            recall.miss("unavailable", len(returned) + len(answers) + (request.continues is not None))
            return Restored(unavailable=True, recall=recall)
        outcomes: ApprovalOutcomes | None = None
        if names := awaited_approvals(found):
            outcomes = await (settle or _nobody_decides)(names, untrusted_in(payloads_of(found)))
            found = self._filled(found, outcomes, local, keeps=settle is not None)
        restored = put_back(request, editor, found, recall)
        if outcomes is not None and restored:
            outcomes.asked_in = restored.approvals.asked_in
            restored = structs.replace(restored, approvals=outcomes)
        return restored

    def _filled(
        self, found: Found, outcomes: ApprovalOutcomes, local: LocalResponses | None, *, keeps: bool
    ) -> Found:
        """Fill in the results of approvals; with ``keeps``, store each changed part where it was found."""
        results, untrusted = outcomes.results, outcomes.untrusted

        def filled(payload: bytes) -> bytes:
            whole = fill_holes(payload, results)
            # Whoever restores the turn from now on reads these results, also after this request has failed.
            return with_sources(whole, untrusted) if untrusted else whole

        response, held = found.response, list(found.held)
        if response is not None and not results.keys().isdisjoint(holes_in(response.continuation)):
            response = structs.replace(response, continuation=filled(response.continuation))
            if keeps:
                (local.put if found.is_local and local is not None else self._store.put_response)(response)
        for place, (position, turn) in enumerate(held):
            if not results.keys().isdisjoint(holes_in(turn.payload)):
                turn = structs.replace(turn, payload=filled(turn.payload))
                if keeps:
                    self._store.put_suspended(turn)
                held[place] = (position, turn)
        return structs.replace(found, response=response, held=held)

    def _tell_unavailable(self, error: StoreError) -> None:
        self._log.error("history_unavailable", reason=str(error))

    async def _look_up(
        self,
        request: ClientRequest,
        caller: str,
        offer_fingerprint: str,
        returned_calls: Sequence[ReturnedCalls],
        answers: Sequence[Answer],
        asked: Sequence[Answer],
        local: LocalResponses | None,
        recall: Recall,
        verified: Callable[[Sequence[str]], Sequence[str]],
    ) -> Found:
        """Return all that exists for the request. Nothing is put back before all look-ups are done."""
        wanted = request.continues
        response = None if local is None or wanted is None else local.find(wanted, caller)
        is_local = response is not None
        if wanted is not None and response is None:
            response = await self._store.find_response(wanted, caller)
        if response is not None:
            response = structs.replace(response, continuation=with_holes(response.continuation))
        carried = NOTHING_CARRIED
        if (returned_calls or answers) and self._sealed is not None:
            carried = await self._sealed.open(request, caller)
        calls = [
            (
                each.position,
                request.conversation_key(caller, each.call_ids, upto=each.position, rule=self._system_rule),
            )
            for each in returned_calls[-_MOST_LOOKUPS:]
        ]
        keys = request.answer_keys(
            caller, _ASKED, [(each.position, each.text) for each in asked], self._system_rule
        )
        places = calls + [(each.position, key) for each, key in zip(asked, keys, strict=True)]
        asked_for = [key for _, key in places if not carried.knows(key)]
        waiting = {**await self._store.find_all_suspended(asked_for, caller)} if asked_for else {}
        waiting |= carried.turns
        held = [
            (position, structs.replace(waiting[key], payload=with_holes(waiting[key].payload)))
            for position, key in places
            if key in waiting and waiting[key].caller == caller
        ]
        ends = [position for position, _ in calls[1:]]
        for (position, key), end in zip(calls, [*ends, math.inf], strict=False):
            if key not in waiting:
                recall.miss(carried.miss_reason(key, position, end))
        if asked and held:
            # A turn that waits for an approval is never stored as an answer, too.
            taken = {position for position, _ in held}
            answers = [each for each in answers if each.position not in taken]
        shown = request.part_ids() if answers else {}
        parts = {at: known for at, ids in shown.items() if ids and (known := verified(ids))}
        hidden, loosely = await self._answers(
            request, caller, offer_fingerprint, answers, carried, parts, recall
        )
        at = [position for position, key in calls if key in carried.turns]
        at += [position for position, turns in hidden if turns.key in carried.turns]
        return Found(response, held, hidden, loosely, frozenset(at), is_local)

    async def _answers(
        self,
        request: ClientRequest,
        caller: str,
        shape: str,
        answers: Sequence[Answer],
        carried: Carried,
        parts: Mapping[int, Sequence[str]],
        recall: Recall,
    ) -> tuple[list[tuple[int, HiddenTurns]], frozenset[int]]:
        """Return the hidden turns behind answers by position, and the positions that loose keys found."""
        recall.miss("not_found", len(answers[_MOST_LOOKUPS:]))
        signed = await find_by_parts(self._store, request, caller, answers[:_MOST_LOOKUPS], parts)
        answers = [one for one in answers[:_MOST_LOOKUPS] if one.position not in signed]
        if not answers:
            return sorted(signed.items()), frozenset()
        rule = self._system_rule
        exact = request.answer_keys(caller, shape, [(one.position, one.text) for one in answers], rule)
        # One query for all keys: most answers have nothing hidden behind them.
        asked_for = [key for key in exact if not carried.knows(key)]
        known = {**await self._store.find_hidden(asked_for, caller)} if asked_for else {}
        known |= {key: [hidden_turns(turn)] for key, turn in carried.turns.items()}
        hidden: dict[int, HiddenTurns] = {}
        missing: list[Answer] = []
        here = {turns.key for turns in signed.values()}
        for at, (answer, key) in enumerate(zip(answers, exact, strict=True)):
            variants = known.get(key, ())
            if len(variants) > 1 or key in carried.ambiguous:
                # The same words arose in two ways: from here on the client's version counts.
                recall.miss("ambiguous", len(answers) - at)
                break
            if not variants or variants[0].caller != caller:
                missing.append(answer)
                continue
            here.add(key)
            if variants[0].variant == PLAIN:
                recall.miss("nothing_hidden")
            else:
                hidden[answer.position] = variants[0]
        loosely = await find_loosely(
            self._store, request, caller, shape, missing, here=here, rule=rule, recall=recall
        )
        return sorted({**hidden, **loosely, **signed}.items()), frozenset(loosely)

    def remember(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        turn: LastTurn,
        *,
        visible: str,
        offer_fingerprint: str,
    ) -> bool:
        """Store the turns behind an answer that its client may send back; return whether that was done."""
        if not visible.strip() or not request.may_store:
            return False
        payload = with_notes(editor.suspend(turn.message, (), turn.mask), untrusted=turn.untrusted)
        noted = with_notes(payload, **turn.notes())
        self._note(request, turn, visible, offer_fingerprint, variant_of(payload), noted)
        return True

    async def seal_answer(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        turn: LastTurn,
        *,
        visible: str,
        offer_fingerprint: str,
    ) -> str | None:
        """Return the turns that :meth:`remember` would store, encrypted, for their client to carry.

        Return ``None`` as :meth:`seal` does.
        """
        if self._sealed is None or not visible.strip() or not self._sealed.wants(request):
            return None
        (key,) = request.answer_keys(turn.caller, offer_fingerprint, [(None, visible)], self._system_rule)
        payload = with_notes(
            editor.suspend(turn.message, (), unchanged), untrusted=turn.untrusted, **turn.notes()
        )
        now = self._now()
        made = SuspendedTurn(key, turn.run_id, turn.caller, turn.wire, payload, now, ephemeral=True)
        return await self._sealed.close(made)

    def note_plain(
        self, request: ClientRequest, turn: LastTurn, *, visible: str, offer_fingerprint: str
    ) -> None:
        """Note an answer with nothing hidden behind it.

        Otherwise hidden turns behind the same words in another conversation could be put back here.
        """
        if visible.strip() and request.may_store:
            self._note(request, turn, visible, offer_fingerprint, PLAIN, b"{}")

    def _note(
        self, request: ClientRequest, turn: LastTurn, visible: str, shape: str, variant: str, payload: bytes
    ) -> None:
        """Store what is behind an answer under its exact key, and where that is under its loose keys."""
        (key,) = request.answer_keys(turn.caller, shape, [(None, visible)], self._system_rule)
        kept = {key: payload}
        if (place := request.evidence(rule=self._system_rule)) is not None:
            keys = loose_keys(request.identity_words(turn.caller), shape, visible, place)
            kept |= dict.fromkeys(keys, evidence_of(place, (key, variant)))
            if variant == PLAIN:
                kept[key] = kept[keys[0]]  # What is the same under all of its keys, the record keeps once.
        now = self._now()
        rows = [
            HiddenTurns(key, variant, turn.run_id, turn.caller, turn.wire, payload, now)
            for key, payload in kept.items()
        ]
        if turn.part_ids and variant != PLAIN:
            rows += leading_to_turns(request, turn, visible, (key, variant), now)
        self._store.put_hidden(*rows)

    def keep(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        turn: LastTurn,
        resource: Mapping[str, Any],
        *,
        local: LocalResponses | None = None,
    ) -> bool:
        """Store a response that only the proxy knows as a whole, under the id that the client has.

        With ``local`` it is kept there instead of on record. Return whether something was put on record.
        """
        chain = editor.body.chain
        if chain is None or not isinstance(resource.get("id"), str):
            return False
        record = ResponseRecord(
            id=resource["id"],
            run_id=turn.run_id,
            caller=turn.caller,
            response=orjson.dumps(resource),
            input_items=chain.input_items() if turn.input_items is None else turn.input_items,
            continuation=with_notes(
                chain.continuation(editor.edits, turn.message, turn.calls, turn.mask),
                untrusted=turn.untrusted,
                **turn.notes(),
            ),
            created_at=self._now(),
        )
        if local is not None:
            local.put(record)
            return False
        self._store.put_response(record)
        if turn.part_ids:
            self._store.put_hidden(*leading_to_response(request, turn, resource, record.created_at))
        return True

    async def hold(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        turn: LastTurn,
        *,
        visible: str,
        shown: Sequence[ToolCall],
        needed: bool = True,
    ) -> bool:
        """Hold a turn until the client sends the results of its own calls, which are ``shown``.

        Upstreams reuse ids, so another turn may be held under the same key. The newer turn replaces it; a
        client that continues the older one sends other calls, and nothing is put back. If both have the
        same calls, neither is put back (rule R4). Text beside the calls does not distinguish them, because
        clients may leave it out.

        Return whether something was put on record. If the record does not answer, raise
        :class:`~proxy.base.errors.StoreError` for a ``needed`` turn, and do not hold any other.
        """
        made, notes = self._suspended(request, editor, turn, visible, shown)
        try:
            if not await self._is_only(made.key, notes["asked"], notes["variant"]):
                notes["variant"] = AMBIGUOUS
        except StoreError as error:
            if needed:
                raise
            self._tell_unavailable(error)
            return False
        self._store.put_suspended(structs.replace(made, payload=with_notes(made.payload, **notes)))
        return request.may_store

    async def seal(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        turn: LastTurn,
        *,
        visible: str,
        shown: Sequence[ToolCall],
    ) -> str | None:
        """Return the turn that :meth:`hold` would hold, encrypted, for its client to carry.

        Return ``None`` if the record may store it, the client does not send such items back, the turn is too
        long, or it waits for approvals, which the record has.
        """
        waits = any(isinstance(call.result, ResultForModel) for call in turn.calls)
        if self._sealed is None or waits or not self._sealed.wants(request):
            return None
        # All of it is encrypted, so nothing need be masked.
        whole = structs.replace(turn, mask=unchanged)
        made, notes = self._suspended(request, editor, whole, visible, shown)
        return await self._sealed.close(structs.replace(made, payload=with_notes(made.payload, **notes)))

    def _suspended(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        turn: LastTurn,
        visible: str,
        shown: Sequence[ToolCall],
    ) -> tuple[SuspendedTurn, dict[str, str]]:
        """Return a turn as it is held until its client continues, and the notes to add to its payload."""
        ids = [call.client_id for call in turn.calls if call.client_id is not None]
        seen = digest_of(visible)
        made = SuspendedTurn(
            key=request.conversation_key(turn.caller, ids, rule=self._system_rule),
            run_id=turn.run_id,
            caller=turn.caller,
            wire=turn.wire,
            payload=editor.suspend(turn.message, turn.calls, turn.stored),
            created_at=self._now(),
            ephemeral=not request.may_store,
        )
        notes = {
            "seen": seen,
            "asked": digest_of_calls(shown) if request.returns_calls else "",
            "variant": variant_of(made.payload, seen),
            "untrusted": turn.untrusted,
            **turn.notes(),
        }
        return made, notes

    def hold_asked(
        self,
        request: ClientRequest,
        editor: BodyEditor | None,
        turn: LastTurn,
        *,
        visible: str,
        keeps: bool = True,
    ) -> bool:
        """Hold a turn that waits for approvals until the client sends back the notice ``visible``.

        Without an ``editor`` no model answered: an earlier turn waits, and the notice must be removed again.
        Without ``keeps`` it is held in memory. Return whether something was put on record.
        """
        (key,) = request.answer_keys(turn.caller, _ASKED, [(None, visible)], self._system_rule)
        payload = NO_TURN if editor is None else editor.suspend(turn.message, turn.calls, turn.mask)
        keeps = keeps and request.may_store
        self._store.put_suspended(
            SuspendedTurn(
                key=key,
                run_id=turn.run_id,
                caller=turn.caller,
                wire=turn.wire,
                payload=with_notes(payload, untrusted=turn.untrusted, **turn.notes()),
                created_at=self._now(),
                ephemeral=not keeps,
            )
        )
        return keeps

    async def _is_only(self, key: str, asked: str, variant: str) -> bool:
        """Return whether no other turn with these calls is held under a key."""
        earlier = await self._store.find_suspended(key)
        if earlier is None:
            return True
        kept = orjson.loads(earlier.payload)
        return bool(kept.get("variant") == variant or kept.get("asked", "") != asked)


async def _nobody_decides(names: Sequence[str], untrusted: str) -> ApprovalOutcomes:
    """Return the outcomes of approvals while the operator has switched them off."""
    text = failure_text("approval_denied", "Approvals are switched off, so the call did not run.")
    return ApprovalOutcomes(dict.fromkeys(names, text))
