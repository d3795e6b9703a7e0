"""Finds habits of a server in a Responses stream, for a person who wants to know them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.wires.responses.reader import OPENING

__all__ = ["stream_quirks"]


def stream_quirks(payloads: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the quirks in the events of one whole stream; none if it is like OpenAI's."""
    return frozenset(_found(payloads))


def _found(payloads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for payload in payloads:
        if type(payload.get("sequence_number")) is not int:
            yield "unnumbered"
        if ("item" in payload or "item_id" in payload) and type(payload.get("output_index")) is not int:
            yield "no_output_index"
        response = payload.get("response")
        if payload.get("type") in OPENING and isinstance(response, dict) and "model" not in response:
            yield "bare_opening"
