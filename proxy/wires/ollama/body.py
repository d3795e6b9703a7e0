"""Ollama's chat: edits the request body for the upstream, turn after turn.

The client's values keep their bytes: only members that must change are written anew.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from proxy.events import ResultImage, ToolCall, ToolDefinition
from proxy.records import MessageRecord
from proxy.wires.json.splice import join_object, members
from proxy.wires.ollama.calls import calls_of, role_of
from proxy.wires.ollama.held import collect_results, masked_turn, rows_of
from proxy.wires.ollama.request import OllamaRequest, declared_name
from proxy.wires.ollama.results import image_bytes, inline_data, result_message, without_images
from proxy.wires.turn.message_list import MessageListBody, tokens_left
from proxy.wires.turn.narrowed import without_tools
from proxy.wires.turn.refused_fields import RefusedFields
from proxy.wires.turn.restored import RestoredMessages, drop_unneeded, is_too_long_error
from proxy.wires.turn.result_images import ImageBudget, choose_images
from proxy.wires.upstream_port import Mask

__all__ = ["OllamaBody"]

_MOST_IMAGE_BYTES: Final = 20 << 20
"""The size limit for our images in one request, in base64."""
_FIELDS: Final = frozenset(
    {"role", "content", "tool_calls", "function", "name", "arguments", "tool_name", "tool_call_id", "images"}
)
"""Fields without which a message would mean something else."""


class OllamaBody(MessageListBody):
    """The body of one run's upstream requests."""

    def __init__(self, raw: bytes, request: OllamaRequest) -> None:
        super().__init__(raw, request.members, RefusedFields("messages", _FIELDS, _is_assistant))
        # WIRE: the grammar of `format` applies from the first token on, so the model cannot call a tool.
        self._calls_nothing = request.wants_json
        self._without_tools = False
        self._images = ImageBudget(_MOST_IMAGE_BYTES)

    def _definition(self, definition: ToolDefinition) -> bytes:
        written = definition.written.get("ollama")
        if written is None:
            function = {
                "name": definition.name,
                "description": definition.description,
                "parameters": definition.parameters,
            }
            written = definition.written["ollama"] = orjson.dumps({"type": "function", "function": function})
        return written

    def _declared_name(self, tool: Any) -> str | None:
        return declared_name(tool)

    def _masked_turn(self, raw: bytes, mask: Mask) -> bytes:
        return masked_turn(raw, mask)

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        """Add tools, unless the client sets a ``format``: the model could not call them."""
        if not self._calls_nothing:
            super().offer(added, replaced)

    def ask_usage(self) -> None:
        """Do nothing: every answer has its usage."""

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        """Put a held turn back, with the client's results in order among ours."""
        held = orjson.loads(payload)
        restored = [part.encode() for part in held["messages"]]
        end = position + 1
        if held["calls"]:
            made = calls_of(orjson.loads(held["messages"][-1]))
            end, results = collect_results(self._messages, end, held["calls"], made)
            restored += results
        if (size := sum(map(image_bytes, restored))) and not self._images.take(size):
            restored = list(map(without_images, restored))
        self._restored[position] = RestoredMessages.replacing(
            self._messages, position, end, restored, needed=needed
        )

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """Encode one result, with its images in ``data:`` URLs as far as the request has room for them."""
        text, passed = choose_images(content, images, self._fits)
        return result_message(call, text, tuple(passed))

    def _fits(self, image: ResultImage) -> bool:
        return not self._images.closed and bool(inline_data(image.url)) and self._images.take(len(image.url))

    def leave_out_images(self) -> None:
        self._images.closed = True

    @property
    def images_refused(self) -> bool:
        return self._images.refused

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """Do nothing: this dialect cannot force a call."""

    def forbid_tools(self) -> bool:
        """Leave out all tools, also the client's: this dialect has no other way to prevent calls."""
        self._without_tools = True
        return False

    def recover(self, message: str, code: str | None) -> bool:
        """Leave out what the upstream refuses.

        It may be: hidden turns that make the conversation too long, our images, or fields in the model's
        messages.
        """
        if is_too_long_error(message, code):
            return drop_unneeded(self._restored)
        if not self._may_learn():
            return False
        if self._refused.learn(message, self._whole(), self._theirs):
            return True
        if not self._images.closed and any(map(image_bytes, self._ours())):
            self._images.refuse(message, code)
            return True
        return False

    def render(self) -> bytes:
        if not self._without_tools and (whole := self._uncut()) is not None:
            return whole
        parts = without_tools(
            self._members, self._withheld, declared_name, tools="tools", choice="", only_with_tools=()
        )
        if self._without_tools:
            parts.pop("tools", None)
        self._put_messages(parts)
        if self._used_tokens and "options" in parts:
            parts["options"] = self._with_tokens_left(parts["options"])
        return join_object(parts)

    def _stripped(self, messages: Sequence[bytes], theirs: Sequence[bytes] = ()) -> Sequence[bytes]:
        kept = super()._stripped(messages, theirs)
        if not self._images.closed:
            return kept
        sent = set(map(id, theirs))
        return [raw if id(raw) in sent else without_images(raw) for raw in kept]

    def _with_tokens_left(self, raw: bytes) -> bytes:
        """Return the client's options, with its token limit minus what earlier turns used."""
        options = members(raw) if raw[:1] == b"{" else {}
        bound = orjson.loads(options.get("num_predict", b"null"))
        if type(bound) is not int or bound <= 0:
            return raw
        return join_object({**options, "num_predict": tokens_left(bound, self._used_tokens)})

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        rows: list[MessageRecord] = []
        turn = 0
        for raw in self._added:
            message = orjson.loads(without_images(self._shown(raw, mask)))
            turn += role_of(message) == "assistant"
            rows.append(replace(rows_of(run_id, turn, message), seq=len(rows)))
        return rows


def _is_assistant(message: Mapping[str, Any]) -> bool:
    return role_of(message) == "assistant"
