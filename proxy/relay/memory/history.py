"""Hidden turns put back: what the client does not hold, it cannot send back.

Three ways in which a client goes on from a run with hidden turns.  It returns with the results of its
own calls, and the rest of that turn is found by a digest of the caller, the visible conversation and
the exact set of its call ids, never by an id alone: upstreams reuse ids.  It sends an answer of ours
back among its messages, and the turns behind that answer are found by a digest of the caller, the
model, the tools, the conversation before it and its text, if they are one and the same (rule R4).  Or
it names a response of ours by its id.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import orjson
import structlog

from proxy.approval_records import Approval, approval_ids_in
from proxy.errors import RequestError, StoreError
from proxy.events import ToolCall
from proxy.records import HiddenTurns, ResponseRecord, SuspendedTurn
from proxy.relay.memory.local import LocalResponses
from proxy.relay.memory.marks import WAITING, fill, waiting_of
from proxy.store.base import LOOK_UP_S, Store
from proxy.values import value_class
from proxy.wires.client_port import Answer, ClientRequest, ReturnedCalls
from proxy.wires.dialect import NATIVE
from proxy.wires.json.splice import join_object, members
from proxy.wires.upstream_port import BodyEditor, ChainedEditor, Mask, SuspendedCall

__all__ = ["Answers", "History", "LastTurn", "Restored", "Settle"]

_MOST_LOOKUPS = 256
_ASKED: Final = "approval"
"""In place of the offer's fingerprint in the keys of turns that wait for approvals."""
_AMBIGUOUS = "several"
"""In place of the variant of a held turn: others of the same calls were held under its key."""


@value_class
class LastTurn:
    """The last turn of a run, as it is kept for the client's next request.

    ``wire`` is the client's dialect and ``upstream`` who answered.  ``message`` is the model's, ``calls`` are
    those in it.  ``mask`` hides private arguments from what is written in the clear.  ``untrusted`` names a
    tool whose result was a stranger's text, if the model has read one.  ``waiting`` are the approvals that
    it waits for.
    """

    run_id: str
    caller: str
    wire: str
    message: bytes
    mask: Mask
    calls: Sequence[SuspendedCall] = ()
    untrusted: str = ""
    upstream: str = ""
    waiting: Sequence[str] = ()


class Answers(Protocol):
    """What approvals came to: texts for the model by id, which of them nobody has decided about yet, and a
    tool whose result is a stranger's text, if one is among them."""

    @property
    def results(self) -> Mapping[str, str]: ...

    @property
    def waiting(self) -> Sequence[Approval]: ...

    @property
    def untrusted(self) -> str: ...


Settle = Callable[[Sequence[str]], Awaitable[Answers]]
"""Finds out what approvals came to; raises :class:`~proxy.errors.StoreError`."""


