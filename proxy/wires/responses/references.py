"""Replaces items that a request names by their ids."""

from collections.abc import Sequence

import orjson

from proxy.json.splice import elements, join_array, replace_values, value_at
from proxy.wires.responses.items import is_reference
from proxy.wires.responses.request import ResponsesRequest

__all__ = ["with_items"]


def with_items(raw: bytes, request: ResponsesRequest, responses: Sequence[bytes]) -> bytes:
    """Return the body of a request with output items of these responses in place of references to them.

    All else keeps its bytes.
    """
    given = value_at(raw, "input")
    if given is None or given[:1] != b"[":
        return raw
    known = {
        str(item.get("id")): item
        for response in responses
        for item in orjson.loads(response).get("output") or ()
        if isinstance(item, dict)
    }
    items = [
        orjson.dumps(known[str(item.get("id"))])
        if is_reference(item) and str(item.get("id")) in known
        else kept
        for item, kept in zip(request.items, elements(given), strict=True)
    ]
    return replace_values(raw, {"input": join_array(items)})
