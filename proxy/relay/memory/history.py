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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import structlog

from proxy.errors import StoreError
from proxy.events import ToolCall
from proxy.records import HiddenTurns, ResponseRecord, SuspendedTurn
from proxy.store.base import LOOK_UP_S, Store
from proxy.values import value_class
from proxy.wires.base import (
    Answer,
    BodyEditor,
    ChainedEditor,
    ClientRequest,
    HeldTurn,
    Mask,
    ReturnedCalls,
)
from proxy.wires.json.splice import join_object

__all__ = ["History", "Restored"]

_MOST_LOOKUPS = 256
_AMBIGUOUS = "several"
"""In place of the variant of a held turn: others of the same calls were held under its key."""


@value_class
class Restored:
    """How many hidden turns were put back, and whose word is in them.

    ``untrusted`` names a tool whose result was a stranger's text, if one is among them.  ``upstream``
    is the one that the newest of them came from; signatures and caches are its own.  ``bound`` says
    that the request goes on from a response by its id, which no other upstream knows.
    """

    turns: int = 0
    untrusted: str = ""
    upstream: str = ""
    bound: bool = False

    def __bool__(self) -> bool:
        return self.turns > 0


_NOTHING = Restored()


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
        shape: str | None = None,
        *,
        named: bool = True,
    ) -> "Restored":
        """Put back every hidden turn that fits.

        ``shape`` stands for the tools that are offered, and is ``None`` where answers are not to be
        looked up.  Without ``named`` the caller may be several people, and no turn is one that waits
        for them.  Reading does not consume: a client may ask again from the same place.
        """
        returned = request.returned_calls() if named else ()
        answers = request.answers() if shape is not None else ()
        if not (returned or answers or request.continues is not None):
            return _NOTHING
        try:
            # One deadline for all that is looked up: a client with many answers waits no longer.
            async with asyncio.timeout(LOOK_UP_S):
                found = await self._look_up(request, caller, shape or "", returned, answers)
        except (StoreError, TimeoutError) as error:
            # In doubt the client's version goes; a record that fails must not stop a stream.
            reason = str(error) or f"the record did not answer within {LOOK_UP_S:g} s"
            self._log.error("history_unavailable", reason=reason)
            return _NOTHING
        return _put_back(request, editor, found)

    async def _look_up(
        self,
        request: ClientRequest,
        caller: str,
        shape: str,
        returned_calls: Sequence[ReturnedCalls],
        answers: Sequence[Answer],
    ) -> "_Found":
        """What the record has of the caller's; nothing is put back before all of it is here."""
        response: ResponseRecord | None = None
        if request.continues is not None:
            response = await self._store.find_response(request.continues, caller)
        places = [
            (each.position, request.conversation_key(caller, each.call_ids, upto=each.position))
            for each in returned_calls[-_MOST_LOOKUPS:]
        ]
        waiting = await self._store.find_all_suspended([key for _, key in places]) if places else {}
        held = [
            (position, waiting[key])
            for position, key in places
            if key in waiting and waiting[key].caller == caller
        ]
        answers = answers[:_MOST_LOOKUPS]
        keys = [request.answer_key(caller, shape, each.text, upto=each.position) for each in answers]
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
        visible: str,
        *,
        run_id: str,
        caller: str,
        wire: str,
        shape: str,
        message: bytes,
        mask: Mask,
        untrusted: str = "",
        upstream: str = "",
    ) -> bool:
        """Keep the turns behind an answer for when the client sends the answer back.

        Returns whether the record has something to be found, as the next two do.
        """
        if not visible or not request.keeps:
            return False
        payload = _marked(editor.suspend(message, (), mask), untrusted=untrusted)
        self._store.put_hidden(
            HiddenTurns(
                key=request.answer_key(caller, shape, visible),
                variant=hashlib.blake2b(payload, digest_size=16).hexdigest(),
                run_id=run_id,
                caller=caller,
                wire=wire,
                payload=_marked(payload, upstream=upstream),
                created_at=self._now(),
            )
        )
        return True

    def keep(
        self,
        editor: BodyEditor,
        resource: Mapping[str, Any],
        *,
        run_id: str,
        caller: str,
        message: bytes,
        calls: Sequence[HeldTurn],
        mask: Mask,
        untrusted: str = "",
        upstream: str = "",
    ) -> bool:
        """Keep a response whose whole only we know, under the id the client was given."""
        if not isinstance(editor, ChainedEditor) or not isinstance(resource.get("id"), str):
            return False
        self._store.put_response(
            ResponseRecord(
                id=resource["id"],
                run_id=run_id,
                caller=caller,
                response=orjson.dumps(resource),
                input_items=editor.input_items(),
                continuation=_marked(
                    editor.continuation(message, calls, mask), untrusted=untrusted, upstream=upstream
                ),
                created_at=self._now(),
            )
        )
        return True

    async def hold(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        visible: str,
        *,
        run_id: str,
        caller: str,
        wire: str,
        message: bytes,
        calls: Sequence[HeldTurn],
        shown: Sequence[ToolCall],
        mask: Mask,
        untrusted: str = "",
        upstream: str = "",
    ) -> bool:
        """Hold a turn until the client returns with the results of its own calls, which are ``shown``.

        Upstreams use ids again, so another turn may be held under the same key.  The newer one takes its
        place: who returns the older shows other calls, and gets nothing put back.  Of two with the same
        calls nobody can say which one a client returns, and neither is put back (rule R4); text beside
        calls may be left out, so it does not tell them apart.  Raises :class:`~proxy.errors.StoreError`
        where nobody can say whether there is another.
        """
        ids = [call.client_id for call in calls if call.client_id is not None]
        key = request.conversation_key(caller, ids)
        payload = editor.suspend(message, calls, mask)
        seen, asked = _digest(visible), _digest_of_calls(shown) if request.returns_calls else ""
        variant = hashlib.blake2b(payload + seen.encode(), digest_size=16).hexdigest()
        if not await self._is_only(key, asked, variant):
            variant = _AMBIGUOUS
        marked = _marked(
            payload, seen=seen, asked=asked, variant=variant, untrusted=untrusted, upstream=upstream
        )
        self._store.put_suspended(
            SuspendedTurn(
                key=key,
                run_id=run_id,
                caller=caller,
                wire=wire,
                payload=marked,
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


def _put_back(request: ClientRequest, editor: BodyEditor, found: _Found) -> Restored:
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