@value_class
class Restored:
    """How many hidden turns were put back, and whose word is in them.

    ``untrusted`` names a tool whose result was a stranger's text, if one is among them.  ``upstream``
    is the one that the newest of them came from; signatures and caches are its own.  ``bound`` says
    that the request goes on from a response by its id, which no other upstream knows.  ``unavailable`` says
    that the record did not answer, so that nobody knows what could have been put back.  ``waiting`` are
    approvals that nobody has decided about yet, whose calls are among them.
    """

    turns: int = 0
    untrusted: str = ""
    upstream: str = ""
    bound: bool = False
    unavailable: bool = False
    waiting: tuple[Approval, ...] = ()

    def __bool__(self) -> bool:
        return self.turns > 0

    def check_found(self, request: ClientRequest) -> None:
        """Raise for a response to go on from that is not here, where nobody else can know it either.

        Raises :class:`~proxy.errors.RequestError` (400) for one that is not on record, and
        :class:`~proxy.errors.StoreError` where the record cannot say.
        """
        if request.continues is None or self.bound:
            return
        if self.unavailable:
            raise StoreError("nobody else knows the response that the request goes on from")
        raise RequestError(
            400,
            f"Previous response with id {request.continues[:100]!r} not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )


_NOTHING = Restored()
_UNAVAILABLE = Restored(unavailable=True)


@value_class
class _Found:
    """What the record has for a request: the response that it goes on from, and turns by their places."""

    response: ResponseRecord | None
    held: Sequence[tuple[int, SuspendedTurn]]
    hidden: Sequence[tuple[int, HiddenTurns]]


class History:
    """Holds and restores the hidden parts of conversations."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
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
        settle: Settle | None = None,
    ) -> "Restored":
        """Put back every hidden turn that fits.

        ``settle`` says what became of approvals that a turn waits for; with ``None`` no such turn is put
        back.  Raises :class:`~proxy.errors.StoreError` where that does.

        ``local`` are responses that only the client's connection knows, which it may go on from, too.

        ``offer_fingerprint`` stands for the tools that are offered, and is ``None`` where answers are not
        to be looked up.  Without ``is_person`` the caller may be several people, and no turn waits for them.
        Reading does not consume: a client may ask again from the same place.
        """
        returned = request.returned_calls() if is_person else ()
        answers = request.answers() if offer_fingerprint is not None else ()
        asked = _asked(request) if is_person and settle is not None else ()
        if not (returned or answers or asked or request.continues is not None):
            return _NOTHING
        try:
            # One deadline for all that is looked up: a client with many answers waits no longer.
            async with asyncio.timeout(LOOK_UP_S):
                found = await self._look_up(
                    request, caller, offer_fingerprint or "", returned, answers, asked, local
                )
        except (StoreError, TimeoutError) as error:
            # In doubt the client's version goes; a record that fails must not stop a stream.
            self._tell_unavailable(error)
            return _UNAVAILABLE
        said: Answers | None = None
        if settle is not None and (ids := _waited_for(found)):
            said = await settle(ids)
            found = self._filled(found, said.results)
        restored = _restore(request, editor, found)
        if said is not None and restored:
            untrusted = restored.untrusted or said.untrusted
            restored = replace(restored, waiting=tuple(said.waiting), untrusted=untrusted)
        return restored

    def _filled(self, found: "_Found", results: Mapping[str, str]) -> "_Found":
        """What was found with the results of calls that waited for approvals, which is kept so, too."""
        response, held = found.response, list(found.held)
        if response is not None and any(one in results for one in waiting_of(response.continuation)):
            response = replace(response, continuation=fill(response.continuation, results))
            self._store.put_response(response)
        for place, (position, turn) in enumerate(held):
            if any(one in results for one in waiting_of(turn.payload)):
                turn = replace(turn, payload=fill(turn.payload, results))
                self._store.put_suspended(turn)
                held[place] = (position, turn)
        return _Found(response, held, found.hidden)

    def _tell_unavailable(self, error: Exception) -> None:
        reason = str(error) or f"the record did not answer within {LOOK_UP_S:g} s"
        self._log.error("history_unavailable", reason=reason)

    async def _look_up(
        self,
        request: ClientRequest,
        caller: str,
        offer_fingerprint: str,
        returned_calls: Sequence[ReturnedCalls],
        answers: Sequence[Answer],
        asked: Sequence[Answer],
        local: LocalResponses | None,
    ) -> "_Found":
        """What the record has of the caller's; nothing is put back before all of it is here."""
        response: ResponseRecord | None = None
        if request.continues is not None and local is not None:
            response = local.find(request.continues, caller)
        if request.continues is not None and response is None:
            response = await self._store.find_response(request.continues, caller)
        places = [
            (each.position, request.conversation_key(caller, each.call_ids, upto=each.position))
            for each in returned_calls[-_MOST_LOOKUPS:]
        ]
        places += [
            (each.position, request.answer_key(caller, _ASKED, each.text, upto=each.position))
            for each in asked
        ]
        waiting = await self._store.find_all_suspended([key for _, key in places]) if places else {}
        held = [
            (position, waiting[key])
            for position, key in places
            if key in waiting and waiting[key].caller == caller
        ]
        answers = answers[:_MOST_LOOKUPS]
        keys = [
            request.answer_key(caller, offer_fingerprint, each.text, upto=each.position) for each in answers
        ]
        known = await self._store.find_hidden(keys) if keys else {}
        hidden: list[tuple[int, HiddenTurns]] = []
        for answer, key in zip(answers, keys, strict=True):
            variants = known[key]
            if len(variants) > 1:
                # The same words came about in two ways: from here on it is the client's version.
                break
            if variants and variants[0].caller == caller:
                hidden.append((answer.position, variants[0]))
        return _Found(response, held, hidden)

    def remember(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        turn: LastTurn,
        *,
        visible: str,
        offer_fingerprint: str,
    ) -> bool:
        """Keep the turns behind an answer for when the client sends the answer back.

        Returns whether the record has something to be found, as the next two do.
        """
        if not visible or not request.keeps:
            return False
        payload = _marked(editor.suspend(turn.message, (), turn.mask), untrusted=turn.untrusted)
        self._store.put_hidden(
            HiddenTurns(
                key=request.answer_key(turn.caller, offer_fingerprint, visible),
                variant=_variant(payload),
                run_id=turn.run_id,
                caller=turn.caller,
                wire=turn.wire,
                payload=_marked(payload, upstream=turn.upstream),
                created_at=self._now(),
            )
        )
        return True

    def keep(
        self,
        editor: BodyEditor,
        turn: LastTurn,
        resource: Mapping[str, Any],
        *,
        local: LocalResponses | None = None,
    ) -> bool:
        """Keep a response whose whole only we know, under the id the client was given.

        With ``local`` it is kept there and not on record; then the record has nothing to be found.
        """
        if not isinstance(editor, ChainedEditor) or not isinstance(resource.get("id"), str):
            return False
        record = ResponseRecord(
            id=resource["id"],
            run_id=turn.run_id,
            caller=turn.caller,
            response=orjson.dumps(resource),
            input_items=editor.input_items(),
            continuation=_marked(
                editor.continuation(turn.message, turn.calls, turn.mask),
                untrusted=turn.untrusted,
                upstream=turn.upstream,
                **_waits(turn),
            ),
            created_at=self._now(),
        )
        if local is not None:
            local.put(record)
            return False
        self._store.put_response(record)
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
        """Hold a turn until the client returns with the results of its own calls, which are ``shown``.

        One that is not ``needed`` is not held where the record does not answer.

        Upstreams use ids again, so another turn may be held under the same key.  The newer one takes its
        place: who returns the older shows other calls, and gets nothing put back.  Of two with the same
        calls nobody can say which one a client returns, and neither is put back (rule R4); text beside
        calls may be left out, so it does not tell them apart.  Raises :class:`~proxy.errors.StoreError`
        where nobody can say whether there is another.
        """
        ids = [call.client_id for call in turn.calls if call.client_id is not None]
        key = request.conversation_key(turn.caller, ids)
        payload = editor.suspend(turn.message, turn.calls, turn.mask)
        seen, asked = _digest(visible), _digest_of_calls(shown) if request.returns_calls else ""
        variant = _variant(payload, seen)
        try:
            async with asyncio.timeout(None if needed else LOOK_UP_S):
                if not await self._is_only(key, asked, variant):
                    variant = _AMBIGUOUS
        except (StoreError, TimeoutError) as error:
            if needed:
                raise
            self._tell_unavailable(error)
            return False
        marked = _marked(
            payload,
            seen=seen,
            asked=asked,
            variant=variant,
            untrusted=turn.untrusted,
            upstream=turn.upstream,
            **_waits(turn),
        )
        self._store.put_suspended(
            SuspendedTurn(
                key=key,
                run_id=turn.run_id,
                caller=turn.caller,
                wire=turn.wire,
                payload=marked,
                created_at=self._now(),
                ephemeral=not request.keeps,
            )
        )
        return request.keeps

    def hold_asked(self, request: ClientRequest, editor: BodyEditor, turn: LastTurn, *, visible: str) -> bool:
        """Hold a turn that waits for approvals until the client sends back what it was told, ``visible``.

        Returns whether the record has something to be found.
        """
        payload = editor.suspend(turn.message, turn.calls, turn.mask)
        self._store.put_suspended(
            SuspendedTurn(
                key=request.answer_key(turn.caller, _ASKED, visible),
                run_id=turn.run_id,
                caller=turn.caller,
                wire=turn.wire,
                payload=_marked(payload, untrusted=turn.untrusted, upstream=turn.upstream, **_waits(turn)),
                created_at=self._now(),
                ephemeral=not request.keeps,
            )
        )
        return request.keeps

    async def _is_only(self, key: str, asked: str, variant: str) -> bool:
        """Whether no other turn of these calls is known to be held under a key."""
        earlier = await self._store.find_suspended(key)
        if earlier is None:
            return True
        kept = orjson.loads(earlier.payload)
        return bool(kept.get("variant") == variant or kept.get("asked", "") != asked)


def _asked(request: ClientRequest) -> Sequence[Answer]:
    """The answers of ours that told a client that a call waits for an approval, as far as they say so."""
    return [answer for answer in request.answers() if approval_ids_in(answer.text)][-_MOST_LOOKUPS:]


def _waited_for(found: _Found) -> Sequence[str]:
    """The approvals that wait in what was found, each once."""
    payloads = [turn.payload for _, turn in found.held]
    if found.response is not None:
        payloads.insert(0, found.response.continuation)
    return list(dict.fromkeys(one for payload in payloads for one in waiting_of(payload)))


def _waits(turn: LastTurn) -> dict[str, str]:
    return {WAITING: " ".join(turn.waiting)} if turn.waiting else {}


def _restore(request: ClientRequest, editor: BodyEditor, found: _Found) -> Restored:
    """Put back what was found, as far as it fits what the client shows."""
    turns, untrusted, upstream, bound = 0, "", "", False
    if found.response is not None and isinstance(editor, ChainedEditor):
        editor.resume(found.response.continuation)
        untrusted, upstream = _marks(orjson.loads(found.response.continuation))
        turns, bound = 1, True
    for needed, kept_turns in ((True, found.held), (False, found.hidden)):
        for position, turn in kept_turns:
            kept = orjson.loads(turn.payload)
            if _is_shown(request, position, kept):
                editor.restore(position, turn.payload, needed=needed)
                turns += 1
                stranger, home = _marks(kept)
                untrusted, upstream = untrusted or stranger, upstream if bound else home
    return Restored(turns, untrusted, upstream, bound) if turns else _NOTHING


def _marked(payload: bytes, **marks: str) -> bytes:
    """What is kept, with what the relay has to know of it: ``untrusted``, the tool whose untrusted
    result the model has read in it, ``upstream``, where it was made, of a held turn ``seen`` and
    ``asked``, digests of the text and the calls that the client was shown, and ``variant``, which tells
    it from others of the same calls."""
    said = {name: orjson.dumps(mark) for name, mark in marks.items() if mark}
    # An editor's object is never empty and has no members of these names.
    return payload[:-1] + b"," + join_object(said)[1:] if said else payload


def _variant(payload: bytes, seen: str = "") -> str:
    """What tells turns from others that are held under their key: what their client was and was not shown,
    and not how the upstream signed it."""
    told = join_object({name: value for name, value in members(payload).items() if name != NATIVE})
    return hashlib.blake2b(told + seen.encode(), digest_size=16).hexdigest()


def _marks(kept: Mapping[str, Any]) -> tuple[str, str]:
    """The tool and the upstream that :func:`_marked` named; each empty where it named none."""
    return str(kept.get("untrusted", "")), str(kept.get("upstream", ""))


def _is_shown(request: ClientRequest, position: int, kept: Mapping[str, Any]) -> bool:
    """Whether a client sends back what it was shown of that turn, and of no other."""
    if kept.get("variant") == _AMBIGUOUS:
        return False
    # Of an answer the text is in the key.
    seen = kept.get("seen")
    return request.fits(position, kept, lambda text: seen in (None, _digest(text)))


def _digest(text: str) -> str:
    """A digest of a text that a client was shown, in hexadecimal; of none, too.

    Blanks around it do not count: models begin and end with them, and libraries trim.
    """
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _digest_of_calls(calls: Sequence[ToolCall]) -> str:
    """A digest of what a client was asked to do, in hexadecimal."""
    asked = json.dumps([[call.name, call.arguments] for call in calls])
    return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()
