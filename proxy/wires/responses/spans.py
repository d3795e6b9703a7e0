"""Finds the items of a Responses conversation that form one answer of a model."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proxy.records.approvals import is_mention
from proxy.wires.responses.items import is_model_item, item_text

__all__ = ["answer_length", "answer_spans"]

Item = Mapping[str, Any]


def answer_spans(items: Iterable[Item]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each answer of a model: its items up to the client's next one.

    An answer also ends after questions about calls that wait for approval. The client's items with the
    decisions were removed from the conversation, so the status of the next question marks the border.
    """
    start: int | None = None
    asked, length = False, 0
    for position, item in enumerate(items):
        of_model = is_model_item(item)
        asks = of_model and _is_question(item)
        if start is not None and (not of_model or (asked and (not asks or "status" in item))):
            yield start, position
            start = None
        if of_model and start is None:
            start = position
        asked, length = asks, position + 1
    if start is not None:
        yield start, length


def answer_length(items: Iterable[Item]) -> int:
    """Return how many of the first items form one answer; 0 if the first is the client's."""
    start, end = next(answer_spans(items), (0, 0))
    return 0 if start else end


def _is_question(item: Item) -> bool:
    """Return whether an item stands for a question that the proxy asked the client."""
    return item.get("type") == "message" and item.get("role") == "assistant" and is_mention(item_text(item))
