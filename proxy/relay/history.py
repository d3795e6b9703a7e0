"""Hidden turns put back: what the client does not hold, it cannot send back.

When a turn calls a server tool and a client tool, the client gets only its own call.  The rest is
held under a digest of the caller, the visible conversation and the exact set of the client's call
ids, and goes back in when the client returns.  Never by an id alone: upstreams reuse ids.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from proxy.records import ResponseRecord, SuspendedTurn
from proxy.store.base import Store
from proxy.wires.base import BodyEditor, ChainedEditor, ClientRequest, HeldTurn, Mask

__all__ = ["History"]

_MOST_LOOKUPS = 256


class History:
    """Holds and restores the hidden parts of conversations."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    async def restore(self, request: ClientRequest, editor: BodyEditor, caller: str) -> int:
        """Put back every held turn that fits; how many were.

        Reading does not consume: a client may ask again from the same place.
        """
        restored = moved = 0
        for returned in request.returned_calls()[-_MOST_LOOKUPS:]:
            key = request.conversation_key(caller, returned.call_ids, upto=returned.position)
            held = await self._store.find_suspended(key)
            if held is not None and held.caller == caller:
                moved += editor.restore(returned.position + moved, held.payload)
                restored += 1
        # Last, since it puts its items before the client's, whose places would move.
        return restored + await self._resume(request, editor, caller)

    async def _resume(self, request: ClientRequest, editor: BodyEditor, caller: str) -> int:
        """Go on from a response of ours; 1 if the request names one of this caller's."""
        if request.continues is None or not isinstance(editor, ChainedEditor):
            return 0
        record = await self._store.find_response(request.continues, caller)
        if record is None:
            return 0
        editor.resume(record.continuation)
        return 1

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
    ) -> None:
        """Keep a response whose whole only we know, under the id the client was given."""
        if isinstance(editor, ChainedEditor) and isinstance(resource.get("id"), str):
            self._store.put_response(
                ResponseRecord(
                    id=resource["id"],
                    run_id=run_id,
                    caller=caller,
                    response=orjson.dumps(resource),
                    input_items=editor.input_items(),
                    continuation=editor.continuation(message, calls, mask),
                    created_at=self._now(),
                )
            )

    def hold(
        self,
        request: ClientRequest,
        editor: BodyEditor,
        *,
        run_id: str,
        caller: str,
        wire: str,
        message: bytes,
        calls: Sequence[HeldTurn],
        mask: Mask,
    ) -> None:
        """Hold a turn until the client returns with the results of its own calls."""
        ids = [call.client_id for call in calls if call.client_id is not None]
        self._store.put_suspended(
            SuspendedTurn(
                key=request.conversation_key(caller, ids),
                run_id=run_id,
                caller=caller,
                wire=wire,
                payload=editor.suspend(message, calls, mask),
                created_at=self._now(),
                ephemeral=not request.keeps,
            )
        )
