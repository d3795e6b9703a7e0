"""An item of the client's stream that has begun and has not ended.

A stream may break in the middle of an item, and some gateways never end one. Clients act only on
``output_item.done``, and some treat an item without it as an error. So this module keeps the item's
content.
"""

from collections.abc import Mapping
from typing import Any

from proxy.wires.responses.items import text_part

__all__ = ["OpenItem"]

_PARTS = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
}
_CONTENT_EVENTS = tuple(
    f"response.{kind}." for kind in ("content_part", "output_text", "refusal", "reasoning_text")
)
_FIELDS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
}


class OpenItem:
    """An item as it opened. ``index`` and ``item_id`` are its place in the client's stream."""

    def __init__(self, index: int, item_id: str, item: Mapping[str, Any]) -> None:
        self.index = index
        self.item_id = item_id
        self.item = item
        self._content_parts = 0
        self._summary_parts = 0
        self._texts: dict[tuple[str, int], list[str]] = {}

    def complete(self, payload: dict[str, Any]) -> None:
        """Add the indices and lists that clients need to an event of this item."""
        kind = str(payload.get("type"))
        if kind == "response.content_part.added":
            self._content_parts += 1
        elif kind == "response.reasoning_summary_part.added":
            self._summary_parts += 1
        if kind.startswith(_CONTENT_EVENTS):
            payload.setdefault("content_index", max(0, self._content_parts - 1))
        elif kind.startswith("response.reasoning_summary_"):
            payload.setdefault("summary_index", max(0, self._summary_parts - 1))
        if kind in ("response.output_text.delta", "response.output_text.done"):
            payload.setdefault("logprobs", [])
        if "item" not in payload:
            payload["item_id"] = self.item_id

    def unopened(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the event that must precede an item's first text if the upstream opened no part for it.

        llama-server opens none for its reasoning text, and openai-node throws for it.
        """
        kind = _PARTS.get(str(payload.get("type")))
        if kind is None or self._content_parts:
            return None
        return {"type": "response.content_part.added", "part": _part(kind, "")}

    def take(self, payload: Mapping[str, Any]) -> None:
        """Record what an event adds to the item."""
        kind, delta = str(payload.get("type")), payload.get("delta")
        place = payload.get("content_index", payload.get("summary_index", 0))
        if isinstance(delta, str) and type(place) is int:
            self._texts.setdefault((kind, place), []).append(delta)

    def so_far(self) -> dict[str, Any]:
        """Return the item with its content so far, ``incomplete`` if items of its type have a status."""
        item = {**self.item, "id": self.item_id}
        content = []
        for (kind, _), pieces in sorted(self._texts.items(), key=lambda entry: entry[0][1]):
            text = "".join(pieces)
            if kind in _FIELDS:
                item[_FIELDS[kind]] = text
            elif kind == "response.reasoning_summary_text.delta":
                item["summary"] = [*(item.get("summary") or ()), {"type": "summary_text", "text": text}]
            elif kind in _PARTS:
                content.append(_part(_PARTS[kind], text))
        if content:
            item["content"] = content
        if "status" in item or item.get("type") != "reasoning":
            item["status"] = "incomplete"
        return item


def _part(kind: str, text: str) -> dict[str, Any]:
    match kind:
        case "output_text":
            return text_part(text)
        case "refusal":
            return {"type": kind, "refusal": text}
        case _:
            return {"type": kind, "text": text}
