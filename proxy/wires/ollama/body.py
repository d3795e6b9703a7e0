"""Ollama's chat: edits the request body for the upstream, turn after turn.

The client's values keep their bytes: only members that must change are written anew.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.json.splice import join_object, members
from proxy.wires.message_list.body import MessageListBody
from proxy.wires.ollama.held import (
    collect_results,
    image_bytes,
    inline_data,
    masked_turn,
    result_message,
    rows_of,
    without_images,
)
from proxy.wires.ollama.request import OllamaRequest, calls_of, declared_name
from proxy.wires.turn.edits import Edits, tokens_left
from proxy.wires.upstream_port import Mask


class OllamaBody(MessageListBody):
    """The body of one run's upstream requests."""

    _MOST_IMAGE_BYTES = 20 << 20
    _NEEDED_FIELDS = frozenset(
        {
            *("role", "content", "tool_calls", "function", "name", "arguments"),
            *("tool_name", "tool_call_id", "images"),
        }
    )

    _declared_name = staticmethod(declared_name)
    _rows = staticmethod(rows_of)
    _masked_turn = staticmethod(masked_turn)
    _image_bytes = staticmethod(image_bytes)
    _without_images = staticmethod(without_images)

    def __init__(self, raw: bytes, request: OllamaRequest, *, translated: bool = False) -> None:
        super().__init__(raw, request, translated=translated)
        # WIRE: the grammar of `format` applies from the first token on, so the model cannot call a tool.
        self._calls_nothing = request.wants_json

    def _tool(self, definition: ToolDefinition) -> bytes:
        function = {
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.parameters,
        }
        return orjson.dumps({"type": "function", "function": function})

    def _changed(self, edits: Edits) -> dict[str, bytes]:
        """Add no tools if the client sets a ``format``: the model could not call them."""
        return super()._changed(replace(edits, added=(), replaced=()) if self._calls_nothing else edits)

    def tools_named(self, edits: Edits, message: str) -> frozenset[str]:
        return frozenset() if self._calls_nothing else super().tools_named(edits, message)

    def _collect_results(self, start: int, held: Mapping[str, Any]) -> tuple[int, list[bytes]]:
        if not held["calls"]:
            return start, []
        made = calls_of(orjson.loads(held["messages"][-1]))
        return collect_results(self._messages, start, held["calls"], made)

    def _result(self, call: ToolCall, text: str, images: Sequence[ResultImage]) -> bytes:
        return result_message(call, text, tuple(images))

    def _fits(self, image: ResultImage) -> bool:
        """Servers of this dialect fetch no images, so only images in ``data:`` URLs may be sent."""
        return bool(inline_data(image.url)) and super()._fits(image)

    def _limit_tokens(self, parts: dict[str, bytes], used: int) -> None:
        if "options" in parts:
            parts["options"] = _with_tokens_left(parts["options"], used)

    def _recorded(self, raw: bytes, mask: Mask) -> bytes:
        return without_images(self._shown(raw, mask))


def _with_tokens_left(raw: bytes, used: int) -> bytes:
    """Return the client's options, with its token limit minus what earlier turns used."""
    options = members(raw) if raw[:1] == b"{" else {}
    bound = orjson.loads(options.get("num_predict", b"null"))
    if type(bound) is not int or bound <= 0:
        return raw
    return join_object({**options, "num_predict": tokens_left(bound, used)})
