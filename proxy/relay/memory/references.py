"""Resolve references to items of the proxy's own responses, for upstreams that do not know these items."""

import asyncio
from collections.abc import Sequence

import orjson

from proxy.base.errors import RequestError
from proxy.records.rows import ResponseRecord, join_sources
from proxy.relay.body import Body
from proxy.relay.memory.hidden.parts import responses_of
from proxy.relay.memory.local import LocalResponses
from proxy.store.base import Store
from proxy.wires.wire import Wire

_MOST_RESPONSES = 256
_AT_ONCE = 16
MOST_RESPONSE_BYTES = 128 << 20
"""Bytes of all responses that are read for the items that a request names."""
_MOST_BEFORE = 16
"""How many responses of a chain are looked at for an image."""


class ItemReferences:
    """Finds items by their ids."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def resolve(
        self, wire: Wire, body: Body, caller: str, local: LocalResponses | None = None, *, only_ours: bool
    ) -> tuple[Body, str]:
        """Return a request's body with the items that it refers to, and what the model had read by then.

        The latter are the sources of untrusted results, empty for none. ``local`` are responses that only the
        client's connection knows. With ``only_ours`` the upstream knows
        all items but those of answers that show calls of the provider's tools. Raise
        :class:`~proxy.base.errors.RequestError` for an item that nobody knows, and (413) if the responses
        have too many bytes, and :class:`~proxy.base.errors.StoreError` if the record does not answer.
        """
        if not wire.may_refer(body.raw, only_ours=only_ours):
            return body, ""
        named = wire.referred(request := wire.parse(body.payload))
        if not named:
            return body, ""
        unsaid = [item for item, response in named.items() if only_ours or not response][:_MOST_RESPONSES]
        shown = await responses_of(self._store, request, caller, unsaid)
        known = [] if local is None else [local.holding(one, caller) for one in unsaid if one not in shown]
        wanted = list(dict.fromkeys(filter(None, [*named.values(), *shown.values(), *known])))
        records = await self._find_all(wanted[:_MOST_RESPONSES], caller, local)
        written = wire.with_items(body.raw, request, [record.response for record in records])
        whole = Body(written, orjson.loads(written))
        if not only_ours and (unknown := wire.parse(whole.payload).references):
            raise item_not_found(unknown[0])
        return whole, _untrusted(records)

    async def images_before(
        self, wire: Wire, response_id: str, caller: str, local: LocalResponses | None = None
    ) -> Sequence[Sequence[str]]:
        """Return the images that the newest response with any has made, as URLs: this one, or one before it.

        Raise :class:`~proxy.base.errors.StoreError` if the record does not answer.
        """
        wanted: object = response_id
        for _ in range(_MOST_BEFORE):
            record = await self._find(wanted, caller, local) if isinstance(wanted, str) else None
            if record is None:
                break
            response = orjson.loads(record.response)
            if found := wire.shown_images({"input": response.get("output")}):
                return found
            wanted = response.get(wire.dialect.fields.continues)
        return ()

    async def _find_all(
        self, wanted: Sequence[str], caller: str, local: LocalResponses | None
    ) -> list[ResponseRecord]:
        """Return those of the wanted responses that exist."""
        records: list[ResponseRecord] = []
        for at in range(0, len(wanted), _AT_ONCE):
            # At once, so that the record answers them together.
            found = (self._find(one, caller, local) for one in wanted[at : at + _AT_ONCE])
            records += [record for record in await asyncio.gather(*found) if record is not None]
            if sum(len(record.response) for record in records) > MOST_RESPONSE_BYTES:
                raise _too_large()
        return records

    async def _find(
        self, response_id: str, caller: str, local: LocalResponses | None
    ) -> ResponseRecord | None:
        record = local.find(response_id, caller) if local is not None else None
        return record or await self._store.find_response(response_id, caller)


def _too_large() -> RequestError:
    return RequestError(
        413,
        f"The stored responses whose items input names have more than {MOST_RESPONSE_BYTES} bytes together. "
        "Name items of fewer responses, or send the items themselves.",
        param="input",
        code="request_too_large",
    )


def item_not_found(item_id: str) -> RequestError:
    """Return the error for an item that the proxy does not know."""
    return RequestError(
        404,
        f"Item with id {item_id[:100]!r} not found. Send the item itself. The proxy finds an item by its id "
        "only if it belongs to a stored response of its own.",
        param="input",
        code="item_not_found",
    )


def _untrusted(records: list[ResponseRecord]) -> str:
    marks = (orjson.loads(record.continuation).get("untrusted") for record in records)
    return join_sources(*(str(mark) for mark in marks if mark))
