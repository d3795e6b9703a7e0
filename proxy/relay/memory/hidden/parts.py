"""Finds what is behind the parts that showed calls of the provider's tools, by their signed ids.

A client sends such parts back with its conversation, or names them alone. Each id was made for one call of
one caller, so nothing else about the conversation need be the same: it may go on with another model or other
tools, or have lost its beginning. The words of the answer must be the same, since the client may edit them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.records.rows import HiddenTurns
from proxy.relay.memory.hidden.shown import digest_of
from proxy.relay.memory.hidden.turns import LastTurn
from proxy.store.base import Store
from proxy.wires.client_port import Answer, ClientRequest
from proxy.wires.turn.digest import conversation_digests, encoded

_TURNS: Final = "part"
_RESPONSE: Final = "part of a response"
"""The variants of rows that lead from a part to the turns behind its answer, and to its response."""
_MOST_ITEMS: Final = 64


def leading_to_turns(
    request: ClientRequest, turn: LastTurn, visible: str, to: tuple[str, str], now: float
) -> list[HiddenTurns]:
    """Return the row that leads from the last part of an answer to the key and the variant of its turns."""
    return _rows(request, turn, turn.part_ids[-1:], _TURNS, {"to": to, "seen": digest_of(visible)}, now)


def leading_to_response(
    request: ClientRequest, turn: LastTurn, response: Mapping[str, Any], now: float
) -> list[HiddenTurns]:
    """Return the rows that lead from the items of a stored response to it.

    An upstream that stores its own responses does not know these items: some show calls, and the proxy may
    have written others.
    """
    ids = [str(item.get("id")) for item in response["output"][:_MOST_ITEMS]]
    return _rows(request, turn, ids, _RESPONSE, {"to": response["id"]}, now)


async def find_by_parts(
    store: Store,
    request: ClientRequest,
    caller: str,
    answers: Sequence[Answer],
    parts: Mapping[int, Sequence[str]],
) -> Mapping[int, HiddenTurns]:
    """Return the turns behind answers by their positions.

    ``parts`` are the verified ids of the parts in each answer. One that stands in several places counts in
    the last of them. Raise :class:`~proxy.base.errors.StoreError`.
    """
    shown = {parts[one.position][-1]: one for one in answers if parts.get(one.position)}
    wanted = {
        shown[part_id].position: tuple(to["to"])
        for part_id, to in (await _led(store, request, caller, list(shown), _TURNS)).items()
        if to["seen"] == digest_of(shown[part_id].text)
    }
    if not wanted:
        return {}
    known = await store.find_hidden([key for key, _ in wanted.values()], caller)
    return {
        position: turns
        for position, (key, variant) in wanted.items()
        for turns in known[key]
        if (turns.variant, turns.caller) == (variant, caller)
    }


async def responses_of(
    store: Store, request: ClientRequest, caller: str, part_ids: Sequence[str]
) -> Mapping[str, str]:
    """Return the ids of the stored responses that have these items, by the items' ids.

    Raise :class:`~proxy.base.errors.StoreError`.
    """
    led = await _led(store, request, caller, part_ids, _RESPONSE)
    return {part_id: to["to"] for part_id, to in led.items()}


async def _led(
    store: Store, request: ClientRequest, caller: str, part_ids: Sequence[str], variant: str
) -> Mapping[str, Mapping[str, str]]:
    keys = dict(zip(part_ids, _keys(request, caller, part_ids), strict=True))
    known = await store.find_hidden(list(keys.values()), caller) if keys else {}
    return {
        part_id: orjson.loads(row.payload)
        for part_id, key in keys.items()
        for row in known[key]
        if (row.variant, row.caller) == (variant, caller)
    }


def _rows(
    request: ClientRequest,
    turn: LastTurn,
    ids: Sequence[str],
    variant: str,
    leads: Mapping[str, Any],
    now: float,
) -> list[HiddenTurns]:
    return [
        # With its key, so that no two rows have the same payload: the record keeps such rows as one.
        HiddenTurns(
            key, variant, turn.run_id, turn.caller, turn.wire, orjson.dumps({**leads, "key": key}), now
        )
        for key in _keys(request, turn.caller, ids)
    ]


def _keys(request: ClientRequest, caller: str, part_ids: Sequence[str]) -> list[str]:
    words = ("shown part", caller, request.people)
    return conversation_digests(words, [(encoded(one),) for one in part_ids]) if part_ids else []
