"""Responses that only one connection remembers, because the client does not want them on record.

On the WebSocket of the Responses API a client continues a response with ``store: false`` by its id, as long
as the connection is open. Sources: OpenAI's guide "WebSocket mode"; Open Responses, "WebSocket transport".
"""

from collections import OrderedDict
from typing import Final

import orjson

from proxy.base.caches import CacheSize, declare
from proxy.records.rows import ResponseRecord

_MOST: Final = 8
_MAX_BYTES: Final = 8 * 2**20


class LocalResponses:
    """The newest responses of a connection, limited in number and bytes.

    A response larger than the whole limit is not kept. If the client continues it, the client gets an error
    that it is unknown, and sends the whole conversation.
    """

    def __init__(self, most: int = _MOST, max_bytes: int = _MAX_BYTES) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, ResponseRecord] = OrderedDict()
        self._bytes = 0
        declare("websocket_responses", self._cache_size)

    def find(self, response_id: str, caller: str) -> ResponseRecord | None:
        """Return a response of this caller; ``None`` if it is not here."""
        kept = self._kept.get(response_id)
        return kept if kept is not None and kept.caller == caller else None

    def holding(self, item_id: str, caller: str) -> str:
        """Return the id of this caller's response with such an item; empty if it is not here."""
        likely = (
            one for one in self._kept.values() if one.caller == caller and item_id.encode() in one.response
        )
        for record in likely:
            output = orjson.loads(record.response).get("output")
            if any(item.get("id") == item_id for item in output or ()):
                return record.id
        return ""

    def put(self, record: ResponseRecord) -> None:
        """Keep a response, and drop the oldest ones if there is no room."""
        self.forget(record.id)
        if _size(record) > self._max_bytes:
            return
        self._kept[record.id] = record
        self._bytes += _size(record)
        while len(self._kept) > self._most or self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)

    def forget(self, response_id: str) -> None:
        """Drop a response; do nothing if it is not here."""
        if (record := self._kept.pop(response_id, None)) is not None:
            self._bytes -= _size(record)

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, self._max_bytes)


def _size(record: ResponseRecord) -> int:
    return len(record.response) + len(record.input_items) + len(record.continuation)
