"""Resolve references to items of the proxy's own responses, for upstreams that do not know these items."""

import asyncio
from collections.abc import Sequence

import orjson

from proxy.base.errors import RequestError
from proxy.records.rows import ResponseRecord, join_sources
from proxy.relay.body import Body
from proxy.relay.memory.local import LocalResponses
from proxy.store.base import Store
from proxy.wires.client_port import ClientRequest
from proxy.wires.wire import Wire

_MOST_RESPONSES = 256
_MOST_BEFORE = 16
"""How many responses of a chain are looked at for an image."""


class ItemReferences:
    """Finds items by their ids."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def resolve(
        self,
        wire: Wire,
        request: ClientRequest,
        body: Body,
        caller: str,
        local: LocalResponses | None = None,
    ) -> tuple[Body, str]:
        """Return the body with the items that the request refers to, and what the model had read by then.

        The latter are the sources of untrusted results, empty for none. ``local`` are
        responses that only the client's connection knows. A reference stays unchanged if no response of
        this caller has the item. Raise :class:`~proxy.base.errors.StoreError` if the record does not answer.
        """
        named = wire.referred(request)
        wanted = list(dict.fromkeys(filter(None, named.values())))
        # At once, so that the record answers them together.
        found = await asyncio.gather(*(self._find(one, caller, local) for one in wanted[:_MOST_RESPONSES]))
        records = [record for record in found if record is not None]
        written = wire.with_items(body.raw, request, [record.response for record in records])
        return Body(written, orjson.loads(written)), _untrusted(records)

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

    async def _find(
        self, response_id: str, caller: str, local: LocalResponses | None
    ) -> ResponseRecord | None:
        record = local.find(response_id, caller) if local is not None else None
        return record or await self._store.find_response(response_id, caller)


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
